"""Stage 3: the semantic preservation score of every substitution, and the judge's features, from packed forwards.

For a response y and a mismatch i with the draft's token z (equation 7 of the paper):

    s = [log P(z | y_<i) - log P(y_i | y_<i)] + [log P(y_i+1..i+N | y_<i, z) - log P(y_i+1..i+N | y_<=i)]

All mismatches of a response go through the target at once: behind prompt and answer (the trunk) each mismatch gets a
branch [z, y_i+1, ..] with the positions it would have in the text, and a mask that lets a branch see the trunk before i
and itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from ..attention import attention_masks
from ..features import Block, judge_features, token_log_probs
from ..lm_head import head_inputs
from .records import Mismatches, Response, Substitutions

SUFFIXES = ("likelihood", "confidence")
REDUCTIONS = ("sum", "mean")


@dataclass(frozen=True)
class ScoreSettings:
    """How substitutions are scored."""

    lengths: tuple[int, ...] = (20,)
    """Suffix lengths N; several cost no more than the longest."""
    suffix: str = "likelihood"
    """The original suffix's "likelihood" (the paper), or the target's top-1 "confidence" along it (released code)."""
    reduction: str = "sum"
    """The "sum" over the token and its suffix (the paper), or their "mean" (the released code)."""
    features: tuple[str, ...] = ("hidden",)
    """Features of the judge to keep for each substitution."""

    def __post_init__(self) -> None:
        if not self.lengths or any(length < 0 for length in self.lengths):
            raise ValueError(f"lengths is {self.lengths!r}, expected suffix lengths >= 0.")
        if self.suffix not in SUFFIXES:
            raise ValueError(f"suffix is {self.suffix!r}, expected one of {SUFFIXES}.")
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"reduction is {self.reduction!r}, expected one of {REDUCTIONS}.")


@torch.no_grad()
def score(
    target: PreTrainedModel,
    responses: Sequence[Response],
    mismatches: Sequence[Mismatches],
    settings: ScoreSettings,
    max_tokens: int = 8192,
) -> Substitutions:
    """Score all mismatches of all responses, ordered by prompt and position.

    No forward reads more than `max_tokens` tokens, unless a response and one branch already do.
    """
    parts = []
    for group in tqdm(_groups(responses, mismatches, settings, max_tokens), "score", unit="forward", disable=None):
        parts += _score_group(target, group, settings)
    return Substitutions.join(parts)


@dataclass(frozen=True)
class _Packed:
    """One response and some of its mismatches as one row: prompt, answer, then the branches."""

    response: Response
    mismatches: Mismatches
    lengths: list[int]  # input tokens of each branch

    @property
    def size(self) -> int:
        return len(self.response.prompt) + len(self.response.answer) + sum(self.lengths)

    @property
    def kept(self) -> int:
        """Positions at the end of the row whose logits are needed: from the prompt's last token on."""
        return 1 + len(self.response.answer) + sum(self.lengths)


def _groups(
    responses: Sequence[Response], mismatches: Sequence[Mismatches], settings: ScoreSettings, max_tokens: int
) -> list[list[_Packed]]:
    """Rows to read together, as many as the token budget allows; a response with many branches is split over rows."""
    rows: list[_Packed] = []
    longest = max(settings.lengths)
    for response, found in zip(responses, mismatches, strict=True):
        trunk = len(response.prompt) + len(response.answer)
        # a branch reads z and all suffix tokens but the last, which is only predicted; at least z, for its hidden state
        lengths = [max(1, min(longest, len(response.answer) - 1 - position)) for position in found.positions]
        start = 0
        while start < len(lengths):
            end, size = start + 1, trunk + lengths[start]
            while end < len(lengths) and size + lengths[end] <= max_tokens:
                size += lengths[end]
                end += 1
            part = Mismatches(
                found.positions[start:end],
                found.draft_tokens[start:end],
                None if found.draft_logits is None else found.draft_logits[start:end],
            )
            rows.append(_Packed(response, part, lengths[start:end]))
            start = end
    groups: list[list[_Packed]] = []
    for row in sorted(rows, key=lambda row: -row.size):
        if groups and (len(groups[-1]) + 1) * groups[-1][0].size <= max_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _score_group(target: PreTrainedModel, group: list[_Packed], settings: ScoreSettings) -> list[Substitutions]:
    """One packed forward over a group of rows, left-padded so that everything needed lies at the end."""
    width = max(row.size for row in group)
    ids = torch.zeros((len(group), width), dtype=torch.long)
    position = torch.zeros_like(ids)
    branch = torch.full_like(ids, -1)  # -1 padding, 0 trunk, k the k-th branch
    start = torch.zeros_like(ids)  # where a branch leaves the trunk
    for r, row in enumerate(group):
        at = width - row.size
        trunk = row.response.prompt + row.response.answer
        ids[r, at : at + len(trunk)] = torch.tensor(trunk)
        position[r, at : at + len(trunk)] = torch.arange(len(trunk))
        branch[r, at : at + len(trunk)] = 0
        at += len(trunk)
        for k, (i, z, length) in enumerate(
            zip(row.mismatches.positions, row.mismatches.draft_tokens, row.lengths, strict=True)
        ):
            leaves = len(row.response.prompt) + i
            ids[r, at : at + length] = torch.tensor([z, *row.response.answer[i + 1 : i + length]])
            position[r, at : at + length] = torch.arange(leaves, leaves + length)
            branch[r, at : at + length] = k + 1
            start[r, at : at + length] = leaves
            at += length
    kept = max(row.kept for row in group)
    logits, hidden = _forward(target, ids, position, branch, start, kept)
    return [_score_row(row, logits[r, -row.kept :], hidden[r, -row.kept :], settings) for r, row in enumerate(group)]


def _forward(
    target: PreTrainedModel, ids: Tensor, position: Tensor, branch: Tensor, start: Tensor, kept: int
) -> tuple[Tensor, Tensor]:
    """Logits and lm_head inputs of the last `kept` positions. (rows, kept, vocab), (rows, kept, hidden)"""
    device = target.device
    ids, position, branch, start = (tensor.to(device) for tensor in (ids, position, branch, start))
    with head_inputs(target) as caught:
        output = target(
            input_ids=ids,
            position_ids=position,
            attention_mask=_attention_mask(target, position, branch, start),
            use_cache=False,
            **({"logits_to_keep": kept} if target._supports_logits_to_keep() else {}),
        )
    return output.logits[:, -kept:].float(), caught[-1][:, -kept:]


def _attention_mask(
    target: PreTrainedModel, position: Tensor, branch: Tensor, start: Tensor
) -> Tensor | dict[str, Tensor]:
    """Who sees whom: the trunk itself, a branch the trunk before it and itself."""
    back = position[:, :, None] - position[:, None, :]  # how far each key lies before each query
    same = (branch[:, :, None] == branch[:, None, :]) & (back >= 0)
    trunk = (branch[:, None, :] == 0) & (branch[:, :, None] > 0) & (position[:, None, :] < start[:, :, None])
    itself = torch.eye(position.shape[1], dtype=torch.bool, device=position.device)  # padding must see something
    visible = ((same | trunk) & (branch[:, None, :] >= 0)) | itself
    return attention_masks(target, visible, back)


def _score_row(row: _Packed, logits: Tensor, hidden: Tensor, settings: ScoreSettings) -> Substitutions:
    """Scores and features of a row's mismatches; the first row of logits predicts the answer's first token."""
    answer = torch.tensor(row.response.answer, device=logits.device)
    positions = torch.tensor(row.mismatches.positions, device=logits.device)
    z = torch.tensor(row.mismatches.draft_tokens, device=logits.device)
    log_p = logits.log_softmax(-1)
    trunk = _token_terms(log_p[: len(answer)], answer, settings.suffix)
    before = log_p[positions]  # (mismatches, vocab): predicts the replaced token
    prefix = token_log_probs(before, z) - token_log_probs(before, answer[positions])
    scores, first = [], []
    at = len(answer) + 1
    for m, (i, length) in enumerate(zip(row.mismatches.positions, row.lengths, strict=True)):
        first.append(at)
        suffix = answer[i + 1 : i + 1 + length]
        gained = _token_terms(log_p[at : at + len(suffix)], suffix, settings.suffix) - trunk[i + 1 : i + 1 + length]
        scores.append(_reduce(prefix[m], gained, settings))
        at += length
    after = torch.tensor(first, device=logits.device)
    block = Block(
        draft_tokens=z[:, None],
        target_logits=torch.stack([logits[positions], logits[after]], dim=1),
        hidden=torch.stack([hidden[positions], hidden[after]], dim=1),
        draft_logits=None
        if row.mismatches.draft_logits is None
        else row.mismatches.draft_logits[:, None].to(logits.device),
    )
    return Substitutions(
        prompt_ids=torch.full((len(z),), row.response.prompt_id),
        positions=positions.cpu(),
        target_tokens=answer[positions].cpu(),
        draft_tokens=z.cpu(),
        scores=torch.stack(scores).cpu(),
        features=judge_features(block, settings.features)[:, 0].cpu(),
    )


def _token_terms(log_p: Tensor, tokens: Tensor, suffix: str) -> Tensor:
    """What each suffix position contributes: log P of the original token, or the target's best log P."""
    return token_log_probs(log_p, tokens) if suffix == "likelihood" else log_p.amax(-1)


def _reduce(prefix: Tensor, gained: Tensor, settings: ScoreSettings) -> Tensor:
    """The score for each suffix length; a length beyond the answer's end uses what there is. (lengths,)"""
    running = torch.cat([prefix[None], prefix + gained.cumsum(0)])
    at = torch.tensor([min(length, len(gained)) for length in settings.lengths], device=running.device)
    total = running[at]
    return total / (at + 1) if settings.reduction == "mean" else total
