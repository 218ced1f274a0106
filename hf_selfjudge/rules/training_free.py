"""Rules that need no training: the two exact ones, and every relaxation users would pick instead of a judge.

All of them read the scores the user asked for (after temperature, penalties and so on).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..features import Block, entropy, kl_divergence, token_log_probs
from .base import Rule, require


@dataclass(frozen=True)
class ExactMatch(Rule):
    """Exact decoding: the drafted token is the target's most likely one; when sampling, `RejectionSampling`."""

    by_place = True

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        return alignment(block)


@dataclass(frozen=True)
class RejectionSampling(Rule):
    """u < p(z) / q(z): keeps the target's distribution together with a correction drawn from max(0, p - q).

    A drafter without a distribution counts as one that was certain (q(z) = 1). Greedy blocks carry no randomness and
    fall back to the exact match.
    """

    by_place = True

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        if block.uniforms is None:
            return block.matches
        p = block.draft_log_p.exp()
        return block.uniforms < (p if block.q_scores is None else p / block.draft_log_q.exp())


def alignment(block: Block) -> Tensor:
    """The exact rule for this block: greedy match, or rejection sampling when the block carries randomness."""
    return RejectionSampling().accept(block)


@dataclass(frozen=True)
class TopK(Rule):
    """The drafted token is among the target's k most likely."""

    k: int = 2
    by_place = True

    def __post_init__(self) -> None:
        require(isinstance(self.k, int) and self.k >= 1, "k", self.k, "an int >= 1")

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        scores = block.p_scores[:, :-1]
        return (scores > token_log_probs(scores, block.draft_tokens).unsqueeze(-1)).sum(-1) < self.k


@dataclass(frozen=True)
class ProbabilityFloor(Rule):
    """p(z) >= floor."""

    floor: float = 0.01
    by_place = True

    def __post_init__(self) -> None:
        require(0 <= self.floor <= 1, "floor", self.floor, "a probability")

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        return block.draft_log_p.exp() >= self.floor


@dataclass(frozen=True)
class Margin(Rule):
    """Among the target's k most likely and at most `delta` in probability below its best.

    With k = 2 this is the margin of the target's top two, the form TensorRT-LLM calls relaxed acceptance.
    """

    delta: float = 0.3
    k: int = 2
    by_place = True

    def __post_init__(self) -> None:
        require(0 <= self.delta <= 1, "delta", self.delta, "a probability")
        TopK(self.k)

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        best = block.log_p.amax(-1).exp()
        return TopK(self.k).accept(block) & (block.draft_log_p.exp() >= best - self.delta)


@dataclass(frozen=True)
class Typical(Rule):
    """Medusa's typical acceptance: p(z) > min(epsilon, delta * exp(-H(p)))."""

    epsilon: float = 0.09
    delta: float = 0.3
    by_place = True

    def __post_init__(self) -> None:
        require(0 <= self.epsilon <= 1, "epsilon", self.epsilon, "a probability")
        require(self.delta >= 0, "delta", self.delta, "a number >= 0")

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        bound = (self.delta * (-entropy(block.log_p)).exp()).clamp(max=self.epsilon)
        return block.draft_log_p.exp() > bound


@dataclass(frozen=True)
class KLThreshold(Rule):
    """The two models nearly agree on the whole distribution: KL(p || q) < limit, or KL(q || p) if `reverse`."""

    limit: float = 0.5
    reverse: bool = False
    needs_draft_logits = True
    by_place = True

    def __post_init__(self) -> None:
        require(self.limit >= 0, "limit", self.limit, "a number of nats >= 0")

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        log_p, log_q = block.log_p, block.log_q
        return kl_divergence(*((log_q, log_p) if self.reverse else (log_p, log_q))) < self.limit


@dataclass(frozen=True)
class Ensemble(Rule):
    """Verify against the mixture w * p + (1 - w) * q, transformers' `assistant_ensemble_weight`.

    Greedy: the drafted token is the mixture's most likely one. Sampling: u < 1 - w + w * p / q.
    """

    weight: float = 0.7
    needs_draft_logits = True
    by_place = True

    def __post_init__(self) -> None:
        require(0 <= self.weight <= 1, "weight", self.weight, "a number in [0, 1]")

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        if block.uniforms is not None:
            ratio = block.draft_log_p.exp() / block.draft_log_q.exp()
            return block.uniforms < 1 - self.weight + self.weight * ratio
        mixture = self.weight * block.log_p.exp() + (1 - self.weight) * block.log_q.exp()
        return mixture.argmax(-1) == block.draft_tokens


@dataclass(frozen=True)
class FLy(Rule):
    """Accept a mismatch where the target is unsure and the draft is back on the target's track right after it.

    Unsure: the entropy of the target's renormalised `top` most likely tokens, over its maximum log(top), is at least
    `entropy_threshold`. On track: the next `window` drafted tokens all match the target; a window that leaves the block
    counts against.
    """

    entropy_threshold: float = 0.3
    window: int = 5
    top: int = 3

    def __post_init__(self) -> None:
        require(0 <= self.entropy_threshold <= 1, "entropy_threshold", self.entropy_threshold, "a number in [0, 1]")
        require(isinstance(self.window, int) and self.window >= 1, "window", self.window, "an int >= 1")
        require(isinstance(self.top, int) and self.top >= 2, "top", self.top, "an int >= 2")

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        match = block.matches & block.drafted
        top = block.p_scores[:, :-1].float().topk(self.top, dim=-1).values.log_softmax(-1)
        unsure = entropy(top) / math.log(self.top) >= self.entropy_threshold
        # following[j]: d_{j+1} .. d_{j+window} all match, False where they leave the block
        padded = torch.nn.functional.pad(match, (0, self.window), value=False)
        following = padded.unfold(-1, self.window, 1)[:, 1 : match.shape[1] + 1].all(-1)
        return match | (unsure & following)


RULES: dict[str, tuple[Callable[..., Rule], tuple[Callable[[str], Any], ...]]] = {
    "exact": (ExactMatch, ()),
    "rejection": (RejectionSampling, ()),
    "topk": (TopK, (int,)),
    "floor": (ProbabilityFloor, (float,)),
    "margin": (Margin, (float, int)),
    "typical": (Typical, (float, float)),
    "kl": (KLThreshold, (float,)),
    "reverse-kl": (partial(KLThreshold, reverse=True), (float,)),
    "ensemble": (Ensemble, (float,)),
    "fly": (FLy, (float, int, int)),
}
"""Rules by the name used in specs and on the command line, with the types of their numbers."""
