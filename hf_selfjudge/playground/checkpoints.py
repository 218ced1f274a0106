"""Checkpoints of a training run: weights, optimiser, random state and step as safetensors and JSON."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_checkpoint(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    """Write `folder/step-N` for `state["step"]` = N and drop the older ones; a reader never sees half a checkpoint."""
    final = folder / f"step-{state['step']:08d}"
    temporary = folder / f".{final.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    parameters = dict(model.named_parameters())
    save_file(
        {name: value.detach().contiguous() for name, value in parameters.items()}, temporary / "model.safetensors"
    )
    moments = {
        f"{name}:{moment}": torch.as_tensor(optimizer.state[value][moment]).contiguous()
        for name, value in parameters.items()
        for moment in _MOMENTS
    }
    save_file(moments, temporary / "optimizer.safetensors")
    save_file({"cpu": torch.get_rng_state()}, temporary / "random.safetensors")
    (temporary / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(final, ignore_errors=True)
    os.replace(temporary, final)
    for older in folder.glob("step-*"):
        if older != final:
            shutil.rmtree(older)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint, if there is one."""
    found = sorted(folder.glob("step-*"))
    return found[-1] if found else None


def load_checkpoint(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put a checkpoint's weights, optimiser and random state back; returns its state."""
    weights = load_file(path / "model.safetensors")
    moments = load_file(path / "optimizer.safetensors")
    parameters = dict(model.named_parameters())
    if parameters.keys() != weights.keys() or any(weights[n].shape != p.shape for n, p in parameters.items()):
        raise ValueError(f"the checkpoint {path} is of another architecture; start again without --resume")
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(weights[name])
            # The step counter must stay where the optimiser keeps it: on the CPU unless the fused kernel runs.
            fused = optimizer.defaults.get("fused")
            optimizer.state[value] = {
                moment: moments[f"{name}:{moment}"].to(value.device if fused or moment != "step" else "cpu")
                for moment in _MOMENTS
            }
    torch.set_rng_state(load_file(path / "random.safetensors")["cpu"])
    state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return state
