"""What one verification forward knows about a block, and what a judge reads of it.

This is the only definition of the judge's input: labelling, training and every decoding engine call
`judge_features`. Pure torch; knows nothing of transformers, rules or weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from .config import LOOK_AHEAD_FEATURES
from .engine.kernels import token_statistics

LOG_FLOOR = -100.0
"""Log-probabilities are clamped here, so that a token with probability zero keeps every feature finite."""

LARGE = 1 << 26
"""Logits of a block from which float32 copies of all of them are avoided."""

AHEAD = 4
"""How many of the drafted tokens behind a token its look-ahead features read."""


@dataclass(frozen=True)
class Block:
    """The drafted tokens of one cycle and everything the target's forward over them produced.

    The forward reads [x_t, d_1 .. d_gamma], so row j of the target predicts d_{j+1} and the last row predicts the
    bonus token. As in transformers' outputs, "logits" are raw and "scores" are after all logits processors. Judges
    read logits (what they were trained on); acceptance rules read scores (the distribution the user asked for).
    """

    draft_tokens: Tensor  # (batch, gamma)
    target_logits: Tensor  # (batch, gamma + 1, vocab)
    hidden: Tensor  # (batch, gamma + 1, hidden_size): the lm_head's input after reading x_t, d_1, ..., d_gamma
    draft_logits: Tensor | None = None  # (batch, gamma, vocab)
    target_scores: Tensor | None = None  # (batch, gamma + 1, vocab); None means equal to the logits
    draft_scores: Tensor | None = None  # (batch, gamma, vocab); None means equal to the logits
    uniforms: Tensor | None = None  # (batch, gamma) in [0, 1): this block's randomness; None means greedy decoding
    lengths: Tensor | None = None  # (batch,): how many tokens were drafted for each row; None means gamma for all
    sequences: Tensor | None = None  # (batch,): each row's place in the call; rows that are done have left
    ahead: Block | None = None  # the block that this one's places were taken out of, for what they see behind them
    places: tuple[Tensor, Tensor] | None = None  # their rows and columns there. (batch,) each

    @property
    def p_scores(self) -> Tensor:
        """The target's scores for the drafted positions and the bonus token."""
        return self.target_logits if self.target_scores is None else self.target_scores

    @property
    def q_scores(self) -> Tensor | None:
        """The draft's scores, or None where the drafter has no distribution."""
        return self.draft_logits if self.draft_scores is None else self.draft_scores

    @cached_property
    def drafted(self) -> Tensor:
        """Which places hold a drafted token and not the filling behind a shorter row. (batch, gamma) bool"""
        if self.lengths is None:
            return torch.ones_like(self.draft_tokens, dtype=torch.bool)
        places = torch.arange(self.draft_tokens.shape[1], device=self.draft_tokens.device)
        return places[None] < self.lengths[:, None]

    @cached_property
    def target_choice(self) -> Tensor:
        """The target's most likely token at each drafted position, by its scores. (batch, gamma)"""
        return self.p_scores[:, :-1].argmax(dim=-1)

    @cached_property
    def matches(self) -> Tensor:
        """Where the drafted token is the target's most likely one, by its scores. (batch, gamma) bool"""
        return self.draft_tokens == self.target_choice

    @cached_property
    def log_p(self) -> Tensor:
        """The target's log-probabilities at the drafted positions, by its scores. (batch, gamma, vocab)"""
        return self.p_scores[:, :-1].log_softmax(-1, dtype=torch.float32)

    @cached_property
    def log_q(self) -> Tensor:
        """The draft's log-probabilities, by its scores. (batch, gamma, vocab)"""
        return self._need_q_scores().log_softmax(-1, dtype=torch.float32)

    @cached_property
    def draft_log_p(self) -> Tensor:
        """The target's log-probability of each drafted token, by its scores. (batch, gamma)"""
        return self._of_draft(self.p_scores[:, :-1], "log_p")

    @cached_property
    def draft_log_q(self) -> Tensor:
        """The draft's own, by its scores. (batch, gamma)"""
        return self._of_draft(self._need_q_scores(), "log_q")

    def _need_q_scores(self) -> Tensor:
        if self.q_scores is None:
            raise ValueError(
                "This rule, or a feature of this judge, needs the draft's logits, and this drafter has none (prompt "
                "lookup). Use a draft model, or a judge without log_q, kl_pq and kl_qp."
            )
        return self.q_scores

    def _of_draft(self, scores: Tensor, name: str) -> Tensor:
        if name not in self.__dict__ and scores.numel() >= LARGE:  # the whole distributions would be gigabytes
            return token_statistics(scores, self.draft_tokens)[0]
        return token_log_probs(getattr(self, name), self.draft_tokens)

    def at(self, rows: Tensor, columns: Tensor) -> Block:
        """Some places as rows of a block of one token each: all that rules by place need. (places,) each"""

        def take(values: Tensor) -> Tensor:
            return values[rows, columns][:, None]

        def maybe(values: Tensor | None) -> Tensor | None:
            return None if values is None else take(values)

        logits = take(self.target_logits)
        scores = logits if self.target_scores is self.target_logits else maybe(self.target_scores)
        return replace(
            self,
            draft_tokens=take(self.draft_tokens),
            target_logits=logits.expand(-1, 2, -1),  # nobody reads the bonus token's row
            hidden=torch.stack([self.hidden[rows, columns], self.hidden[rows, columns + 1]], dim=1),
            draft_logits=maybe(self.draft_logits),
            target_scores=None if scores is None else scores.expand(-1, 2, -1),
            draft_scores=maybe(self.draft_scores),
            uniforms=maybe(self.uniforms),
            lengths=None,
            sequences=None if self.sequences is None else self.sequences[rows],
            ahead=self,
            places=(rows, columns),
        )


def judge_features(block: Block, names: Sequence[str]) -> Tensor:
    """The judge's input for every drafted token: the named features side by side. (batch, gamma, input_size)"""
    if block.ahead is not None and block.places is not None and not LOOK_AHEAD_FEATURES.isdisjoint(names):
        return _features_of_places(block, block.ahead, block.places, names)
    view = _BlockView(block)
    return _side_by_side([_FEATURES[name](view) for name in names])


def _features_of_places(block: Block, whole: Block, places: tuple[Tensor, Tensor], names: Sequence[str]) -> Tensor:
    """Features of single places: what they see behind them is in the whole block. (batch, 1, input_size)"""
    own, behind = _BlockView(block), _BlockView(whole)
    return _side_by_side(
        [
            _FEATURES[name](behind)[places].unsqueeze(1) if name in LOOK_AHEAD_FEATURES else _FEATURES[name](own)
            for name in names
        ]
    )


def _side_by_side(values: Sequence[Tensor]) -> Tensor:
    """Vectors (batch, gamma, width) and numbers (batch, gamma) as columns of one tensor, in their order."""
    columns: list[Tensor] = []
    for dimensions, group in groupby(values, Tensor.dim):
        run = list(group)
        columns += [torch.stack(run, dim=-1)] if dimensions == 2 else run
    return torch.cat(columns, dim=-1)


def token_log_probs(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """The entry of each row of `log_probs` at its token. (batch, gamma, vocab), (batch, gamma) -> (batch, gamma)"""
    return log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) in nats over the last dimension; log-probabilities are floored, so it is finite."""
    return (log_p.exp() * (log_p.clamp(min=LOG_FLOOR) - log_q.clamp(min=LOG_FLOOR))).sum(-1)


def entropy(log_p: Tensor) -> Tensor:
    """Shannon entropy in nats over the last dimension."""
    return -(log_p.exp() * log_p.clamp(min=LOG_FLOOR)).sum(-1)


class _BlockView:
    """What features read of a block, each computed once and only if some feature asks for it.

    A judge costs what launching its many small operations costs, on a GPU above all, so they are few.
    """

    def __init__(self, block: Block) -> None:
        # by the logits, whatever scores the user asked for
        raw = block.p_scores is block.target_logits and block.q_scores is block.draft_logits
        self.block = block if raw else replace(block, target_scores=None, draft_scores=None)

    @cached_property
    def hidden(self) -> Tensor:
        """The state after reading x_t, d_1, ..., d_gamma. (batch, gamma + 1, hidden_size)"""
        return self.block.hidden.float()

    @cached_property
    def log_p_draft(self) -> Tensor:
        """log p of each drafted token. (batch, gamma)"""
        return self.block.draft_log_p.clamp(min=LOG_FLOOR)

    @cached_property
    def top2(self) -> tuple[Tensor, Tensor]:
        """The target's two largest log-probabilities. (batch, gamma) each"""
        log_p = self.block.log_p
        best = log_p.max(dim=-1, keepdim=True)  # two reductions: topk over a vocabulary takes longer
        second = log_p.scatter(-1, best.indices, -torch.inf).amax(dim=-1)
        return best.values.squeeze(-1).clamp(min=LOG_FLOOR), second.clamp(min=LOG_FLOOR)

    @property
    def rank(self) -> Tensor:
        """How many tokens the target prefers to the drafted one, as log(1 + rank). (batch, gamma)"""
        log_p = self.block.log_p
        own = log_p.gather(-1, self.block.draft_tokens.unsqueeze(-1))
        return (log_p > own).sum(-1, dtype=torch.float32).log1p()

    @cached_property
    def p(self) -> Tensor:
        """The target's probabilities. (batch, gamma, vocab)"""
        return self.block.log_p.exp()

    @cached_property
    def floored(self) -> Tensor:
        """Its floored log-probabilities. (batch, gamma, vocab)"""
        return self.block.log_p.clamp(min=LOG_FLOOR)

    @cached_property
    def difference(self) -> Tensor:
        """Floored log p - log q. (batch, gamma, vocab)"""
        return self.floored - self.block.log_q.clamp(min=LOG_FLOOR)

    @property
    def next_hidden(self) -> Tensor:
        """The state after reading the next drafted token; zeros where there is none. (batch, gamma, hidden_size)"""
        states = torch.nn.functional.pad(self.hidden[:, 2:], (0, 0, 0, 1))
        return torch.where(_behind(self.block.drafted)[..., 0].unsqueeze(-1), states, 0.0)

    @cached_property
    def ahead_known(self) -> Tensor:
        """How many of the next AHEAD tokens were drafted. (batch, gamma)"""
        return _behind(self.block.drafted.float()).sum(-1)

    @property
    def ahead_matches(self) -> Tensor:
        """How many of them in a row, from the next one on, are the target's choice. (batch, gamma)"""
        return _behind((self.block.matches & self.block.drafted).float()).cumprod(-1).sum(-1)

    @cached_property
    def log_p_behind(self) -> tuple[Tensor, ...]:
        """log p of each of the next AHEAD tokens, 0 where none was drafted. (batch, gamma) each"""
        return _behind(self.log_p_draft.masked_fill(~self.block.drafted, 0.0)).unbind(-1)

    @property
    def ahead_log_p(self) -> Tensor:
        """The mean log p of the next AHEAD tokens that were drafted. (batch, gamma)"""
        total, *others = self.log_p_behind
        for value in others:  # in this order whatever the block's length
            total = total + value
        return total / self.ahead_known.clamp(min=1.0)


def _behind(values: Tensor) -> Tensor:
    """What stands in the next AHEAD places behind each place, 0 where the block has ended. (batch, gamma, AHEAD)"""
    return torch.nn.functional.pad(values, (0, AHEAD)).unfold(1, AHEAD + 1, 1)[..., 1:]


_FEATURES: dict[str, Callable[[_BlockView], Tensor]] = {
    # the state after reading the drafted token, and the one that predicted it
    "hidden": lambda view: view.hidden[:, 1:],
    "previous_hidden": lambda view: view.hidden[:, :-1],
    "log_p": lambda view: view.log_p_draft,
    "log_p_top": lambda view: view.top2[0],
    "s_prefix": lambda view: view.log_p_draft - view.top2[0],
    "rank": lambda view: view.rank,
    "entropy": lambda view: -(view.p * view.floored).sum(-1),
    "margin": lambda view: view.top2[0] - view.top2[1],
    "log_q": lambda view: view.block.draft_log_q.clamp(min=LOG_FLOOR),
    "kl_pq": lambda view: (view.p * view.difference).sum(-1),
    "kl_qp": lambda view: -(view.block.log_q.exp() * view.difference).sum(-1),
    # the future that the same forward knows: the drafted tokens behind this one, given this one
    "next_hidden": lambda view: view.next_hidden,
    "ahead_known": lambda view: view.ahead_known,
    "ahead_matches": lambda view: view.ahead_matches,
    "next_log_p": lambda view: view.log_p_behind[0],
    "ahead_log_p": lambda view: view.ahead_log_p,
}
