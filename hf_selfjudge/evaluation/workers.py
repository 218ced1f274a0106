"""Where answers are computed: the pair in this process, or in several worker processes that share the work.

A job that fails (out of memory, say) does not stop the others: it is told at the end. A process that dies, or cannot
load the pair, does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..rules import Rule
from .decode import Answers, decode, tokenize
from .grammar import Point
from .judges import Judges, Recorder
from .processes import made_here, worker_processes
from .providers import Task, TaskRequest, model_folder
from .store import read_answers, write_answers

Failures = dict["Job", str]
"""Why each job failed."""
Tasks = Mapping[TaskRequest, Task]
"""The items of each request: read once, and handed to every process."""


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
    max_new_tokens: int | None = None
    """Longest answer; each task's own if None."""

    def __post_init__(self) -> None:
        for name in ("gamma", "batch_size", "workers", "max_new_tokens"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"{name.replace('_', '-')} is {count}, expected at least 1.")


@dataclass(frozen=True, eq=False)
class Job:
    """Answers to compute and where to write them, and their scores."""

    point: Point
    request: TaskRequest
    path: Path
    fingerprint: dict[str, Any]
    scores_path: Path
    scoring: dict[str, Any]
    needs_model: bool
    """Whether a model scores the answers."""
    exact: tuple[Path, dict[str, Any]]
    """Where exact decoding's answers are, and their fingerprint: they tell how long answers to the prompts are."""

    @property
    def items(self) -> int:
        """How many answers."""
        return int(self.fingerprint["task"]["count"])

    @property
    def cost(self) -> int:
        """What it costs, roughly: the tokens it may write."""
        return self.items * int(self.fingerprint["task"]["max_new_tokens"])

    def __str__(self) -> str:
        return f"{self.point.spec} on {self.request.name}"


class Bench:
    """A loaded pair with its judges, and the tasks it answers."""

    def __init__(self, settings: BenchSettings, tasks: Tasks) -> None:
        import torch
        from transformers import AutoTokenizer

        from .provenance import here

        folders = {role: model_folder(getattr(settings, role), role) for role in ("target", "draft")}
        dtype = settings.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype)
        target, draft = (_load(role, folder, dtype, settings.device) for role, folder in folders.items())
        tokenizer = AutoTokenizer.from_pretrained(folders["target"], padding_side="left")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.settings = settings
        self.pair = (target, draft, tokenizer)
        self._judges = Judges()
        self._made_with = here(settings.device, settings.batch_size)
        self._tasks = tasks
        self._prompts = cache(lambda request: tokenize(tokenizer, tasks[request]))

    def measure(self, job: Job, advance: Callable[[int], None] = lambda count: None) -> int:
        """Compute the answers of one job and write them; returns their number."""
        rule = self._judges.rule(job.point, self.pair[2])
        known = read_answers(*job.exact)
        expected = None if known is None else known.cycles
        answers = self.answer(self._prompts(job.request), rule, self._longest(job.request), expected, advance)
        write_answers(job.path, job.fingerprint, replace(answers, made_with=self._made_with))
        return len(answers)

    def record(self, folders: Sequence[str], request: TaskRequest, count: int) -> dict[str, list[float]]:
        """P(acceptable) of each judge wherever exact verification of the first items of a task stops."""
        recorder = Recorder({folder: self._judges[folder] for folder in folders})
        self.answer(self._prompts(request)[:count], recorder, self._longest(request))
        return recorder.probabilities

    def answer(
        self,
        prompts: Sequence[list[int]],
        rule: Rule,
        max_new_tokens: int,
        expected: Sequence[int] | None = None,
        advance: Callable[[int], None] = lambda count: None,
        begin: Callable[[Sequence[int]], None] = lambda items: None,
    ) -> Answers:
        """Answers to prompts that are tokens already; see `decode`."""
        settings = self.settings
        return decode(
            self.pair,
            prompts,
            rule,
            gamma=settings.gamma,
            max_new_tokens=max_new_tokens,
            mode=settings.mode,
            batch_size=settings.batch_size,
            expected=expected,
            begin=begin,
            advance=advance,
        )

    def _longest(self, request: TaskRequest) -> int:
        return self.settings.max_new_tokens or self._tasks[request].max_new_tokens


class Inline:
    """Computes in this process; the pair is loaded when the first result is asked for."""

    def __init__(self, settings: BenchSettings, tasks: Tasks) -> None:
        self._bench = cache(lambda: Bench(settings, tasks))

    def run(self, jobs: Sequence[Job], advance: Callable[[int], None]) -> Failures:
        """Compute all jobs; returns those that failed."""
        bench = self._bench()
        failed: Failures = {}
        for job in jobs:
            try:
                bench.measure(job, advance)
            except Exception as error:
                failed[job] = _reason(error)
        return failed

    def record(self, folders: Sequence[str], requests: Sequence[TaskRequest], count: int) -> dict[str, list[float]]:
        """As `Bench.record`, over several tasks."""
        return _merge(self._bench().record(folders, request, count) for request in requests)


class Pool:
    """Computes in worker processes, each with its own copy of the pair."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def run(self, jobs: Sequence[Job], advance: Callable[[int], None]) -> Failures:
        """Compute all jobs, the first ones first; returns those that failed."""
        failed: Failures = {}
        due = {self._executor.submit(_measure, job): job for job in jobs}
        for done in as_completed(due):
            count, reason = done.result()
            if reason:
                failed[due[done]] = reason
            advance(count)
        return failed

    def record(self, folders: Sequence[str], requests: Sequence[TaskRequest], count: int) -> dict[str, list[float]]:
        """As `Bench.record`, over several tasks."""
        due = [self._executor.submit(_record, folders, request, count) for request in requests]
        return _merge(done.result() for done in due)


@contextmanager
def open_bench(settings: BenchSettings, tasks: Tasks) -> Iterator[Inline | Pool]:
    """A place to compute results on some tasks, of one process or several."""
    if settings.workers == 1:
        yield Inline(settings, tasks)
        return
    advice = "fewer --workers or a smaller --batch-size"
    with worker_processes(settings.workers, advice, _load_bench, settings, tasks) as executor:
        yield Pool(executor)


def _load(role: str, folder: str, dtype: Any, device: str) -> Any:
    """A model of the pair; an error names it."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    except ImportError:
        raise  # says what to install
    except Exception as error:  # every kind of file has its own for what is broken, every device for what does not fit
        raise OSError(
            f"The {role} {folder} cannot be loaded ({_in_words(error)}); what is finished is kept. Download it again "
            "if its files are broken or incomplete, give fewer --workers if memory is short."
        ) from error


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _reason(error: Exception) -> str:
    """An error in words; what it holds on to on the device is given free."""
    import torch

    found = _in_words(error)
    error.__traceback__ = None  # its frames hold the batch that did not fit
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def _merge(found: Iterator[dict[str, list[float]]]) -> dict[str, list[float]]:
    merged: dict[str, list[float]] = {}
    for one in found:
        for folder, values in one.items():
            merged.setdefault(folder, []).extend(values)
    return merged


def _load_bench(settings: BenchSettings, tasks: Tasks) -> Bench:
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)  # the processes are the parallelism
    logging.disable_progress_bar()
    return Bench(settings, tasks)


def _measure(job: Job) -> tuple[int, str]:
    """The number of answers, and what went wrong; errors of other libraries may not cross process borders."""
    bench: Bench = made_here()
    try:
        return bench.measure(job), ""
    except Exception as error:
        return 0, _reason(error)


def _record(folders: Sequence[str], request: TaskRequest, count: int) -> dict[str, list[float]]:
    bench: Bench = made_here()
    return bench.record(folders, request, count)
