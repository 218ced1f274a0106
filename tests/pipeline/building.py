"""A tiny pair on disk, settings for it, and what a build left in its folder."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from tiny import build_draft, build_model, build_tokenizer

from hf_selfjudge.hub.card import folder_card
from hf_selfjudge.pipeline.build import BuildSettings, ModelSettings
from hf_selfjudge.pipeline.settings import (
    FitSettings,
    LabelSettings,
    MineSettings,
    PromptSettings,
    RespondSettings,
    ScoreSettings,
)

TEXT = "the sun is red and a small stone rolls down so it hits another one near that old tree on our hill"


def save_pair(folder: Path, noise: float = 0.1, end: int | None = None) -> Path:
    """A target, a draft and their tokenizer; `end` is the token that ends a response."""
    target = build_model("llama").float()
    target.generation_config.eos_token_id = target.config.eos_token_id = end
    for name, model in (("target", target), ("draft", build_draft(target, noise))):
        model.save_pretrained(folder / name)
        build_tokenizer().save_pretrained(folder / name)
    return folder


def write_prompts(path: Path, count: int = 8) -> Path:
    generator = torch.Generator().manual_seed(0)
    words = TEXT.split()
    picks = [torch.randint(len(words), (3 + n % 5,), generator=generator).tolist() for n in range(count)]
    lines = [json.dumps({"prompt": " ".join(words[pick] for pick in row)}) for row in picks]
    path.write_text("\n".join(lines) + "\n")
    return path


def tiny_settings(pair: Path, prompts: Path, **changes) -> BuildSettings:
    settings = BuildSettings(
        models=ModelSettings(target=str(pair / "target"), draft=str(pair / "draft")),
        prompts=PromptSettings(prompts=(str(prompts),), validation=0.25, calibration=0.25),
        respond=RespondSettings(max_new_tokens=16, batch_size=4, shard_size=4),
        mine=MineSettings(look_ahead=2),
        score=ScoreSettings(lengths=(0, 5), max_tokens=512),
        label=LabelSettings(length=5, acceptable=0.5),
        fit=FitSettings(feature_sets=("paper",), seeds=1),
    )
    return settings.updated(changes)


def with_models(settings: BuildSettings, **changes) -> BuildSettings:
    return replace(settings, models=replace(settings.models, **changes))


def results(out: Path) -> dict[str, object]:
    """Every result of a build: bytes of the files, notes without their times, and whether the card tells of them."""
    found: dict[str, object] = {}
    for path in sorted((out / "build").rglob("*")):
        if path.name.endswith(".note.json"):
            note = json.loads(path.read_text())
            found[str(path.relative_to(out))] = {k: v for k, v in note.items() if k not in ("seconds", "process")}
        elif path.suffix in (".jsonl", ".safetensors"):
            found[str(path.relative_to(out))] = path.read_bytes()
    in_step = (out / "README.md").read_text() == str(folder_card(out))  # it has more to tell where there is a report
    judge = {name: (out / name).read_bytes() for name in ("config.json", "model.safetensors")}
    return found | judge | {"README.md in step": in_step}


def manifest(out: Path) -> dict:
    return json.loads((out / "build" / "manifest.json").read_text())


LATER = ("label", "fit", "calibrate")
"""The stages that are not sharded."""


def options(settings, *groups: str) -> list[str]:
    """A command line that gives these settings."""
    return [
        f"--{name.replace('_', '-')}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for group in groups
        for name, value in settings.to_dict()[group].items()
        if value is not None and not isinstance(value, bool)
    ]
