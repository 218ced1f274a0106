"""The processes that share a build: who they are, and how they wait for each other and learn of each other's failures.

Started by `accelerate launch` (or torchrun), each process computes its own shards into the shared folder; only small
JSON messages travel between them. A failure in one process becomes an error in all of them, at the next point where
they meet; a process that died shows as a closed connection.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_LONGEST_WAIT = timedelta(days=7)  # for the slowest process of a stage; a dead one is noticed at once

logger = logging.getLogger(__name__)


class Processes:
    """One process alone, or this process among several."""

    def __init__(
        self, rank: int = 0, world: int = 1, device: torch.device | None = None, lockstep: bool = False
    ) -> None:
        self.rank = rank
        self.world = world
        self.device = device
        """This process's own; None leaves the choice to the models."""
        self.lockstep = lockstep
        """All processes compute every shard together (tensor parallel), instead of one shard each."""
        self._group = dist.new_group(backend="gloo", timeout=_LONGEST_WAIT) if world > 1 else None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes the manifest, fits and speaks."""
        return self.rank == 0

    def mine(self, shards: list[int]) -> list[int]:
        """The shards this process computes."""
        return shards if self.lockstep else shards[self.rank :: self.world]

    def by_first(self, work: Callable[[], Any]) -> Any:
        """Let the first process do something; every process gets the result (JSON), or the failure."""
        if self._group is None:
            return work()
        message: dict[str, Any] = {}
        failure: Exception | None = None
        if self.is_first:
            try:
                message = {"result": work()}
            except Exception as error:
                failure, message = error, {"failure": _describe(error)}
        message = self._gather(message)[0]
        if failure is not None:
            raise failure
        if "failure" in message:
            raise ChildProcessError(f"Process 0 of {self.world} failed: {message['failure']}")
        return message["result"]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Each process does its part; all wait for all, and fail if one does."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        if self._group is not None:
            if failure is not None and self.lockstep:
                raise failure  # the others wait inside a forward, where no message reaches them: end, so that they do
            if failure is not None and not self.is_first:
                logger.error("process %d of %d: %s", self.rank, self.world, _describe(failure))
            messages = self._gather({} if failure is None else {"failure": _describe(failure)})
            failed = [(rank, m["failure"]) for rank, m in enumerate(messages) if "failure" in m]
            if failed and failure is None:
                raise ChildProcessError(f"Process {failed[0][0]} of {self.world} failed: {failed[0][1]}")
        if failure is not None:
            raise failure

    def _gather(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Everybody's message, in the order of ranks. JSON over gloo: nothing is pickled."""
        data = torch.tensor(list(json.dumps(message).encode()), dtype=torch.uint8)
        try:
            sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.world)]
            dist.all_gather(sizes, torch.tensor([len(data)]), group=self._group)
            longest = int(max(sizes))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(data)] = data
            found = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world)]
            dist.all_gather(found, padded, group=self._group)
        except RuntimeError as error:
            raise ConnectionError(
                f"Process {self.rank} of {self.world} lost another one, which has died ({_describe(error)}). Finished "
                "shards are kept: run the same command again."
            ) from None
        return [json.loads(bytes(part[: int(size)].tolist())) for part, size in zip(found, sizes, strict=True)]


@contextmanager
def processes(lockstep: bool = False, device: str | None = None) -> Iterator[Processes]:
    """The processes that were launched together with this one; usually it is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        yield Processes(lockstep=lockstep)
        return
    try:
        from accelerate import PartialState  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError(
            "Several processes were launched, and accelerate is not installed: pip install 'hf-selfjudge[train]', or "
            "launch one process."
        ) from None
    alone = not dist.is_initialized()
    state = PartialState(cpu=device == "cpu" or not torch.cuda.is_available())
    try:
        yield Processes(state.process_index, state.num_processes, state.device, lockstep)
    finally:
        if alone:
            state.destroy_process_group()


def _describe(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (ValueError, OSError)) and text else f"{type(error).__name__}: {text}"
