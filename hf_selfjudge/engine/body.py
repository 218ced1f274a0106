"""A model's forward over new tokens on a static cache: from token ids and positions to logits and the lm_head's input.

`FusedBody` runs Llama-like decoders with one matrix product for q, k and v, one for gate and up, and one kernel for
everything between two products. `PlainBody` runs any other decoder through its own forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention import attention_masks
from ..lm_head import head_inputs
from . import kernels
from .row_cache import RowCache
from .suitability import FIXED_ROPE, has_hooks, rope_types

FUSABLE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class FusedBody:
    """A Llama-like decoder.

    The weights of q, k and v (of gate and up) are moved into one tensor that the model's own parameters become views
    of: no weight is held twice, and the model goes on working as before.
    """

    def __init__(self, model: PreTrainedModel, cache: RowCache) -> None:
        reason = why_not_fusable(model)
        if reason is not None:
            raise ValueError(f"{type(model).__name__} cannot be fused: {reason}.")
        decoder: Any = model.model
        self._embedding = model.get_input_embeddings().weight
        self._norm = decoder.norm
        self._head: Any = model.get_output_embeddings()
        self._layers = [_FusedLayer(layer, model.config) for layer in decoder.layers]
        self._cache = cache
        capacity = torch.arange(cache.capacity, device=self._embedding.device)[None]
        cos, sin = decoder.rotary_emb(self._embedding[:1], capacity)
        self._cos, self._sin = cos[0].contiguous(), sin[0].contiguous()

    def __call__(self, ids: Tensor, positions: Tensor, keep: int) -> tuple[Tensor, Tensor]:
        """Read tokens into the cache; logits and lm_head inputs of the last `keep`.

        (rows, count), (rows, count) -> (rows, keep, vocab), (rows, keep, hidden_size)
        """
        rows, count = ids.shape
        x, residual = F.embedding(ids.flatten(), self._embedding), None
        for layer, (keys, values) in zip(self._layers, self._cache.layers_of(rows), strict=True):
            x, residual = layer(x, residual, positions, self._cos, self._sin, keys, values)
        hidden, _ = kernels.add_rms_norm(x, residual, self._norm.weight, self._norm.variance_epsilon)
        # flat and contiguous: a strided input would read the head once per row
        hidden = hidden.view(rows, count, -1)[:, count - keep :].reshape(rows * keep, -1)
        logits = F.linear(hidden, self._head.weight, self._head.bias)
        return logits.view(rows, keep, -1), hidden.view(rows, keep, -1)


class _FusedLayer:
    """One decoder layer: attention, then the MLP."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self._qkv, self._qkv_bias = fuse([attention.q_proj, attention.k_proj, attention.v_proj])
        self._gate_up, self._gate_up_bias = fuse([mlp.gate_proj, mlp.up_proj])
        self._out, self._down = attention.o_proj, mlp.down_proj
        self._heads = config.num_attention_heads
        self._scale = attention.scaling
        self._window = getattr(attention, "sliding_window", None) or _mistral_window(attention, config)
        self._qk_norms: tuple[Tensor, Tensor, float] | None = None
        if hasattr(attention, "q_norm"):
            eps = attention.q_norm.variance_epsilon
            self._qk_norms = (attention.q_norm.weight, attention.k_norm.weight, eps)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """x and residual: (tokens, hidden_size); their sum is the layer's input. Returns the next layer's two."""
        first, second = self._norms
        qkv, residual = kernels.norm_linear(x, residual, first, self._qkv, self._qkv_bias)
        qkv = qkv.view(*positions.shape, -1)
        q = kernels.rotate_and_store(qkv, cos, sin, positions, keys, values, self._heads, self._qk_norms)
        mixed = kernels.attend(q, keys, values, positions, self._scale, self._window)
        x = kernels.linear(mixed.flatten(0, 1), self._out.weight, self._out.bias)
        x, residual = kernels.norm_linear(x, residual, second, self._gate_up, self._gate_up_bias, gated=True)
        return kernels.linear(x, self._down.weight, self._down.bias), residual


class PlainBody:
    """Any decoder through its own forward, with the row cache in place of its own."""

    def __init__(self, model: PreTrainedModel, cache: RowCache) -> None:
        self._model = model
        self._cache = cache
        self._keeps_logits = model._supports_logits_to_keep()

    def __call__(self, ids: Tensor, positions: Tensor, keep: int) -> tuple[Tensor, Tensor]:
        """As `FusedBody`."""
        slots = torch.arange(self._cache.capacity, device=ids.device)
        back = positions[:, :, None] - slots  # (rows, count, capacity)
        mask = attention_masks(self._model, back >= 0, back)
        extra = {"logits_to_keep": keep} if self._keeps_logits else {}
        with self._cache.at(positions), head_inputs(self._model) as caught:
            output = self._model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=self._cache,
                use_cache=True,
                **extra,
            )
        return output.logits[:, -keep:], caught[-1][:, -keep:]


def why_not_fusable(model: PreTrainedModel) -> str | None:
    """What keeps a model from `FusedBody`, or None."""
    if type(model).__name__ not in FUSABLE:
        return f"its layers are not those of {', '.join(FUSABLE)}"
    config = model.config
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    changing = sorted(rope_types(config) - FIXED_ROPE)
    if changing:
        return f"its rotary embedding is {', '.join(changing)}"
    linear = [module for name, module in model.model.named_modules() if name.endswith("_proj")]
    if any(type(module) is not nn.Linear or type(module.weight) is not nn.Parameter for module in linear):
        return "its linear layers are quantised, sharded or adapted"
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        return "it is dispatched over several devices"
    if has_hooks(model):
        return "it has hooks"
    if len({parameter.dtype for parameter in model.parameters()}) > 1:
        return "its parameters have several dtypes"
    return None


def fuse(modules: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
    """One weight (and bias) of several linear layers, whose parameters become views of it; idempotent."""
    weight = _joined([module.weight for module in modules])
    biases = [module.bias for module in modules]
    return weight, None if biases[0] is None else _joined(biases)


def _joined(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The parameters one after the other in memory, moved there unless they already lie so."""
    first = parameters[0].data
    size, storage = sum(len(parameter) for parameter in parameters), first.untyped_storage().data_ptr()
    at = first.data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != at or parameter.untyped_storage().data_ptr() != storage:
            break
        at += parameter.numel() * parameter.element_size()
    else:
        return first.as_strided((size, *first.shape[1:]), first.stride())
    joined = torch.cat([parameter.data for parameter in parameters])
    done = 0
    for parameter in parameters:
        parameter.data = joined[done : done + len(parameter)]
        done += len(parameter)
    return joined


def _mistral_window(attention: Any, config: Any) -> int | None:
    """Mistral's attention takes its window from the config."""
    return getattr(config, "sliding_window", None) if type(attention).__name__ == "MistralAttention" else None
