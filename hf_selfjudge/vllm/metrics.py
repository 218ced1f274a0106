"""The judge's counters among vLLM's own Prometheus metrics.

The counters live in the workers, the metrics in the process that answers /metrics (or `llm.get_metrics()`), and vLLM
has no way from one to the other but RPC. So a collector asks when metrics are read: itself where it may wait, else
`SelfJudgeMiddleware` refreshes it just before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

PREFIX = "vllm:selfjudge_"
_COUNTERS = {
    "drafted": "Draft tokens that were verified.",
    "judged": "Draft tokens that the judge was asked about.",
    "judge_accepted": "Draft tokens that stand only because of the judge.",
    "aligned": "Draft tokens that stand and that the exact rule takes.",
}


class SelfJudgeCollector:
    """Prometheus counters `vllm:selfjudge_*_tokens_total`, and the theta as a gauge.

    Args:
        model_name: the label that vLLM's own metrics carry.
        read: gives the statistics of a worker; None if they are put into `statistics` from outside.
    """

    def __init__(self, model_name: str, read: Callable[[], dict[str, Any] | None] | None = None) -> None:
        self.model_name = model_name
        self.statistics: dict[str, Any] | None = None
        self._read = read

    def collect(self) -> Iterator[Any]:
        """What Prometheus asks of a collector."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self.statistics if self._read is None else self._read()
        if found is None:
            return
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"{PREFIX}{name}_tokens", text, labels=["model_name"])
            counter.add_metric([self.model_name], found[name])
            yield counter
        theta = GaugeMetricFamily(f"{PREFIX}theta", "Theta of requests without their own.", labels=["model_name"])
        theta.add_metric([self.model_name], found["theta"])
        yield theta


_registered: list[SelfJudgeCollector] = []


def register(collector: SelfJudgeCollector) -> None:
    """Show a collector among the process's metrics, in place of an earlier engine's, as vLLM does with its own."""
    from prometheus_client import REGISTRY

    while _registered:
        REGISTRY.unregister(_registered.pop())
    REGISTRY.register(collector)
    _registered.append(collector)
