# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="import-not-found, no-untyped-def"
"""The GPU version of `log_probs`, in Triton: one program per row, which goes over its logits once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PRECISIONS = (torch.bfloat16, torch.float16, torch.float32)
BLOCK, WARPS = 4096, 8
"""Logits per step and warps of a program: two loads of 16 bytes per thread and step."""


def normalise(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The log sum exp of each row and its largest log-probability, in float32. (rows, vocab) -> (rows,), (rows,)"""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    log_sums, best = torch.empty((2, rows), dtype=torch.float32, device=logits.device)
    if rows:
        with torch.cuda.device_of(logits):  # triton launches on the current device
            _normalise[(rows,)](logits, log_sums, best, logits.stride(0), vocab, BLOCK=BLOCK, num_warps=WARPS)
    return log_sums, best


@triton.jit
def _normalise(logits, log_sums, best, stride, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    lanes = tl.arange(0, BLOCK)
    # finite, so that a block of tokens that the model rules out with -inf adds 0 and not nan
    top = -1.0e30
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocab, BLOCK):
        at = first + lanes
        value = tl.load(start + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(value, 0))
        total = total * tl.exp(top - higher) + tl.exp(value - higher)  # lane by lane: summed up once, at the end
        top = higher
    above = tl.log(tl.sum(total, 0))
    tl.store(log_sums + row, top + above)
    tl.store(best + row, -above)
