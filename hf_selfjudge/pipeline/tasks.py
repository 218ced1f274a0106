"""Your own prompts for `selfjudge compare`: prompts/SOURCE[:COUNT], with a SOURCE in the language of `--prompts`.

Answers are scored by the source's checker; without one only lengths are compared.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..checkers import get_checker, version
from .sources.dataset_rows import read_prompts
from .sources.language import PLAYGROUND, Source, parse_sources
from .sources.mapping import RawPrompt

TASKS: Sequence[str] = ()
"""None has a name: any source is a task."""
MAX_NEW_TOKENS = 512


@dataclass(frozen=True)
class PromptTask:
    """Prompts of one source."""

    name: str
    rows: Sequence[RawPrompt]
    max_new_tokens: int = MAX_NEW_TOKENS
    chat: bool = True
    needs_model: bool = False

    @property
    def prompts(self) -> list[str]:
        """The users' messages."""
        return [row.text for row in self.rows]

    @property
    def source(self) -> str:
        """Where the prompts come from."""
        return self.name

    @property
    def scoring(self) -> dict[str, Any]:
        """Which checker, against which references."""
        known = json.dumps([[row.checker, row.reference] for row in self.rows], default=str)
        return {"references": hashlib.sha256(known.encode()).hexdigest()[:16], "checkers": version()}

    def check(self) -> None:
        """Checkers are always here."""

    def figures(self, answers: Sequence[tuple[int, str]]) -> list[dict[str, float]]:
        """Whether each answer to a prompt by its index is right; nothing where there is no checker."""
        return [self._figures(self.rows[index], text) for index, text in answers]

    @staticmethod
    def _figures(row: RawPrompt, text: str) -> dict[str, float]:
        if row.checker is None:
            return {}
        checker = get_checker(row.checker)
        return {"score": float(checker.correct(checker.outcome(text, row.reference), row.reference))}


def check_task(spec: str) -> None:
    """Refuse a source that cannot be understood, before anything is read."""
    _source(spec)


def load_task(spec: str, count: int, split: str, seed: int, skip: int = 0) -> PromptTask:
    """`count` prompts of a source behind the first `skip` ones, in an order that the seed decides."""
    source = _source(spec)
    if split == "train":
        raise ValueError(
            f"prompts/{spec} has no training rows to choose points on; use --select-on held-out (further rows), "
            "--select-on test, or --selection-tasks with a file of its own."
        )
    rows = list(read_prompts(source, seed))
    if any([message["role"] for message in row.messages] != ["user"] for row in rows):
        raise ValueError(f"prompts/{spec} has chats of other than one user message; compare takes single messages.")
    if skip + count > len(rows):
        raise ValueError(
            f"prompts/{spec} has {len(rows)} rows, and {skip + count} are asked for; give a smaller :COUNT."
        )
    random.Random(seed).shuffle(rows)
    return PromptTask(f"prompts/{source.name}", rows[skip : skip + count])


def model_folder(role: str) -> str:
    """There are no models here."""
    raise ValueError(f"prompts has tasks, but no {role}; give a folder, a Hub id, or playground.")


def _source(spec: str) -> Source:
    if not spec:
        raise ValueError("prompts names no source; expected one, such as prompts/my.jsonl:200.")
    if spec.split("/")[0] == PLAYGROUND:
        raise ValueError(f"prompts/{spec} is the playground's; write {spec} instead.")
    (source,) = parse_sources([spec])
    return source
