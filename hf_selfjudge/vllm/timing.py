"""How much of the engine's steps the judge takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Timing:
    """Seconds of whole steps and of the judge in them, if asked for: on a GPU measuring waits for the device."""

    def __init__(self, enabled: bool, device: torch.device) -> None:
        self.enabled = enabled
        self._device = device
        self.forget()

    def forget(self) -> None:
        """Start from zero."""
        self.seconds = {"step": 0.0, "judge": 0.0}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a `with` body to "step" or "judge"."""
        if not self.enabled:
            yield
            return
        self._wait()
        start = time.perf_counter()
        yield
        self._wait()
        self.seconds[name] += time.perf_counter() - start

    def _wait(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
