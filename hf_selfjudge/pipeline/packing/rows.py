"""Many continuations of one text in one forward: rows of a trunk with branches behind it.

A branch leaves the trunk at some position. Its tokens carry the positions they would have in the text, and the mask
lets them see the trunk before that position and their own branch, so that every branch is read as if it stood alone.
Behind a branch's first token a second continuation (an aside) can grow, which sees that token but not the rest of the
branch.

Also what mine and score share of reading texts with a model. Knows nothing of mismatches or scores.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ...attention import attention_masks
from ...lm_head import head_inputs
from .split_attention import split_attention

PACKABLE_LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers whose whole view of the past is a mask."""

CHUNK_BYTES = 1 << 28
"""Most memory for float32 rows of the vocabulary's width at a time."""

ALIGNMENT = 16
"""Rows are padded to a multiple of this, which attention kernels with masks need."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Places:
    """Where tokens stand, and what they see: their own segment, their parent's, and the trunk before `starts`."""

    positions: Tensor  # (rows, tokens): place in the text
    segments: Tensor  # (rows, tokens): 0 for the trunk, -1 for padding
    parents: Tensor  # (rows, tokens): another segment they see; their own if none
    starts: Tensor  # (rows, tokens): where their branch leaves the trunk

    def followed_by(self, others: Places) -> Places:
        """These and the others behind them."""
        return Places(
            *(torch.cat(pair, dim=1) for pair in zip(vars(self).values(), vars(others).values(), strict=True))
        )

    def mask(self, model: PreTrainedModel, keys: Places | None = None) -> Tensor | dict[str, Tensor]:
        """The attention mask of these tokens over themselves, or over keys of which these are the last."""
        known = self if keys is None else keys
        position, key_position = self.positions[:, :, None], known.positions[:, None, :]
        segment = known.segments[:, None, :]
        back = position - key_position  # (rows, queries, keys)
        own = ((segment == self.segments[:, :, None]) | (segment == self.parents[:, :, None])) & (back >= 0)
        trunk = (segment == 0) & (key_position < self.starts[:, :, None])
        count, total = self.positions.shape[1], known.positions.shape[1]
        index = torch.arange(total, device=position.device)
        itself = index == index[total - count :, None]  # padding must see something
        return attention_masks(model, ((own | trunk) & (segment >= 0)) | itself, back)


@dataclass(frozen=True)
class Packed:
    """Rows ready to be read, and where their parts lie in the flattened (rows * width)."""

    tokens: Tensor  # (rows, width)
    places: Places
    trunks: Ints  # (rows,): each trunk's first token
    branches: Ints  # (branches,): each branch's first token
    asides: Ints  # (branches,): the first token of what grows behind the branch's first token


@dataclass(frozen=True)
class Branches:
    """Branches of a group of trunks, sorted by trunk."""

    rows: Ints  # (branches,): which trunk
    starts: Ints  # (branches,): the position at which it leaves the trunk
    tokens: Ints  # (branches, width)
    lengths: Ints  # (branches,): how many of the tokens count, at least 1
    asides: Ints  # (branches, width): tokens of the second continuation behind the first token
    aside_lengths: Ints  # (branches,)


def pack(trunks: Sequence[Ints], branches: Branches, device: torch.device, min_rows: int = 1) -> Packed:
    """Lay out trunks, each with its branches behind it, as rows of one width."""
    count, own = len(trunks), np.array([len(trunk) for trunk in trunks])
    sizes = own + np.bincount(branches.rows, branches.lengths + branches.aside_lengths, count).astype(np.int64)
    width = padded(int(sizes.max()))
    # (tokens, positions, segments, parents, starts) of every place
    table = np.zeros((5, max(count, min_rows) * width), dtype=np.int64)
    table[2:4] = -1
    for row, trunk in enumerate(trunks):
        place = slice(row * width, row * width + len(trunk))
        table[0, place], table[1, place], table[2:4, place] = trunk, np.arange(len(trunk)), 0
    first = 3 * np.arange(len(branches.rows))[:, None] + 1  # a branch's segments: first token, the rest, the aside
    starts, steps = branches.starts[:, None], np.arange(branches.tokens.shape[1])[None]
    at, free = _places(np.arange(count) * width + own, branches.rows, branches.lengths)
    _fill(table, at, branches.lengths, branches.tokens, starts + steps, first + (steps > 0), first, starts)
    steps = np.arange(branches.asides.shape[1])[None]
    beside, _ = _places(free, branches.rows, branches.aside_lengths)
    _fill(table, beside, branches.aside_lengths, branches.asides, starts + 1 + steps, first + 2, first, starts)
    ready = send(torch.from_numpy(table.reshape(5, -1, width)), device)
    return Packed(ready[0], Places(*ready[1:]), np.arange(count) * width, at, beside)


def padded(size: int) -> int:
    """The width of rows that hold `size` tokens."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _places(free: Ints, rows: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Put pieces of these lengths one behind the other into their rows: where each begins, and what is free then."""
    before = np.cumsum(lengths) - lengths
    taken = np.bincount(rows, lengths, len(free)).astype(np.int64)
    return free[rows] + before - (np.cumsum(taken) - taken)[rows], free + taken


def _fill(table: Ints, at: Ints, lengths: Ints, tokens: Ints, *others: Ints) -> None:
    """Write pieces of these lengths, line by line of the table, to where each begins."""
    steps = np.arange(tokens.shape[1])[None]
    real = steps < lengths[:, None]
    to = (at[:, None] + steps)[real]
    for line, values in enumerate((tokens, *others)):
        table[line, to] = np.broadcast_to(values, tokens.shape)[real]


def read_packed(model: PreTrainedModel, packed: Packed, positions: Tensor) -> tuple[Tensor, Tensor]:
    """One forward: logits at the given flat positions, and the lm_head's input everywhere.

    Returns (positions, vocab) and (rows * width, hidden_size), in the model's precision.
    """
    mask = packed.places.mask(model)
    # trunk, branches, asides: whatever a token sees stands before it in its row
    with head_inputs(model, positions) as caught, split_attention(model):
        output = model(
            input_ids=packed.tokens, position_ids=packed.places.positions, attention_mask=mask, use_cache=False
        )
    return output.logits[0], caught[-1].flatten(0, 1)


def read_texts(
    model: PreTrainedModel, texts: Sequence[Sequence[int] | Ints], positions: Sequence[Ints], cache: object = None
) -> Tensor:
    """Read texts of unequal length together; logits at the given positions of each, one after the other. (all, vocab)

    Padding stands behind the texts, where a causal model never sees it from, so no mask is needed.
    """
    width = max(len(text) for text in texts)
    ids = np.zeros((len(texts), width), dtype=np.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    flat = np.concatenate([row * width + np.asarray(places) for row, places in enumerate(positions)])
    tokens = clamp_tokens(model, send(torch.from_numpy(ids), model.device))
    with head_inputs(model, send(torch.from_numpy(flat), model.device)):
        return model(input_ids=tokens, past_key_values=cache, use_cache=cache is not None).logits[0]


def clamp_tokens(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Vocabularies padded to different sizes: an id this model has no embedding for is read as its last one."""
    return tokens.clamp(max=model.get_input_embeddings().weight.shape[0] - 1)


def fit_vocabulary(logits: Tensor, vocab_size: int | None) -> Tensor:
    """Logits over `vocab_size` tokens: what the other model lacks is cut, what this one lacks is ruled out."""
    missing = 0 if vocab_size is None else vocab_size - logits.shape[-1]
    return logits if missing == 0 else torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))


def chunks(rows: int, width: int) -> Iterator[slice]:
    """Rows in pieces that fit the memory set aside for float32 rows of this width."""
    size = max(1, CHUNK_BYTES // (4 * width))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`, without waiting for the copy where the device has a queue of its own."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def check_packable(model: PreTrainedModel) -> None:
    """Refuse models whose view of the past is more than positions and a mask."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    strange = sorted(kinds - set(PACKABLE_LAYERS))
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    if strange or not takes_positions or getattr(model, "_is_stateful", False):
        raise ValueError(
            f"{type(model).__name__} {f'has layers of kind {strange}' if strange else 'takes no position ids'}; "
            f"branches behind a trunk need ordinary attention ({' or '.join(PACKABLE_LAYERS)}) with position ids. "
            "Use another model."
        )


@contextmanager
def compiled_layers(model: PreTrainedModel, wanted: bool = True) -> Iterator[None]:
    """Run the model's decoder layers compiled during the body.

    The layers share their code, so it is compiled once; sizes are symbols, so other sizes need no new compilation; and
    torch keeps it, so that the next body starts at once.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names] if wanted else []
    own = [layer._compiled_call_impl for layer in layers]
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        yield
    finally:
        for layer, call in zip(layers, own, strict=True):
            layer._compiled_call_impl = call
