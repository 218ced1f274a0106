"""The embedded world's tasks: the outcome is that the answer is entirely right.

The reference is {"task", "facts"}. A wrong answer has no outcome: it cannot be spoilt, so nothing can be learnt from
substitutions in it. Neither has an open-ended one, which no rule can check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def outcome(response: str, reference: Mapping[str, Any]) -> bool | None:
    """True for the full task score, else None."""
    from ..playground.world import TASKS

    missing = [key for key in ("task", "facts") if key not in reference]
    if missing or reference["task"] not in TASKS:
        found = f"no {missing[0]!r}" if missing else f"the task {reference['task']!r}"
        raise ValueError(
            f"A playground reference has {found}; expected 'task' (one of {', '.join(TASKS)}) and 'facts'."
        )
    score = TASKS[reference["task"]].score(reference["facts"], response)
    return True if score == 1.0 else None


def same(a: bool, b: bool) -> bool:
    """Whether both are right."""
    return a == b


def correct(found: bool | None, reference: Any) -> bool:
    """Whether the answer is right."""
    return found is True
