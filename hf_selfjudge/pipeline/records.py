"""What the stages hand to each other. Token ids and tensors only; no models, no text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Response:
    """A prompt and the target's greedy answer to it."""

    prompt_id: int
    prompt: list[int]
    answer: list[int]
    """The new tokens, the end-of-sequence token included if it was reached."""


@dataclass(frozen=True)
class Mismatches:
    """Where the draft, reading one response, would have said something else."""

    positions: list[int]
    """Indices into the answer."""
    draft_tokens: list[int]
    """The draft's token at each."""
    draft_logits: Tensor | None = None  # (mismatches, vocab) float32: the draft's distribution there

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Substitutions:
    """Scored substitutions, of one response or of many: one row per mismatch."""

    prompt_ids: Tensor  # (rows,) which prompt
    positions: Tensor  # (rows,) index into the answer
    target_tokens: Tensor  # (rows,)
    draft_tokens: Tensor  # (rows,)
    scores: Tensor  # (rows, len(lengths)): the semantic preservation score for each suffix length
    features: Tensor  # (rows, input_size)

    def __len__(self) -> int:
        return int(self.positions.shape[0])

    @classmethod
    def join(cls, parts: list[Substitutions]) -> Substitutions:
        """All rows of several, in order."""
        if not parts:
            raise ValueError(
                "No substitutions were scored: the draft agrees with the target on every token of every response."
            )
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__)).sorted()

    def sorted(self) -> Substitutions:
        """The rows by prompt and position, however they were computed."""
        by_position = self.positions.argsort(stable=True)
        order = by_position[self.prompt_ids[by_position].argsort(stable=True)]
        return self.select(order)

    def select(self, rows: Tensor) -> Substitutions:
        """Some of the rows: indices or a mask."""
        return type(self)(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))
