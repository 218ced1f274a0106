"""Paired bootstrap over items: every resample draws the same items for all rules, task by task.

The score of a task is the mean over its items; its accepted length is a ratio of sums, draft tokens kept over target
forwards. Pooled figures are means over the tasks that have a score: length gained where nothing checks the answers must
not count. Pure numpy; knows nothing of rules.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
_CHUNK = 1000
"""Resamples computed at a time, which bounds the memory."""


@dataclass(frozen=True)
class Measured:
    """One task under all rules."""

    scores: np.ndarray  # (rules, items) float, NaN where an item has no score
    accepted: np.ndarray  # (rules, items)
    cycles: np.ndarray  # (rules, items)

    @property
    def scored(self) -> bool:
        """Whether the task has scores."""
        return bool(np.isfinite(self.scores).any())


@dataclass(frozen=True)
class Figures:
    """Scores and accepted lengths of all rules: of the items themselves (one row), or of many resamples."""

    score: np.ndarray  # (resamples, rules), NaN for a task without scores
    length: np.ndarray  # (resamples, rules)

    @classmethod
    def pool(cls, tasks: Sequence[Figures]) -> Figures:
        """The mean over the tasks with scores; over all of them where none has."""
        scored = [figures for figures in tasks if np.isfinite(figures.score).all()] or list(tasks)
        return cls(
            np.mean([figures.score for figures in scored], axis=0),
            np.mean([figures.length for figures in scored], axis=0),
        )


def figures(measured: Measured, weights: np.ndarray) -> Figures:
    """Score and accepted length when item i counts weights[:, i] times. weights: (resamples, items)"""
    known = np.isfinite(measured.scores)
    if measured.scored:
        score = (weights @ np.where(known, measured.scores, 0.0).T) / (weights @ known.T.astype(float))
    else:
        score = np.full((len(weights), len(measured.scores)), np.nan)
    return Figures(score, (weights @ measured.accepted.T) / (weights @ measured.cycles.T))


def estimate(measured: Measured) -> Figures:
    """The figures of the items as they are: one row."""
    return figures(measured, np.ones((1, measured.scores.shape[1])))


def resample(tasks: Mapping[str, Measured], resamples: int, seed: int) -> list[Figures]:
    """The figures of each task, by name, over resamples of its items; the order of the tasks does not matter."""
    found = []
    for name, measured in tasks.items():
        rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
        items = measured.scores.shape[1]
        parts = []
        for first in range(0, resamples, _CHUNK):
            rows = min(_CHUNK, resamples - first)
            parts.append(figures(measured, rng.multinomial(items, np.full(items, 1 / items), size=rows).astype(float)))
        found.append(
            Figures(np.concatenate([part.score for part in parts]), np.concatenate([part.length for part in parts]))
        )
    return found


def interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The percentile interval of a bootstrap sample."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
