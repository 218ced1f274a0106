r"""Final answers of mathematics: found in the response, written in one way, compared as exact numbers where they are.

The reference is the gold answer as the dataset writes it: GSM8K's solution with `#### 72`, a solution with \boxed, or
the bare answer in LaTeX. Two answers are the same if their normal forms are (see `latex`).
"""

from __future__ import annotations

import re
from typing import Any

from .latex import closing, is_number, normalise

MOST_BOXES = 10
"""How many to look into from the end; a text that has gone astray may open thousands."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s${}\\]+)")
_HASHED = re.compile(r"^[ \t]*####[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_STATED = re.compile(
    r"\banswer\b(?:\s+(?:to|for|of)\b[^.\n:=]{0,100}?)?\s*(?:\bis\b|\bwas\b|\bare\b|\bwould be\b|[:=])\s*:?\s*(?=\S)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<!\\)[.!?;](?=[\"\u201d]?(?:\s|$))(?!\s*=)")
_COMMANDS = re.compile(
    r"(?:\\[(\[]|\$+)? ?(?:\\(?:(?:boxed|fbox|[dt]?frac|sqrt|text[a-z]*|math[a-z]*|left|begin)[^\w\n\\]*)?)+"
)
CUT_OFF = r"\boxed"
"""What is found where a statement was cut off before there was more of it than commands."""
_PUNCTUATION = r"[\x00-/:-@\[-`{-\x7f]*"
_DISPLAYED = re.compile(r"(?:\$\$|\\\[)(.*?)(?:\$\$|\\\]|\Z)", re.DOTALL)
_OPENED_BOX = re.compile(r"\\(?:boxed|fbox)\b\s*\{?")
_NO_PROSE = re.compile(r"\\(?:begin|end|text\w*|math\w*|operatorname)\s*\{[^{}]*\}")
_REASON = re.compile(r"\b(?:because|since|as|so|where|which)\b", re.IGNORECASE)
_LETTER_UNIT = re.compile(r"(?<=\d)\s+(?:[mglLsh]|km/h|m/s)$")
"""In prose only: in a formula such a letter is a variable."""
_NUMBER = re.compile(
    r"(?<![\w.)\]])(?:[-\u2212\u2013]?[$€£¥]?[-\u2212\u2013]?)"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:\s?/\s?\d+(?![\d.]\d))?"
)
_WORD = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or|sin|cos|tan|log|ln|sqrt|pi)\b)[A-Za-z]{2,}")


def outcome(response: str, reference: Any = None) -> str | None:
    r"""The normal form of the response's final answer; None if it has none.

    The last \boxed, else a line `#### n`, else the last [answer] tag, else the last "the answer is", else the last
    number; but none where the text was cut off as it began to state one.
    """
    text = response.replace("**", "").replace("\\[answer\\]", "[answer]")
    for find in (_boxed, _hashed, _tagged, _stated, _last):
        candidate = find(text)
        if candidate == CUT_OFF:
            return None
        found = normalise(candidate) if candidate is not None else ""
        if not re.fullmatch(_PUNCTUATION, found):
            return found
    return None


def same(a: str, b: str) -> bool:
    """Whether two normal forms are the same answer."""
    return a == b


def correct(found: str | None, reference: str | int | float) -> bool:
    """Whether an outcome is the gold answer."""
    return found is not None and same(found, gold(reference))


def gold(reference: str | int | float) -> str:
    """The normal form of a gold answer in its dataset's own form."""
    text = str(reference)
    hashed = text.rpartition("####")[2] if "####" in text else None
    boxed = _boxed(text) if hashed is None else None
    found = normalise(hashed if hashed is not None else boxed if boxed is not None else text)
    if not found:
        raise ValueError(f"A math reference is {text[-80:]!r}; expected an answer, '#### answer' or \\boxed{{answer}}.")
    return found


def _boxed(text: str) -> str | None:
    """What is in the last box that is closed and not empty."""
    for match in list(_BOX.finditer(text))[: -MOST_BOXES - 1 : -1]:
        if match[1] != "{":
            return match[1].rstrip(".,")
        end = closing(text, match.start(1))
        inside = text[match.end() : end] if end is not None else ""
        if inside.strip():
            return inside
    return None


def _hashed(text: str) -> str | None:
    """The last `#### number`; headings of that level look alike, but are no numbers."""
    for line in reversed(_HASHED.findall(text)):
        if is_number(line):
            return line
    return None


def _tagged(text: str) -> str | None:
    """What stands in the last pair of tags."""
    lower = text.lower()
    for opening, end in (("[answer]", "[/answer]"), ("<answer>", "</answer>")):
        stop = lower.rfind(end)
        start = lower.rfind(opening, 0, max(stop, 0))
        if start >= 0 and text[start + len(opening) : stop].strip():
            return _from_prose(text[start + len(opening) : stop].strip())
    return None


def _stated(text: str) -> str | None:
    """The rest of the sentence behind the last "the answer is"."""
    found = list(_STATED.finditer(text))
    if not found:
        return None
    behind = text[found[-1].end() :].rstrip()
    if _COMMANDS.fullmatch(behind):
        return CUT_OFF
    behind = _OPENED_BOX.sub("", behind)  # whole boxes are looked for first, so this one was cut off
    displayed = _DISPLAYED.match(behind)
    if displayed:
        return _from_prose(displayed[1].strip())
    line = behind.split("\n", 1)[0]
    end = _SENTENCE_END.search(line)
    return _from_prose(line[: end.start()] if end else line)


def _from_prose(phrase: str) -> str | None:
    """The answer in a phrase: all of it if it is a formula, its number if it is a sentence; of a sum, what it makes."""
    phrase = _LETTER_UNIT.sub("", phrase)
    if is_number(phrase) or len(_WORD.findall(_NO_PROSE.sub("", phrase))) < 2:
        return phrase
    _, equals, total = _REASON.split(phrase, maxsplit=1)[0].rpartition("=")
    if equals and _NUMBER.search(total):
        phrase = total.strip()
    numbers = _NUMBER.findall(phrase)
    if not numbers:
        return phrase
    return numbers[0] if _NUMBER.match(phrase) else numbers[-1]


def _last(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None
