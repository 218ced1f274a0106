"""Plain decoding of many texts at once on static caches. Texts may share their beginnings, which are then read once.

Rows are as many as fit, the longest first; rows that are done leave, and forwards get smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..engine.forward import SHARE, free_bytes, rounded
from ..engine.kernels import greedy
from ..engine.row_cache import cache_bytes
from .static_model import StaticModel
from .texts import Texts

LOOK = 8
"""Steps between two looks at which rows are done: a look waits for the device."""


@dataclass(frozen=True)
class Trunks:
    """Texts that others begin with, and which of them each one begins with."""

    texts: Sequence[list[int]]
    of: Sequence[int]


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen: greedily at temperature 0, else sampled."""

    temperature: float = 0.0
    generator: torch.Generator | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """(rows, vocab) -> (rows, 1)"""
        if not self.temperature:
            return greedy(logits)
        # the fastest of exponential clocks whose rates are p: a sample from p without a cumulative sum
        clocks = torch.empty_like(logits).exponential_(generator=self.generator)
        return (logits / self.temperature).softmax(-1).div_(clocks).argmax(-1, keepdim=True)


@torch.no_grad()
def continue_texts(
    model: PreTrainedModel,
    texts: Sequence[list[int]],
    rooms: Sequence[int],
    ends: Sequence[int],
    rows: int = 256,
    trunks: Trunks | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> list[list[int]]:
    """What the model writes behind each text, the end token included.

    Args:
        model: one that takes static caches (`engine.suitability.why_not_static`).
        texts: token ids, at least one each.
        rooms: most new tokens of each text.
        ends: tokens that end a text.
        rows: most texts written together; fewer where memory is short.
        trunks: texts that these begin with, as far as they do, so that no beginning is read twice.
        temperature: 0 is greedy.
        seed: of the samples; with the same texts in the same order they are the same.
        advance: called with the number of texts just finished.
    """
    generator = torch.Generator(model.device).manual_seed(seed) if temperature else None
    sampler = Sampler(temperature, generator)
    found: list[list[int]] = [[] for _ in texts]
    going = [at for at, room in enumerate(rooms) if room > 0]
    longest = max((len(texts[at]) + rooms[at] for at in going), default=0) + 2 * LOOK
    rows = max(1, min(rows, _most_rows(model, longest)))
    for group in _groups(going, trunks, rows):
        source = _read_trunks(model, trunks, group)
        order = sorted(group, key=lambda at: (-rooms[at], -len(texts[at]), at))
        for first in range(0, len(order), rows):
            batch = order[first : first + rows]
            room = max(rooms[at] for at in batch)
            length = max(len(texts[at]) for at in batch) + room + 2 * LOOK
            cached = StaticModel(model, [0] * len(batch), length)
            if source is not None:
                source.lend(cached, [texts[at] for at in batch], batch)
            written = _write(cached, [texts[at] for at in batch], [rooms[at] for at in batch], frozenset(ends), sampler)
            cached.finish()
            for at, tokens in zip(batch, written, strict=True):
                found[at] = tokens
            advance(len(batch))
    return found


def _write(
    cached: StaticModel, texts: Sequence[list[int]], rooms: Sequence[int], ends: frozenset[int], sampler: Sampler
) -> list[list[int]]:
    """One batch."""
    found: list[list[int]] = [[] for _ in texts]
    active = list(range(len(texts)))
    known = as_texts(texts, cached.model.device)
    logits = cached.read(known, keep=1)[:, -1]  # (rows, vocab)
    block: list[Tensor] = []
    while active:
        block.append(sampler(logits))
        if len(block) < LOOK:
            logits = cached.extend(block[-1])[:, -1]
            continue
        tokens = torch.cat(block, dim=1)  # (rows, LOOK)
        known.append(tokens, [LOOK] * len(active))
        block = []
        going = []
        for row, new in enumerate(tokens.tolist()):
            at = active[row]
            if not _take(found[at], new, rooms[at], ends):
                going.append(row)
        if going and len(going) < len(active):
            known = known.select(going)
            cached.select(going)
        active = [active[row] for row in going]
        if active:
            logits = cached.read(known, keep=1)[:, -1]
    return found


def _take(answer: list[int], new: list[int], room: int, ends: frozenset[int]) -> bool:
    """Add new tokens to an answer up to its end; whether it has ended."""
    for token in new:
        answer.append(token)
        if token in ends or len(answer) == room:
            return True
    return False


@dataclass(frozen=True)
class _Source:
    """Trunks in a cache of their own."""

    cached: StaticModel
    trunks: Trunks
    rows: dict[int, int]  # of each trunk

    def lend(self, to: StaticModel, texts: Sequence[list[int]], batch: Sequence[int]) -> None:
        """Copy what each text shares with its trunk."""
        which = [self.trunks.of[at] for at in batch]
        shared = [_shared(text, self.trunks.texts[trunk]) for text, trunk in zip(texts, which, strict=True)]
        to.adopt(self.cached, [self.rows[trunk] for trunk in which], shared)


def _read_trunks(model: PreTrainedModel, trunks: Trunks | None, group: Sequence[int]) -> _Source | None:
    """Read the trunks of some texts."""
    if trunks is None:
        return None
    which = list(dict.fromkeys(trunks.of[at] for at in group))
    texts = [trunks.texts[trunk] for trunk in which]
    cached = StaticModel(model, [0] * len(texts), max(map(len, texts)))
    cached.read(as_texts(texts, model.device), keep=1)
    return _Source(cached, trunks, {trunk: row for row, trunk in enumerate(which)})


def _groups(going: Sequence[int], trunks: Trunks | None, rows: int) -> list[list[int]]:
    """The texts, in parts of at most `rows` different trunks."""
    if trunks is None:
        return [list(going)] if going else []
    place = {trunk: at for at, trunk in enumerate(dict.fromkeys(trunks.of[at] for at in going))}
    groups: dict[int, list[int]] = {}
    for at in going:
        groups.setdefault(place[trunks.of[at]] // rows, []).append(at)
    return list(groups.values())


def as_texts(texts: Sequence[list[int]], device: torch.device) -> Texts:
    """Token lists as one tensor."""
    width = max(map(len, texts))
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts], device=device)
    return Texts(ids, [len(text) for text in texts])


def _shared(text: list[int], trunk: list[int]) -> int:
    """How many tokens a text shares with its trunk; its last token is left to be read."""
    most = min(len(text) - 1, len(trunk))
    if text[:most] == trunk[:most]:
        return most
    return next(at for at in range(most) if text[at] != trunk[at])


def _most_rows(model: PreTrainedModel, length: int) -> int:
    """Rows whose cache fits well beside what is there; trunks take as much again."""
    if model.device.type != "cuda" or not length:
        return 1 << 30
    return int(SHARE / 2 * free_bytes(model.device) / cache_bytes(model, 1, rounded(length)))
