"""What prompts a comparison runs on, and where named pairs lie. A task is an argument: PROVIDER/TASK[=FILE][:COUNT].

A provider is a module with `TASKS` (names), `load_task` and `model_folder`. Those of this package are named here and
loaded on demand, so that evaluation needs none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

PROVIDERS = {"playground": "hf_selfjudge.playground.tasks", "lm_eval": "hf_selfjudge.lm_eval.provider"}
"""Modules that offer tasks, by the name used on the command line."""


class Task(Protocol):
    """Prompts and how their answers are scored."""

    @property
    def name(self) -> str:
        """Name in results."""
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

    def score(self, index: int, text: str) -> float | None:
        """Score in [0, 1] of an answer to prompt `index`; None where there is none."""
        ...


@dataclass(frozen=True)
class TaskRequest:
    """Which prompts of which task; small, so that it crosses process borders."""

    provider: str
    task: str
    count: int
    split: str = "test"
    seed: int = 0
    skip: int = 0
    """Prompts of this split and seed to leave out first."""

    @property
    def name(self) -> str:
        """Name in results."""
        return f"{self.provider}/{self.task}"

    def load(self) -> Task:
        """Make the prompts."""
        task: Task = _provider(self.provider).load_task(self.task, self.count, self.split, self.seed, self.skip)
        return task


def parse_tasks(texts: Sequence[str], items: int) -> list[TaskRequest]:
    """Tasks from comma-separated lists of PROVIDER/TASK[:COUNT]; PROVIDER alone means all of its tasks.

    Args:
        texts: what the user wrote.
        items: prompts of each task without a count.
    """
    requests: list[TaskRequest] = []
    for entry in (entry.strip() for text in texts for entry in text.split(",")):
        name, colon, count = entry.partition(":")
        provider, _, task = name.partition("/")
        if provider not in PROVIDERS:
            raise ValueError(f"Task {entry!r}: no provider {provider!r}; expected PROVIDER/TASK[:COUNT], "
                             f"with a provider out of {', '.join(PROVIDERS)}.")  # fmt: skip
        if colon and not (count.isdecimal() and int(count) > 0):
            raise ValueError(f"Task {entry!r}: count {count!r}, expected an int >= 1.")
        known = tuple(_provider(provider).TASKS)
        if task and task.partition("=")[0] not in known:  # what is behind = is for the provider, such as a file
            raise ValueError(f"Task {entry!r}: {provider} has no task {task!r}; it has {', '.join(known)}.")
        requests += [TaskRequest(provider, one, int(count or items)) for one in ([task] if task else known)]
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
