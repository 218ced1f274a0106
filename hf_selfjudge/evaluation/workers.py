"""Where results are computed: the pair in this process, or in several worker processes that share the work."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .decode import decode
from .grammar import Point
from .judges import Judges, Recorder
from .providers import Task, TaskRequest, model_folder
from .store import write_result


@dataclass(frozen=True)
class BenchSettings:
    """The pair and how it decodes."""

    target: str
    draft: str
    gamma: int = 5
    mode: str = "two-stage"
    device: str = "cpu"
    dtype: str = "float32"
    batch_size: int = 64
    workers: int = 1


@dataclass(frozen=True)
class Job:
    """One result to compute and where to write it."""

    point: Point
    request: TaskRequest
    path: Path
    fingerprint: dict[str, Any]


class Bench:
    """A loaded pair with its judges."""

    def __init__(self, settings: BenchSettings) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folders = [model_folder(getattr(settings, role), role) for role in ("target", "draft")]
        dtype = settings.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype)
        target, draft = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(settings.device).eval() for folder in folders
        )
        tokenizer = AutoTokenizer.from_pretrained(folders[0], padding_side="left")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.settings = settings
        self.pair = (target, draft, tokenizer)
        self._judges = Judges()
        self._tasks: Callable[[TaskRequest], Task] = cache(lambda request: request.load())

    def measure(self, job: Job, advance: Callable[[int], None] = lambda count: None) -> int:
        """Compute one result and write it; returns its number of items."""
        rule = self._judges.rule(job.point, self.pair[2])
        outcome = self._decode(job.request, rule, advance)
        write_result(job.path, job.fingerprint, outcome)
        return len(outcome)

    def record(self, folders: Sequence[str], requests: Sequence[TaskRequest]) -> dict[str, list[float]]:
        """P(acceptable) of each judge wherever exact verification of these items stops."""
        recorder = Recorder({folder: self._judges[folder] for folder in folders})
        for request in requests:
            self._decode(request, recorder, lambda count: None)
        return recorder.probabilities

    def _decode(self, request: TaskRequest, rule: Any, advance: Callable[[int], None]) -> Any:
        settings = self.settings
        return decode(
            self.pair,
            self._tasks(request),
            rule,
            gamma=settings.gamma,
            mode=settings.mode,
            batch_size=settings.batch_size,
            advance=advance,
        )


class Inline:
    """Computes in this process; the pair is loaded when the first result is asked for."""

    def __init__(self, settings: BenchSettings) -> None:
        self._bench = cache(lambda: Bench(settings))

    def run(self, jobs: Sequence[Job], advance: Callable[[int], None]) -> None:
        """Compute all jobs."""
        for job in jobs:
            self._bench().measure(job, advance)

    def record(self, folders: Sequence[str], requests: Sequence[TaskRequest]) -> dict[str, list[float]]:
        """As `Bench.record`."""
        return self._bench().record(folders, requests)


class Pool:
    """Computes in worker processes, each with its own copy of the pair."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def run(self, jobs: Sequence[Job], advance: Callable[[int], None]) -> None:
        """Compute all jobs, in any order."""
        for done in as_completed([self._executor.submit(_measure, job) for job in jobs]):
            advance(done.result())

    def record(self, folders: Sequence[str], requests: Sequence[TaskRequest]) -> dict[str, list[float]]:
        """As `Bench.record`."""
        return self._executor.submit(_record, folders, requests).result()


@contextmanager
def open_bench(settings: BenchSettings) -> Iterator[Inline | Pool]:
    """A place to compute results, of one process or several."""
    if settings.workers == 1:
        yield Inline(settings)
        return
    # spawn: a forked process cannot use CUDA
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(settings.workers, context, _start_worker, (settings,)) as executor:
        try:
            yield Pool(executor)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


_worker: dict[str, Bench] = {}


def _start_worker(settings: BenchSettings) -> None:
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)  # the processes are the parallelism
    logging.disable_progress_bar()
    _worker["bench"] = Bench(settings)


def _measure(job: Job) -> int:
    return _worker["bench"].measure(job)


def _record(folders: Sequence[str], requests: Sequence[TaskRequest]) -> dict[str, list[float]]:
    return _worker["bench"].record(folders, requests)
