"""Attention in parts against attention at once."""

import pytest
import torch
from tiny import VOCAB_SIZE, build_model

from hf_selfjudge.pipeline.packing import split_attention as split


def branching_mask(rows: int, width: int) -> torch.Tensor:
    """Each token sees itself and a random part of what stands before it. (rows, 1, width, width)"""
    visible = torch.rand((rows, 1, width, width), generator=torch.Generator().manual_seed(width)) < 0.5
    return visible.tril() | torch.eye(width, dtype=torch.bool)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
@pytest.mark.parametrize("width", [48, 64, 144, 208])
def test_logits_are_the_same(family, width, monkeypatch):
    model, calls = build_model(family), []
    model.set_attn_implementation("sdpa")
    mask = branching_mask(2, width)
    masks = {"full_attention": mask, "sliding_attention": mask} if family == "gemma3" else mask
    ids = torch.randint(3, VOCAB_SIZE, (2, width), generator=torch.Generator().manual_seed(1))
    real = split.scaled_dot_product_attention
    monkeypatch.setattr(
        split,
        "scaled_dot_product_attention",
        lambda q, k, v, **extra: calls.append((q.shape[2], k.shape[2])) or real(q, k, v, **extra),
    )
    with torch.no_grad():
        expected = model(ids, attention_mask=masks).logits
        with split.split_attention(model):
            found = model(ids, attention_mask=masks).logits
    torch.testing.assert_close(found, expected)
    assert model.config._attn_implementation == "sdpa"
    layers = model.config.num_hidden_layers
    assert len(calls) == (0 if width < 64 else split.PARTS * layers)
    assert sum(q for q, _ in calls) == (0 if width < 64 else width * layers)
    assert all(q <= k <= width for q, k in calls)
    if width > 64:
        assert sum(q * k for q, k in calls) < 0.75 * layers * width**2


def test_other_attention_is_left_alone():
    model = build_model("llama")
    model.set_attn_implementation("eager")
    with split.split_attention(model):
        assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"mask": None}, {"width": 63}])
def test_what_is_not_split_goes_to_sdpa(options, monkeypatch):
    monkeypatch.setattr(split, "ALL_ATTENTION_FUNCTIONS", {"sdpa": lambda *args, **extra: (args, extra)})
    options = dict(options)
    width = options.pop("width", 64)
    mask = options.pop("mask", torch.ones(1, 1, width, width, dtype=torch.bool))
    q = k = v = torch.randn(1, 2, width, 8)
    args, extra = split._attend(None, q, k, v, mask, scaling=0.5, **options)
    assert args == (None, q, k, v, mask)
    assert extra == {"scaling": 0.5} | options
