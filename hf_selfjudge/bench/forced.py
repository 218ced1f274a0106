"""Acceptance that does not depend on the weights, so that random models do the work of real ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..features import Block
from ..judge import SelfJudgeVerifier
from ..rules import Rule


@dataclass(frozen=True, eq=False)
class FirstTokens(Rule):
    """Asks a judge, as decoding does, and then accepts the first `count` tokens of every block."""

    count: int
    judge: SelfJudgeVerifier

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        return self.weigh(block)[0]

    def weigh(self, block: Block) -> tuple[Tensor, Tensor | None]:
        """The first tokens, and the judge's P(acceptable)."""
        probability = self.judge(block)
        places = torch.arange(block.draft_tokens.shape[1], device=block.draft_tokens.device)
        return (places < self.count).expand(block.draft_tokens.shape), probability


class Agreement:
    """The same acceptance for transformers' own loop, by logits processors.

    The draft always says token 1, the target too but for every `count + 1`-th position after the prompt.
    """

    def __init__(self, draft: PreTrainedModel, count: int, prompt_length: int) -> None:
        self._period, self._start = count + 1, prompt_length
        self._draft, self._drafting = draft, False
        self.processors = LogitsProcessorList([self])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Raise one token far above the rest."""
        place = (input_ids.shape[1] - self._start) % self._period
        disagrees = not self._drafting and place == self._period - 1
        scores[:, 2 if disagrees else 1] = 1e4
        return scores

    def __enter__(self) -> Agreement:
        """Watch the draft's nested generate."""
        original = self._draft.generate

        def generate(*args: Any, **kwargs: Any) -> Any:
            self._drafting = True
            try:
                return original(*args, **kwargs)
            finally:
                self._drafting = False

        self._draft.generate = generate
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the draft as it was."""
        del self._draft.generate
