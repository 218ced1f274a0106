"""What is to be computed for a comparison, checked before any model is loaded."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..devices import named_device, named_dtype
from .grammar import EXACT_RULE, Point, Spec, parse_rules
from .judges import Judges
from .lengths import short_prompts
from .providers import Part, Task, TaskRequest, model_folder, parse_tasks
from .settings import CompareSettings
from .store import FORMAT, ModelRecords, answers_path, model_fingerprint, scores_path, task_fingerprint
from .workers import BenchSettings, Job

ROLES = ("target", "draft")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A task's items, known by what decides their answers and scores."""

    request: TaskRequest
    task: Task
    fingerprint: dict[str, Any]
    scoring: dict[str, Any]

    @property
    def left_out(self) -> int:
        """Items whose prompts are too long."""
        return self.request.count - len(self.task.prompts)


@dataclass
class Plan:
    """The checked settings: what is to be computed."""

    settings: CompareSettings
    out: Path
    specs: list[Spec]
    also: list[Spec]
    """Those of the specs that are tested whatever is chosen."""
    judges: Judges
    sets: dict[str, list[TaskRequest]]
    """Items by set: selection (unless points are chosen on the test items) and test."""
    base: dict[str, Any]
    """The part that all fingerprints share."""
    ours: str | None
    """The method the others are compared with."""
    remembered: list[str]
    """Roles whose model is not here: their fingerprints were written down when answers were decoded."""
    tasks: dict[TaskRequest, Prepared] = field(default_factory=dict)
    shared_prompts: int = 0
    """Prompts that are both selection and test items."""

    def job(self, name: str, request: TaskRequest, point: Point) -> Job:
        """The result of one point on one task."""
        known = self.tasks[request]
        fingerprint = {**self.base, "rule": self.judges.identity(point), "task": known.fingerprint}
        path = answers_path(self.out, name, fingerprint)
        scores = scores_path(path, known.scoring)
        plain = {**fingerprint, "rule": EXACT_RULE}
        exact = (answers_path(self.out, name, plain), plain)
        return Job(point, request, path, fingerprint, scores, known.scoring, known.task.needs_model, exact)

    @property
    def items(self) -> dict[TaskRequest, Task]:
        """The items of every request."""
        return {request: known.task for request, known in self.tasks.items()}

    def check_models(self) -> None:
        """Refuse to decode with a model that is not here, or is not the one of the answers that are there."""
        bench = self.settings.bench
        for role in self.remembered:
            name = getattr(bench, role)
            now = model_fingerprint(model_folder(name, role))
            if now != self.base[role]:
                raise ValueError(
                    f"The {role} {name} is not the one that the answers in {self.out} came from ({now}, expected "
                    f"{self.base[role]}), or its weights are not here; decode where it is, or give another --out."
                )


def make_plan(settings: CompareSettings, out: Path) -> Plan:
    """Check everything that can be checked without a model."""
    bench = settings.bench
    check_bench(bench)
    also = parse_rules(settings.also, bench.gamma)[1:] if settings.also else []
    specs = list(dict.fromkeys([*parse_rules(settings.rules, bench.gamma), *also]))
    test = [
        replace(request, seed=settings.seed)
        for request in parse_tasks(settings.tasks, settings.items, settings.nli_model)
    ]
    judges = Judges()
    for spec in specs:
        swept = {folder: [1.0] for folder in spec.swept_judges}
        for point in spec.points(swept):
            judges.identity(point)
    sets = {"test": test}
    if settings.select_on != "test":
        sets = {"selection": _selection(test, settings), **sets}
    ours = _ours(settings.ours, specs)
    records = ModelRecords(out)
    models = {
        role: records.fingerprint(role, name, model_folder(name, role))
        for role, name in ((role, getattr(bench, role)) for role in ROLES)
    }
    options = {name: getattr(bench, name) for name in ("gamma", "mode", "dtype")}
    base = {"format": FORMAT, **{role: found for role, (found, _) in models.items()}, **options}
    remembered = [role for role, (_, computed) in models.items() if not computed]
    if "target" not in remembered:
        judges.check_sizes(_hidden_size(model_folder(bench.target, "target")))
    plan = Plan(settings, out, specs, also, judges, sets, base, ours, remembered)
    _prepare(plan)
    return plan


def _hidden_size(target: str) -> int:
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(target).get_text_config().hidden_size)


def _prepare(plan: Plan) -> None:
    """Read all items, and look for items that are in both sets."""
    settings, prompts = plan.settings, dict[str, set[str]]()
    for name, requests in plan.sets.items():
        for request in requests:
            task = request.load()
            if settings.max_prompt_tokens is not None:
                most, target = settings.max_prompt_tokens, settings.bench.target
                task = Part(task, short_prompts(plan.out, target, plan.base["target"], task, most))
            fingerprint = task_fingerprint(task, settings.bench.max_new_tokens)
            plan.tasks[request] = Prepared(request, task, fingerprint, task.scoring)
            prompts.setdefault(name, set()).update(task.prompts)
    plan.shared_prompts = len(prompts.get("selection", set()) & prompts["test"])
    if plan.shared_prompts:
        log.warning("%d prompts are both selection and test items; choose points on others.", plan.shared_prompts)


def check_bench(bench: BenchSettings) -> None:
    """Refuse a dtype or device that no model can have."""
    if bench.dtype != "auto":
        named_dtype(bench.dtype, also="auto or ")
    named_device(bench.device)


def _selection(test: Sequence[TaskRequest], settings: CompareSettings) -> list[TaskRequest]:
    """The items that choose the points; none of them is a test item."""
    if settings.selection_tasks:
        items = settings.selection_items or settings.items
        found = parse_tasks(settings.selection_tasks, items, settings.nli_model)
        return [
            replace(request, split="train" if request.has_splits else "test", seed=settings.selection_seed)
            for request in found
        ]
    if settings.select_on == "train":
        return [
            replace(
                request,
                split="train",
                seed=settings.selection_seed,
                count=settings.selection_items or request.count,
            )
            for request in test
        ]
    return [replace(request, skip=request.count, count=settings.selection_items or request.count) for request in test]


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
