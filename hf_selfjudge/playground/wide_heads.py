"""The embedded draft with wider attention heads, because vLLM's CPU attention has no kernel for heads of 28.

The copy computes the same function: heads are padded with zeros, the rotary embedding stays on the first 28 numbers
(`partial_rotary_factor`), and the query weights take back the change of the attention's scale 1 / sqrt(head_dim).
Only vLLM reads the copy; transformers' Llama does not know partial rotary embeddings.

    python -m hf_selfjudge.playground.wide_heads FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from . import ASSETS

HEAD_DIM = 32


def widened(folder: Path, out: Path) -> Path:
    """Write a float32 copy of the Llama in `folder` with heads of HEAD_DIM to `out`; returns `out`."""
    shutil.copytree(folder, out)
    config = json.loads((folder / "config.json").read_text())
    old = config["head_dim"]
    config.update(head_dim=HEAD_DIM, dtype="float32")
    config["rope_parameters"]["partial_rotary_factor"] = old / HEAD_DIM
    (out / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    state = {name: _padded(name, weight.float(), old) for name, weight in weights.items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    return out


def _padded(name: str, weight: torch.Tensor, old: int) -> torch.Tensor:
    """One weight with every head padded by zeros."""
    pad = HEAD_DIM - old
    if name.endswith("o_proj.weight"):  # (hidden, heads * head_dim)
        heads = weight.unflatten(1, (-1, old))
        return torch.nn.functional.pad(heads, (0, pad)).flatten(1).contiguous()
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):  # (heads * head_dim, hidden)
        heads = torch.nn.functional.pad(weight.unflatten(0, (-1, old)), (0, 0, 0, pad))
        scale = (HEAD_DIM / old) ** 0.5 if "q_proj" in name else 1.0
        return (heads * scale).flatten(0, 1).contiguous()
    return weight


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m hf_selfjudge.playground.wide_heads FOLDER (a new one, for the draft's copy)")
    widened(ASSETS / "draft", Path(sys.argv[1]))
