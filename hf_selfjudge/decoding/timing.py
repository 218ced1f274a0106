"""Wall time by phase, without adding host syncs: CUDA events on a GPU, the clock elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PhaseTimer:
    """Adds up the time spent in named phases."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the body's time under `name`."""
        if self._device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self._events.append((name, begin, end))
        else:
            begun = time.perf_counter()
            yield
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begun

    def seconds(self) -> dict[str, float]:
        """Seconds by phase, and `total` since the timer was made."""
        if self._events:
            torch.cuda.synchronize(self._device)
            for name, begin, end in self._events:
                self._seconds[name] = self._seconds.get(name, 0.0) + begin.elapsed_time(end) / 1e3
            self._events.clear()
        return {**self._seconds, "total": time.perf_counter() - self._start}
