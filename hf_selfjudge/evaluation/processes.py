"""Worker processes that load what they work with once, and say clearly what went wrong in them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
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
    executor = ProcessPoolExecutor(count, context, _make, (make, *given))
    try:
        yield executor
    except BrokenProcessPool as error:
        _stop(executor)
        raise ChildProcessError(
            f"One of {count} worker processes died; the system ends processes that take too much memory. "
            f"What is finished is kept: run the same command again with {advice}."
        ) from error
    except BaseException:
        _stop(executor)
        raise
    executor.shutdown()


def _stop(executor: ProcessPoolExecutor) -> None:
    """End the processes at once: a job may take minutes, and what is finished is kept."""
    processes = list((executor._processes or {}).values())  # terminate_workers, from Python 3.14 on
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


_made: dict[str, Any] = {}


def _make(make: Callable[..., Any], *given: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and stops its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _made["worker"] = make(*given)
    except Exception as error:
        # for the jobs to raise: from here it would not reach the parent, only break the pool
        _made["error"] = error


def _end_with_parent() -> None:
    """A killed parent must not leave processes that hold a GPU's memory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def made_here() -> Any:
    """What this worker process made to work with."""
    if "error" in _made:
        raise _made["error"]
    return _made["worker"]
