"""Wall time by phase, without adding host syncs: CUDA events on a GPU, the clock elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class PhaseTimer:
    """Adds up the time spent in named phases."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._latest: dict[str, Any] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the body's time under `name`."""
        if self._device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self._events.append((name, begin, end))
            self._latest[name] = (begin, end)
        else:
            begun = time.perf_counter()
            yield
            self._latest[name] = time.perf_counter() - begun
            self._seconds[name] = self._seconds.get(name, 0.0) + self._latest[name]

    def lap(self, first: str, second: str) -> tuple[float, float]:
        """Seconds of the last run of two phases that the host has already waited for."""
        return self._last(first), self._last(second)

    def _last(self, name: str) -> float:
        latest = self._latest.get(name, 0.0)
        return latest if isinstance(latest, float) else latest[0].elapsed_time(latest[1]) / 1e3

    def seconds(self) -> dict[str, float]:
        """Seconds by phase, and `total` since the timer was made."""
        if self._events:
            torch.cuda.synchronize(self._device)
            for name, begin, end in self._events:
                self._seconds[name] = self._seconds.get(name, 0.0) + begin.elapsed_time(end) / 1e3
            self._events.clear()
        return {**self._seconds, "total": time.perf_counter() - self._start}
