"""How much of one text another one has, in order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROWS = 256
"""Pairs compared together."""


def resemblance(new: Sequence[Sequence[int]], old: Sequence[Sequence[int]]) -> Tensor:
    """Twice the longest common subsequence over the lengths, of each pair of token lists. (pairs,) in [0, 1]"""
    found = torch.ones(len(new), dtype=torch.float64)
    order = sorted(range(len(new)), key=lambda at: len(new[at]) + len(old[at]))  # pairs of about one size together
    for start in range(0, len(order), ROWS):
        batch = order[start : start + ROWS]
        sizes = torch.tensor([len(new[at]) + len(old[at]) for at in batch])
        common = _common(_padded([new[at] for at in batch], -1), _padded([old[at] for at in batch], -2))
        found[batch] = torch.where(sizes > 0, 2 * common / sizes.clamp(min=1), 1.0).double()
    return found


def _common(a: Tensor, b: Tensor) -> Tensor:
    """Length of the longest common subsequence. (rows, m), (rows, n) -> (rows,)

    Row by row of the usual table, of which only the last row is kept; within a row the left neighbour's part is a
    running maximum, so that all texts and all columns go at once.
    """
    row = torch.zeros((len(a), b.shape[1] + 1), dtype=torch.int32)
    for column in range(a.shape[1]):
        step = torch.where(a[:, column : column + 1] == b, row[:, :-1] + 1, row[:, 1:])
        row = torch.cat([row[:, :1], torch.maximum(step, row[:, 1:]).cummax(1).values], dim=1)
    return row[:, -1]


def _padded(texts: Sequence[Sequence[int]], filling: int) -> Tensor:
    """Token lists as one tensor; the two texts of a pair are filled up differently, so that filling never matches."""
    width = max(map(len, texts), default=0)
    return torch.tensor([[*text, *[filling] * (width - len(text))] for text in texts]).reshape(len(texts), width)
