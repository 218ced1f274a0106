"""The playground's tasks in one registry, and the items of their train and test splits.

Every item is drawn from a seed. An item belongs to a split by its content (a hash of its facts), so the splits share no
item whatever the seeds. This module knows nothing of tokenizers or models.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import multiple_choice, news, open_ended, word_problems
from .wording import FIDELITY, Voice

SPLITS = ("train", "test")
TEST_BUCKETS = 10
"""One in this many possible items is held out for the test split."""
PATIENCE = 100_000
"""Draws without a new item after which a split counts as exhausted."""


@dataclass(frozen=True)
class Task:
    """One task of the world: how its items are drawn, told apart, written and scored."""

    name: str
    """Name in results and file names."""
    share: float
    """Its share of the training data."""
    draw: Callable[[random.Random], dict[str, Any]]
    """Random facts for one item."""
    key: Callable[[Mapping[str, Any]], str]
    """The content of an item without its wording; items with one key are the same item."""
    ask: Callable[[Mapping[str, Any], Voice], str]
    """The prompt, in a voice."""
    answer: Callable[[Mapping[str, Any], Voice], str]
    """A reference response, in a voice."""
    score: Callable[[Mapping[str, Any], str], float | None]
    """Task score of a response in [0, 1], or None where the task has none."""

    def __post_init__(self) -> None:
        """Check the share."""
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"task {self.name!r} has share {self.share}; it must be in (0, 1]")


TASKS: dict[str, Task] = {
    name: Task(name, share, module.draw, module.key, module.ask, module.answer, module.score)
    for name, share, module in (
        ("word_problems", 0.45, word_problems),
        ("multiple_choice", 0.20, multiple_choice),
        ("news", 0.22, news),
        ("open_ended", 0.13, open_ended),
    )
}


@dataclass(frozen=True)
class Item:
    """One prompt of a task with a reference response and the facts its checker needs."""

    task: str
    """Name of its task in `TASKS`."""
    split: str
    """`train` or `test`."""
    index: int
    """Its place in the list it was generated with."""
    prompt: str
    """The user's message."""
    response: str
    """One good answer; there are many others."""
    facts: Mapping[str, Any]
    """What the item is about; can be written as JSON."""

    def __post_init__(self) -> None:
        """Check task and split."""
        _check(self.task, self.split)

    @property
    def id(self) -> str:
        """A name that is unique within one generated list of each task and split."""
        return f"{self.task}-{self.split}-{self.index}"


def _check(task: str, split: str) -> None:
    """Raise ValueError for a task or split that does not exist."""
    if task not in TASKS:
        raise ValueError(f"no task {task!r}; the playground has {', '.join(TASKS)}")
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; use one of {', '.join(SPLITS)}")


def split_of(task: str, facts: Mapping[str, Any]) -> str:
    """The split that an item with these facts belongs to."""
    return "test" if zlib.crc32(TASKS[task].key(facts).encode()) % TEST_BUCKETS == 0 else "train"


def stream(
    task: str, split: str, seed: int | str = 0, fidelity: float = FIDELITY
) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Endless `(facts, prompt, response)` of one split, the same for the same seed; items may come again."""
    _check(task, split)
    rng = random.Random(f"{task}/{split}/{seed}")
    spec = TASKS[task]
    held_out = split == "test"
    while True:
        facts = spec.draw(rng)
        if (zlib.crc32(spec.key(facts).encode()) % TEST_BUCKETS == 0) == held_out:
            voice = Voice.draw(rng, fidelity)
            yield facts, spec.ask(facts, voice), spec.answer(facts, voice)


def generate(task: str, split: str, count: int, seed: int = 0) -> list[Item]:
    """`count` different items of a split. A longer list of the same seed starts with the shorter one."""
    items: list[Item] = []
    seen: set[str] = set()
    misses = 0
    for facts, prompt, response in stream(task, split, seed):
        if len(items) == count:
            break
        key = TASKS[task].key(facts)
        misses = misses + 1 if key in seen else 0
        if misses > PATIENCE:
            raise ValueError(f"{task}/{split} has only about {len(items)} different items; {count} were asked for")
        if key not in seen:
            seen.add(key)
            items.append(Item(task, split, len(items), prompt, response, facts))
    return items


def score(item: Item, response: str) -> float | None:
    """Task score of a response to an item in [0, 1]; None for open-ended items, which have no right answer."""
    return TASKS[item.task].score(item.facts, response)
