"""From answers to figures: what is decoded and not yet scored is scored, in several processes.

Where a model scores (an NLI model, say), this process does it alone, in large batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from typing import Any

from ..checkers.sandbox import cores
from .outcomes import Outcome, combine
from .processes import made_here, worker_processes
from .providers import TaskRequest
from .store import read_answers, read_scores, write_scores
from .workers import Job, Tasks


class Scorer:
    """Scores results of one task after the other; an answer that several rules give is scored once."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._of: TaskRequest | None = None
        self._known: dict[tuple[int, str], dict[str, float]] = {}

    def score(self, job: Job) -> int:
        """Score the answers of one job and write their figures; returns their number."""
        answers = read_answers(job.path, job.fingerprint)
        if answers is None:
            raise ValueError(f"{job.path} holds no answers to score; run without --score-only to decode them.")
        if self._of != job.request:
            self._of, self._known = job.request, {}
        asked = list(enumerate(answers.texts))
        new = [answer for answer in asked if answer not in self._known]
        self._known.update(zip(new, self._tasks[job.request].figures(new), strict=True))
        write_scores(job.scores_path, answers, job.scoring, [self._known[answer] for answer in asked])
        return len(answers)


def read_outcome(job: Job) -> Outcome | None:
    """A job's answers with their scores; None where either is not there."""
    answers = read_answers(job.path, job.fingerprint)
    figures = None if answers is None else read_scores(job.scores_path, answers, job.scoring)
    return None if answers is None or figures is None else combine(answers, figures)


def score_jobs(jobs: Iterable[Job], tasks: Tasks, workers: int, progress: bool) -> int:
    """Score what is not scored yet; returns how many results that were.

    Args:
        jobs: results whose answers are there.
        tasks: their items.
        workers: processes; 0 means one per core.
        progress: whether to show a bar.
    """
    from tqdm import tqdm

    due = list({job.scores_path: job for job in jobs if read_outcome(job) is None}.values())
    due.sort(key=lambda job: job.request.name)  # jobs of one task together, so that equal answers are found
    with tqdm(total=sum(job.items for job in due), unit="answer", desc="scoring", disable=not progress) as bar:
        advance: Callable[[int], Any] = bar.update
        _score_apart([job for job in due if not job.needs_model], tasks, workers or cores(), advance)
        _score_here([job for job in due if job.needs_model], tasks, advance)
    return len(due)


def _score_here(jobs: Sequence[Job], tasks: Tasks, advance: Callable[[int], Any]) -> None:
    """Score in this process."""
    scorer = Scorer(tasks)
    for job in jobs:
        advance(scorer.score(job))


def _score_apart(jobs: Sequence[Job], tasks: Tasks, workers: int, advance: Callable[[int], Any]) -> None:
    """Score in worker processes; a single job, or a single worker, in this one."""
    workers = min(workers, len(jobs))
    if workers <= 1:
        _score_here(jobs, tasks, advance)
        return
    asked = {job.request for job in jobs}
    own = {request: task for request, task in tasks.items() if request in asked}
    with worker_processes(workers, "fewer --score-workers", Scorer, own) as executor:
        for done in as_completed([executor.submit(_score, job) for job in jobs]):
            advance(done.result())


def _score(job: Job) -> int:
    scorer: Scorer = made_here()
    return scorer.score(job)
