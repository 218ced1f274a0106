"""All figures of a comparison as the JSON values of compare.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .grammar import Point
from .judges import weights_hash
from .matched import CRITERIA, choose, match, verdict
from .plan import Plan, judge_labels, shorten
from .provenance import KEYS, kinds
from .tables import Table


@dataclass(frozen=True)
class Measurements:
    """What was measured."""

    tables: dict[str, Table]
    """By set; the selection's has all points."""
    tested: list[int]
    """The points of the test's table."""
    made_with: list[dict[str, Any]]
    """Of each result, what it was made with."""


def group_methods(plan: Plan, points: Sequence[Point]) -> dict[str, list[int]]:
    """The places of each method's points, by its short name."""
    names = judge_labels(plan.specs)
    methods: dict[str, list[int]] = {}
    for index, point in enumerate(points):
        methods.setdefault(shorten(point.method, names), []).append(index)
    return methods


def selected(plan: Plan, points: list[Point], selection: Table) -> dict[str, Any]:
    """What the selection items say of every point, and which one each method would be tested at."""
    settings, names = plan.settings, judge_labels(plan.specs)
    pooled = [selection.rows(index)["pooled"] for index in range(len(points))]
    methods = group_methods(plan, points)
    chosen = {name: choose(pooled, members, settings.criterion, settings.margin) for name, members in methods.items()}
    return {
        "points": [
            {
                "rule": shorten(point.spec, names),
                "method": shorten(point.method, names),
                "accepted_per_cycle": row["accepted_per_cycle"]["estimate"],
                "score_difference": row["score_difference"],
            }
            for point, row in zip(points, pooled, strict=True)
        ],
        "chosen": {name: shorten(points[index].spec, names) for name, index in chosen.items()},
    }


def summarise(plan: Plan, points: list[Point], measured: Measurements) -> dict[str, Any]:
    """Everything the outputs show, as JSON values."""
    settings, tables, tested = plan.settings, measured.tables, measured.tested
    names = judge_labels(plan.specs)
    rules = [shorten(point.spec, names) for point in points]
    methods = group_methods(plan, points)
    places = {"test": tested, "selection": range(len(points))}
    rows = {name: {index: table.rows(at) for at, index in enumerate(places[name])} for name, table in tables.items()}
    pooled = {name: [row["pooled"] for row in found.values()] for name, found in rows.items()}
    test, chosen_on = tables["test"], "selection" if "selection" in tables else "test"
    matched: dict[str, Any] = {}
    criteria = (settings.criterion,) if settings.test == "verdict" else CRITERIA
    for criterion in criteria if test.scored and tables[chosen_on].scored else ():
        found = match(pooled[chosen_on], test, pooled["test"], methods, plan.ours, criterion, settings.margin, tested)
        matched[criterion] = {**found, "verdict": verdict(found, rules, chosen_on)}
    return {
        "command": "selfjudge compare",
        "settings": asdict(settings),
        "conditions": _conditions(plan, measured.made_with),
        "judges": {names[folder]: folder for folder in names},
        "weights": {folder: weights_hash(plan.judges[folder]) for folder in names},
        "pooled_over": test.scored,
        "methods": methods,
        "points": [
            {
                "rule": rules[index],
                "spec": point.spec,
                "method": shorten(point.method, names),
                **{name: found[index] for name, found in rows.items() if index in found},
                **({"phases": test.phases(tested.index(index))} if index in tested else {}),
            }
            for index, point in enumerate(points)
        ],
        "matched": matched,
        "verdict": matched[settings.criterion]["verdict"]
        if matched
        else f"No {'selection ' if test.scored else ''}task has a score: no score to match.",
    }


def _conditions(plan: Plan, made_with: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where and on what it was measured."""
    made = kinds(made_with)
    return {
        **{key: " and ".join(dict.fromkeys(str(one[key]) for one in made)) for key in KEYS},
        **{role: plan.base[role] for role in ("target", "draft")},
        "made_with": made,
        "decoding": "greedy",
        "items": {
            name: {
                request.name: {
                    **{key: getattr(request, key) for key in ("count", "split", "seed", "skip")},
                    "left_out": plan.tasks[request].left_out,
                }
                for request in requests
            }
            for name, requests in plan.sets.items()
        },
        "shared_prompts": plan.shared_prompts,
    }
