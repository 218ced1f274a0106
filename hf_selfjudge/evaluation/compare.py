"""`selfjudge compare`: acceptance rules on the same pair and prompts, by task score and accepted length.

Every rule decodes every item greedily. Answers are kept, one file per rule and task, and scored apart from that, so an
interrupted comparison goes on where it stopped, and another machine can score what this one decoded. Sampling is not
compared yet.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..devices import usable_device
from ..files import write_text
from .grammar import EXACT_RULE, Point
from .judges import sweep_thetas
from .matched import CRITERIA, choose
from .plan import Plan, make_plan
from .provenance import differences, here, in_words
from .scoring import read_outcome, score_jobs
from .settings import CompareSettings
from .store import mark, read_answers
from .summary import Measurements, group_methods, selected, summarise
from .tables import EXACT, Table
from .workers import Inline, Job, Pool, open_bench

RECORDED = 100
"""Selection items of each task on which a swept judge's P is read."""
NAMED = 3
"""How many missing or failed results a message names."""

log = logging.getLogger(__name__)


def compare(
    settings: CompareSettings, out: Path, progress: bool = True, decode: bool = True, report: bool = True
) -> dict[str, Any]:
    """Run (or finish) a comparison.

    Args:
        settings: what is compared.
        out: the comparison's folder.
        progress: whether to show bars.
        decode: whether answers that are not there are decoded; without it (and a report), only what is there is scored.
        report: whether to score and to write `compare.json`; without it, only what choosing points needs is scored.

    Returns:
        What `compare.json` holds; without a report, what was computed.
    """
    run = _Run(make_plan(settings, out), progress, decode)
    with open_bench(settings.bench, run.plan.items) as bench:
        points, always = _points(run.plan, bench, run)
        jobs = {"selection": run.jobs("selection", points)} if "selection" in run.plan.sets else {}
        tested = list(range(len(points)))
        if settings.test != "all":
            run.check_scoring(_flat(jobs))
            run.decode(bench, _flat(jobs))
            run.score(_flat(jobs))
            selection = run.table(jobs["selection"])
            if not selection.scored:
                raise ValueError("No selection task has a score, so nothing can be chosen; give other tasks.")
            if settings.test == "none":
                return {"computed": run.computed(), "selection": selected(run.plan, points, selection)}
            tested = _chosen(run.plan, points, always, selection)
        jobs["test"] = run.jobs("test", [points[index] for index in tested])
        if report:
            run.check_scoring(_flat(jobs))
        run.decode(bench, _flat(jobs))
    if report or not decode:
        run.score(_flat(jobs))
    if not (report and decode):
        return {"computed": run.computed()}
    tables = {name: run.table(tasks) for name, tasks in jobs.items()}
    made = [answers.made_with for job in _flat(jobs) if (answers := read_answers(job.path, job.fingerprint))]
    if differing := differences(made):
        log.warning("Results were made with different things, which may decide near ties: %s.", in_words(differing))
    results = summarise(run.plan, points, Measurements(tables, tested, made))
    results["computed"] = run.computed()
    write_text(out / "compare.json", json.dumps(results, indent=1) + "\n")
    return results


class _Run:
    """One run of a comparison: what is due is computed, and counted."""

    def __init__(self, plan: Plan, progress: bool, decodes: bool) -> None:
        self.plan = plan
        self._progress = progress
        self._decodes = decodes
        self._begun = time.perf_counter()
        self._decoded = self._scored = self._missing = 0

    def computed(self) -> dict[str, Any]:
        """What was computed."""
        counts = {"results": self._decoded, "scored": self._scored, "missing": self._missing}
        return {**counts, "seconds": round(time.perf_counter() - self._begun, 1)}

    def jobs(self, name: str, points: Sequence[Point]) -> dict[str, list[Job]]:
        """The jobs of some points on one set of items, by task."""
        requests = self.plan.sets[name]
        return {request.name: [self.plan.job(name, request, point) for point in points] for request in requests}

    def decode(self, bench: Inline | Pool, jobs: Iterable[Job]) -> None:
        """Decode what is not there yet: exact decoding, whose lengths help the others, then the most expensive."""
        from tqdm import tqdm

        made, missing = [], {}
        for job in jobs:
            answers = read_answers(job.path, job.fingerprint)
            if answers is None:
                missing[job.path] = job
            else:
                made.append(answers.made_with)
        due = sorted(missing.values(), key=lambda job: (job.point.spec != EXACT_RULE, -job.cost))
        if not self._decodes:
            self._missing = len(due)
            return
        if not due:
            return
        self.check_decoding(due, made)
        with tqdm(total=sum(job.items for job in due), unit="item", desc="decoding", disable=not self._progress) as bar:
            advance: Callable[[int], Any] = bar.update
            failed = bench.run(due, advance)
        self._decoded += len(due) - len(failed)
        if failed:
            raise ValueError(
                f"{len(failed)} of {len(due)} results could not be decoded, the others are kept: "
                + _list(f"{job} ({reason})" for job, reason in failed.items())
                + ". Run the same command again for the rest, with a smaller --batch-size if memory was short."
            )

    def check_decoding(self, due: Sequence[Job], made: Sequence[dict[str, Any]] = ()) -> None:
        """Refuse to decode without device or models, or where it would mix what answers are made with."""
        settings = self.plan.settings
        if not self._decodes:
            raise ValueError("The thetas of swept judges are not known yet; run without --score-only to decode first.")
        try:
            usable_device(settings.bench.device)
            self.plan.check_models()
        except (ValueError, OSError) as error:
            what = f"{len(due)} results are not decoded yet: {_list(map(str, due))}" if due else "Thetas are not known"
            raise type(error)(f"{what}. {error}") from None
        now = here(settings.bench.device, settings.bench.batch_size)
        differing = differences([*made, now])
        if differing and not settings.mix:
            raise ValueError(
                f"{len(made)} results are there and {len(due)} are to be decoded, but not with the same things: "
                f"{in_words(differing)}. Decode where the others were, give another --out, or allow it with --mix."
            )

    def check_scoring(self, jobs: Iterable[Job]) -> None:
        """Refuse, before hours of decoding, what could not be scored."""
        for request in {job.request for job in jobs if not job.scores_path.is_file()}:
            self.plan.tasks[request].task.check()

    def score(self, jobs: Iterable[Job]) -> None:
        """Score what is decoded and not scored yet."""
        known = [job for job in jobs if self._decodes or read_answers(job.path, job.fingerprint) is not None]
        self._scored += score_jobs(known, self.plan.items, self.plan.settings.score_workers, self._progress)

    def table(self, tasks: dict[str, list[Job]]) -> Table:
        """The figures of all points on one set of items."""
        settings = self.plan.settings
        return Table.build(
            {task: [*map(_read, found)] for task, found in tasks.items()}, settings.resamples, settings.seed
        )


def _points(plan: Plan, bench: Inline | Pool, run: _Run) -> tuple[list[Point], set[int]]:
    """All points, exact decoding first, equal ones of one method only once; and which are tested in any case."""
    swept = list(dict.fromkeys(folder for spec in plan.specs for folder in spec.swept_judges))
    thetas = _thetas(plan, bench, swept, run) if swept else {}
    found: dict[tuple[str, str], Point] = {}
    for spec in plan.specs:
        points = spec.points(thetas)
        if not points:
            raise ValueError(
                f"The sweep of {spec.method} has no point: its judge accepts all mismatches or none, whatever theta. "
                "Give thetas (@0.5), or leave it out."
            )
        for point in points:
            found.setdefault((point.method, plan.judges.identity(point)), point)
    also = {(point.method, plan.judges.identity(point)) for spec in plan.also for point in spec.points(thetas)}
    return list(found.values()), {at for at, key in enumerate(found) if key in also}


def _thetas(plan: Plan, bench: Inline | Pool, folders: list[str], run: _Run) -> dict[str, list[float]]:
    """Thetas of the swept judges, from disk where they have been found before."""
    requests = next(iter(plan.sets.values()))
    judges = {folder: plan.judges.identity(Point("", ((f"judge:{folder}@1",),))) for folder in folders}
    tasks = [plan.tasks[request].fingerprint for request in requests]
    named = {folder: sorted(plan.judges[folder].config.thresholds.values()) for folder in folders}
    made_from = {**plan.base, "judges": judges, "named": named, "tasks": tasks, "shares": plan.settings.shares}
    path = plan.out / "results" / f"thetas-{mark(made_from)}.json"
    if not path.is_file():
        run.check_decoding([])
        found = {
            folder: sweep_thetas(values, plan.judges[folder].config.thresholds.values(), plan.settings.shares)
            for folder, values in bench.record(folders, requests, RECORDED).items()
        }
        write_text(path, json.dumps(found) + "\n")
    known: dict[str, list[float]] = json.loads(path.read_text(encoding="utf-8"))
    return known


def _chosen(plan: Plan, points: Sequence[Point], always: set[int], selection: Table) -> list[int]:
    """The points to test: exact decoding, what criteria choose for each method, and those the user named."""
    pooled = [selection.rows(index)["pooled"] for index in range(len(points))]
    found = {EXACT, *always}
    for members in group_methods(plan, points).values():
        criteria = CRITERIA if plan.settings.test == "chosen" else (plan.settings.criterion,)
        found |= {choose(pooled, members, criterion, plan.settings.margin) for criterion in criteria}
    return sorted(found)


def _flat(jobs: dict[str, dict[str, list[Job]]]) -> list[Job]:
    return [job for tasks in jobs.values() for found in tasks.values() for job in found]


def _read(job: Job) -> Any:
    outcome = read_outcome(job)
    if outcome is None:
        raise ValueError(f"{job.path} has no answers with scores; run again without --score-only, or free some disk.")
    return outcome


def _list(found: Iterable[str]) -> str:
    """Some of many, in words."""
    listed = list(found)
    more = len(listed) - NAMED
    return "; ".join(listed[:NAMED]) + (f"; and {more} more" if more > 0 else "")
