"""The playground for `selfjudge compare`: its tasks' items as prompts with scores, and where its models lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import ASSETS
from .world import TASKS as _WORLD
from .world import Item, generate, score

TASKS = tuple(_WORLD)
"""Names of the tasks."""
MAX_NEW_TOKENS = 160
"""More than any good answer of the world has."""


@dataclass(frozen=True)
class PlaygroundTask:
    """Items of one task and split."""

    name: str
    items: Sequence[Item]
    max_new_tokens: int = MAX_NEW_TOKENS
    chat: bool = True

    @property
    def prompts(self) -> list[str]:
        """The users' messages."""
        return [item.prompt for item in self.items]

    @property
    def source(self) -> str:
        """Where the prompts come from."""
        return self.name

    @property
    def scoring(self) -> dict[str, Any]:
        """The world scores by its own facts, which the prompts decide."""
        return {"task": self.name}

    @property
    def needs_model(self) -> bool:
        """Scores come from rules."""
        return False

    def check(self) -> None:
        """Nothing can be missing."""

    def figures(self, answers: Sequence[tuple[int, str]]) -> list[dict[str, float]]:
        """The score of each answer to an item by its index; nothing where the task has none."""
        scores = [self.score(index, text) for index, text in answers]
        return [{} if score is None else {"score": score} for score in scores]

    def score(self, index: int, text: str) -> float | None:
        """Task score of an answer to item `index`."""
        return score(self.items[index], text)


def load_task(name: str, count: int, split: str, seed: int, skip: int = 0) -> PlaygroundTask:
    """`count` items of a task behind the first `skip` ones of this split and seed."""
    return PlaygroundTask(f"playground/{name}", generate(name, split, skip + count, seed)[skip:])


def model_folder(role: str) -> Path:
    """Folder of the embedded `target`, `draft` or `judge`."""
    return ASSETS / role
