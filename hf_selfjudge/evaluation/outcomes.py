"""Answers with their scores: what the statistics are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .decode import COUNTS, Answers


@dataclass(frozen=True)
class Outcome:
    """What one rule made of one task, item by item, so that everything can be resampled."""

    scores: list[float | None]
    """Task scores; None where the task has no checker."""
    cycles: list[int]
    """Target forwards of each answer."""
    new_tokens: list[int]
    drafted: list[int]
    accepted: list[int]
    """Draft tokens kept."""
    judged_in: list[int]
    """Those of them that exact verification would have rejected."""
    checksums: list[int]
    """CRC-32 of each answer's text: tells which answers are exact decoding's."""
    seconds: float
    """Wall time of all generate calls."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds in draft, target, judge (the rule) and the rest of verification."""
    others: dict[str, list[float | None]] = field(default_factory=dict)
    """The task's other figures by name."""

    def __len__(self) -> int:
        return len(self.scores)


def combine(answers: Answers, figures: Sequence[Mapping[str, float]]) -> Outcome:
    """Answers and the figures of each; the first figure is the score."""
    names = list(dict.fromkeys(name for one in figures for name in one))
    columns: dict[str, list[float | None]] = {name: [one.get(name) for one in figures] for name in names}
    scores: list[float | None] = columns.pop(names[0]) if names else [None for _ in answers.texts]
    return Outcome(
        scores=scores,
        checksums=answers.checksums,
        seconds=answers.seconds,
        phases=answers.phases,
        others=columns,
        **{name: getattr(answers, name) for name in COUNTS},
    )
