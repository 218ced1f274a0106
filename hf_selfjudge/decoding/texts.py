"""The sequences of a batch in one tensor, each with its own length, so that no step costs a kernel per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

ROOM = 256
"""Tokens the tensor is made wider when it is full."""


class Texts:
    """Token sequences that grow at their own pace; a sequence of (1, length) tensors.

    What stands behind a text's length is meaningless and will be written over.
    """

    def __init__(self, ids: Tensor, lengths: Sequence[int] | None = None) -> None:
        self.ids = ids  # (rows, width)
        self.lengths = [ids.shape[1]] * len(ids) if lengths is None else list(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Tensor:
        return self.ids[row : row + 1, : self.lengths[row]]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    @property
    def device(self) -> torch.device:
        """Where the tokens are."""
        return self.ids.device

    def append(self, tokens: Tensor, counts: Sequence[int]) -> None:
        """Add the first `counts[row]` of each row's tokens. (rows, count)"""
        self.ids = self._written(tokens)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def followed_by(self, tokens: Tensor) -> Texts:
        """The texts with tokens behind them; shares memory, so only until the next change. (rows, count)"""
        self.ids = self._written(tokens)
        return Texts(self.ids, [length + tokens.shape[1] for length in self.lengths])

    def select(self, rows: Sequence[int]) -> Texts:
        """Some of the texts."""
        index = torch.tensor(rows, dtype=torch.long, device=self.device)
        return Texts(self.ids[index], [self.lengths[row] for row in rows])

    def renew(self, rows: Sequence[int], ids: Tensor) -> Texts:
        """Some of the texts, and new ones behind them. (new rows, length)"""
        old = self.select(rows)
        missing = ids.shape[1] - old.ids.shape[1]
        kept = F.pad(old.ids, (0, missing)) if missing > 0 else old.ids
        fresh = F.pad(ids, (0, kept.shape[1] - ids.shape[1])).to(kept)
        return Texts(torch.cat([kept, fresh]), old.lengths + [ids.shape[1]] * len(ids))

    def to(self, device: torch.device) -> Texts:
        """The texts on `device`."""
        return self if device == self.device else Texts(self.ids.to(device), self.lengths)

    def _written(self, tokens: Tensor) -> Tensor:
        """The tensor with tokens behind each text, made wider if need be."""
        count = tokens.shape[1]
        if not count:
            return self.ids
        missing = max(self.lengths) + count - self.ids.shape[1]
        ids = F.pad(self.ids, (0, missing + ROOM)) if missing > 0 else self.ids
        places = torch.tensor(self.lengths)[:, None] + torch.arange(count)
        return ids.scatter_(1, places.to(self.device, non_blocking=True), tokens.to(ids.dtype))
