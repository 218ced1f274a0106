"""Attention with a mask in which no token sees one that stands behind it, without most of the part that is masked.

Kernels compute all of a dense mask. Here the queries go in a few parts, each with the keys up to its own last token, so
that of the upper triangle only small steps are computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "selfjudge_split_sdpa"
"""What this attention is called among transformers' own."""

PARTS = 4
"""Parts of the queries. Fixed, so that compiled layers serve every width; five eighths are computed. 1 turns it off."""

ALIGNMENT = 16
"""Parts begin at a multiple of this, as kernels with masks want it."""

OWN = ("softcap", "position_bias", "s_aux", "cache")
"""Arguments of attention that only transformers' own sdpa knows how to take, or to refuse."""


@contextmanager
def split_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model with sdpa attention compute masked attention in parts during the body."""
    config = model.config.get_text_config()
    usable = config._attn_implementation == "sdpa" and getattr(model, "_supports_attention_backend", False)
    if PARTS == 1 or not usable:
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """As transformers' layers call attention. (batch, heads, tokens, head_dim) -> (batch, tokens, heads, head_dim)"""
    step = query.shape[2] // (PARTS * ALIGNMENT) * ALIGNMENT
    if attention_mask is None or step == 0 or any(options.get(name) is not None for name in OWN):
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **options)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # kernels with masks want every query head's own keys
        key, value = (part[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for part in (key, value))
    bounds = [(step * part, step * (part + 1) if part + 1 < PARTS else query.shape[2]) for part in range(PARTS)]
    found = [
        scaled_dot_product_attention(
            query[:, :, begin:end],
            key[:, :, :end],
            value[:, :, :end],
            attn_mask=attention_mask[:, :, begin:end, :end],
            dropout_p=options.get("dropout", 0.0),
            scale=options.get("scaling"),
        ).transpose(1, 2)
        for begin, end in bounds
    ]
    return torch.cat(found, dim=1), None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
