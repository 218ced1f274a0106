"""`selfjudge compare`: acceptance rules on the same pair and prompts, by task score and accepted length.

Every rule decodes every item greedily; results are kept one file per rule and task, so that an interrupted comparison
goes on where it stopped. Sampling is not compared yet.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..files import write_text
from .decode import Outcome
from .grammar import Point
from .judges import sweep_thetas
from .plan import CompareSettings, Plan, make_plan
from .store import read_result
from .summary import summarise
from .tables import Table
from .workers import Inline, Job, Pool, open_bench

RECORDED = 100
"""Selection items of each task on which a swept judge's P is read."""


def compare(settings: CompareSettings, out: Path, progress: bool = True) -> dict[str, Any]:
    """Run (or finish) a comparison and write `compare.json`; returns what it holds."""
    begun = time.perf_counter()
    plan = make_plan(settings, out)
    with open_bench(settings.bench) as bench:
        points = _points(plan, bench)
        jobs = {
            name: {request.name: [plan.job(name, request, point) for point in points] for request in requests}
            for name, requests in plan.sets.items()
        }
        computed = _run(bench, [job for tasks in jobs.values() for found in tasks.values() for job in found], progress)
    tables = {
        name: Table.build(
            {task: [*map(_read, found)] for task, found in tasks.items()}, settings.resamples, settings.seed
        )
        for name, tasks in jobs.items()
    }
    results = summarise(plan, points, tables)
    results["computed"] = {"results": computed, "seconds": round(time.perf_counter() - begun, 1)}
    write_text(out / "compare.json", json.dumps(results, indent=1) + "\n")
    return results


def _points(plan: Plan, bench: Inline | Pool) -> list[Point]:
    """All points to measure, exact decoding first; equal points of one method only once."""
    swept = list(dict.fromkeys(folder for spec in plan.specs for folder in spec.swept_judges))
    thetas = _thetas(plan, bench, swept) if swept else {}
    found: dict[tuple[str, str], Point] = {}
    for spec in plan.specs:
        for point in spec.points(thetas):
            found.setdefault((point.method, plan.judges.identity(point)), point)
    return list(found.values())


def _thetas(plan: Plan, bench: Inline | Pool, folders: list[str]) -> dict[str, list[float]]:
    """Thetas of the swept judges, from disk where they have been found before."""
    requests = [replace(request, count=min(request.count, RECORDED)) for request in next(iter(plan.sets.values()))]
    judges = {folder: plan.judges.identity(Point("", ((f"judge:{folder}@1",),))) for folder in folders}
    fingerprint = {**plan.base, "judges": judges, "tasks": [asdict(request) for request in requests]}
    mark = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:12]
    path = plan.out / "results" / f"thetas-{mark}.json"
    if not path.is_file():
        found = {
            folder: sweep_thetas(values, plan.judges[folder].config.thresholds.values())
            for folder, values in bench.record(folders, requests).items()
        }
        write_text(path, json.dumps(found) + "\n")
    known: dict[str, list[float]] = json.loads(path.read_text(encoding="utf-8"))
    return known


def _run(bench: Inline | Pool, jobs: Sequence[Job], progress: bool) -> int:
    """Compute what is not there yet; returns how many results that were."""
    from tqdm import tqdm

    due = list({job.path: job for job in jobs if read_result(job.path, job.fingerprint) is None}.values())
    total = sum(job.request.count for job in due)
    with tqdm(total=total, unit="item", desc="decoding", disable=not progress) as bar:
        advance: Callable[[int], Any] = bar.update
        bench.run(due, advance)
    return len(due)


def _read(job: Job) -> Outcome:
    outcome = read_result(job.path, job.fingerprint)
    if outcome is None:
        raise ValueError(f"{job.path} was just written and cannot be read back; is the disk full?")
    return outcome
