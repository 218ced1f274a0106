"""Attention masks for text that is not one plain line: branches behind a trunk, rows of different length in a cache."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

MASKED_ATTENTION = ("sdpa", "eager")
"""Attention implementations that take any mask."""


def attention_masks(model: PreTrainedModel, visible: Tensor, back: Tensor) -> Tensor | dict[str, Tensor]:
    """A visibility relation as the model's layers take it.

    Args:
        model: decides the form: boolean for sdpa, additive for eager, one mask per kind of layer where it has several.
        visible: which key each query may see, windows not counted. (batch, queries, keys) bool
        back: how many positions each key lies before each query. (batch, queries, keys)
    """
    config = model.config.get_text_config()
    attention = config._attn_implementation
    if attention not in MASKED_ATTENTION:
        raise ValueError(
            f"This needs attention masks that {attention!r} attention does not take; load the model with "
            "attn_implementation='sdpa'."
        )

    def ready(mask: Tensor) -> Tensor:
        mask = mask[:, None]  # all heads alike
        if attention == "sdpa":
            return mask
        return torch.zeros_like(mask, dtype=model.dtype).masked_fill(~mask, torch.finfo(model.dtype).min)

    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if window is None or (kinds and "sliding_attention" not in kinds):
        return ready(visible)
    sliding = ready(visible & (back < window))
    return {"full_attention": ready(visible), "sliding_attention": sliding} if kinds else sliding
