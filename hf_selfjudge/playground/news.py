"""Short news items to be summarised in two or three sentences: the playground's CNN/DM.

An article is written from structured facts, so rules can check what a summary claims: names, places, days, numbers with
what they count, and the outcome. The score is factual consistency, not style or brevity.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from .news_events import DAYS, EVENTS, PEOPLE, PLACES
from .wording import Voice, read_number

REQUIRED_FACTS = 4
"""How many different facts a summary must get right to count in full; fewer scale the score down, none make it 0."""
REQUESTS = ("Summarise:", "Sum this up:", "Give a short summary:", "What happened?")

_NUMBER = re.compile(r"(\d[\d,]*)((?:\s+[a-z]+){0,2})")
_NAMES = re.compile(rf"\b(?:{'|'.join(PLACES + PEOPLE + DAYS)})\b")
_OUTCOMES = {
    event.name: {
        label: re.compile(rf"\b(?:{'|'.join((*words.alternatives(), label))})\b", re.IGNORECASE)
        for label, words in event.outcomes.items()
    }
    for event in EVENTS.values()
}


def draw(rng: random.Random) -> dict[str, Any]:
    """Random facts: event, place, day, person, two numbers, outcome."""
    rand = rng.random
    names = tuple(EVENTS)
    event = EVENTS[names[int(rand() * len(names))]]
    numbers = [low + int(rand() * (high - low + 1)) for _, (low, high) in (event.first, event.second)]
    return {
        "event": event.name,
        "place": PLACES[int(rand() * len(PLACES))],
        "day": DAYS[int(rand() * len(DAYS))],
        "person": PEOPLE[int(rand() * len(PEOPLE))],
        "first": numbers[0],
        "second": numbers[1],
        "outcome": tuple(event.outcomes)[int(rand() * 2)],
    }


def key(facts: Mapping[str, Any]) -> str:
    """What makes two articles the same, whatever their wording."""
    return ":".join(map(str, facts.values()))


def ask(facts: Mapping[str, Any], voice: Voice) -> str:
    """The article with a request to sum it up, in this voice."""
    article = (sentence.write(voice, facts) for sentence in EVENTS[facts["event"]].article)
    return " ".join((voice.header(), voice.free(REQUESTS), *article))


def answer(facts: Mapping[str, Any], voice: Voice) -> str:
    """One summary, in this voice."""
    event = EVENTS[facts["event"]]
    told = dict(facts) | {"outcome": event.outcomes[facts["outcome"]].write(voice, {})}
    summary = [
        voice.styled(f"{event.name}-lead", event.lead).write(voice, told),
        voice.free(event.detail).write(voice, told),
    ]
    if voice.styled("news-source", (True, False)):
        summary.append(voice.free(event.source).write(voice, told))
    return " ".join(summary)


def claims(facts: Mapping[str, Any], summary: str) -> list[tuple[str, bool]]:
    """Every checkable claim of a summary: which fact it is about, and whether it is right."""
    event = EVENTS[facts["event"]]
    found: list[tuple[str, bool]] = []
    for name in _NAMES.findall(summary):
        fact = "place" if name in PLACES else "day" if name in DAYS else "person"
        found.append((fact, name == facts[fact]))
    for number, after in _NUMBER.findall(summary):
        found.append(_number_claim(facts, read_number(number), after.split()))
    for label, pattern in _OUTCOMES[event.name].items():
        found += [("outcome", label == facts["outcome"])] * len(pattern.findall(summary))
    return found


def _number_claim(facts: Mapping[str, Any], value: int, after: list[str]) -> tuple[str, bool]:
    """The claim that a number makes: about what it counts if the next words say so, else about either number."""
    event = EVENTS[facts["event"]]
    for fact, (unit, _) in (("first", event.first), ("second", event.second)):
        if unit in after:
            return fact, value == facts[fact]
    return ("second", True) if value == facts["second"] else ("first", value == facts["first"])


def score(facts: Mapping[str, Any], response: str) -> float:
    """Factual consistency: (right - wrong) / all claims, at least 0, times the share of `REQUIRED_FACTS` covered."""
    found = claims(facts, response)
    if not found:
        return 0.0
    right = sum(ok for _, ok in found)
    covered = len({fact for fact, ok in found if ok})
    balance = max(0, 2 * right - len(found)) / len(found)
    return balance * min(1.0, covered / REQUIRED_FACTS)
