"""What kind of difference a substitution makes, by simple rules on the two tokens' text."""

from __future__ import annotations

CATEGORIES = (
    "end of text",
    "white space",
    "case",
    "digits",
    "markdown",
    "operators",
    "punctuation",
    "function words",
    "other words",
)
"""In the order of the tables."""

OPERATORS = frozenset("+-*/=<>%^&|~\u00d7\u00f7\u00b1\u2212\u2264\u2265\u2260\u2248\u00b7\u2192")
MARKDOWN = frozenset("#*_`~|>")
FUNCTION_WORDS = frozenset(
    """
    a about after all also although an and any are as at be because been before being both but by can could did do does
    each either else even every few first for from had has have he her here hers him his how however i if in into is it
    its itself just let many may me might more most much must my neither next no nor not now of off on once one only or
    other our out over own per quite rather same shall she should since so some still such than that the their them then
    there therefore these they this those though through thus to too under until up upon us very was we were what when
    where whether which while who whom whose why will with within without would yet you your
    """.split()  # noqa: SIM905
)


def category(target: str, draft: str, ends: bool = False) -> str:
    """The kind of a substitution, from the target's and the draft's token; `ends` if either ends the text."""
    if ends:
        return "end of text"
    ours, theirs = target.strip(), draft.strip()
    pair = (ours, theirs)
    if ours == theirs or not ours or not theirs:
        return "white space"
    if ours.casefold() == theirs.casefold():
        return "case"
    if any(character.isdigit() for text in pair for character in text):
        return "digits"
    if any(_is_markdown(text) for text in pair):
        return "markdown"
    if any(set(text) <= OPERATORS for text in pair):
        return "operators"
    if any(not any(character.isalnum() for character in text) for text in pair):
        return "punctuation"
    if all(text.strip(".,;:!?'\"()").casefold() in FUNCTION_WORDS for text in pair):
        return "function words"
    return "other words"


def _is_markdown(text: str) -> bool:
    """Marks of headings, emphasis, code, tables and rules; a single star or bar is an operator."""
    if text in ("#", "`"):
        return True
    return len(text) > 1 and (set(text) <= MARKDOWN or set(text) == {"-"})
