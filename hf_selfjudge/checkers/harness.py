"""Inside the sandbox: load a solution, run its tests and say which of them pass.

This file's text, followed by a call of `check`, is the program that the sandbox runs; standard library only. What the
solution prints goes nowhere. Results go out by a private copy of stdout, each line signed with a word that the solution
was never told, so neither printing nor leaving early passes a test.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import sys
import types
from contextlib import suppress
from typing import Any


class Report:
    """Where results go: the signed lines are written at once, so that a solution that hangs keeps what it passed."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._out = os.dup(1)
        self._told: set[tuple[int, bool]] = set()
        self._waiting: set[int] = set()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)

    def __call__(self, index: int, passed: bool) -> None:
        """One test was run; a test inside a loop may fail many times."""
        if (index, passed) not in self._told:
            self._told.add((index, passed))
            os.write(self._out, f"\n{self._word} {index} {int(passed)}\n".encode())

    def so_far(self, index: int) -> None:
        """A test inside a loop passed once; it counts when the loop has ended."""
        self._waiting.add(index)

    def loop_ended(self, first: int, end: int) -> None:
        """The loop around these tests ran to its end, so those that it came to have passed."""
        for index in sorted(self._waiting & set(range(first, end))):
            self(index, True)


def call(namespace: dict[str, Any], name: str, arguments: str) -> Any:
    """Call a function, or a method of the class Solution, with one JSON value per line."""
    values = [json.loads(line) for line in arguments.splitlines() if line.strip()]
    holder = namespace.get("Solution")
    function = getattr(holder(), name) if holder is not None and hasattr(holder, name) else namespace[name]
    return plain(function(*values))


def plain(value: Any) -> Any:
    """Tuples as the lists that JSON has."""
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def check(word: str, solution: str, tests: str) -> None:
    """Run the solution, then the tests, whose every `assert` calls `__report__` (see `code.split_asserts`)."""
    report = Report(word)
    random.seed(0)
    module = types.ModuleType("solution")  # not __main__: a solution's own demonstration is no part of the tests
    sys.modules["solution"] = module
    namespace = module.__dict__
    with suppress(BaseException):  # SystemExit too: the tests decide, and what is defined by then may pass them
        exec(compile(solution, "solution.py", "exec", dont_inherit=True), namespace)
    namespace["__report__"] = report
    namespace["__call__"] = lambda name, arguments: call(namespace, name, arguments)
    namespace["__read__"] = json.loads
    namespace["__builtins__"] = builtins
    with suppress(BaseException):
        exec(compile(tests, "tests.py", "exec", dont_inherit=True), namespace)
    os._exit(0)  # nothing that the solution left behind may run on or speak
