"""What a comparison is asked to do, checked before any model is loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .grammar import Point, Spec, parse_rules
from .judges import Judges
from .matched import CRITERIA
from .providers import TaskRequest, model_folder, parse_tasks
from .store import FORMAT, model_fingerprint, result_path, task_fingerprint
from .workers import BenchSettings, Job

SELECT_ON = ("train", "held-out", "test")


@dataclass(frozen=True)
class CompareSettings:
    """What is compared, on what, and how points are chosen."""

    bench: BenchSettings
    rules: tuple[str, ...]
    """Lists in the grammar of `grammar`."""
    tasks: tuple[str, ...] = ("playground",)
    items: int = 500
    """Test items of each task without a count."""
    selection_items: int | None = None
    """Items of each task that choose the points; as many as test items if None."""
    select_on: str = "train"
    """Where those come from: the training split, further items of the test split, or the test items themselves."""
    seed: int = 0
    """Seed of the test items."""
    selection_seed: int = 2000
    """Seed of selection items from the training split."""
    margin: float = 1.0
    """Points of score that a matched point may lose."""
    criterion: str = "within"
    """Which matched score the verdict is about; all are reported."""
    ours: str | None = None
    """The method the others are compared with; the first one with a judge if None."""
    resamples: int = 10_000
    intervals: bool = False
    """Whether the figure shows intervals."""

    def __post_init__(self) -> None:
        for name, found, known in (
            ("select-on", self.select_on, SELECT_ON),
            ("criterion", self.criterion, CRITERIA),
            ("mode", self.bench.mode, ("two-stage", "judge-only")),
        ):
            if found not in known:
                raise ValueError(f"{name} is {found!r}, expected one of {', '.join(known)}.")
        counts = {"items": self.items, "selection-items": self.selection_items or 1, "resamples": self.resamples}
        counts |= {name: getattr(self.bench, name) for name in ("gamma", "batch_size", "workers")}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name.replace('_', '-')} is {count}, expected at least 1.")
        if not self.margin >= 0:
            raise ValueError(f"margin is {self.margin}, expected a number of points >= 0.")


@dataclass
class Plan:
    """The checked settings: what is to be computed."""

    settings: CompareSettings
    out: Path
    specs: list[Spec]
    judges: Judges
    sets: dict[str, list[TaskRequest]]
    """Items by set: selection (unless points are chosen on the test items) and test."""
    base: dict[str, Any]
    """The part that all fingerprints share."""
    ours: str | None
    """The method the others are compared with."""
    tasks: dict[TaskRequest, dict[str, Any]] = field(default_factory=dict)
    """Fingerprints of the tasks."""

    def job(self, name: str, request: TaskRequest, point: Point) -> Job:
        """The result of one point on one task."""
        fingerprint = {**self.base, "rule": self.judges.identity(point), "task": self.tasks[request]}
        return Job(point, request, result_path(self.out, name, request.name, point.spec, fingerprint), fingerprint)


def make_plan(settings: CompareSettings, out: Path) -> Plan:
    """Check everything that can be checked without a model."""
    import torch
    import transformers

    from .. import __version__

    bench = settings.bench
    if bench.dtype != "auto" and not isinstance(getattr(torch, bench.dtype, None), torch.dtype):
        raise ValueError(f"dtype is {bench.dtype!r}, expected auto or a torch dtype such as float32 or bfloat16.")
    _check_device(bench.device)
    specs = parse_rules(settings.rules, bench.gamma)
    test = [replace(request, seed=settings.seed) for request in parse_tasks(settings.tasks, settings.items)]
    judges = Judges()
    for spec in specs:
        swept = {folder: [1.0] for folder in spec.swept_judges}
        for point in spec.points(swept):
            judges.identity(point)
    sets = {"test": test}
    if settings.select_on != "test":
        sets = {"selection": [_selection(request, settings) for request in test], **sets}
    models = {role: model_fingerprint(model_folder(getattr(bench, role), role)) for role in ("target", "draft")}
    versions = {"hf_selfjudge": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    options = {name: getattr(bench, name) for name in ("gamma", "mode", "device", "dtype", "batch_size")}
    plan = Plan(
        settings,
        out,
        specs,
        judges,
        sets,
        {"format": FORMAT, **versions, **models, **options},
        _ours(settings.ours, specs),
    )
    for requests in sets.values():
        plan.tasks |= {request: task_fingerprint(request, request.load()) for request in requests}
    return plan


def _check_device(name: str) -> None:
    """Refuse a device that is not there."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device is {name!r}, expected a torch device such as cpu, cuda or cuda:1.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but no CUDA device can be used here; leave out --device.")


def _selection(request: TaskRequest, settings: CompareSettings) -> TaskRequest:
    """The items that choose the points, for one task's test items; none of them is a test item."""
    count = settings.selection_items or request.count
    if settings.select_on == "train":
        return replace(request, split="train", seed=settings.selection_seed, count=count)
    return replace(request, skip=request.count, count=count)


def _ours(given: str | None, specs: Sequence[Spec]) -> str | None:
    """The method the others are compared with: the given one, or the first with a judge."""
    names = judge_labels(specs)
    methods = {shorten(spec.method, names): bool(spec.folders) for spec in specs}
    if given is not None and given not in methods:
        raise ValueError(f"ours is {given!r}, expected one of the methods {', '.join(methods)}.")
    return given or next((name for name, learned in methods.items() if learned), None)


def judge_labels(specs: Sequence[Spec]) -> dict[str, str]:
    """A short name for every judge's folder: its last part, unless two share it."""
    folders = dict.fromkeys(folder for spec in specs for folder in spec.folders)
    ends = {folder: folder.rstrip("/").rsplit("/", 1)[-1] for folder in folders}
    return {folder: end if list(ends.values()).count(end) == 1 else folder for folder, end in ends.items()}


def shorten(text: str, names: dict[str, str]) -> str:
    """A spec or method with judges by their short names."""
    for folder, name in names.items():
        # a backslash would be read as part of a reference to a group
        text = re.sub(rf"judge:{re.escape(folder)}(?=$|[@&|+])", f"judge:{name}".replace("\\", r"\\"), text)
    return text
