"""Whether an answer is the one that the other answers to its prompt agree on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..checkers import Checker

FEWEST = 2
"""Votes without which there is no agreement."""


def vote(outcomes: Sequence[Any], checker: Checker) -> list[bool | None]:
    """For each of a prompt's answers: is it what most of the others say.

    None where the others do not agree on anything. `outcomes` are the checker's; None stands for an answer without one.
    """
    groups: list[list[int]] = []
    for index, outcome in enumerate(outcomes):
        if outcome is None:
            continue
        for group in groups:
            if checker.same(outcomes[group[0]], outcome):
                group.append(index)
                break
        else:
            groups.append([index])
    found: list[bool | None] = []
    for index in range(len(outcomes)):
        sizes = [sum(other != index for other in group) for group in groups]
        most = max(sizes, default=0)
        if most < FEWEST:
            found.append(None)
            continue
        winner = groups[sizes.index(most)]  # of equals the one that the earliest answer gives
        found.append(index in winner)
    return found
