# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="import-not-found, no-untyped-def, no-untyped-call"
"""The GPU versions of `kernels`, in Triton. Same arguments, same results."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_QUERIES = 128
"""Longer inputs (prompts) go through torch's own attention."""
LINEAR = (2, 1024, 4)
"""Outputs per program, inputs per step and warps of the product with one token; measured on an H200."""
NORMED, GATED = (4, 4), (2, 8)
"""Outputs per program and warps of those that begin with a norm."""
WIDEST = 8192
"""A norm before the product holds the whole input in one program."""


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual)."""
    tokens, width = x.shape
    normed = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _add_rms_norm[(tokens,)](
        x, x if residual is None else residual, weight, normed, total, eps, width,
        ADD=residual is not None, BLOCK=block, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
    return normed, total


@triton.jit
def _add_rms_norm(x, residual, weight, normed, total, eps, width, ADD: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + token * width + at, mask=inside, other=0.0)
    if ADD:
        value = value + tl.load(residual + token * width + at, mask=inside, other=0.0)
        tl.store(total + token * width + at, value, mask=inside)
    wide = value.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide) / width + eps)
    w = tl.load(weight + at, mask=inside, other=0.0)
    tl.store(normed + token * width + at, w * scaled.to(w.dtype), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of the two halves."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    block = 1024
    _silu_mul[(tokens, triton.cdiv(width, block))](gate_up, out, width, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _silu_mul(gate_up, out, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + token * 2 * width + at, mask=inside, other=0.0)
    up = tl.load(gate_up + token * 2 * width + width + at, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(up.dtype)
    tl.store(out + token * width + at, active * up, mask=inside)


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
    """Rotate queries and keys, and put keys and values into their slots of the cache."""
    rows, count, width = qkv.shape
    _, kv_heads, _, dim = keys.shape
    q = torch.empty((rows, count, heads, dim), dtype=qkv.dtype, device=qkv.device)
    weight_q, weight_k, eps = norms or (qkv, qkv, 0.0)
    _rotate_and_store[(rows * count, heads + 2 * kv_heads)](
        qkv, cos, sin, positions, keys, values, q, weight_q, weight_k, eps,
        count, width, heads, kv_heads, keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        NORM=norms is not None, DIM=dim, HALF=triton.next_power_of_2(dim // 2), num_warps=1,
    )  # fmt: skip
    return q


@triton.jit
def _rotate_and_store(
    qkv, cos, sin, positions, keys, values, q, weight_q, weight_k, eps,
    count, width, heads, kv_heads, k_row, k_head, v_row, v_head,
    NORM: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = token // count
    half = tl.arange(0, HALF)
    inside = half < DIM // 2
    source = qkv + token * width + head * DIM
    first = tl.load(source + half, mask=inside, other=0.0)
    second = tl.load(source + DIM // 2 + half, mask=inside, other=0.0)
    slot = tl.load(positions + token)
    if head < heads + kv_heads:
        if NORM:
            a, b = first.to(tl.float32), second.to(tl.float32)
            scale = tl.rsqrt((tl.sum(a * a) + tl.sum(b * b)) / DIM + eps)
            weight = weight_q if head < heads else weight_k
            wa = tl.load(weight + half, mask=inside, other=0.0)
            wb = tl.load(weight + DIM // 2 + half, mask=inside, other=0.0)
            first, second = wa * (a * scale).to(wa.dtype), wb * (b * scale).to(wb.dtype)
        cos_a = tl.load(cos + slot * DIM + half, mask=inside, other=0.0)
        cos_b = tl.load(cos + slot * DIM + DIM // 2 + half, mask=inside, other=0.0)
        sin_a = tl.load(sin + slot * DIM + half, mask=inside, other=0.0)
        sin_b = tl.load(sin + slot * DIM + DIM // 2 + half, mask=inside, other=0.0)
        first, second = first * cos_a + (-second) * sin_a, second * cos_b + first * sin_b
    if head < heads:
        place = q + (token * heads + head) * DIM
    elif head < heads + kv_heads:
        place = keys + row * k_row + (head - heads) * k_head + slot * DIM
    else:
        place = values + row * v_row + (head - heads - kv_heads) * v_head + slot * DIM
    tl.store(place + half, first, mask=inside)
    tl.store(place + DIM // 2 + half, second, mask=inside)


def attend(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float, window: int | None) -> Tensor:
    """Attention over the valid part of the cache, split over programs along the keys."""
    rows, count, heads, dim = q.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    queries = group * count
    block_m = min(64, max(16, triton.next_power_of_2(queries)))
    blocks = triton.cdiv(queries, block_m)
    splits = max(1, min(32, triton.next_power_of_2(256 // (rows * kv_heads * blocks) or 1)))
    out = torch.empty((rows, count, heads * dim), dtype=q.dtype, device=q.device)
    shape = (rows * kv_heads, splits, blocks * block_m)
    partial = torch.empty((*shape, dim), dtype=torch.float32, device=q.device)
    stats = torch.empty((2, *shape), dtype=torch.float32, device=q.device)
    _attend[(rows * kv_heads, splits, blocks)](
        q, keys, values, positions, partial, stats, scale * 1.4426950408889634, count, heads, kv_heads,
        keys.stride(0), keys.stride(1), values.stride(0), values.stride(1), window or 0, stats.stride(0),
        GROUP=group, DIM=dim, PAD_DIM=max(16, triton.next_power_of_2(dim)), SPLITS=splits, BLOCK_M=block_m, BLOCK_N=64,
        WINDOW=window is not None, num_warps=4,
    )  # fmt: skip
    _combine[(rows, heads * count)](
        partial, stats, out, count, heads, kv_heads, stats.stride(0), blocks * block_m,
        GROUP=group, DIM=dim, PAD_DIM=max(16, triton.next_power_of_2(dim)), SPLITS=splits, num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _attend(
    q, keys, values, positions, partial, stats, scale, count, heads, kv_heads,
    k_row, k_head, v_row, v_head, window, stats_stride,
    GROUP: tl.constexpr, DIM: tl.constexpr, PAD_DIM: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // kv_heads).to(tl.int64)
    kv_head = tl.program_id(0) % kv_heads
    split = tl.program_id(1)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)  # query row = place in the group * count + token
    asked = m < GROUP * count
    token, member = m % count, m // count
    d = tl.arange(0, PAD_DIM)
    in_dim = d < DIM
    at = ((row * count + token) * heads + kv_head * GROUP + member) * DIM
    query = tl.load(q + at[:, None] + d[None, :], mask=asked[:, None] & in_dim[None, :], other=0.0)
    position = tl.load(positions + row * count + token, mask=asked, other=0)
    last = tl.max(position)
    begin = 0
    if WINDOW:
        first = tl.min(tl.where(asked, position, last))
        begin = tl.maximum(first - window + 1, 0) // BLOCK_N
    blocks = last // BLOCK_N + 1 - begin
    each = tl.cdiv(blocks, SPLITS)
    low = begin + split * each
    high = tl.minimum(low + each, begin + blocks)
    best = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, PAD_DIM], tl.float32)
    for block in range(low, high):
        n = block * BLOCK_N + tl.arange(0, BLOCK_N)
        stored = n <= last
        k = tl.load(
            keys + row * k_row + kv_head * k_head + n[None, :].to(tl.int64) * DIM + d[:, None],
            mask=stored[None, :] & in_dim[:, None], other=0.0,
        )  # fmt: skip
        score = tl.dot(query, k, input_precision="ieee") * scale
        visible = n[None, :] <= position[:, None]
        if WINDOW:
            visible = visible & (n[None, :] > position[:, None] - window)
        score = tl.where(visible, score, -1.0e30)
        new_best = tl.maximum(best, tl.max(score, 1))
        weight = tl.where(visible, tl.exp2(score - new_best[:, None]), 0.0)
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(weight, 1)
        v = tl.load(
            values + row * v_row + kv_head * v_head + n[:, None].to(tl.int64) * DIM + d[None, :],
            mask=stored[:, None] & in_dim[None, :], other=0.0,
        )  # fmt: skip
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        best = new_best
    place = (tl.program_id(0) * SPLITS + split).to(tl.int64) * (tl.num_programs(2) * BLOCK_M) + m
    tl.store(partial + place[:, None] * DIM + d[None, :], acc, mask=in_dim[None, :])
    tl.store(stats + place, best)
    tl.store(stats + stats_stride + place, total)


@triton.jit
def _combine(
    partial, stats, out, count, heads, kv_heads, stats_stride, padded,
    GROUP: tl.constexpr, DIM: tl.constexpr, PAD_DIM: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head, token = tl.program_id(1) // count, tl.program_id(1) % count
    kv_head, member = head // GROUP, head % GROUP
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, PAD_DIM)
    in_dim = d < DIM
    place = ((row * kv_heads + kv_head) * SPLITS + split) * padded + member * count + token
    best = tl.load(stats + place)
    weight = tl.exp2(best - tl.max(best))
    total = tl.sum(weight * tl.load(stats + stats_stride + place))
    part = tl.load(partial + place[:, None] * DIM + d[None, :], mask=in_dim[None, :], other=0.0)
    value = tl.sum(part * weight[:, None], 0) / total
    tl.store(out + (row * count + token) * heads * DIM + head * DIM + d, value.to(out.dtype.element_ty), mask=in_dim)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias for one token: (1, inputs), (outputs, inputs) -> (1, outputs)"""
    outputs, inputs = weight.shape
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    block_n, block_k, warps = LINEAR
    _linear[(triton.cdiv(outputs, block_n),)](
        x, weight, weight if bias is None else bias, out, outputs, inputs,
        BIAS=bias is not None, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps,
    )  # fmt: skip
    return out


@triton.jit
def _linear(x, weight, bias, out, outputs, inputs, BIAS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted = n < outputs
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < inputs
        value = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(
            weight + n[:, None].to(tl.int64) * inputs + k[None, :], mask=wanted[:, None] & inside[None, :], other=0.0
        )
        acc += w.to(tl.float32) * value[None, :]
    total = tl.sum(acc, 1)
    if BIAS:
        total += tl.load(bias + n, mask=wanted, other=0.0).to(tl.float32)
    tl.store(out + n, total.to(out.dtype.element_ty), mask=wanted)


def norm_linear(
    x: Tensor, residual: Tensor | None, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, gated: bool
) -> tuple[Tensor, Tensor]:
    """`kernels.norm_linear` for one token."""
    outputs, inputs = weight.shape
    outputs = outputs // 2 if gated else outputs
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(x)
    block_n, warps = GATED if gated else NORMED
    _norm_linear[(triton.cdiv(outputs, block_n),)](
        x, x if residual is None else residual, norm, weight, weight if bias is None else bias, out, total,
        eps, outputs, inputs, ADD=residual is not None, BIAS=bias is not None, GATED=gated,
        BLOCK_N=block_n, BLOCK_K=triton.next_power_of_2(inputs), num_warps=warps,
    )  # fmt: skip
    return out, total


@triton.jit
def _norm_linear(
    x, residual, norm, weight, bias, out, total, eps, outputs, inputs,
    ADD: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted = n < outputs
    k = tl.arange(0, BLOCK_K)
    inside = k < inputs
    tile = wanted[:, None] & inside[None, :]
    at = n[:, None].to(tl.int64) * inputs + k[None, :]
    w = tl.load(weight + at, mask=tile, other=0.0)
    if GATED:
        w_up = tl.load(weight + outputs.to(tl.int64) * inputs + at, mask=tile, other=0.0)
    value = tl.load(x + k, mask=inside, other=0.0)
    if ADD:
        value = value + tl.load(residual + k, mask=inside, other=0.0)
        if tl.program_id(0) == 0:
            tl.store(total + k, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide) / inputs + eps)
    g = tl.load(norm + k, mask=inside, other=0.0)
    normed = (g * (wide * scale).to(g.dtype)).to(tl.float32)
    result = tl.sum(w.to(tl.float32) * normed[None, :], 1)
    if BIAS:
        result += tl.load(bias + n, mask=wanted, other=0.0).to(tl.float32)
    result = result.to(out.dtype.element_ty)
    if GATED:
        up = tl.sum(w_up.to(tl.float32) * normed[None, :], 1)
        if BIAS:
            up += tl.load(bias + outputs + n, mask=wanted, other=0.0).to(tl.float32)
        gate = result.to(tl.float32)
        result = (gate / (1.0 + tl.exp(-gate))).to(result.dtype) * up.to(result.dtype)
    tl.store(out + n, result, mask=wanted)


def greedy(scores: Tensor) -> Tensor:
    """The most likely token of each row, the first of equals. (rows, vocab) -> (rows, 1)"""
    rows, vocab = scores.shape
    scores = scores.contiguous()
    blocks = triton.cdiv(vocab, 4096)
    best = torch.empty((rows, blocks), dtype=torch.float32, device=scores.device)
    place = torch.empty((rows, blocks), dtype=torch.int64, device=scores.device)
    out = torch.empty((rows, 1), dtype=torch.int64, device=scores.device)
    _greedy_part[(rows, blocks)](scores, best, place, vocab, blocks, BLOCK=4096, num_warps=4)
    _greedy_whole[(rows,)](best, place, out, blocks, BLOCK=triton.next_power_of_2(blocks), num_warps=1)
    return out


@triton.jit
def _greedy_part(scores, best, place, vocab, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(scores + row * vocab + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
    top, index = tl.max(value, 0, return_indices=True)
    tl.store(best + row * blocks + block, top)
    tl.store(place + row * blocks + block, (block * BLOCK + index).to(tl.int64))


@triton.jit
def _greedy_whole(best, place, out, blocks, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(best + row * blocks + at, mask=at < blocks, other=float("-inf"))
    _, index = tl.max(value, 0, return_indices=True)
    tl.store(out + row, tl.load(place + row * blocks + index))


def token_statistics(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each token and the most likely one, in one pass."""
    rows, count, vocab = scores.shape
    tokens = tokens.contiguous()
    log_p = torch.empty((rows, count), dtype=torch.float32, device=scores.device)
    best = torch.empty((rows, count), dtype=torch.int64, device=scores.device)
    _token_statistics[(rows, count)](
        scores, tokens, log_p, best, scores.stride(0), scores.stride(1), count, vocab, BLOCK=8192, num_warps=8
    )
    return log_p, best


@triton.jit
def _token_statistics(scores, tokens, log_p, best, row_stride, place_stride, count, vocab, BLOCK: tl.constexpr):
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    base = scores + row * row_stride + place * place_stride
    top = -float("inf")
    total = 0.0
    index = tl.zeros([], tl.int64)
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(base + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
        here, where = tl.max(value, 0, return_indices=True)
        new_top = tl.maximum(top, here)
        safe = tl.where(new_top == -float("inf"), 0.0, new_top)
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(value - safe), 0)
        index = tl.where(here > top, start + where.to(tl.int64), index)
        top = new_top
    token = tl.load(tokens + row * count + place)
    chosen = tl.load(base + token).to(tl.float32)
    tl.store(log_p + row * count + place, chosen - top - tl.log(total))
    tl.store(best + row * count + place, index)
