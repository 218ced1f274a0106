"""What the plug-in remembers of each running request: its theta and its slot of counters.

Engine-neutral, as `approval`. Host work is done only when the batch's requests change; nothing waits for the device
but `statistics`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..rules import Rule
from .approval import COUNTERS, OFF, Approver
from .settings import parse_threshold, request_value

logger = logging.getLogger("vllm.hf_selfjudge")  # under vLLM's logger, so that its handlers show it

ExtraArgs = Callable[[str], Mapping[str, Any] | None]
"""From a request's id to its `SamplingParams.extra_args`."""


class Requests:
    """Thetas and slots of the requests in a batch.

    Args:
        approver: whose counters the slots are of.
        rule: the rule as the settings make it; None if nothing may be relaxed.
        threshold: for requests that bring none of their own, as in the settings.
    """

    def __init__(self, approver: Approver, rule: Rule | None, threshold: str | float | None) -> None:
        self.approver = approver
        self._rule = rule
        self._device = approver.totals.device
        self._asked: OrderedDict[str, float | None] = OrderedDict()  # per request with a slot; None: the default
        self._slot_of: dict[str, int] = {}
        self._free = list(range(approver.by_slot.shape[0]))[::-1]
        self._batch: list[str] = []
        self._active: set[str] = set()
        self._ended: set[str] = set()  # keep their counters; a new request may come with such an id
        self.refused = 0
        """Requests whose threshold was not understood and which therefore are decoded exactly."""
        self.retune(threshold)

    def retune(self, threshold: str | float | None) -> float:
        """Use another operating point for requests without their own, running ones included; returns its theta."""
        self.theta = parse_threshold(threshold, self._rule)
        self.threshold = threshold
        self._batch = []
        return self.theta

    def forget(self) -> None:
        """Start counting from zero and without requests, after vLLM's warm-up."""
        self.approver.totals.zero_()
        self.approver.by_slot.zero_()
        self._asked.clear()
        self._slot_of.clear()
        self._free = list(range(self.approver.by_slot.shape[0]))[::-1]
        self._batch, self._active, self._ended, self.refused = [], set(), set(), 0

    def finish(self, ended: Collection[str]) -> None:
        """Take note of requests that have ended, before the next `update`."""
        if ended:
            self._ended.update(request for request in ended if request in self._slot_of)
            self._batch = []

    def update(self, batch: Sequence[str], extra_args: ExtraArgs) -> None:
        """Take note of the requests of this step, in the batch's order."""
        if self._batch == batch:
            return
        self._batch, self._active = list(batch), set(batch)
        for request in batch:
            if request not in self._slot_of or request in self._ended:
                self._admit(request, extra_args(request))
        thetas = [self._theta(request) for request in batch]
        self.relaxes = any(theta < OFF for theta in thetas)
        self.thetas = torch.tensor(thetas, dtype=torch.float32).to(self._device, non_blocking=True)
        slots = [self._slot_of[request] for request in batch]
        self.slots = torch.tensor(slots, dtype=torch.long).to(self._device, non_blocking=True)

    relaxes: bool = False
    """Whether any request of the batch may be relaxed."""
    thetas: Tensor
    """Theta of each request of the batch. (requests,)"""
    slots: Tensor
    """Slot of each request of the batch. (requests,)"""

    def statistics(self, per_request: bool = False) -> dict[str, Any]:
        """The counters so far, and with `per_request` those of recent requests by their id. Waits for the device."""
        found: dict[str, Any] = dict(zip(COUNTERS, self.approver.totals.tolist(), strict=True))
        found.update(threshold=self.threshold, theta=self.theta, refused_thresholds=self.refused)
        if per_request:
            rows = self.approver.by_slot.tolist()
            found["requests"] = {
                request: dict(zip(COUNTERS, rows[slot], strict=True), theta=self._theta(request))
                for request, slot in self._slot_of.items()
            }
        return found

    def _admit(self, request: str, extra_args: Mapping[str, Any] | None) -> None:
        """Give a new request a slot, if need be that of the oldest request that is not running."""
        if request in self._ended:
            self._drop(request)
        if not self._free:
            oldest = next((known for known in self._asked if known not in self._active), None)
            if oldest is None:  # more running requests than slots
                raise RuntimeError(f"selfjudge has counters for {len(self._slot_of)} running requests, not for more.")
            self._drop(oldest)
        slot = self._free.pop()
        self.approver.by_slot[slot].zero_()
        self._slot_of[request] = slot
        self._asked[request] = self._parse(request, request_value(extra_args))

    def _drop(self, request: str) -> None:
        """Forget a request and free its slot."""
        self._free.append(self._slot_of.pop(request))
        del self._asked[request]
        self._ended.discard(request)

    def _parse(self, request: str, value: Any) -> float | None:
        """A request's own theta, None without one. A bad value must not end the engine: that request is exact."""
        if value is None:
            return None
        try:
            return parse_threshold(value, self._rule)
        except ValueError as error:
            self.refused += 1
            logger.error("Request %s is decoded exactly, without the judge: %s", request, error)
            return OFF

    def _theta(self, request: str) -> float:
        asked = self._asked[request]
        return self.theta if asked is None else asked
