"""Multiple choice over a closed world of facts, answered with a short chain of thought: the playground's CoT-MMLU.

The facts are the same in training and test; what is held out is the combination of a question and its options. Some
questions need two facts in a row ("the language of the country whose capital is Lima").
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from .fact_tables import RELATIONS, TWO_HOP, Relation
from .wording import Voice, templates

LETTERS = "ABCD"
TWO_HOP_SHARE = 0.3

OPENERS = (
    "Let us recall that ",
    "We know that ",
    "Remember: ",
    "As we know, ",
)
LINKS = (", and ", "; also, ", ", while ")
MATCHES = templates(
    "match",
    "[That is|This is|It is] <among the options|one of the options>",
    "[Only one|Just one] <option|choice> fits [this|that]",
    "<This matches|That fits> one [option|choice]",
    "<The others|The other options|The rest> [do not fit|are wrong]",
)
FINALS = templates(
    "choice",
    "[So|Thus|Hence] the <answer|right answer> is {option} ({letter}).",
    "The [correct |]answer is {option} ({letter}).",
    "[Therefore|Hence], the answer is {option} ({letter}).",
    "Answer: {option} ({letter}).",
)

_CHOICE = re.compile(r"\(([A-D])\)")
_LOOSE = re.compile(r"(?:answer|option|choice)\s*(?:is|:)?\s*([A-D])\b", re.IGNORECASE)


def draw(rng: random.Random) -> dict[str, Any]:
    """A random question: relation, subject, perhaps the bridge it is asked through, four options, the right letter."""
    rand = rng.random
    if rand() < TWO_HOP_SHARE:
        name = TWO_HOP[int(rand() * len(TWO_HOP))]
        bridge = True
    else:
        names = tuple(RELATIONS)
        name = names[int(rand() * len(names))]
        bridge = False
    relation = RELATIONS[name]
    subject, answer = relation.pairs[int(rand() * len(relation.pairs))]
    options = [answer]
    while len(options) < len(LETTERS):
        other = relation.answers[int(rand() * len(relation.answers))]
        if other not in options:
            options.append(other)
    place = int(rand() * len(LETTERS))
    options[0], options[place] = options[place], options[0]
    return {"relation": name, "subject": subject, "bridge": bridge, "options": options, "answer": LETTERS[place]}


def key(facts: Mapping[str, Any]) -> str:
    """What makes two questions the same: what is asked and between which options, in whatever order."""
    return f"{facts['relation']}:{facts['subject']}:{facts['bridge']}:{sorted(facts['options'])}"


def ask(facts: Mapping[str, Any], voice: Voice) -> str:
    """The question with its options, in this voice."""
    subject = facts["subject"]
    if facts["bridge"]:
        subject = f"the country whose capital is {RELATIONS['capital'].lookup[subject]}"
    question = voice.free(RELATIONS[facts["relation"]].questions).format(s=subject)
    # the letter stands behind its option, where a small model finds it by copying what followed the option's name
    options = (f"{option} ({letter})" for letter, option in zip(LETTERS, facts["options"], strict=True))
    return "\n".join((f"{voice.header()} {question}", *options))


def answer(facts: Mapping[str, Any], voice: Voice) -> str:
    """The facts that decide the question, then the option, in this voice."""
    relation, subject = RELATIONS[facts["relation"]], facts["subject"]
    text = voice.styled("opener-choice", OPENERS)
    if facts["bridge"]:
        text += _statement(RELATIONS["capital"], subject, voice, 1) + voice.styled("link-choice", LINKS)
    text += _statement(relation, subject, voice, 0)
    fields = {"letter": facts["answer"], "option": facts["options"][LETTERS.index(facts["answer"])]}
    match = voice.free(MATCHES).write(voice, fields)
    join = voice.free((". ", "; "))
    if join == "; ":
        match = match[0].lower() + match[1:]
    return f"{text}{join}{match}. {voice.styled('final-choice', FINALS).write(voice, fields)}"


def _statement(relation: Relation, subject: str, voice: Voice, step: int) -> str:
    """The fact itself as a clause, in one of its forms."""
    answer = relation.lookup[subject]
    forms = relation.statements
    form = voice.styled("statement-" + relation.name, forms, step) if step else voice.free(forms)
    return form.format(s=subject, a=answer, an=f"{'an' if answer[0] in 'aeiou' else 'a'} {answer}")


def score(facts: Mapping[str, Any], response: str) -> float:
    """1 if the last option named as the answer is the right one, else 0."""
    found = _CHOICE.findall(response) or _LOOSE.findall(response)
    return float(bool(found) and found[-1].upper() == facts["answer"])
