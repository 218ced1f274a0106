"""Multiple choice: the outcome is the letter that a response settles on.

The reference is the right letter or its index, or {"answer": either, "options": how many there are}. `outcome` needs
none; where it knows how many options there are, letters beyond them are no outcomes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

LETTERS = "ABCDEFGHIJ"
_LETTER = r"(?:\\?[(\[{<]|[\"'\u2018\u201c])?\s*([A-Ja-j])(?![A-Za-z0-9])"
_NOUN = r"(?:(?:the|an?)\s+)?(?:(?:correct|right|best|final)\s+)?(?:option|choice|letter|answer)?\s*:?\s*"
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathsf)\s*\{([^{}]*)\}")
_FORMULA = re.compile(r"\\\((?!\s*\(?[A-J]\)?\s*\\\)).*?(?:\\\)|\Z)|\\\[.*?(?:\\\]|\Z)", re.DOTALL)
"""A formula, closed or cut off; a choice may be written as one, but then it is a letter and no more."""
_MARKUP = re.compile(r"[*`$]|(?<!\w)_+|_+(?!\w)")

_BOXED = re.compile(rf"\\boxed\s*\{{\s*{_LETTER}")
_TAGGED = re.compile(rf"(?i:\[answer\]|<answer>)\s*{_NOUN}{_LETTER}")
_STATEMENTS = (
    # "the answer is (B)", "Answer: B", "the best choice for this would be B", "Final answer - option B"
    re.compile(
        rf"(?i:\b(?:answer|choice|option)\b(?:\s+(?:to|for|of|here|in)\b[^.\n]{{0,80}}?)?\s*"
        rf"(?:is|are|would be|should be|must be|will be|[:=]|-+>?|→)\s*:?\s*"
        rf"(?:(?:therefore|thus|clearly|indeed|then)\s*,?\s*)?{_NOUN}){_LETTER}"
    ),
    # "I would choose B", "so we go with option (B)"
    re.compile(rf"(?i:\b(?:choose|chose|pick|picked|select|selected|go with|going with)\s+{_NOUN}){_LETTER}"),
    # "B is the correct answer", "option B is right"
    re.compile(
        rf"{_LETTER}[)\]]?\s+(?i:is|seems|must be|would be)\s+(?i:(?:the|most)\s+)*(?i:correct|right|best|answer)\b"
    ),
)
_LONE_LINE = re.compile(rf"^[^\w\n]*{_LETTER}[^\w\n]*$", re.MULTILINE)
_LINE_START = re.compile(rf"^\s*{_LETTER}\s*[).:\]-](?!\s*(?:is|are|was|seems|cannot|does|would)\b)", re.MULTILINE)
_BOLD = re.compile(rf"\*\*\s*{_LETTER}\s*[).:\]]?\s*(?:\*\*|[^*\n]{{0,200}}\*\*)")
_BRACKETED = re.compile(r"\(\s*([A-Ja-j])\s*\)")
_ALONE = re.compile(r"(?<![A-Za-z0-9'\u2019-])([B-HJ]|[AI](?!\s+[a-z]))(?![A-Za-z0-9'\u2019-])")


def outcome(response: str, reference: Any = None) -> str | None:
    """The letter that the response states last, in the clearest form that it uses; None if it states none."""
    unwrapped = _WRAPPER.sub(r"\1", response)
    text, last = _MARKUP.sub("", unwrapped), _last_sentence(_MARKUP.sub("", _FORMULA.sub(" ", unwrapped)))
    letters = LETTERS[: reference["options"]] if isinstance(reference, Mapping) and "options" in reference else LETTERS
    starts = list(_stated(_LINE_START, text))
    # several lines that start with letters go through the options, one alone is an answer
    lone_start = (
        starts if len({letter for _, letter in starts}) == 1 and not text[: starts[0][0]].strip(" \n([") else []
    )
    for found in (
        list(_stated(_BOXED, text)),
        list(_stated(_TAGGED, text)),
        sorted(each for pattern in _STATEMENTS for each in _stated(pattern, text)),
        list(_stated(_LONE_LINE, text)),
        lone_start,
        list(_stated(_BOLD, unwrapped)),
        # any letter will do only where a conclusion stands: those further up are what is talked about
        list(_stated(_BRACKETED, last)),
        list(_stated(_ALONE, last)),
    ):
        known = [letter for _, letter in found if letter in letters]
        if known:
            return known[-1]
    return None


def same(a: str, b: str) -> bool:
    """Whether two letters are the same."""
    return a == b


def correct(found: str | None, reference: str | int | Mapping[str, Any]) -> bool:
    """Whether the letter is the reference's: a letter, or its index from 0."""
    if isinstance(reference, Mapping):
        reference = reference.get("answer", "")
    if isinstance(reference, int) and 0 <= reference < len(LETTERS):
        return found == LETTERS[reference]
    letter = str(reference).strip(" ().").upper()
    if len(letter) != 1 or letter not in LETTERS:
        raise ValueError(f"A choice reference is {reference!r}; expected a letter of {LETTERS} or its index.")
    return found == letter


def _last_sentence(text: str) -> str:
    """What stands behind the last end of a line or sentence."""
    line = text.strip().rpartition("\n")[2]
    return re.split(r"(?<=[.!?])\s+", line)[-1]


def _stated(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    """Where a pattern finds a letter that is no word of the language: no article "a", no pronoun "I"."""
    for match in pattern.finditer(text):
        at, letter = match.start(1), match[1]
        behind = text[at + 1 :]
        if (at and text[at - 1].isalnum()) or re.match(r"['\u2019][A-Za-z]", behind):  # "I'd"
            continue
        if letter.islower() and not re.match(r"['\"\u2019\u201d]?\s*(?:[).,;:!?\]}<\n]|$|\[/)", behind):
            continue
        if letter == "I" and re.match(r"\s+[a-z]", behind):
            continue
        yield at, letter.upper()
