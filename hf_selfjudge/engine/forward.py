"""A model's forwards on a static cache, replayed as CUDA graphs, and a store that keeps them from call to call."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .body import FusedBody, PlainBody, why_not_fusable
from .row_cache import RowCache, cache_bytes
from .suitability import has_hooks

logger = logging.getLogger(__name__)

PREFILL = 512
"""Prompts are read in pieces of this many tokens, which bounds the memory of their masks."""
GRANULE = 256
"""Capacities are multiples of this, so that calls of similar length share a cache and its graphs."""
SHARE = 0.5
"""Static caches may take this much of the free memory; the rest is for activations and for others."""
SLACK = 4
"""A cache up to this much larger than a call needs is used for it."""
GRAPH_TOKENS = 2048
"""Most tokens in one graph: larger forwards are bound by the GPU, not by launches."""


class Forward:
    """One model, one static cache, and a graph for each input shape that came up."""

    def __init__(self, model: PreTrainedModel, rows: int, capacity: int) -> None:
        self.cache = RowCache(model, rows, capacity)
        reason = why_not_fusable(model)
        if reason is None:
            self._body: FusedBody | PlainBody = FusedBody(model, self.cache)
        else:
            logger.info("%s runs its own layers: %s.", type(model).__name__, reason)
            self._body = PlainBody(model, self.cache)
        self._hooked = has_hooks(model)  # hooks run in eager forwards only
        self._use_graphs = model.device.type == "cuda" and not self._hooked
        self._graphs: dict[tuple[int, int, int], Captured] = {}
        self._pool: Any = None
        self._weights = weight_addresses(model)  # after fusing, which moves them

    @torch.no_grad()
    def __call__(self, ids: Tensor, positions: Tensor, keep: int) -> tuple[Tensor, Tensor]:
        """Read tokens into the cache; logits and lm_head inputs of the last `keep`, valid until the next call.

        (rows, count), (rows, count) -> (rows, keep, vocab), (rows, keep, hidden_size)
        """
        key = (*ids.shape, keep)
        if not self._use_graphs or ids.numel() > GRAPH_TOKENS:
            return self._body(ids, positions, keep)
        if key not in self._graphs:
            try:
                self._graphs[key] = Captured(lambda i, p: self._body(i, p, keep), (ids, positions), self._pool)
            except (RuntimeError, NotImplementedError) as error:
                logger.warning("No CUDA graph, decoding goes on without: %s", str(error).splitlines()[0])
                self._use_graphs = False
                return self._body(ids, positions, keep)
            self._pool = self._graphs[key].pool
        return self._graphs[key](ids, positions)

    @torch.no_grad()
    def prefill(self, ids: Tensor, positions: Tensor) -> None:
        """Read prompts into the cache, piece by piece."""
        for start in range(0, ids.shape[1], PREFILL):
            part = slice(start, start + PREFILL)
            self._body(ids[:, part].contiguous(), positions[:, part].contiguous(), 1)  # all want at least one logit

    @property
    def setup_seconds(self) -> dict[str, float]:
        """Time spent on compiling kernels (in the warm-ups) and on capturing graphs."""
        graphs = self._graphs.values()
        return {
            "warm_up": sum(graph.warm_up_seconds for graph in graphs),
            "capture": sum(graph.capture_seconds for graph in graphs),
        }

    def fits(self, model: PreTrainedModel, rows: int, capacity: int) -> bool:
        """Whether a call can use this; not if the weights were replaced or moved since, or hooks came or left."""
        least = rounded(capacity)
        room = rows <= self.cache.rows <= SLACK * rows and least <= self.cache.capacity <= SLACK * least
        return room and self._weights == weight_addresses(model) and self._hooked == has_hooks(model)

    def slots(self, rows: int) -> int:
        """Rows of the cache to use for this many texts: all, a half, a quarter, ..., so that graphs have few shapes."""
        slots = self.cache.rows
        while slots // 2 >= rows:
            slots //= 2
        return slots


class Captured:
    """A function of tensors as a CUDA graph: inputs are copied in, outputs stay where the graph writes them."""

    def __init__(self, function: Any, inputs: tuple[Tensor, ...], pool: Any) -> None:
        self._inputs = tuple(tensor.clone() for tensor in inputs)
        begun = time.perf_counter()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels are compiled and libraries set up outside the capture
            for _ in range(2):
                function(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        ready = time.perf_counter()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._outputs = function(*self._inputs)
        self.pool = self._graph.pool()
        self.warm_up_seconds, self.capture_seconds = ready - begun, time.perf_counter() - ready

    def __call__(self, *inputs: Tensor) -> Any:
        """Replay with new inputs of the same shapes."""
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        self._graph.replay()
        return self._outputs


_idle: WeakKeyDictionary[PreTrainedModel, list[Forward]] = WeakKeyDictionary()


def borrow(model: PreTrainedModel, rows: int, length: int) -> Forward:
    """A forward for `rows` texts of up to `length` tokens: one that an earlier call gave back, or a new one."""
    found = _fitting(model, rows, length)
    if found is None:
        _idle.pop(model, None)  # one cache per model is kept: of another shape, it only takes memory
        return Forward(model, rows, rounded(length))
    _idle[model].remove(found)
    return found


def _fitting(model: PreTrainedModel, rows: int, length: int) -> Forward | None:
    """A kept forward that a call can use."""
    return next((forward for forward in _idle.get(model, []) if forward.fits(model, rows, length)), None)


def give_back(model: PreTrainedModel, forward: Forward) -> None:
    """Keep a forward for the next call."""
    _idle.setdefault(model, [])[:] = [forward]


def rounded(length: int) -> int:
    """The capacity that texts of this length get."""
    return -(-length // GRANULE) * GRANULE


def release(model: PreTrainedModel | None = None) -> None:
    """Free the caches and graphs kept for a model, or for all."""
    if model is None:
        _idle.clear()
    else:
        _idle.pop(model, None)


def why_too_large(models: Sequence[PreTrainedModel], rows: int, length: int) -> str | None:
    """Whether static caches of full length would crowd a GPU, or None. They are for the longest text there may be."""
    if models[0].device.type != "cuda":
        return None
    new = [model for model in models if _fitting(model, rows, length) is None]
    needed = sum(cache_bytes(model, rows, rounded(length)) for model in new)
    idle = sum(forward.cache.bytes for model in new for forward in _idle.get(model, []))  # new ones take their place
    free = free_bytes(models[0].device) + idle
    if needed <= SHARE * free:
        return None
    return f"static caches for {rows} x {length} tokens take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that nobody uses, and what torch holds without using it."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def weight_addresses(model: PreTrainedModel) -> int:
    """Changes when a parameter is replaced or moved: a graph reads the old memory."""
    return hash(tuple(parameter.data_ptr() for parameter in model.parameters()))
