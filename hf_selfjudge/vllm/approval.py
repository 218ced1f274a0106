"""Which draft rows of one engine step the judge approves: from an engine's flat rows to edited scores and counts.

Engine-neutral: both of vLLM's model runners call this, and nothing here knows of vLLM. The decision is made by the same
rules and features as in the Hugging Face loop; acceptance itself stays the engine's own (see `verification.approve_`).

How a runner uses it, once per step that verifies drafts:

    rows = DraftRows(...)                        # what the step knows, flat, request after request
    verdict = approver.approve(rows)             # edits rows.scores IN PLACE: approved rows become one-hot
    ... the engine's stock rejection sampling runs on rows.scores ...
    approver.count(verdict, accepted, slots)     # accepted: (requests,) draft tokens that stand, on the device

No call waits for the device. All tensors of `rows` must be on the approver's device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import VECTOR_FEATURES
from ..features import Block
from ..rules import AllOf, AnyOf, JudgeRule, NeverRelax, Rule
from ..verification import approve_

OFF = 1.0
"""The theta that never relaxes: P(acceptable) is never above it. Per-request "off" is this."""

COUNTERS = ("drafted", "judged", "judge_accepted", "aligned")
"""What is counted, in draft tokens. drafted: verified. judged: of these, the judge was asked about (not "off").
aligned: stand and the exact rule takes them. judge_accepted: stand only because of the judge. For sampled requests the
engine's random numbers are not known: an approved token counts as aligned if it is the target's most likely one."""

MAX_ELEMENTS = 1 << 25
"""Requests are judged in groups whose padded logits have at most about this many numbers (128 MB in float32), because
vLLM gives nearly all of a GPU's memory to its caches."""


@dataclass(frozen=True)
class DraftRows:
    """The drafts of one step, flat: all rows of the first request, then all of the second, and so on.

    A request with n drafts has n rows in the draft-side tensors and n + 1 in the target-side ones (its last row
    predicts the bonus token); a request without drafts has none and one.
    """

    draft_tokens: Tensor  # (drafts,) int; negative ids (placeholders) are never relaxed
    counts: Sequence[int]  # drafts per request, known to the host
    hidden: Tensor  # (drafts + requests, hidden_size): the lm_head's input
    logits: Tensor  # (drafts + requests, vocab): raw, before grammar masks and processors
    scores: Tensor  # (drafts, vocab): after all processors; edited in place
    thetas: Tensor  # (requests,) float32; OFF for requests that the judge must leave alone
    lengths: Tensor | None = None  # (requests,): `counts` on the device, if the engine has it there already
    draft_logits: Tensor | None = None  # (drafts, vocab): raw
    protected: Tensor | None = None  # (drafts,) bool: rows that must not be relaxed, whatever the judge says
    final_scores: Tensor | None = None  # (drafts, vocab): `scores` after what the engine does later (top-k, top-p)


@dataclass(frozen=True)
class Approval:
    """What was decided for one step; `Approver.count` needs it after the engine has accepted."""

    relaxed: Tensor  # (drafts,) bool: approved by the judge, and not the target's most likely token anyway
    judged: Tensor  # (requests,): draft tokens the judge was asked about
    lengths: Tensor  # (requests,): drafts per request
    starts: Tensor  # (requests,): where each request's drafts start


class Approver:
    """A rule on a device, with device counters: totals, and one row per slot (a recent request).

    Args:
        rule: the rule at any threshold (its own is not used: `DraftRows.thetas` are); None relaxes nothing.
        device: where the engine's tensors are.
        slots: how many requests have counters of their own.
        end_tokens: ids that end a response; as in the loop, no judge looks at what was drafted behind one.
    """

    def __init__(
        self, rule: Rule | None, device: torch.device, slots: int = 1024, end_tokens: Sequence[int] = ()
    ) -> None:
        self.rule = None if rule is None else at_every_theta(rule).to(device)
        self._reads_logits, self.reads_scores = (False, False) if self.rule is None else _reads(self.rule)
        self._end_tokens = torch.tensor(sorted(end_tokens), dtype=torch.long, device=device)
        self.totals = torch.zeros(len(COUNTERS), dtype=torch.long, device=device)
        self.by_slot = torch.zeros(slots, len(COUNTERS), dtype=torch.long, device=device)

    @property
    def needs_draft_logits(self) -> bool:
        """Whether `DraftRows.draft_logits` must be given."""
        return self.rule is not None and self.rule.needs_draft_logits

    @torch.no_grad()
    def approve(self, rows: DraftRows, ask: bool = True) -> Approval:
        """Ask the rule about every draft and edit `rows.scores` in place; `ask=False` if every theta is OFF."""
        lengths = rows.lengths if rows.lengths is not None else torch.tensor(rows.counts, device=rows.scores.device)
        lengths = lengths.long()
        starts = lengths.cumsum(0) - lengths
        request, _ = _places(starts, rows.draft_tokens.shape[0])
        asked = (rows.thetas < OFF)[request] & (rows.draft_tokens >= 0)
        tokens = rows.draft_tokens.long().clamp(min=0)
        approved = asked & self._opinion(rows, tokens, lengths, starts) if ask else torch.zeros_like(asked)
        if rows.protected is not None:
            approved = approved & ~rows.protected
        if rows.final_scores is not None:
            approved = approved & (rows.final_scores.gather(1, tokens[:, None])[:, 0] != float("-inf"))
        matched = rows.scores.argmax(dim=-1) == tokens
        approved = approve_(rows.scores, tokens, approved)
        judged = torch.zeros_like(lengths).index_add_(0, request, asked.long())
        return Approval(relaxed=approved & ~matched, judged=judged, lengths=lengths, starts=starts)

    @torch.no_grad()
    def count(self, approval: Approval, accepted: Tensor, slots: Tensor | None = None) -> None:
        """Count a step after the engine's acceptance.

        Args:
            approval: what `approve` returned.
            accepted: how many draft tokens stand for each request, without correction and bonus. (requests,)
            slots: the row of `by_slot` of each request; None counts only totals. (requests,) long
        """
        accepted = torch.minimum(accepted.long().clamp(min=0), approval.lengths)
        request, place = _places(approval.starts, approval.relaxed.shape[0])
        relaxed = approval.relaxed & (place < accepted[request])
        judge_accepted = torch.zeros_like(accepted).index_add_(0, request, relaxed.long())
        counts = torch.stack([approval.lengths, approval.judged, judge_accepted, accepted - judge_accepted], dim=1)
        self.totals += counts.sum(0)
        if slots is not None:
            self.by_slot.index_add_(0, slots, counts)

    def _opinion(self, rows: DraftRows, tokens: Tensor, lengths: Tensor, starts: Tensor) -> Tensor:
        """The rule's mask for every draft at its request's theta. (drafts,) bool"""
        width = max(rows.counts, default=0)
        if self.rule is None or width == 0:
            return torch.zeros_like(tokens, dtype=torch.bool)
        group = max(1, MAX_ELEMENTS // ((width + 1) * rows.scores.shape[-1]))
        masks = []
        for first in range(0, len(rows.counts), group):
            part = slice(first, first + group)
            block = self._block(rows, tokens, lengths, starts, part, width)
            relaxed, probability = self.rule.weigh(block)
            if probability is not None:
                relaxed = relaxed & (probability > rows.thetas[part, None])
            drafts = sum(rows.counts[part])
            request, place = _places(starts[part] - starts[first], drafts)
            masks.append(relaxed[request, place])
        return torch.cat(masks)

    def _block(
        self, rows: DraftRows, tokens: Tensor, lengths: Tensor, starts: Tensor, part: slice, width: int
    ) -> Block:
        """Some requests' rows as one padded block."""
        length, start = lengths[part, None], starts[part, None]
        places = torch.arange(width + 1, device=tokens.device)[None]
        # target rows: one more per request before this one; behind a shorter row its last one is repeated
        requests_before = torch.arange(lengths.shape[0], device=tokens.device)[part, None]
        target_index = start + requests_before + torch.minimum(places, length)
        draft_index = (start + torch.minimum(places, (length - 1).clamp(min=0))).clamp(max=tokens.shape[0] - 1)
        index = draft_index[:, :-1]
        drafted = tokens[index]
        ends = (drafted.unsqueeze(-1) == self._end_tokens).any(-1)
        known = torch.where(ends, places[:, 1:], width).amin(dim=-1)  # up to the first end of a response
        scores = rows.scores if rows.final_scores is None else rows.final_scores
        empty = rows.logits.new_empty((*target_index.shape, 0))  # nothing can be read from it by mistake
        return Block(
            draft_tokens=drafted,
            target_logits=rows.logits[target_index] if self._reads_logits else empty,
            hidden=rows.hidden[target_index],
            draft_logits=None if rows.draft_logits is None else rows.draft_logits[index],
            target_scores=scores[draft_index] if self.reads_scores else None,
            lengths=torch.minimum(known, lengths[part]),
        )


def at_every_theta(rule: Rule) -> Rule:
    """The rule with its judge at theta 0: P > theta for any theta of a request implies P > 0, so rows decide alone."""
    if isinstance(rule, JudgeRule):
        return JudgeRule(rule.verifier.with_threshold(0.0))
    if isinstance(rule, NeverRelax):
        return NeverRelax(at_every_theta(rule.rule), rule.token_ids)
    if isinstance(rule, AllOf):
        return AllOf(tuple(at_every_theta(part) for part in rule.rules))
    if isinstance(rule, AnyOf) and any(_has_judge(part) for part in rule.rules):
        raise ValueError(
            "A judge inside 'any of' rules cannot have a threshold per request; combine rules with a judge only by "
            "'all of' (&)."
        )
    return rule


def judge_of(rule: Rule) -> JudgeRule | None:
    """The judge inside a rule, or None for training-free rules."""
    if isinstance(rule, JudgeRule):
        return rule
    if isinstance(rule, NeverRelax):
        return judge_of(rule.rule)
    if isinstance(rule, (AllOf, AnyOf)):
        return next((found for found in map(judge_of, rule.rules) if found is not None), None)
    return None


def _has_judge(rule: Rule) -> bool:
    return judge_of(rule) is not None


def _reads(rule: Rule) -> tuple[bool, bool]:
    """Whether a rule reads raw logits, and whether it reads processed scores: both are large, so only if needed."""
    if isinstance(rule, JudgeRule):
        return not set(rule.verifier.config.features) <= {*VECTOR_FEATURES, "ahead_known"}, False
    if isinstance(rule, NeverRelax):
        return _reads(rule.rule)[0], True
    if isinstance(rule, (AllOf, AnyOf)):
        parts = [_reads(part) for part in rule.rules]
        return any(logits for logits, _ in parts), any(scores for _, scores in parts)
    return False, True


def _places(starts: Tensor, drafts: int) -> tuple[Tensor, Tensor]:
    """The request of each flat draft row and its place in the block, from where requests start. (drafts,) each"""
    rows = torch.arange(drafts, device=starts.device)
    request = torch.searchsorted(starts, rows, right=True) - 1
    return request, rows - starts[request]
