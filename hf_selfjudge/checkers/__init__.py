"""Checkers by name: what a response's outcome is, and whether two outcomes are the same.

A checker reads only text, so that the labels of the pipeline and the tasks of an evaluation share it. Each is a module
with the functions of `Checker`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from . import choice, code, playground
from . import math as math


class Checker(Protocol):
    """What a checker offers."""

    def outcome(self, response: str, reference: Any) -> Any | None:
        """The normalised outcome of a response, as JSON values; None if the response has none.

        `reference` is what the dataset knows beside the prompt, such as a gold answer or tests.
        """

    def same(self, a: Any, b: Any) -> bool:
        """Whether two outcomes (not None) are the same."""

    def correct(self, found: Any | None, reference: Any) -> bool:
        """Whether an outcome is the right one."""


CHECKERS: Mapping[str, Checker] = {"math": math, "choice": choice, "code": code, "playground": playground}
"""By the name that prompts carry."""


@cache
def version() -> str:
    """A hash of the checkers' code: where it changes, kept scores are made anew."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def get_checker(name: str) -> Checker:
    """The checker of this name."""
    if name not in CHECKERS:
        raise ValueError(f"Unknown checker {name!r}; expected one of {', '.join(CHECKERS)}.")
    return CHECKERS[name]


__all__ = ["CHECKERS", "Checker", "get_checker", "version"]
