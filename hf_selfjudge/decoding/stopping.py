"""Where a response ends, exact to the token also inside an accepted block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria


class Stopper:
    """Cuts each cycle's tokens where token-by-token decoding would have stopped.

    The end-of-sequence token and the length are looked up in the token list; every other criterion (stop strings, time,
    the user's own) is asked after each token, as plain `generate` does.
    """

    def __init__(self, criteria: StoppingCriteriaList, eos_token_ids: frozenset[int], max_length: int) -> None:
        self.max_length = max_length
        self._eos_token_ids = eos_token_ids
        self._others = [c for c in criteria if not isinstance(c, (EosTokenCriteria, MaxLengthCriteria))]
        for criterion in criteria:
            if isinstance(criterion, MaxLengthCriteria):
                self.max_length = min(self.max_length, criterion.max_length)
            if isinstance(criterion, EosTokenCriteria):
                self._eos_token_ids |= frozenset(criterion.eos_token_id.flatten().tolist())

    def budgets(self, lengths: Sequence[int]) -> list[int]:
        """How many tokens are worth drafting after each text: the room left, less the target's own token."""
        return [self.max_length - length - 1 for length in lengths]

    def cut(self, input_ids: Tensor, new_tokens: Sequence[int], scores: tuple[Tensor, ...] | None) -> tuple[int, bool]:
        """How many of `new_tokens` belong to the response after `input_ids`, and whether it ends there.

        `scores` are those of the whole response with all of `new_tokens`; a criterion sees them up to its token.
        """
        length = input_ids.shape[1]
        count = max(1, min(len(new_tokens), self.max_length - length))  # the first token is there when anybody asks
        done = length + count >= self.max_length
        for index, token in enumerate(new_tokens[:count]):
            if token in self._eos_token_ids:
                count, done = index + 1, True
                break
        if self._others:
            tail = torch.tensor([new_tokens[:count]], dtype=input_ids.dtype, device=input_ids.device)
            sequence = torch.cat([input_ids, tail], dim=1)
            before = 0 if scores is None else len(scores) - len(new_tokens)
            for kept in range(1, count + 1):
                seen = None if scores is None else scores[: before + kept]
                if any(bool(c(sequence[:, : length + kept], seen)) for c in self._others):
                    return kept, True
        return count, done
