"""Worker processes that load what they work with once, and say clearly what went wrong in them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any


@contextmanager
def worker_processes(count: int, advice: str, make: Callable[..., Any], *given: Any) -> Iterator[ProcessPoolExecutor]:
    """Processes that each make what they work with once; their jobs get it from `made_here`.

    Args:
        count: how many processes.
        advice: what to give, where one died, so that the next run goes on with less memory.
        make: makes it, in the process.
        *given: what `make` is called with.
    """
    # spawn: a process that has used CUDA or threads cannot be forked
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, _make, (make, *given)) as executor:
        try:
            yield executor
        except BrokenProcessPool as error:
            raise ChildProcessError(
                f"One of {count} worker processes died; the system ends processes that take too much memory. "
                f"What is finished is kept: run the same command again with {advice}."
            ) from error
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


_made: dict[str, Any] = {}


def _make(make: Callable[..., Any], *given: Any) -> None:
    try:
        _made["worker"] = make(*given)
    except Exception as error:
        # for the jobs to raise: from here it would not reach the parent, only break the pool
        _made["error"] = error


def made_here() -> Any:
    """What this worker process made to work with."""
    if "error" in _made:
        raise _made["error"]
    return _made["worker"]
