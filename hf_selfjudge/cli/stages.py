"""The commands that make a judge: `selfjudge build`, and each stage on its own."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..pipeline.build_settings import GROUPS
from .options import add_options

OF_THIS_MACHINE = ("device", "device_map", "tp_plan", "trust_remote_code")
"""Settings that are never taken over from an earlier run."""


@dataclass(frozen=True)
class Command:
    """A command and the stages it runs."""

    help: str
    description: str
    stages: tuple[str, ...]
    groups: tuple[str, ...]
    example: str


COMMANDS = {
    "build": Command(
        "from a pair of models and prompts to a trained judge, resumable",
        "Make a judge for a pair of models: the target answers the prompts, the positions where the draft would have "
        "said something else are found and scored, and a classifier learns which of them keep the meaning. Run the "
        "same command again after an interruption: finished shards are kept.",
        ("prompts", "respond", "mine", "score", "autojudge", "label", "fit", "calibrate", "report"),
        tuple(GROUPS),
        "selfjudge build --target playground --draft playground --prompts playground:200 --max-new-tokens 96 "
        "--out judge\n"
        "  selfjudge build --target Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct \\\n"
        "      --prompts gsm8k:500 --prompts dolly:500 --prompts my.jsonl --out judge\n"
        "  accelerate launch --num_processes 8 -m hf_selfjudge build ...   (the same on 8 GPUs)\n"
        "  torchrun --nproc-per-node 2 -m hf_selfjudge build ...           (the same on GPUs or CPUs)",
    ),
    "respond": Command(
        "stage 1: choose the prompts and let the target answer them",
        "Read, choose and split the prompts, and let the target answer each of them greedily.",
        ("prompts", "respond"),
        ("models", "prompts", "respond"),
        "selfjudge respond --target T --draft D --prompts gsm8k:500 --out judge",
    ),
    "mine": Command(
        "stage 2: find where the draft would have said something else",
        "Let the draft read the responses and keep the positions where its token differs from the target's.",
        ("mine",),
        ("models", "mine"),
        "selfjudge mine --draft D --out judge",
    ),
    "score": Command(
        "stage 3: score how well each substitution keeps the meaning",
        "Score every substitution of a draft token with the target, and keep the features that a judge reads.",
        ("score",),
        ("models", "score"),
        "selfjudge score --lengths 0,20 --out judge",
    ),
    "label": Command(
        "stage 4: decide which substitutions are acceptable",
        "Label substitutions by their score, by whether the target still reaches its answer, or by both.",
        ("autojudge", "label"),
        ("models", "label"),
        "selfjudge label --tau -1.5 --out judge",
    ),
    "fit": Command(
        "stage 5: train the judge",
        "Fit judges on several sets of features and keep the best on validation prompts.",
        ("fit",),
        ("fit",),
        "selfjudge fit --feature-sets paper,hidden+scalars --out judge",
    ),
    "calibrate": Command(
        "stage 6: set the judge's thresholds and write its folder",
        "Find named operating points on held-out prompts, and write config.json, model.safetensors and README.md.",
        ("calibrate",),
        ("calibrate",),
        "selfjudge calibrate --risks 0.01,0.05 --out judge",
    ),
    "report": Command(
        "make the report of a build again",
        "Write the report of a build: curves, label statistics, substitutions, times.",
        ("report",),
        (),
        "selfjudge report --out judge",
    ),
}

_INHERITED = (
    "Options that are not given keep what the folder was begun with; the defaults shown are those of a\n"
    "new folder. `none` unsets an option."
)


class Parser(argparse.ArgumentParser):
    """A parser whose help ends with the sources of prompts, read only when somebody asks."""

    shows_presets = False

    def format_help(self) -> str:
        """The help, and the presets where they matter."""
        if not self.shows_presets:
            return super().format_help()
        from ..pipeline.sources.language import describe_presets

        return f"{super().format_help()}\npresets of --prompts:\n{describe_presets()}\n"


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands to the parser."""
    for name, command in COMMANDS.items():
        parser = commands.add_parser(
            name,
            help=command.help,
            usage=f"selfjudge {name} --out OUT [options]",
            description=textwrap.fill(command.description, 100),
            epilog=f"{_INHERITED}\n\nexamples:\n  {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("--out", type=Path, required=True, help="folder of the judge; stages' results in OUT/build")
        if len(command.groups) > 0:
            kept = command.stages[:-1] if name == "build" else command.stages
            parser.add_argument(
                "--overwrite",
                metavar="STAGE",
                choices=kept,
                help="drop the results of this stage and of all made from them first: " + ", ".join(kept),
            )
        for group in command.groups:
            add_options(parser, GROUPS[group])
        parser.shows_presets = "prompts" in command.groups
        parser.set_defaults(run=lambda stages=command.stages, **given: run(stages, **given))


def run(stages: tuple[str, ...], out: Path, overwrite: str | None = None, **given: Any) -> None:
    """Run stages with the given settings, and those of the folder; prints the summary as one line of JSON."""
    logging.basicConfig(format="selfjudge: %(message)s", stream=sys.stderr)
    logging.getLogger("hf_selfjudge").setLevel(logging.INFO)
    from transformers.utils.logging import disable_progress_bar

    from ..pipeline.build import build
    from ..pipeline.build_settings import BuildSettings
    from ..pipeline.storage.manifest import Manifest

    if not sys.stderr.isatty():
        disable_progress_bar()
    recorded = Manifest(out / "build" / "manifest.json").settings
    kept = {
        group: {name: value for name, value in values.items() if name not in OF_THIS_MACHINE}
        for group, values in recorded.items()
    }
    settings = BuildSettings.from_dict(kept).updated(given)
    found = build(settings, out, stages, overwrite)
    if int(os.environ.get("RANK", "0")) == 0:
        if "calibrate" in stages:
            thresholds = ", ".join(f"{name} {theta:.3g}" for name, theta in found["thresholds"].items())
            judge = f"{found['feature_set']} ({found['model']}), AUC {found['calibration_auc']:.3f} on held-out prompts"
            logging.getLogger(__name__).info("the judge is in %s: %s; thresholds %s", out, judge, thresholds)
        sys.stdout.write(json.dumps(found) + "\n")
