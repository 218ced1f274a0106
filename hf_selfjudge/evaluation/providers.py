"""What prompts a comparison runs on, and where named pairs lie. A task is an argument: PROVIDER/TASK[=FILE][:COUNT].

A provider is a module with `TASKS` (names; or none, and `check_task`, if anything may be one), `load_task` and
`model_folder`, and `BY_NLI` if some of its tasks are scored by an NLI model. Those of this package are named here and
loaded on demand, so that evaluation needs none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

PROVIDERS = {
    "playground": "hf_selfjudge.playground.tasks",
    "lm_eval": "hf_selfjudge.lm_eval.provider",
    "prompts": "hf_selfjudge.pipeline.tasks",
}
"""Modules that offer tasks, by the name used on the command line."""


class Task(Protocol):
    """Prompts and how their answers are scored."""

    @property
    def name(self) -> str:
        """Name in results."""
        ...

    @property
    def source(self) -> str:
        """Name of what the prompts come from: tasks that only score differently share it, and so their answers."""
        ...

    @property
    def prompts(self) -> Sequence[str]:
        """The prompts, in a fixed order."""
        ...

    @property
    def chat(self) -> bool:
        """Whether prompts are user messages, to be written by the chat template, or ready text."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """Longest answer."""
        ...

    @property
    def scoring(self) -> dict[str, Any]:
        """What figures depend on beside the answers, as JSON values: where it changes, answers are scored again."""
        ...

    @property
    def needs_model(self) -> bool:
        """Whether a model scores the answers: one process then scores them all."""
        ...

    def check(self) -> None:
        """Refuse, before anything is decoded, what answers could not be scored with."""
        ...

    def figures(self, answers: Sequence[tuple[int, str]]) -> list[dict[str, float]]:
        """Figures by name for answers to prompts by their index, the score first; empty where there is none."""
        ...


@dataclass(frozen=True)
class Part:
    """Some of a task's prompts, counted anew."""

    task: Task
    keep: Sequence[int]
    """Which of the task's prompts."""

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def source(self) -> str:
        """Where the task's prompts come from."""
        return self.task.source

    @property
    def chat(self) -> bool:
        """As in the task."""
        return self.task.chat

    @property
    def max_new_tokens(self) -> int:
        """As in the task."""
        return self.task.max_new_tokens

    @property
    def needs_model(self) -> bool:
        """As in the task."""
        return self.task.needs_model

    @property
    def prompts(self) -> list[str]:
        """The prompts that are kept."""
        return [self.task.prompts[index] for index in self.keep]

    @property
    def scoring(self) -> dict[str, Any]:
        """The task's, and which prompts are kept."""
        return {**self.task.scoring, "keep": list(self.keep)}

    def check(self) -> None:
        """As in the task."""
        self.task.check()

    def figures(self, answers: Sequence[tuple[int, str]]) -> list[dict[str, float]]:
        """The task's figures."""
        return self.task.figures([(self.keep[index], text) for index, text in answers])


@dataclass(frozen=True)
class TaskRequest:
    """Which prompts of which task; small, so that it crosses process borders."""

    provider: str
    task: str
    """The task's name, with =FILE behind it where its rows come from a file."""
    count: int
    split: str = "test"
    seed: int = 0
    skip: int = 0
    """Prompts of this split and seed to leave out first."""
    nli_model: str | None = None
    """What judges factual consistency, where the task does."""

    @property
    def name(self) -> str:
        """Name in results: without folders, which differ from machine to machine, and without a mapping."""
        head = self.task.partition("?")[0].partition("=")[0]
        return f"{self.provider}/{head.rsplit('/', 1)[-1]}"

    @property
    def has_splits(self) -> bool:
        """Whether there are training items; of a file all rows are for what it is given for."""
        return bool(_provider(self.provider).TASKS) and "=" not in self.task

    def load(self) -> Task:
        """Make the prompts."""
        options = {} if self.nli_model is None else {"nli_model": self.nli_model}
        task: Task = _provider(self.provider).load_task(
            self.task, self.count, self.split, self.seed, self.skip, **options
        )
        return task


def parse_tasks(texts: Sequence[str], items: int, nli_model: str | None = None) -> list[TaskRequest]:
    """Tasks from comma-separated lists of PROVIDER/TASK[=FILE][:COUNT]; PROVIDER alone means all of its tasks.

    Args:
        texts: what the user wrote.
        items: prompts of each task without a count.
        nli_model: for the tasks that score by one.
    """
    requests: list[TaskRequest] = []
    for entry in (entry.strip() for text in texts for entry in text.split(",")):
        name, colon, count = entry.rpartition(":") if ":" in entry else (entry, "", "")
        provider, _, task = name.partition("/")
        if provider not in PROVIDERS:
            raise ValueError(f"Task {entry!r}: no provider {provider!r}; expected PROVIDER/TASK[:COUNT], "
                             f"with a provider out of {', '.join(PROVIDERS)}.")  # fmt: skip
        if colon and not (count.isdecimal() and int(count) > 0):
            raise ValueError(f"Task {entry!r}: count {count!r}, expected an int >= 1.")
        known = tuple(_provider(provider).TASKS)
        if not known:
            _provider(provider).check_task(task)
        elif task and task.partition("=")[0] not in known:  # what is behind = is for the provider, such as a file
            raise ValueError(f"Task {entry!r}: {provider} has no task {task!r}; it has {', '.join(known)}.")
        for one in [task] if task else known:
            by_nli = one.partition("=")[0] in getattr(_provider(provider), "BY_NLI", ())
            requests.append(TaskRequest(provider, one, int(count or items), nli_model=nli_model if by_nli else None))
    names = [request.name for request in requests]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Tasks {', '.join(twice)} are given twice; name each task once.")
    return requests


def model_folder(name: str, role: str) -> str:
    """Where a target, draft or judge lies: a provider's name means its embedded one, anything else is itself."""
    return str(_provider(name).model_folder(role)) if name in PROVIDERS else name


def _provider(name: str) -> Any:
    return importlib.import_module(PROVIDERS[name])
