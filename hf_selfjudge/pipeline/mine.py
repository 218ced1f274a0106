"""Stage 2: mismatches, the positions where the draft would have written something else than the target did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ..decoding.continuation import continue_texts
from ..lm_head import head_inputs
from .completion import is_fast, trunks_of
from .packing.rows import Ints, Places, check_packable, chunks, clamp_tokens, fit_vocabulary, read_texts, send
from .records import Mismatches, Response
from .settings import MineSettings
from .storage.progress import counted

GO_ON_ROWS = 1024
"""Mismatches from which the draft goes on together."""


@torch.no_grad()
def mine(
    draft: PreTrainedModel,
    responses: Sequence[Response],
    settings: MineSettings,
    end_tokens: Sequence[int] = (),
    vocab_size: int | None = None,
) -> Mismatches:
    """Read the responses with the draft and keep where its best token differs from the target's.

    Args:
        draft: a causal LM with the target's tokens.
        responses: the target's answers; empty ones have no mismatches.
        settings: how many tokens of the draft to try at a mismatch (its best ones that are not the target's), and how
            far the draft goes on after each of them.
        end_tokens: tokens after which a draft does not go on.
        vocab_size: the size of the target's vocabulary, where the two are padded differently.
    """
    if settings.look_ahead:
        check_packable(draft)
    for response in responses:
        if not response.prompt:
            raise ValueError(
                f"Prompt {response.prompt_id} has no tokens; the answer's first token needs one before it."
            )
    texts = sorted((r for r in responses if r.answer), key=lambda r: -len(r.prompt) - len(r.answer))
    same_vocabulary = vocab_size in (None, draft.get_input_embeddings().weight.shape[0])
    # on static caches the draft goes on from all mismatches at once
    later = settings.look_ahead if is_fast(draft) and same_vocabulary else 0
    now = replace(settings, look_ahead=0, follow=0) if later else settings
    found = [_nothing(now.look_ahead)]
    for start in counted(range(0, len(texts), settings.mine_batch_size), "mine", unit="batch"):
        batch = texts[start : start + settings.mine_batch_size]
        found.append(_mine_batch(draft, batch, now, end_tokens, vocab_size))
    table = Mismatches.join(found)
    return replace(table, continuations=_go_on(draft, texts, table, later, end_tokens)) if later else table


def _go_on(
    draft: PreTrainedModel, responses: Sequence[Response], table: Mismatches, count: int, end_tokens: Sequence[int]
) -> Tensor:
    """The draft's greedy continuation after each of its tokens, -1 behind an end. (rows, count)"""
    known = {response.prompt_id: response for response in responses}
    owners = table.prompt_ids.tolist()
    starts = [
        [*known[owner].prompt, *known[owner].answer[:position], token]
        for owner, position, token in zip(owners, table.positions.tolist(), table.draft_tokens.tolist(), strict=True)
    ]
    rooms = [0 if start[-1] in end_tokens else count for start in starts]
    written = continue_texts(draft, starts, rooms, end_tokens, GO_ON_ROWS, trunks_of(responses, owners))
    return torch.tensor([[*tokens, *[-1] * (count - len(tokens))] for tokens in written]).reshape(-1, count)


def _nothing(look_ahead: int) -> Mismatches:
    """A table without rows."""
    empty = torch.empty(0, dtype=torch.long)
    return Mismatches(empty, empty, empty, empty, empty, torch.empty(0), torch.empty((0, look_ahead), dtype=torch.long))


def _mine_batch(
    draft: PreTrainedModel,
    responses: Sequence[Response],
    settings: MineSettings,
    end_tokens: Sequence[int],
    vocab_size: int | None,
) -> Mismatches:
    """One teacher-forced forward, then one short forward for each token that the draft goes on."""
    cache = DynamicCache() if settings.look_ahead else None
    # the position before each answer token predicts it, so the last answer token need not be read
    texts = [response.prompt + response.answer[:-1] for response in responses]
    counts = [len(response.answer) for response in responses]
    prompts = np.array([len(response.prompt) for response in responses])
    places = [np.arange(count) for count in counts]
    before = [prompt - 1 + place for prompt, place in zip(prompts, places, strict=True)]
    logits = fit_vocabulary(read_texts(draft, texts, before, cache), vocab_size)
    answers = torch.tensor([token for response in responses for token in response.answer])
    best = torch.cat([logits[part].argmax(-1) for part in chunks(*logits.shape)]).cpu()
    found = (best != answers).nonzero().squeeze(-1)
    tokens, log_q = _alternatives(logits[found.to(logits.device)], answers[found], settings.alternatives)
    del logits
    each = found.repeat_interleave(settings.alternatives)  # one row per alternative
    at = each.numpy()
    rows, positions = np.repeat(np.arange(len(counts)), counts)[at], np.concatenate(places)[at]
    starts, trunks = prompts[rows] + positions, np.array([len(text) for text in texts])
    continuations = torch.full((len(each), settings.look_ahead), -1)
    if settings.look_ahead and len(each):
        branches = _Branches(draft, cache, trunks, rows, starts)
        continuations = branches.grow(tokens, settings.look_ahead, end_tokens, vocab_size).cpu()
    return Mismatches(
        prompt_ids=torch.tensor([response.prompt_id for response in responses])[rows],
        positions=torch.from_numpy(positions),
        target_tokens=answers[each],
        draft_tokens=tokens.cpu(),
        ranks=torch.arange(settings.alternatives).repeat(len(found)),
        log_q=log_q.cpu(),
        continuations=continuations,
    )


def _alternatives(logits: Tensor, answers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The draft's best `count` tokens other than the answer's, and their log-probabilities.

    (mismatches, vocab), (mismatches,) -> two of (mismatches * count,)
    """
    tokens = torch.empty((len(logits), count), dtype=torch.long, device=logits.device)
    log_q = torch.empty((len(logits), count), device=logits.device)
    for part in chunks(*logits.shape):
        log_p = logits[part].float().log_softmax(-1)
        left = logits[part].scatter(1, answers[part, None].to(logits.device), float("-inf"))
        for rank in range(count):  # argmax, as decoding has it: topk breaks ties another way
            choice = left.argmax(-1, keepdim=True)
            tokens[part, rank], log_q[part, rank] = choice[:, 0], log_p.gather(1, choice)[:, 0]
            left.scatter_(1, choice, float("-inf"))
    return tokens.flatten(), log_q.flatten()


class _Branches:
    """Branches behind texts that are in the draft's cache, one column per branch, growing a token per forward."""

    def __init__(
        self, draft: PreTrainedModel, cache: DynamicCache | None, trunks: Ints, rows: Ints, starts: Ints
    ) -> None:
        self._draft, self._cache = draft, cache
        width = int(trunks.max())
        before = np.cumsum(np.bincount(rows, minlength=len(trunks)))
        slots = np.arange(len(rows)) - np.concatenate([[0], before])[rows]  # each branch's column
        shape = (len(trunks), int(slots.max()) + 1)
        at = send(torch.from_numpy(np.stack([rows, slots, starts])), draft.device)
        self._at = (at[0], at[1])
        empty = torch.full(shape, -1, device=draft.device)
        self._starts = torch.zeros_like(empty).index_put(self._at, at[2])
        self._segments = empty.index_put(self._at, at[1] + 1)
        self._flat = at[0] * shape[1] + at[1]
        index = torch.arange(width, device=draft.device).expand(len(trunks), -1)
        trunk = torch.where(index < send(torch.from_numpy(trunks), draft.device)[:, None], 0, -1)
        self._keys = Places(index, trunk, trunk, torch.zeros_like(index))

    def grow(self, tokens: Tensor, count: int, end_tokens: Sequence[int], vocab_size: int | None) -> Tensor:
        """The draft's greedy continuation after each branch's first token, -1 behind an end. (branches, count)"""
        ends = torch.tensor(list(end_tokens), dtype=torch.long, device=tokens.device)
        ended, grown = torch.isin(tokens, ends), []
        for step in range(count):
            tokens = fit_vocabulary(self._read(tokens, step), vocab_size).argmax(-1)
            grown.append(torch.where(ended, -1, tokens))
            ended = ended | torch.isin(tokens, ends)
        return torch.stack(grown, dim=1)

    def _read(self, tokens: Tensor, step: int) -> Tensor:
        """Read the next token of every branch. (branches,) -> (branches, vocab)"""
        places = Places(self._starts + step, self._segments, self._segments, self._starts)
        self._keys = self._keys.followed_by(places)
        grid = torch.zeros_like(self._starts).index_put(self._at, tokens)
        with head_inputs(self._draft, self._flat):
            output = self._draft(
                input_ids=clamp_tokens(self._draft, grid),
                position_ids=places.positions,
                attention_mask=places.mask(self._draft, self._keys),
                past_key_values=self._cache,
                use_cache=True,
            )
        return output.logits[0]
