"""Train the playground's judge through the library's own pipeline: `python -m hf_selfjudge.playground.judge --out DIR`.

The target answers prompts of the training split and the draft's mismatches are scored. In the tasks with a checker a
substitution is acceptable if the target, finishing after it, still gives its answer (answer preservation, AutoJudge's
label); in open-ended ones if its semantic preservation score exceeds tau, which rejects nearly all substitutions known
to change an answer. A logistic regression learns these labels. Writes a judge folder and `build.json` (settings,
counts, AUC per feature set, time).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_selfjudge.config import SCALAR_FEATURES, VECTOR_FEATURES, JudgeConfig, ModelReference
from hf_selfjudge.files import write_text
from hf_selfjudge.judge import SelfJudgeVerifier
from hf_selfjudge.pipeline.calibrate import calibrate
from hf_selfjudge.pipeline.fit import fit, split_by_prompt
from hf_selfjudge.pipeline.label import calibrate_tau, finish, label
from hf_selfjudge.pipeline.mine import mine
from hf_selfjudge.pipeline.records import Mismatches, Response, Substitutions
from hf_selfjudge.pipeline.respond import respond
from hf_selfjudge.pipeline.score import ScoreSettings, score

from .evaluate import MAX_NEW_TOKENS, prompt_ids
from .world import TASKS, Item, generate
from .world import score as task_score

FEATURE_SETS = {
    "paper": ("hidden",),
    "scalars": SCALAR_FEATURES,
    "hidden+scalars": ("hidden", *SCALAR_FEATURES),
    "hidden+previous+scalars": ("hidden", "previous_hidden", *SCALAR_FEATURES),
}
"""Inputs to compare; the last is the judge's."""


@dataclass(frozen=True)
class BuildSettings:
    """How the judge is made."""

    prompts: int = 400
    """Training-split prompts of each task."""
    length: int = 20
    """N, the future tokens in the score."""
    reject: float = 0.98
    """Share of answer-changing substitutions that tau must reject."""
    recall: float = 0.995
    """Share of unacceptable held-out substitutions that the threshold `recall`, the default, must reject."""
    held_out: float = 0.25
    """Share of prompts kept for choosing C and the thresholds."""
    batch_size: int = 64
    seed: int = 1000
    """Seed of the prompts (other than those of the models' training data) and of the split."""


@dataclass(frozen=True)
class Build:
    """Everything the fit needs."""

    items: list[Item]
    responses: list[Response]
    mismatches: list[Mismatches]
    substitutions: Substitutions
    seconds: dict[str, float]


def collect(pair: tuple[Any, Any, Any], settings: BuildSettings) -> Build:
    """Respond, mine and score."""
    target, draft, tokenizer = pair
    items = [item for task in TASKS for item in generate(task, "train", settings.prompts, settings.seed)]
    clock = _Clock()
    prompts = [prompt_ids(tokenizer, item) for item in items]
    found = respond(target, prompts, MAX_NEW_TOKENS, settings.batch_size)
    responses = sorted(found, key=lambda response: response.prompt_id)
    clock.lap("respond")
    mismatches: list[Mismatches] = []
    for first in range(0, len(responses), settings.batch_size):
        mismatches += mine(draft, responses[first : first + settings.batch_size])
    clock.lap("mine")
    scoring = ScoreSettings(lengths=(settings.length,), features=FEATURE_SETS["hidden+previous+scalars"])
    substitutions = score(target, responses, mismatches, scoring)
    clock.lap("score")
    return Build(items, responses, mismatches, substitutions, clock.seconds)


def answer_changes(pair: tuple[Any, Any, Any], build: Build, settings: BuildSettings) -> tuple[Tensor, Tensor]:
    """Which substitutions change the target's final answer, and which were tried; both masks over all rows.

    Tried are those in right answers: a wrong one cannot be spoilt.
    """
    target, _, tokenizer = pair
    answers = [tokenizer.decode(response.answer, skip_special_tokens=True) for response in build.responses]
    tried = [
        index
        for index, (item, text) in enumerate(zip(build.items, answers, strict=True))
        if task_score(item, text) == 1.0
    ]
    finished = finish(
        target,
        [build.responses[index] for index in tried],
        [build.mismatches[index] for index in tried],
        MAX_NEW_TOKENS,
        settings.batch_size,
    )
    was_tried = torch.isin(build.substitutions.prompt_ids, torch.tensor(tried))
    changed = torch.zeros_like(was_tried)
    outcome = [
        task_score(build.items[index], tokenizer.decode(answer, skip_special_tokens=True)) != 1.0
        for index, variants in zip(tried, finished, strict=True)
        for answer in variants
    ]
    changed[was_tried] = torch.tensor(outcome)
    return changed, was_tried


def build_judge(pair: tuple[Any, Any, Any], settings: BuildSettings) -> tuple[SelfJudgeVerifier, dict[str, Any]]:
    """The judge and a report of how it was made."""
    build = collect(pair, settings)
    clock = _Clock(build.seconds)
    changed, tried = answer_changes(pair, build, settings)
    clock.lap("finish")
    rows = build.substitutions
    tau = calibrate_tau(rows.scores[changed, 0], settings.reject)
    preserved = {"tried": int(tried.sum()), "answer_changed": int(changed.sum())}
    checkable = torch.tensor([task_score(item, item.response) is not None for item in build.items])[rows.prompt_ids]
    usable = tried | ~checkable
    labels = torch.where(tried, ~changed, label(rows.scores[:, 0], tau))[usable]
    rows = rows.select(usable)
    held_out = split_by_prompt(rows.prompt_ids, settings.held_out, settings.seed)
    hidden_size = pair[0].config.hidden_size
    fits = {}
    for name, features in FEATURE_SETS.items():
        columns = _columns(FEATURE_SETS["hidden+previous+scalars"], features, hidden_size)
        fits[name] = fit(rows.features[:, columns], labels, held_out)
    best = fits["hidden+previous+scalars"]
    thresholds = calibrate(best.probability(rows.features[held_out]), labels[held_out], settings.recall)
    clock.lap("fit")
    report = {
        "settings": asdict(settings),
        "prompts": len(build.items),
        "substitutions": len(rows),
        "acceptable": round(float(labels.float().mean()), 4),
        "tau": round(tau, 3),
        "answer_preservation": preserved,
        "validation_auc": {name: round(found.validation_auc, 4) for name, found in fits.items()},
        "seconds": {name: round(value, 1) for name, value in clock.seconds.items()},
    }
    config = JudgeConfig(
        hidden_size=hidden_size,
        features=FEATURE_SETS["hidden+previous+scalars"],
        thresholds=thresholds,
        default_threshold="recall",
        target=ModelReference("hf_selfjudge/playground/target"),
        draft=ModelReference("hf_selfjudge/playground/draft"),
        labels={
            "checkable tasks": "answer preservation: the target, finishing after the substitution, is still right",
            "open-ended tasks": "semantic preservation score above tau",
            "length": settings.length,
            "suffix": "likelihood",
            "tau": round(tau, 4),
            "reject": settings.reject,
        },
        metrics={"validation_auc": round(best.validation_auc, 4), "c": best.c, "substitutions": len(rows)},
    )
    return SelfJudgeVerifier(config).set_weights(best.weight, best.bias).eval(), report


def _columns(have: tuple[str, ...], want: tuple[str, ...], hidden_size: int) -> list[int]:
    """The columns of the wanted features within those of all features at hand."""
    at, columns = 0, list[int]()
    for name in have:
        width = hidden_size if name in VECTOR_FEATURES else 1
        if name in want:
            columns += range(at, at + width)
        at += width
    return columns


class _Clock:
    """Seconds per stage."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds = dict(seconds or {})
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Count the time since the last lap under `name`."""
        now = time.perf_counter()
        self.seconds[name], self._last = now - self._last, now


def main(argv: list[str] | None = None) -> None:
    """Command line; the last line of stdout is the report as one JSON document."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from . import ASSETS

    parser = argparse.ArgumentParser(prog="python -m hf_selfjudge.playground.judge", description=__doc__)
    parser.add_argument("--models", type=Path, default=ASSETS, help="folder with target and draft")
    parser.add_argument("--out", type=Path, required=True, help="folder of the judge to write")
    for name, value in asdict(BuildSettings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args(argv))
    models, out = given.pop("models"), given.pop("out")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    target, draft = (
        AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float32).to(device).eval()
        for name in ("target", "draft")
    )
    pair = (target, draft, AutoTokenizer.from_pretrained(models / "target"))
    judge, report = build_judge(pair, BuildSettings(**given))
    judge.save_pretrained(out)
    write_text(out / "build.json", json.dumps(report, indent=2) + "\n")
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
