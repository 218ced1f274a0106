"""How much of one text another one has, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from ..pipeline.rejoin import common_beginnings, padded

ROWS = 256
"""Pairs compared together."""


def resemblance(new: Sequence[list[int]], old: Sequence[list[int]]) -> Tensor:
    """Twice the longest common subsequence over the lengths, of each pair of token lists. (pairs,) in [0, 1]"""
    found = torch.ones(len(new), dtype=torch.float64)
    order = sorted(range(len(new)), key=lambda at: len(new[at]) + len(old[at]))  # pairs of about one size together
    for start in range(0, len(order), ROWS):
        batch = order[start : start + ROWS]
        sizes = torch.tensor([len(new[at]) + len(old[at]) for at in batch])
        texts = [padded([side[at] for at in batch]) for side in (new, old)]
        (whole,) = deque(common_beginnings(*texts), maxlen=1)
        found[batch] = torch.where(sizes > 0, 2 * whole[:, -1] / sizes.clamp(min=1), 1.0).double()
    return found
