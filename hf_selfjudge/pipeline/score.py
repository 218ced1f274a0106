"""Stage 3: the semantic preservation score of every substitution, and the judge's features, from packed forwards.

For a response y and a mismatch i with the draft's token z (equation 7 of the paper):

    s = [log P(z | y_<i) - log P(y_i | y_<i)] + [log P(y_i+1..i+N | y_<i, z) - log P(y_i+1..i+N | y_<=i)]

All mismatches of a response go through the target at once: prompt and answer are a trunk, and each mismatch is a branch
[z, y_i+1, ..] behind it. For look-ahead features the draft's own continuation grows behind z as well. See packing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..config import DRAFT_FEATURES, LOOK_AHEAD_FEATURES, VECTOR_FEATURES
from ..engine.log_probs import normalise
from ..features import Block, judge_features
from ..lm_head import head_width
from .packing.fetching import Columns, LateTable
from .packing.grouping import Group, Plan, make_groups
from .packing.rows import (
    Ints,
    check_packable,
    chunks,
    compiled_layers,
    fit_vocabulary,
    pack,
    padded,
    read_packed,
    read_texts,
    send,
)
from .records import Mismatches, Response, Substitutions
from .settings import ScoreSettings
from .storage.progress import counted


@torch.no_grad()
def score(
    target: PreTrainedModel,
    responses: Sequence[Response],
    mismatches: Mismatches,
    settings: ScoreSettings,
    draft: PreTrainedModel | None = None,
) -> Substitutions:
    """Score all mismatches of all responses, ordered by prompt, position and rank.

    No forward reads more than `settings.max_tokens` tokens, unless a response and one branch already do. The draft is
    needed only for features of its distribution.
    """
    check_packable(target)
    asked = sorted(DRAFT_FEATURES.intersection(settings.features))
    if asked and draft is None:
        raise ValueError(f"Features {asked} need the draft's distribution: pass the draft, or leave them out.")
    table = mismatches.sorted()
    plan = Plan.make(responses, table, settings)
    groups = make_groups(responses, table, plan, settings)
    found = LateTable(len(table))
    with compiled_layers(target, settings.compile):
        for parts in counted(groups, "score", unit="forward"):
            group = Group.make(parts, plan, max(settings.lengths))
            # a group is packed and sent off while the device works on the one before
            found.add(torch.from_numpy(group.table_rows), _score_group(target, draft, group, settings))
    return Substitutions.from_columns(
        {name: getattr(table, name) for name in ("prompt_ids", "positions", "target_tokens", "draft_tokens", "ranks")}
        | {"suffix_tokens": torch.from_numpy(plan.suffixes)[:, None].clamp(max=torch.tensor(settings.lengths))}
        | (found.columns() or _nothing(target, settings)),
        lengths=settings.lengths,
    )


def _nothing(target: PreTrainedModel, settings: ScoreSettings) -> Columns:
    """The columns without rows."""
    columns = {"prefix": torch.empty(0)}
    columns |= {name: torch.empty((0, len(settings.lengths))) for name in ("likelihood", "confidence")}
    for kind in ("features", "original_features")[: 1 + settings.originals]:
        for name in settings.features:
            vector = torch.empty((0, head_width(target)), dtype=target.dtype)
            columns[f"{kind}.{name}"] = vector if name in VECTOR_FEATURES else torch.empty(0)
    return columns


def _score_group(
    target: PreTrainedModel, draft: PreTrainedModel | None, group: Group, settings: ScoreSettings
) -> Columns:
    """One packed forward, and the scores and features of its branches."""
    seen = _read(target, group, settings)
    columns = _score_terms(seen, group, settings.lengths)
    wants_draft = draft is not None and not DRAFT_FEATURES.isdisjoint(settings.features)
    draft_logits = _draft_logits(draft, group, seen.logits) if wants_draft else None
    # one token is a block for most features; only look-ahead needs what stands behind it
    own = [name for name in settings.features if name not in LOOK_AHEAD_FEATURES]
    ahead = [name for name in settings.features if name in LOOK_AHEAD_FEATURES]
    columns |= _features(seen, _Blocks.of_tokens(seen, group), own, draft_logits)
    columns |= _features(seen, _Blocks.with_continuations(seen, group), ahead, None)
    if settings.originals:
        kept = _features(seen, _Blocks.of_originals(seen, group), settings.features, draft_logits)
        columns |= {f"original_{name}": column for name, column in kept.items()}
    return columns


@dataclass(frozen=True)
class _Seen:
    """A packed forward's output, and where in it the branches lie."""

    logits: Tensor  # (needed, vocab)
    log_sums: Tensor  # (needed,): what turns logits into log-probabilities
    best: Tensor  # (needed,): the largest log-probability
    states: Tensor  # (places, hidden_size): what the lm_head reads
    before: Tensor  # (branches,): the row of logits that predicts y_i and z
    changed: Tensor  # (branches, N): the rows that predict the suffix after z
    unchanged: Tensor  # (branches, N): the rows that predict it after y_i
    ahead: Tensor  # (branches, most known): the rows that predict the draft's continuation after z
    places: Tensor  # (4, branches): the states before y_i, after it, after z, after the continuation's first token


def _read(target: PreTrainedModel, group: Group, settings: ScoreSettings) -> _Seen:
    """Run the forward, with the lm_head only where something is predicted that counts."""
    plan = group.plan
    # a compiled layer would be compiled once more for a single row
    fits_twice = 2 * padded(group.parts[0].size) <= settings.max_tokens
    packed = pack(group.trunks, group.branches, target.device, min_rows=2 if settings.compile and fits_twice else 1)
    origin = packed.trunks[group.rows] + plan.starts  # where y_i stands
    before, first, aside = (origin - 1)[:, None], packed.branches[:, None], packed.asides[:, None]
    steps, ahead = np.arange(max(settings.lengths))[None], np.arange(plan.continuations.shape[1])[None]
    in_suffix, is_known = steps < plan.suffixes[:, None], ahead < plan.known[:, None]
    predicting = [
        before,
        np.where(in_suffix, first + steps, before),
        np.where(in_suffix, origin[:, None] + steps, before),
        np.where(is_known, np.where(ahead == 0, first, aside + ahead - 1), before),
    ]
    needed, rows = np.unique(np.concatenate(predicting, axis=1), return_inverse=True)
    device = target.device
    logits, states = read_packed(target, packed, send(torch.from_numpy(needed), device))
    ends = np.cumsum([part.shape[1] for part in predicting])
    at = send(torch.from_numpy(rows.reshape(len(origin), -1)), logits.device)
    known = np.where(plan.known > 0, packed.asides, packed.branches)
    places = send(torch.from_numpy(np.stack([origin - 1, origin, packed.branches, known])), states.device)
    before_rows, changed, unchanged, ahead_rows = at.tensor_split(ends[:-1].tolist(), dim=1)
    log_sums, best = normalise(logits)
    return _Seen(logits, log_sums, best, states, before_rows[:, 0], changed, unchanged, ahead_rows, places)


def _score_terms(seen: _Seen, group: Group, lengths: Sequence[int]) -> Columns:
    """The score's terms for every N: (branches,), (branches, lengths), (branches, lengths)"""
    suffix = send(torch.from_numpy(group.suffix), seen.logits.device)  # y_i, y_i+1, ..
    z = send(torch.from_numpy(group.plan.tokens), seen.logits.device)
    counts = send(torch.from_numpy(group.plan.suffixes), seen.logits.device)
    real = torch.arange(suffix.shape[1] - 1, device=suffix.device) < counts[:, None]

    def log_p(rows: Tensor, tokens: Tensor) -> Tensor:
        return seen.logits[rows, tokens].float() - seen.log_sums[rows]

    def up_to_each_length(gains: Tensor) -> Tensor:
        total = torch.nn.functional.pad(torch.where(real, gains, 0.0).cumsum(1), (1, 0))
        return torch.stack([total[:, length] for length in lengths], dim=1)  # a list as index would wait

    likelihood = log_p(seen.changed, suffix[:, 1:]) - log_p(seen.unchanged, suffix[:, 1:])
    confidence = seen.best[seen.changed] - seen.best[seen.unchanged]
    return {
        "prefix": log_p(seen.before, z) - log_p(seen.before, suffix[:, 0]),
        "likelihood": up_to_each_length(likelihood),
        "confidence": up_to_each_length(confidence),
    }


def _draft_logits(draft: PreTrainedModel, group: Group, like: Tensor) -> Tensor:
    """The draft's logits at every mismatch, over the target's vocabulary. (branches, vocab)"""
    starts = [group.plan.starts[group.rows == row] for row in range(len(group.parts))]
    texts = [part.text[: at.max()] for part, at in zip(group.parts, starts, strict=True)]
    return fit_vocabulary(read_texts(draft, texts, [at - 1 for at in starts]), like.shape[1]).to(like.device)


@dataclass(frozen=True)
class _Blocks:
    """Blocks as when decoding, but only for their first token: what none of its features reads is filling."""

    tokens: Tensor  # (branches, gamma)
    logits: Tensor  # (branches, gamma + 1): rows of the forward's logits
    states: Tensor  # (branches, gamma + 1): rows of its states
    lengths: Tensor  # (branches,)

    @classmethod
    def of_tokens(cls, seen: _Seen, group: Group) -> _Blocks:
        """The draft's token."""
        return cls._single(seen, group.plan.tokens, seen.places[2])

    @classmethod
    def of_originals(cls, seen: _Seen, group: Group) -> _Blocks:
        """The target's own token; nothing behind it is known."""
        return cls._single(seen, group.suffix[:, 0], seen.places[1])

    @classmethod
    def _single(cls, seen: _Seen, tokens: Ints, after: Tensor) -> _Blocks:
        drafted = send(torch.from_numpy(tokens), seen.logits.device)[:, None]
        states = torch.stack([seen.places[0], after], dim=1)
        return cls(drafted, seen.before[:, None].expand(-1, 2), states, torch.ones_like(drafted[:, 0]))

    @classmethod
    def with_continuations(cls, seen: _Seen, group: Group) -> _Blocks:
        """The draft's token and what is known of its continuation."""
        plan = group.plan
        tokens = np.concatenate([plan.tokens[:, None], plan.continuations.clip(min=0)], axis=1)
        lengths = send(torch.from_numpy(plan.known + 1), seen.logits.device)
        logits = torch.cat([seen.before[:, None], seen.ahead, seen.before[:, None]], dim=1)
        filling = seen.places[3:].T.expand(-1, plan.continuations.shape[1])
        states = torch.cat([seen.places[0:3:2].T, filling], dim=1)
        return cls(send(torch.from_numpy(tokens), seen.logits.device), logits, states, lengths)


def _features(seen: _Seen, blocks: _Blocks, names: Sequence[str], draft_logits: Tensor | None) -> Columns:
    """The named features of each block's first token, vectors in the model's precision."""
    if not names:
        return {}
    # vectors are states: no row of the vocabulary's width is copied for them
    logits = seen.logits[:, :0] if set(names).issubset(VECTOR_FEATURES) else seen.logits
    width = max(logits.shape[1], seen.states.shape[1]) * (blocks.tokens.shape[1] + 1)
    found = []
    for part in chunks(len(blocks.tokens), width):
        block = Block(
            draft_tokens=blocks.tokens[part],
            target_logits=logits[blocks.logits[part]],
            hidden=seen.states[blocks.states[part]].to(seen.logits.device),
            draft_logits=None if draft_logits is None else draft_logits[part, None],
            lengths=blocks.lengths[part],
        )
        found.append(judge_features(block, names)[:, 0])
    widths = [seen.states.shape[1] if name in VECTOR_FEATURES else 1 for name in names]
    columns = dict(zip(names, torch.cat(found).split(widths, dim=1), strict=True))
    return {
        f"features.{name}": column.to(seen.states.dtype) if name in VECTOR_FEATURES else column[:, 0]
        for name, column in columns.items()
    }
