"""Two-stage verification of one block: which drafted tokens stand, and which token follows them.

Pure torch, batched, without host syncs but for large batches; shared by every engine. `approve` gives the same outcome
to engines that bring their own acceptance (vLLM).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .features import LARGE, Block, token_log_probs
from .rules.base import Rule
from .rules.training_free import RejectionSampling

_ALIGNMENT = RejectionSampling()


@dataclass(frozen=True)
class Opinion:
    """What the judge or other rule says of a block."""

    relaxed: Tensor  # (batch, gamma) bool: the rule accepts, and the logits processors do not forbid
    probability: Tensor | None = None  # (batch, gamma): the judge's P(acceptable), if the rule has one


@dataclass(frozen=True)
class Verdict:
    """The outcome of one block."""

    aligned: Tensor  # (batch, gamma) bool: the exact rule accepts
    opinion: Opinion
    accepted: Tensor  # (batch,): how many drafted tokens stand
    next_token: Tensor  # (batch,): the target's token after them: a correction, or the bonus token

    def new_tokens(self, draft_tokens: Tensor) -> Tensor:
        """The accepted tokens and the target's own; meaningless behind it. (batch, gamma) -> (batch, gamma + 1)"""
        padded = torch.nn.functional.pad(draft_tokens, (0, 1))
        return padded.scatter(1, self.accepted[:, None], self.next_token[:, None])


def verify(block: Block, rule: Rule | None, mode: str = "two-stage") -> Verdict:
    """Verify a block: alignment or rule, the rule alone, or alignment alone (a missing rule accepts nothing)."""
    return settle(block, consult(block, rule, mode), mode)


def consult(block: Block, rule: Rule | None, mode: str) -> Opinion:
    """Ask the rule. A token the logits processors forbid is never accepted by it."""
    if rule is None or mode == "alignment-only" or block.draft_tokens.shape[1] == 0:
        return Opinion(torch.zeros_like(block.draft_tokens, dtype=torch.bool))
    if rule.by_place and mode == "two-stage" and block.target_logits.numel() >= LARGE:
        relaxed, probability = ask_at_mismatches(block, rule)
    else:
        relaxed, probability = rule.weigh(block)
    return Opinion(relaxed & _permitted(block.p_scores, block.draft_tokens), probability)


def ask_at_mismatches(block: Block, rule: Rule) -> tuple[Tensor, Tensor | None]:
    """A rule by place's mask and P(acceptable) where alignment does not accept anyway, and nothing elsewhere.

    That is a tenth of a large batch's places, and worth a host sync: a rule may read whole distributions.
    """
    asked = ~_ALIGNMENT.accept(block) & block.drafted
    places = asked.nonzero(as_tuple=True)
    relaxed, probability = rule.weigh(block.at(*places))
    mask = torch.zeros_like(asked).index_put(places, relaxed[:, 0])
    if probability is None:
        return mask, None
    return mask, torch.zeros(asked.shape, device=asked.device).index_put(places, probability[:, 0].float())


def settle(block: Block, opinion: Opinion, mode: str) -> Verdict:
    """Combine the rule's opinion with alignment, and choose the target's next token."""
    aligned = _ALIGNMENT.accept(block)
    stands = (opinion.relaxed if mode == "judge-only" else aligned | opinion.relaxed) & block.drafted
    accepted = stands.long().cumprod(dim=-1).sum(dim=-1)
    next_token = _next_token(block, accepted, exact_correction=mode != "judge-only")
    return Verdict(aligned, opinion, accepted, next_token)


def approve(scores: Tensor, draft_tokens: Tensor, approved: Tensor) -> Tensor:
    """Make stock acceptance take the approved draft tokens: their rows become one-hot at the draft token.

    After this edit a greedy match (argmax = draft token) and a p/q test (p = 1) accept those rows, while every other
    row, and so the correction and the bonus token, stays the target's own: the outcome of `verify` in two-stage mode.
    Apply it after all logits processors; a token they forbid (score -inf) is never approved.

    Args:
        scores: the target's processed scores. (batch, >= gamma, vocab)
        draft_tokens: (batch, gamma)
        approved: (batch, gamma) bool
    """
    gamma, vocabulary = draft_tokens.shape[1], scores.shape[-1]
    edited = scores[:, :gamma].reshape(-1, vocabulary).clone()
    approve_(edited, draft_tokens.reshape(-1), approved.reshape(-1))
    return torch.cat([edited.view(-1, gamma, vocabulary), scores[:, gamma:]], dim=1)


def approve_(scores: Tensor, draft_tokens: Tensor, approved: Tensor) -> Tensor:
    """`approve` on flat rows and in place; returns which rows were really approved. (rows, vocab), (rows,), (rows,)"""
    index = draft_tokens.unsqueeze(-1)
    at_draft = scores.gather(-1, index)
    approved = approved.unsqueeze(-1) & (at_draft != float("-inf"))
    scores.masked_fill_(approved, float("-inf"))
    scores.scatter_(-1, index, at_draft.masked_fill(approved, 0.0))
    return approved.squeeze(-1)


def _permitted(scores: Tensor, draft_tokens: Tensor) -> Tensor:
    """Whether the logits processors leave each drafted token possible. (batch, gamma)"""
    return token_log_probs(scores[:, : draft_tokens.shape[1]], draft_tokens) != float("-inf")


def _next_token(block: Block, accepted: Tensor, exact_correction: bool) -> Tensor:
    """The target's token after the accepted ones: greedy, or a sample. (batch,)

    After a rejection by the p/q test the sample comes from the residual max(0, p - q), which is what keeps the target's
    distribution; a fully accepted block, and judge-only mode, sample from p.
    """
    rows = torch.arange(accepted.shape[0], device=accepted.device)
    scores = block.p_scores[rows, accepted]  # (batch, vocab)
    if block.uniforms is None:
        return scores.argmax(dim=-1)
    p = scores.float().softmax(dim=-1)
    gamma = block.draft_tokens.shape[1]
    if exact_correction and gamma > 0:
        at = accepted.clamp(max=gamma - 1)
        if block.q_scores is None:  # a certain drafter: q is one-hot
            q = torch.zeros_like(p).scatter_(-1, block.draft_tokens[rows, at].unsqueeze(-1), 1.0)
        else:
            q = block.q_scores[rows, at].float().softmax(dim=-1)
        residual = (p - q).clamp(min=0.0)
        limit = gamma if block.lengths is None else block.lengths
        rejected = (accepted < limit) & (residual.sum(-1) > 0)  # an all-zero residual means p = q: sample from p
        p = torch.where(rejected.unsqueeze(-1), residual, p)
    return torch.multinomial(p, num_samples=1).squeeze(-1)
