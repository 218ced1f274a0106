"""Which models can have what: rows of different length in one cache, static caches, fused layers and graphs."""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import DynamicCache, PreTrainedModel

from .row_cache import cache_shape

ORDINARY_LAYERS = frozenset({"full_attention", "sliding_attention"})
FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings that depend on nothing but the position."""

_shapes: WeakKeyDictionary[PreTrainedModel, set[tuple[int, int]]] = WeakKeyDictionary()


def why_not_ragged(model: PreTrainedModel) -> str | None:
    """What keeps rows of different length from sharing a cache of this model, or None."""
    name, config = type(model).__name__, model.config.get_text_config()
    others = sorted(set(getattr(config, "layer_types", None) or ()) - ORDINARY_LAYERS)
    if others:
        return f"{name} has {', '.join(others)} layers"
    if "position_ids" not in inspect.signature(type(model).forward).parameters:
        return f"{name} takes no position_ids"
    if getattr(config, "alibi", False):
        return f"{name} has linear biases (alibi) in place of positions"
    if config.model_type == "gpt_neo" and "local" in config.attention_layers:
        return f"{name} has local attention that goes by places in the cache"
    return None


def why_not_static(model: PreTrainedModel, length: int | None = None) -> str | None:
    """What keeps a model from a static cache of this length, or None."""
    reason = why_not_ragged(model)
    if reason is not None:
        return reason
    name, config = type(model).__name__, model.config.get_text_config()
    if config._attn_implementation not in ("sdpa", "eager"):
        return f"{name} uses {config._attn_implementation} attention; sdpa and eager take masks"
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        return f"{name} is dispatched over several devices"
    if not hasattr(config, "num_attention_heads") or not hasattr(config, "num_hidden_layers"):
        return f"{name}'s config does not tell its heads and layers"
    changing = sorted(rope_types(config) - FIXED_ROPE)
    if changing and (length is None or length > _fixed_until(config)):
        return f"{name}'s rotary embedding ({', '.join(changing)}) changes with the length of the text"
    positions = getattr(config, "max_position_embeddings", None)
    if length is not None and positions is not None and not rope_types(config) and length > positions:
        return f"{name} has {positions} positions, and static caches want room for {length} tokens"
    if _cached_shapes(model) - {cache_shape(model)[1:]}:
        return f"{name}'s keys and values have other shapes than its config tells"
    return None


def rope_types(config: Any) -> set[str]:
    """The kinds of rotary embeddings a model has; none for models without."""
    return {str(entry.get("rope_type", "default")) for entry in _rope_entries(config)}


def has_hooks(model: PreTrainedModel) -> bool:
    """Whether something of the user's runs in the model's forward: hooks, or a forward in place of a module's own."""
    return any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) for module in model.modules()
    )


def _rope_entries(config: Any) -> list[dict[str, Any]]:
    """The parameters of a model's rotary embeddings: one set, or one for each kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    return [found] if "rope_type" in found else [entry for entry in found.values() if isinstance(entry, dict)]


def _fixed_until(config: Any) -> int:
    """The longest text for which an embedding that changes with the length does not."""
    own = getattr(config, "original_max_position_embeddings", None)
    limits = [entry.get("original_max_position_embeddings") or own for entry in _rope_entries(config)]
    return min((int(limit) for limit in limits if limit), default=int(config.max_position_embeddings))


@torch.no_grad()
def _cached_shapes(model: PreTrainedModel) -> set[tuple[int, int]]:
    """Heads and dimensions of the keys and values that the model really writes, by reading one token; kept."""
    if model not in _shapes:
        cache = DynamicCache()
        model(
            input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True
        )
        tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values) if tensor is not None]
        _shapes[model] = {(tensor.shape[1], tensor.shape[3]) for tensor in tensors if tensor.numel()}
    return _shapes[model]
