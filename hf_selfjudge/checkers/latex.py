r"""One way of writing a mathematical answer, so that answers can be compared as text.

Numbers become exact fractions: 1/2, 0.5, .50, \frac12 and 50/100 are all "1/2". Currency, units, percent signs and
degrees are dropped, LaTeX is written plainly, spaces vanish, lists of answers are sorted. Nothing is evaluated: 2+3 is
not 5, and \sqrt{4} is not 2.
"""

from __future__ import annotations

import re
from fractions import Fraction

LONGEST_NUMBER = 200
"""Characters; a longer one is compared as text."""
LONGEST_ANSWER = 500
"""Characters; a longer one is no answer, so it is compared as it is."""

_WRAP = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|operatorname|rm)\s*"
_GAP = r"(?:\s|\\[,;:! ]|~)*"
_UNIT_TEXT = re.compile(rf"(?<=[\d}})]){_GAP}{_WRAP}\{{([^{{}}]*)\}}\s*(?:\^\s*\{{?\d\}}?)?\s*$")
_AROUND = re.compile(r'^[\s"`\u201c]+|(?:\\[,;:! ]?|[\s.,;:~"`\u201d])+$')
"""Quotes, spaces and full stops; no exclamation mark: 5! is a factorial."""
_WRAPPED = re.compile(rf"{_WRAP}\{{([^{{}}]*)\}}")
_SPACING = re.compile(
    r"(?<=,)\\!\s*|\\(?:[,;:! ]|quad\b|qquad\b|left\b|right\b|[bB]igg?[lr]?\b|displaystyle\b)|~|\\[()\[\]]|\$"
)
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°|\\degree\b")
_PERCENT = re.compile(r"\\?%|\bper\s?cent\b", re.IGNORECASE)
_NAMED = re.compile(r"^\s*\\?[A-Za-z][A-Za-z_ ]{0,30}(?:\(\s*\w\s*\))?\s*(?:=|\\in\b|\\approx\b)\s*(?=[^=]+$)")
_SUM = re.compile(r"^(?:[\d\s.,+\-*/()\u00d7÷$€£]|(?<=[\d\s])x(?=\s?[\d$€£]))+=\s*(?=[^=]+$)")
_ROUGHLY = re.compile(r"^\s*(?:(?:about|approximately|around|roughly|exactly)\b|\\approx\b|≈)\s*", re.IGNORECASE)
_NOT_UNITS = r"(?!(?:and|or|to|pi|sqrt|frac|sin|cos|tan|cot|sec|csc|log|exp|cdot|times|infty|if|for|when)\b)"
_SHORT_UNITS = r"(?:cm|mm|km|ft|kg|mg|lb|oz|ml|mL|hr|am|pm|min|sec|lbs|hrs|mins|mph)\b"
_POWER = r"(?:\s*\^\s*\{?\d\}?)?"
_UNITS = re.compile(
    rf"^(.*\d)(?:\s*{_SHORT_UNITS}|\s+{_NOT_UNITS}[A-Za-z]{{3,}}\.?){_POWER}"
    rf"(?:(?:\s*/\s*|\s+per\s+|\s+)(?:[A-Za-z]{{3,}}|{_SHORT_UNITS}){_POWER}){{0,3}}$"
)
_SUBSTITUTES = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "{,}": ",", "\u2212": "-", "\u2013": "-",
    "\\lbrace": "\x01", "\\rbrace": "\x02", "\\{": "\x01", "\\}": "\x02", "\\\\": ";", "&": ",",
    "\\cdot": "*", "\\times": "*", "\u00d7": "*", "·": "*", "\\div": "/", "÷": "/", "\\pm": "+-", "±": "+-",
    "\\leq": "<=", "\\le": "<=", "≤": "<=", "\\geq": ">=", "\\ge": ">=", "≥": ">=",
    "π": "\\pi ", "∞": "\\infty ", "√": "\\sqrt ", "\u222a": "\\cup ", "€": "", "£": "", "¥": "",
}  # fmt: skip
PRODUCT = r"\w*sqrt\([^()]*\)|[^-+/,;=]*"
"""A numerator that needs no brackets."""
FACTOR = r"[A-Za-z](?:_\w)?|\\[A-Za-z]+|sqrt\([^()]*\)|\d*\.\d+"
"""A denominator that needs none: what follows the fraction must not seem to be part of it."""
_SEPARATOR = re.compile(r"\s+(?:and|or)\s+")
_SCRIPT = re.compile(r"([_^])\{([^{}]*)\}")
_BRACKETS = {"(": ")", "[": "]", "\x01": "\x02", "{": "}"}


def normalise(text: str) -> str:
    """The normal form of an answer; empty if there is nothing in it."""
    if len(text) > LONGEST_ANSWER:
        return re.sub(r"\s+", "", text)
    text = _plain(text)
    number = _number(text)
    if number is not None:
        return str(number)
    parts = _split(_SEPARATOR.sub(",", text))
    if len(parts) > 1:  # several answers, such as roots: their order says nothing
        names = [_name(part) for part in parts]
        if len(set(names) - {""}) < 2:
            names = [""] * len(parts)  # x = 1 or x = -2: the name says nothing either
        return ",".join(sorted(name + normalise(part) for name, part in zip(names, parts, strict=True)))
    if text and text[0] in "([\x01" and text[-1] in ")]\x02" and closing(text, 0, any_bracket=True) == len(text) - 1:
        inside = _split(text[1:-1])
        if len(inside) > 1:
            return text[0].replace("\x01", "{") + ",".join(map(normalise, inside)) + text[-1].replace("\x02", "}")
        if re.fullmatch(r"\s*[A-Za-z]\s*", inside[0]):
            return inside[0].strip()  # "(C)" is the choice C
        number = _number(inside[0]) if text[0] + text[-1] in ("()", "[]") else None
        if number is not None:
            return str(number)
    return _compact(text)


def is_number(text: str) -> bool:
    """Whether an answer is one number, perhaps with a currency or a unit."""
    return len(text) <= LONGEST_ANSWER and _number(_plain(text)) is not None


def closing(text: str, at: int, any_bracket: bool = False) -> int | None:
    """Where the bracket that opens at `at` is closed; None if it is not. `(` may be closed by `]` with any_bracket."""
    opened, closed = ("([\x01{", ")]\x02}") if any_bracket else (text[at], _BRACKETS[text[at]])
    depth = 0
    for place in range(at, len(text)):
        if text[place] in opened + closed and (place == 0 or text[place - 1] != "\\"):
            depth += 1 if text[place] in opened else -1
            if depth == 0:
                return place
    return None


def _plain(text: str) -> str:
    """Without decoration: spacing, units, percent, a name in front; fractions and roots written plainly."""
    text = _AROUND.sub("", text)
    if re.fullmatch(r"['\u2018].+['\u2019]", text):
        text = text[1:-1]
    unit = _UNIT_TEXT.search(text)
    if unit and not _SEPARATOR.search(f" {unit[1]} "):
        text = text[: unit.start()]
    while _WRAPPED.search(text):
        text = _WRAPPED.sub(r"\1", text)
    text = text.replace("\\$", "").replace("\\\\", "\\\\ ")  # a row of a matrix ends; no escaped space follows
    text = _SPACING.sub("", _DEGREES.sub("", _PERCENT.sub("", text.replace("\\\\", "\x03")))).replace("\x03", "\\\\")
    for found, wanted in _SUBSTITUTES.items():
        text = text.replace(found, wanted)
    text = _SUM.sub("", _NAMED.sub("", _ROUGHLY.sub("", text)))
    text = re.sub(r"\\(?:begin|end)\s*\{(\w+)\}", lambda match: "(" if "begin" in match[0] else ")", text)
    text = _write_out(text).strip().rstrip(".,:").strip()
    units = _UNITS.match(text)
    return units[1].strip() if units else text


def _name(part: str) -> str:
    """What is said to have a value, with its sign, such as "x="; empty if nothing is."""
    named = _NAMED.match(part)
    return re.sub(r"\s", "", named[0]) if named else ""


def _write_out(text: str) -> str:
    """Fractions as a/b and roots as sqrt(a)."""
    while (found := re.search(r"\\frac(?![a-zA-Z])|\\sqrt(?![a-zA-Z])", text)) is not None:
        before = text[: found.start()]
        if found[0] == "\\frac":
            above, at = _group(text, found.end())
            below, at = _group(text, at)
            mixed = above.isdigit() and below.isdigit() and before.rstrip()[-1:].isdigit()
            over = f"{_wrapped(_write_out(above), PRODUCT)}/{_wrapped(_write_out(below), FACTOR)}"
            text = f"{before}{' ' * mixed}{over}{text[at:]}"
        else:
            index = re.compile(r"\s*\[\w+\]").match(text, found.end())
            inside, at = _group(text, index.end() if index else found.end())
            root = (index[0].strip() if index else "") + (inside if inside[:1] == "(" else f"({inside})")
            text = f"{before}sqrt{root}{text[at:]}"
    return text


def _group(text: str, at: int) -> tuple[str, int]:
    """What a command applies to: a group in braces or brackets, a command, or one character; and where it ends."""
    while at < len(text) and text[at].isspace():
        at += 1
    if at < len(text) and text[at] in "{(":
        end = closing(text, at)
        if end is not None:
            return (text[at + 1 : end].strip() if text[at] == "{" else text[at : end + 1]), end + 1
    command = re.compile(r"\\[A-Za-z]+").match(text, at)
    if command:
        return command[0], command.end()
    return text[at : at + 1], at + 1


def _wrapped(text: str, also: str) -> str:
    """In brackets unless it is one thing; `also` says what more needs none."""
    simple = re.fullmatch(rf"-?(?:\d+|\([^()]*\)|{also})", text)
    return text if simple else f"({text})"


def _number(text: str) -> Fraction | None:
    """The value of a plain number: whole, decimal, a/b, mixed or with a power of ten."""
    text = text.strip()
    if not text or len(text) > LONGEST_NUMBER:
        return None
    if re.fullmatch(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", text):
        text = text.replace(",", "")
    mixed = re.fullmatch(r"([-+]?)(\d+)\s+(\d+)\s*/\s*(\d+)", text)
    scaled = re.fullmatch(r"([-+]?[\d.]+)\s*(?:\*\s*10\s*\^\s*|[eE])\{?([-+]?\d{1,3})\}?", text)
    try:
        if mixed:
            value = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
            return -value if mixed[1] == "-" else value
        if scaled:
            return Fraction(scaled[1]) * Fraction(10) ** int(scaled[2])
        above, slash, below = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text).partition("/")
        if all(
            re.fullmatch(r"\s*[-+]?\s*(?:\d+\.?\d*|\.\d+)\s*", part) for part in ((above, below) if slash else (above,))
        ):
            value = Fraction(re.sub(r"\s", "", above).rstrip("."))
            return value / Fraction(re.sub(r"\s", "", below).rstrip(".")) if slash else value
    except (ValueError, ZeroDivisionError):
        pass
    return None


def _split(text: str) -> list[str]:
    """Parts between commas that are in no brackets."""
    parts, depth, begun = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([\x01{") - (character in ")]\x02}")
        if character == "," and depth == 0:
            parts.append(text[begun:place])
            begun = place + 1
    parts.append(text[begun:])
    return [part for part in parts if part.strip()] or [""]


def _compact(text: str) -> str:
    """A formula without spaces, needless braces and backslashes; plain words in lower case."""
    text = re.sub(r"([_^])\s*(\d{2,}|\\[A-Za-z]+)", r"\1{\2}", text)  # as people mean it: x^10 is x^{10}
    text = re.sub(r"\\([A-Za-z]+)", r"\1 ", text)
    words = re.fullmatch(r"[A-Za-z][A-Za-z' -]+", text.strip()) is not None
    text = re.sub(r"\s+", "", text)
    while (shown := _SCRIPT.sub(lambda m: m[1] + (m[2] if len(m[2]) < 2 else f"({m[2]})"), text)) != text:
        text = shown
    text = text.replace("{", "").replace("}", "").replace("\x01", "{").replace("\x02", "}")
    text = re.sub(r"(?<=\d)\*(?=[A-Za-z(])", "", text)
    return text.casefold() if words else text
