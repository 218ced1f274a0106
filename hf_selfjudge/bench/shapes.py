"""Pairs to time: named shapes with random weights (speed does not depend on them), or real models."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ..playground import ASSETS

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {"hidden": 4096, "inner": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "vocab": 128256},
    "llama-3.2-1b": {"hidden": 2048, "inner": 8192, "layers": 16, "heads": 32, "kv_heads": 8, "vocab": 128256,
                     "tied": True},
    "smollm2-135m": {"hidden": 576, "inner": 1536, "layers": 30, "heads": 9, "kv_heads": 3, "vocab": 49152},
    "smollm2-11m": {"hidden": 192, "inner": 512, "layers": 4, "heads": 3, "kv_heads": 1, "vocab": 49152},
    "tiny-5m": {"hidden": 256, "inner": 688, "layers": 6, "heads": 8, "kv_heads": 4, "vocab": 2048},
    "tiny-0.1m": {"hidden": 64, "inner": 176, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 512},
    "tiny-0.4m": {"hidden": 96, "inner": 256, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 2048},
}  # fmt: skip


def load(name: str, device: str, dtype: torch.dtype, role: str = "target") -> PreTrainedModel:
    """A named shape with random weights made on the device, or a model from a folder or the Hub.

    `playground` is the embedded model of that role.
    """
    name = str(ASSETS / role) if name == "playground" else name
    if name not in SHAPES:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device)
    else:
        shape = SHAPES[name]
        config = LlamaConfig(
            vocab_size=shape["vocab"],
            hidden_size=shape["hidden"],
            intermediate_size=shape["inner"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"],
            max_position_embeddings=8192,
            tie_word_embeddings=shape.get("tied", False),
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=0,
        )
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            torch.manual_seed(0)
            with torch.device(device):
                model = LlamaForCausalLM(config)
        finally:
            torch.set_default_dtype(before)
    model.generation_config.eos_token_id = None  # every run writes the same number of tokens
    model.generation_config.pad_token_id = 0
    return model.eval().requires_grad_(False)


def bytes_read(model: PreTrainedModel) -> int:
    """Bytes of weights that one forward over a few tokens reads: all but an untied embedding table."""
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return total if table is head else total - table.numel() * table.element_size()
