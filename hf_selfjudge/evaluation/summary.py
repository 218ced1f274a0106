"""All figures of a comparison as the JSON values of compare.json."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import Any

from .grammar import Point
from .matched import CRITERIA, match, verdict
from .plan import Plan, judge_labels, shorten
from .tables import Table


def summarise(plan: Plan, points: list[Point], tables: dict[str, Table]) -> dict[str, Any]:
    """Everything the outputs show, as JSON values."""
    settings = plan.settings
    names = judge_labels(plan.specs)
    rules = [shorten(point.spec, names) for point in points]
    methods: dict[str, list[int]] = {}
    for index, point in enumerate(points):
        methods.setdefault(shorten(point.method, names), []).append(index)
    rows = {name: [table.rows(index) for index in range(len(points))] for name, table in tables.items()}
    pooled = {name: [row["pooled"] for row in found] for name, found in rows.items()}
    test, chosen_on = tables["test"], "selection" if "selection" in tables else "test"
    matched: dict[str, Any] = {}
    for criterion in CRITERIA if test.scored else ():
        found = match(pooled[chosen_on], test, pooled["test"], methods, plan.ours, criterion, settings.margin)
        matched[criterion] = {**found, "verdict": verdict(found, rules, chosen_on)}
    return {
        "command": "selfjudge compare",
        "settings": asdict(settings),
        "conditions": _conditions(plan),
        "judges": {names[folder]: folder for folder in names},
        "pooled_over": test.scored,
        "methods": methods,
        "points": [
            {
                "rule": rule,
                "spec": point.spec,
                "method": shorten(point.method, names),
                **{name: found[index] for name, found in rows.items()},
                "phases": test.phases(index),
            }
            for index, (rule, point) in enumerate(zip(rules, points, strict=True))
        ],
        "matched": matched,
        "verdict": matched[settings.criterion]["verdict"] if matched else "No task has a score: no score to match.",
    }


def _conditions(plan: Plan) -> dict[str, Any]:
    """Where and on what it was measured."""
    bench = plan.settings.bench
    hardware = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    if bench.device.startswith("cuda"):
        import torch

        hardware = torch.cuda.get_device_name(bench.device)
    keys = ("hf_selfjudge", "torch", "transformers", "target", "draft")
    return {
        "hardware": hardware,
        **{key: plan.base[key] for key in keys},
        "decoding": "greedy",
        "items": {
            name: {
                request.name: {key: getattr(request, key) for key in ("count", "split", "seed", "skip")}
                for request in requests
            }
            for name, requests in plan.sets.items()
        },
    }
