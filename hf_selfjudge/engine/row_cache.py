"""A static cache in which a token's slot is its position in its own text, so that every row has a length of its own.

Nothing is ever cut off: a token only sees slots up to its position, and slots behind it are written again before any
later token sees them. Rolling back costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from . import kernels


class RowCache(Cache):
    """Keys and values of all layers, (rows, kv_heads, capacity, head_dim) each.

    Also works as `past_key_values` of a model's own forward, within `at(positions)`.
    """

    def __init__(self, model: PreTrainedModel, rows: int, capacity: int) -> None:
        layer_count, heads, dim = cache_shape(model)
        shape = (rows, heads, capacity, dim)
        layers = [RowLayer(shape, model.dtype, model.device) for _ in range(layer_count)]
        super().__init__(layers=layers)
        self.rows, self.capacity = rows, capacity

    def layers_of(self, rows: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the first `rows` rows, layer by layer."""
        return [(layer.keys[:rows], layer.values[:rows]) for layer in self.layers]

    @contextmanager
    def at(self, positions: Tensor) -> Iterator[None]:
        """The positions, (rows, count), of the tokens that the body reads."""
        for layer in self.layers:
            layer.positions = positions
        yield
        for layer in self.layers:
            layer.positions = None

    def move(self, rows: list[int]) -> None:
        """Put these rows into the first places, in order."""
        index = torch.tensor(rows, device=self.layers[0].keys.device)
        for layer in self.layers:
            for tensor in (layer.keys, layer.values):
                tensor[: len(rows)] = tensor[index]

    def take_over(self, other: RowCache, of: list[int], to: list[int], length: int) -> None:
        """Take over the first `length` slots of another cache's rows `of` as the rows `to`."""
        device = self.layers[0].keys.device
        theirs, mine = (torch.tensor(rows, device=device) for rows in (of, to))
        for own, layer in zip(self.layers, other.layers, strict=True):
            own.keys[mine, :, :length] = layer.keys[theirs, :, :length]
            own.values[mine, :, :length] = layer.values[theirs, :, :length]

    @property
    def bytes(self) -> int:
        """Memory of all keys and values."""
        return sum(2 * layer.keys.numel() * layer.keys.element_size() for layer in self.layers)


def cache_shape(model: PreTrainedModel) -> tuple[int, int, int]:
    """Layers, heads of keys and values, and their dimension."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, heads, dim


def cache_bytes(model: PreTrainedModel, rows: int, capacity: int) -> int:
    """What a cache of this size takes."""
    layers, heads, dim = cache_shape(model)
    return 2 * layers * rows * heads * capacity * dim * model.dtype.itemsize


class RowLayer(CacheLayerMixin):
    """One layer's keys and values, for a model's own attention."""

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.positions: Tensor | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to initialise."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values at the positions; all slots of the rows at hand."""
        if self.positions is None:
            raise RuntimeError("A RowCache is read within `at(positions)`.")
        rows = len(key_states)
        keys, values = self.keys[:rows], self.values[:rows]
        kernels.store(keys, values, self.positions, key_states, value_states)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys."""
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        """Every row has its own; masks and positions are given explicitly."""
        return 0

    def get_max_length(self) -> int:
        """Slots per row."""
        return int(self.keys.shape[2])
