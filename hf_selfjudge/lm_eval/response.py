"""A response that remembers how it was decoded, and the figures that a task makes of many of them.

lm_eval hands responses to tasks as text, and keeps text in its cache, so the counts travel on the text itself. Averages
are ratios of sums over all responses, as in `JudgeStats`: a long response counts for more than a short one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

COUNTS = ("cycles", "new_tokens", "drafted", "matched", "judged_in")
"""What is taken over from `JudgeStats`; `seconds` comes beside it."""

FIGURES: Mapping[str, tuple[str, str]] = {
    "accepted_per_cycle": ("accepted", "cycles"),
    "tokens_per_target_forward": ("new_tokens", "cycles"),
    "acceptance_rate": ("accepted", "drafted"),
    "judged_in_share": ("judged_in", "new_tokens"),
    "tokens_per_second": ("new_tokens", "seconds"),
}
"""Figures by name: which count over which. Draft tokens kept are `accepted`; corrections and bonus tokens are not."""


class Response(str):
    """Text with the counts of its decoding in `stats`."""

    stats: dict[str, float]

    def __new__(cls, text: str, stats: Mapping[str, float] | None = None) -> Response:
        """The text, with a copy of the counts."""
        response = super().__new__(cls, text)
        response.stats = dict(stats or {})
        return response


def count(stats: Any, seconds: float) -> dict[str, float]:
    """The counts of one response from its `JudgeStats`, and its share of a batch's wall time."""
    counts = {name: getattr(stats, name) for name in COUNTS}
    return {**counts, "accepted": stats.accepted, "seconds": seconds}


def total(stats: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sums over responses, and the figures made of them; figures without a denominator are left out."""
    sums: dict[str, float] = {"responses": 0}
    for one in stats:
        sums["responses"] += 1
        for name, value in one.items():
            sums[name] = sums.get(name, 0) + value
    made = {name: sums.get(a, 0) / sums[b] for name, (a, b) in FIGURES.items() if sums.get(b)}
    return {**sums, **made}


def figures(response: str) -> dict[str, tuple[float, float]]:
    """What one response adds to each figure, for `ratio_of_sums`; nothing if another model gave it."""
    stats = getattr(response, "stats", None)
    if not stats:
        return {}
    return {name: (stats[a], stats[b]) for name, (a, b) in FIGURES.items()}


def ratio_of_sums(pairs: Iterable[tuple[float, float]]) -> float:
    """lm_eval's aggregation of a figure."""
    tops, bottoms = zip(*pairs, strict=True)
    return sum(tops) / sum(bottoms) if sum(bottoms) else 0.0
