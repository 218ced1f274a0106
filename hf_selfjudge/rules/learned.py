"""The learned rule: a judge at its threshold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..features import Block
from ..judge import SelfJudgeVerifier
from .base import Rule


@dataclass(frozen=True, eq=False)
class JudgeRule(Rule):
    """P(acceptable) > theta. Reads the raw logits and hidden states the judge was trained on."""

    verifier: SelfJudgeVerifier
    by_place = True

    @property
    def needs_draft_logits(self) -> bool:  # type: ignore[override]
        """Whether one of the judge's features does."""
        return self.verifier.config.needs_draft_logits

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the judge finds acceptable. (batch, gamma) bool"""
        return self.weigh(block)[0]

    def weigh(self, block: Block) -> tuple[Tensor, Tensor | None]:
        """The judge's mask and P(acceptable)."""
        probability = self.verifier(block)
        return probability > self.verifier.threshold, probability

    def to(self, device: torch.device) -> Rule:
        """The judge on `device`; the caller's own judge stays where it is."""
        if self.verifier.device == device:
            return self
        verifier = SelfJudgeVerifier(self.verifier.config)
        verifier.load_state_dict(self.verifier.state_dict())
        verifier.threshold = self.verifier.threshold
        return JudgeRule(verifier.to(device).eval())
