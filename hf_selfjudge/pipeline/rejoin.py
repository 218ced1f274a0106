"""Whether the target, left alone after a substitution, comes back to its own text.

The score of the paper asks how likely the old suffix still is, word for word, so it rejects every rephrasing that the
target would simply go on from. Here the target itself writes the next tokens after the draft's token, greedily, and the
result is compared with what it had written before: twice their longest common subsequence over their lengths (1 for
equal texts). A rephrasing costs the tokens that differ; a text that takes another course shares little. Digits carry
the outcome in many tasks and are few, so they count apart: if the digits of one text are not a beginning of the
other's, the score is lowered by 1, below that of every text that keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..rules import tokens_where
from .completion import complete, continue_all, end_tokens, is_fast, trunks_of
from .records import Mismatches, Response

NOTHING = -1
"""Fills up rows behind their end."""


def rejoin(
    target: PreTrainedModel,
    tokenizer: Any,
    responses: Sequence[Response],
    rows: Mismatches,
    lengths: Sequence[int],
    batch_size: int,
    follow: int = 0,
) -> Tensor:
    """How much of its own text the target writes again after each substitution, for every N. (rows, lengths) in [-1, 1]

    Args:
        target: the model that wrote the responses.
        tokenizer: its tokenizer.
        responses: the answers that the rows belong to.
        rows: the substitutions.
        lengths: how many tokens behind the substituted one are compared.
        batch_size: texts written together.
        follow: how many tokens of the draft's continuation are substituted with its token.
    """
    known = {response.prompt_id: response for response in responses}
    tokens = [found[: max(lengths) + 1] for found in rows.substitutes(follow)]
    keys = list(zip(rows.prompt_ids.tolist(), rows.positions.tolist(), tokens, strict=True))
    written = _write(target, known, keys, max(lengths), batch_size)
    ends = set(end_tokens(target))
    ours, theirs = [], []
    for (prompt_id, position, substitute), rest in zip(keys, written, strict=True):
        old = known[prompt_id].answer[position : position + max(lengths) + 1]
        new = [*substitute, *rest]
        if not ends.intersection(old[-1:]):
            new = new[: len(old)]  # the response was cut off, or goes on: compare what both have
        ours.append(new)
        theirs.append(old)
    digits = torch.tensor(tokens_where("digits", tokenizer), dtype=torch.long)
    return similarity(padded(ours), padded(theirs), lengths, digits)


def _write(
    target: PreTrainedModel,
    known: dict[int, Response],
    keys: Sequence[tuple[int, int, list[int]]],
    longest: int,
    batch_size: int,
) -> list[list[int]]:
    """What the target writes after each substitution."""
    starts = [
        [*known[prompt_id].prompt, *known[prompt_id].answer[:position], *tokens] for prompt_id, position, tokens in keys
    ]
    ends = set(end_tokens(target))
    rooms = [0 if start[-1] in ends else longest + 1 - len(key[2]) for start, key in zip(starts, keys, strict=True)]
    if is_fast(target):
        trunks = trunks_of(known.values(), [prompt_id for prompt_id, _, _ in keys])
        return continue_all(target, starts, rooms, batch_size, trunks, "rejoin")
    going = [at for at, room in enumerate(rooms) if room]
    found: list[list[int]] = [[] for _ in starts]
    for at, rest in complete(target, [starts[at] for at in going], longest, batch_size, "rejoin"):
        found[going[at]] = rest[: rooms[going[at]]]
    return found


def similarity(new: Tensor, old: Tensor, lengths: Sequence[int], digits: Tensor) -> Tensor:
    """Shared tokens of two texts' first N + 1 tokens, in order; lowered by 1 where their digits part.

    Args:
        new: (rows, width), filled up with `NOTHING`.
        old: the same.
        lengths: every N.
        digits: ids of the tokens with a digit.
    """
    common = longest_common(new, old)
    found = []
    for length in lengths:
        sizes = [(text[:, : length + 1] != NOTHING).sum(1) for text in (new, old)]  # (rows,) each
        shared = common[torch.arange(len(new)), sizes[0], sizes[1]]
        ratio = 2 * shared / (sizes[0] + sizes[1]).clamp(min=1)
        kept = _digits_agree(new[:, : length + 1], old[:, : length + 1], digits)
        found.append(torch.where(kept, ratio, ratio - 1))
    return torch.stack(found, dim=1).float()


def longest_common(a: Tensor, b: Tensor) -> Tensor:
    """Length of the longest common subsequence of every pair of beginnings. (rows, m), (rows, n) -> (rows, m+1, n+1)"""
    return torch.stack([*common_beginnings(a, b)], dim=1)


def common_beginnings(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """The same for one beginning of `a` after the other, the empty one first. (rows, n+1) each

    Row by row of the usual table; within a row the left neighbour's part is a running maximum, so that all texts and
    all columns go at once.
    """
    above = torch.zeros((len(a), b.shape[1] + 1), dtype=torch.int32)
    yield above
    for column in range(a.shape[1]):
        token = a[:, column : column + 1]
        match = (token == b) & (token != NOTHING)  # (rows, n)
        step = torch.where(match, above[:, :-1] + 1, above[:, 1:])
        above = torch.cat([above[:, :1], torch.maximum(step, above[:, 1:]).cummax(1).values], dim=1)
        yield above


def _digits_agree(new: Tensor, old: Tensor, digits: Tensor) -> Tensor:
    """Whether the digits of one text are a beginning of the other's: what is behind the window is not known. (rows,)"""
    sequences = []
    for text in (new, old):
        is_digit = torch.isin(text, digits)
        order = (~is_digit).long().argsort(dim=1, stable=True)  # digits first, in their order
        sequences.append(torch.where(is_digit, text, NOTHING).gather(1, order))
    width = min(sequence.shape[1] for sequence in sequences)
    a, b = (sequence[:, :width] for sequence in sequences)
    return ((a == b) | (a == NOTHING) | (b == NOTHING)).all(1)


def padded(texts: Sequence[list[int]]) -> Tensor:
    """Token lists as one tensor. (rows, width)"""
    width = max(map(len, texts), default=0)
    rows = [[*text, *[NOTHING] * (width - len(text))] for text in texts]
    return torch.tensor(rows, dtype=torch.long).reshape(-1, width)
