"""From outcomes to figures: every rule on every task and pooled, beside exact decoding, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..decoding.statistics import PHASES
from .bootstrap import Figures, Measured, estimate, interval, resample
from .outcomes import Outcome

EXACT = 0
"""Place of exact decoding among the rules: the first."""
DIGITS = 6


@dataclass(frozen=True)
class Table:
    """All rules on one set of items."""

    tasks: list[str]
    outcomes: list[list[Outcome]]
    """By task, then by rule; exact decoding is the first rule."""
    estimates: list[Figures]
    """By task: of the items as they are."""
    samples: list[Figures]
    """By task: of the bootstrap's resamples."""
    others: list[dict[str, tuple[Figures, Figures]]]
    """By task: estimate and resamples of its other figures by name, in place of the score."""

    @classmethod
    def build(cls, outcomes: dict[str, list[Outcome]], resamples: int, seed: int) -> Table:
        """Resample the outcomes of all rules (the lists' order) on each task."""
        measured = [_measured(found) for found in outcomes.values()]
        others = [
            {name: _resampled(task, _measured(found, name), resamples, seed) for name in found[EXACT].others}
            for task, found in outcomes.items()
        ]
        samples = resample(dict(zip(outcomes, measured, strict=True)), resamples, seed)
        return cls(list(outcomes), list(outcomes.values()), [*map(estimate, measured)], samples, others)

    @property
    def scored(self) -> list[str]:
        """Tasks with a score: those that are pooled."""
        return [
            task for task, figures in zip(self.tasks, self.estimates, strict=True) if np.isfinite(figures.score).all()
        ]

    @cached_property
    def pooled(self) -> tuple[Figures, Figures]:
        """Estimate and resamples of the means over the tasks with a score."""
        return Figures.pool(self.estimates), Figures.pool(self.samples)

    def rows(self, rule: int) -> dict[str, Any]:
        """Everything about one rule, per task and pooled, as JSON values."""
        tasks = {}
        for at, task in enumerate(self.tasks):
            outcome, exact = self.outcomes[at][rule], self.outcomes[at][EXACT]
            tasks[task] = {
                **_compared(self.estimates[at], self.samples[at], rule),
                **_totals([outcome]),
                **_changes([(outcome, exact)]),
                "figures": {name: _scores(*figures, rule) for name, figures in self.others[at].items()},
            }
        pooled = [at for at, task in enumerate(self.tasks) if task in self.scored] or range(len(self.tasks))
        falls = [tasks[task]["score_difference"]["estimate"] for task in self.scored]
        return {
            "tasks": tasks,
            "pooled": {
                **_compared(*self.pooled, rule),
                "worst_task_difference": min(falls, default=None),
                **_totals([self.outcomes[at][rule] for at in pooled]),
                **_changes([(self.outcomes[at][rule], self.outcomes[at][EXACT]) for at in pooled]),
            },
        }

    def phases(self, rule: int) -> dict[str, Any]:
        """Where one rule's time went, over all tasks."""
        found = [outcomes[rule] for outcomes in self.outcomes]
        seconds = sum(outcome.seconds for outcome in found)
        tokens = sum(sum(outcome.new_tokens) for outcome in found)
        shares = {name: sum(outcome.phases.get(name, 0.0) for outcome in found) / seconds for name in PHASES}
        return {
            "seconds": round(seconds, 3),
            "tokens_per_second": round(tokens / seconds, 1),
            "shares": {
                name: round(share, DIGITS) for name, share in (*shares.items(), ("other", 1 - sum(shares.values())))
            },
        }


def bounded(value: float, sample: np.ndarray) -> dict[str, float] | None:
    """An estimate with its 95 % interval; None where there is no score."""
    if not np.isfinite(value):
        return None
    # a ratio to exact decoding has no value in a resample in which that accepts nothing
    low, high = interval(sample[np.isfinite(sample)])
    return {"estimate": round(float(value), DIGITS), "low": round(low, DIGITS), "high": round(high, DIGITS)}


def _measured(outcomes: Sequence[Outcome], name: str | None = None) -> Measured:
    """The outcomes of all rules on one task, with the score or with another figure in its place."""
    columns = [outcome.scores if name is None else outcome.others[name] for outcome in outcomes]
    scores = [[np.nan if score is None else score for score in column] for column in columns]
    return Measured(
        np.array(scores, dtype=float),
        np.array([outcome.accepted for outcome in outcomes], dtype=float),
        np.array([outcome.cycles for outcome in outcomes], dtype=float),
    )


def _resampled(task: str, measured: Measured, resamples: int, seed: int) -> tuple[Figures, Figures]:
    return estimate(measured), resample({task: measured}, resamples, seed)[0]


def _scores(found: Figures, samples: Figures, rule: int) -> dict[str, Any]:
    """Score, and against exact decoding on the same items."""
    score = found.score[0]
    return {
        "score": bounded(score[rule], samples.score[:, rule]),
        "score_difference": bounded(score[rule] - score[EXACT], samples.score[:, rule] - samples.score[:, EXACT]),
    }


def _compared(found: Figures, samples: Figures, rule: int) -> dict[str, Any]:
    """Score and accepted length, and both against exact decoding on the same items."""
    length = found.length[0]
    return {
        **_scores(found, samples, rule),
        "accepted_per_cycle": bounded(length[rule], samples.length[:, rule]),
        "length_ratio": bounded(length[rule] / length[EXACT], samples.length[:, rule] / samples.length[:, EXACT]),
    }


def _totals(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Plain ratios of sums over some tasks' items."""
    sums = {
        name: sum(sum(getattr(outcome, name)) for outcome in outcomes)
        for name in ("cycles", "new_tokens", "drafted", "accepted", "judged_in")
    }
    items = sum(map(len, outcomes))
    return {
        "items": items,
        "forwards_per_answer": round(sums["cycles"] / items, DIGITS),
        "tokens_per_target_forward": round(sums["new_tokens"] / sums["cycles"], DIGITS),
        "acceptance_rate": round(sums["accepted"] / max(1, sums["drafted"]), DIGITS),
        "relaxed_share": round(sums["judged_in"] / max(1, sums["new_tokens"]), DIGITS),
        "new_tokens": sums["new_tokens"],
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 3),
    }


def _changes(pairs: Sequence[tuple[Outcome, Outcome]]) -> dict[str, Any]:
    """How many answers are not exact decoding's, and how many scores fell or rose."""
    same = [a == b for outcome, exact in pairs for a, b in zip(outcome.checksums, exact.checksums, strict=True)]
    scores = [
        (a, b)
        for outcome, exact in pairs
        for a, b in zip(outcome.scores, exact.scores, strict=True)
        if a is not None and b is not None
    ]
    return {
        "same_answers": round(sum(same) / len(same), DIGITS),
        "lost": sum(a < b for a, b in scores),
        "gained": sum(a > b for a, b in scores),
    }
