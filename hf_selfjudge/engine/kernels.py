"""The operations of a decoder layer, fused into few kernels on a GPU, and in plain torch elsewhere.

Both versions round where transformers' own layers round, so that a bfloat16 model keeps its numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    from . import triton_kernels as gpu
except ImportError:  # no triton: a CPU or another accelerator
    gpu = None  # type: ignore[assignment]


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual). x: (tokens, width)"""
    if gpu is not None and x.is_cuda:
        return gpu.add_rms_norm(x, residual, weight, eps)
    total = x if residual is None else residual + x
    return rms_norm(total, weight, eps), total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last dimension, computed in float32."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias. (tokens, inputs), (outputs, inputs) -> (tokens, outputs)"""
    return gpu.linear(x, weight, bias) if _one_token(x) else F.linear(x, weight, bias)


def norm_linear(
    x: Tensor, residual: Tensor | None, norm: Any, weight: Tensor, bias: Tensor | None, gated: bool = False
) -> tuple[Tensor, Tensor]:
    """(norm(x + residual) @ weight.T + bias, x + residual); gated: silu of the first half times the second."""
    if _one_token(x) and x.shape[1] <= gpu.WIDEST:
        return gpu.norm_linear(x, residual, norm.weight, norm.variance_epsilon, weight, bias, gated)
    normed, total = add_rms_norm(x, residual, norm.weight, norm.variance_epsilon)
    out = F.linear(normed, weight, bias)
    return silu_mul(out) if gated else out, total


def _one_token(x: Tensor) -> bool:
    """Products of a single token are bound by memory; libraries leave a fifth of it unused there."""
    return gpu is not None and x.is_cuda and len(x) == 1 and x.dtype in (torch.bfloat16, torch.float16)


def greedy(scores: Tensor) -> Tensor:
    """The most likely token of each row, the first of equals. (rows, vocab) -> (rows, 1)"""
    if gpu is not None and scores.is_cuda:
        return gpu.greedy(scores)
    return scores.argmax(dim=-1, keepdim=True)


def token_statistics(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """log p of each token, and the most likely one. (rows, count, vocab), (rows, count) -> twice (rows, count)"""
    if gpu is not None and scores.is_cuda and scores.stride(-1) == 1:
        return gpu.token_statistics(scores, tokens)
    chosen = scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen.float() - scores.float().logsumexp(-1), scores.argmax(-1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of the two halves. (tokens, 2 * width) -> (tokens, width)"""
    if gpu is not None and gate_up.is_cuda:
        return gpu.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate_and_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """Rotate queries and keys, and put keys and values into their slots of the cache.

    Args:
        qkv: (rows, count, (heads + 2 * kv_heads) * head_dim).
        cos: (capacity, head_dim), by position.
        sin: the same.
        positions: (rows, count), the position of each token in its text, which is its slot.
        keys: (rows, kv_heads, capacity, head_dim), written in place.
        values: the same.
        heads: number of query heads.
        norms: weights of the norms of queries and keys, and their epsilon, where the model has them.

    Returns:
        The queries, (rows, count, heads, head_dim).
    """
    if gpu is not None and qkv.is_cuda:
        return gpu.rotate_and_store(qkv, cos, sin, positions, keys, values, heads, norms)
    rows, count, _ = qkv.shape
    kv_heads, dim = keys.shape[1], keys.shape[3]
    q, k, v = qkv.view(rows, count, -1, dim).split([heads, kv_heads, kv_heads], dim=2)
    cos, sin = cos[positions], sin[positions]
    if norms is not None:
        q, k = rms_norm(q, norms[0], norms[2]), rms_norm(k, norms[1], norms[2])
    store(keys, values, positions, _rotate(k, cos, sin).transpose(1, 2), v.transpose(1, 2))
    return _rotate(q, cos, sin)


def store(keys: Tensor, values: Tensor, positions: Tensor, new_keys: Tensor, new_values: Tensor) -> None:
    """Put new keys and values, (rows, kv_heads, count, head_dim), into slots `positions`, (rows, count)."""
    for cache, new in ((keys, new_keys), (values, new_values)):
        at = positions[:, None, :, None].expand(-1, cache.shape[1], -1, cache.shape[3])
        cache.scatter_(2, at, new.to(cache.dtype))


def attend(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float, window: int | None) -> Tensor:
    """Attention of new tokens over the cache: each sees the slots up to its own position, within its window.

    Query heads of a group are folded into the token dimension, so that keys and values are never repeated.

    Args:
        q: (rows, count, heads, head_dim).
        keys: (rows, kv_heads, capacity, head_dim).
        values: the same.
        positions: (rows, count).
        scale: factor on the scores.
        window: how many slots a token sees; None for all.

    Returns:
        (rows, count, heads * head_dim).
    """
    rows, count, heads, dim = q.shape
    if gpu is not None and q.is_cuda and count <= gpu.MOST_QUERIES:
        return gpu.attend(q, keys, values, positions, scale, window)
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    folded = (
        q.view(rows, count, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, group * count, dim)
    )
    visible = visible_slots(positions, keys.shape[2], window)[:, None].repeat(1, 1, group, 1)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=visible, scale=scale)
    out = out.view(rows, kv_heads, group, count, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(rows, count, heads * dim)


def visible_slots(positions: Tensor, capacity: int, window: int | None) -> Tensor:
    """Which slots each new token sees. (rows, count) -> (rows, count, capacity) bool"""
    slots = torch.arange(capacity, device=positions.device)
    visible = slots <= positions[:, :, None]
    if window is not None:
        visible &= slots > positions[:, :, None] - window
    return visible


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding. x: (rows, count, heads, head_dim), cos and sin: (rows, count, head_dim)"""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x * cos[:, :, None] + turned * sin[:, :, None]
