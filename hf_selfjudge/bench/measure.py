"""Timed runs of every method on one pair, in one process, and what the hardware would allow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..config import JudgeConfig
from ..decoding.statistics import PHASES, JudgeStats
from ..engine.forward import _idle, release
from ..judge import SelfJudgeVerifier
from ..lm_head import head_width
from .forced import Agreement, FirstTokens
from .shapes import bytes_read


@dataclass(frozen=True)
class BenchSettings:
    """What is timed."""

    gamma: int = 20
    """Tokens drafted per block."""
    accept: int = 11
    """Draft tokens accepted in every block."""
    prompt: int = 128
    """Tokens of the prompt."""
    new_tokens: int = 360
    """Tokens generated per sequence."""
    batches: tuple[int, ...] = (1,)
    """Batch sizes of our loop; the other methods take one sequence."""
    repeats: int = 3
    """Timed runs; the fastest counts."""
    compiled: bool = False
    """Also time transformers' compiled plain decoding (static cache)."""

    def __post_init__(self) -> None:
        """Check the counts."""
        if not 0 <= self.accept <= self.gamma:
            raise ValueError(f"accept is {self.accept}, expected a count from 0 to gamma = {self.gamma}.")
        for name in ("gamma", "prompt", "new_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected an int >= 1.")
        if not self.batches or min(self.batches) < 1:
            raise ValueError(f"batches are {self.batches}, expected sizes >= 1.")


def measure(target: PreTrainedModel, draft: PreTrainedModel, settings: BenchSettings) -> dict[str, Any]:
    """Tokens per second of every method, the split of a cycle, memory, and the floor."""
    found: dict[str, Any] = {"floor": floor(target, draft, settings)}
    prompt = _prompts(target, 1, settings.prompt)
    inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), "do_sample": False}
    count = settings.new_tokens
    plain = lambda n: target.generate(**inputs, max_new_tokens=n)  # noqa: E731
    found["plain"] = {"tokens_per_s": count / _fastest(plain, settings)[0]}
    found["stock_assisted"] = {"tokens_per_s": count / _stock(target, draft, inputs, settings)}
    if settings.compiled:
        compiled = lambda n: target.generate(**inputs, max_new_tokens=n, cache_implementation="static")  # noqa: E731
        seconds, first = _fastest(compiled, settings)
        found["compiled_plain"] = {"tokens_per_s": count / seconds, "first_call_s": first}
    found["ours"] = [ours(target, draft, settings, batch) for batch in settings.batches]
    single = next((run for run in found["ours"] if run["batch"] == 1), None)
    for run in found["ours"]:
        run["over_stock_assisted"] = run["tokens_per_s"] / found["stock_assisted"]["tokens_per_s"]
        run["over_plain"] = run["tokens_per_s"] / found["plain"]["tokens_per_s"]
        if "tokens_per_s" in found["floor"] and run["batch"] == 1:
            run["share_of_floor"] = run["tokens_per_s"] / found["floor"]["tokens_per_s"]
        if single is not None:
            run["over_batch_1"] = run["tokens_per_s"] / single["tokens_per_s"]
    return found


def ours(target: PreTrainedModel, draft: PreTrainedModel, settings: BenchSettings, batch: int) -> dict[str, Any]:
    """Our loop at one batch size; all rows accept alike."""
    judge = SelfJudgeVerifier(JudgeConfig(hidden_size=head_width(target))).to(target.device)
    prompt = _prompts(target, batch, settings.prompt)
    stats: list[JudgeStats] = []

    def run(count: int) -> Any:
        return target.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            assistant_model=draft,
            judge=FirstTokens(settings.accept, judge),
            judge_mode="judge-only",
            judge_stats_callback=stats.append,
            num_assistant_tokens=settings.gamma,
            do_sample=False,
            max_new_tokens=count,
        )

    for model in (target, draft):
        release(model)
    if target.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds, first = _fastest(run, settings)
    last = stats[-1]
    cycles = max(row.cycles for row in last.rows) if last.rows else last.cycles
    result = {
        "batch": batch,
        "tokens_per_s": batch * settings.new_tokens / seconds,
        "first_call_s": first,
        "cycle_ms": 1e3 * seconds / cycles,
        "phases_ms": {name: 1e3 * last.seconds.get(name, 0.0) / cycles for name in PHASES},
        "judge_share": last.seconds.get("judge", 0.0) / seconds,
        "accepted_per_cycle": last.accepted_per_cycle,
    }
    if target.device.type == "cuda":
        weights = sum(p.numel() * p.element_size() for model in (target, draft) for p in model.parameters())
        forwards = [forward for model in (target, draft) for forward in _idle.get(model, [])]
        caches = sum(forward.cache.bytes for forward in forwards)
        for name in ("warm_up", "capture"):
            result[f"{name}_s"] = sum(forward.setup_seconds[name] for forward in forwards)
        result["memory_gb"] = {
            "peak": torch.cuda.max_memory_allocated() / 1e9,
            "weights": weights / 1e9,
            "caches": caches / 1e9,
        }
    return result


def _prompts(target: PreTrainedModel, batch: int, length: int) -> Tensor:
    """Tokens by lot, behind the special ones that small vocabularies begin with. (batch, length)"""
    known = min(1000, target.config.get_text_config().vocab_size)
    return torch.randint(3, known, (batch, length), device=target.device)


def floor(target: PreTrainedModel, draft: PreTrainedModel, settings: BenchSettings) -> dict[str, float]:
    """What reading every weight once per forward would take at the measured bandwidth of a matrix-vector product."""
    sizes = {"target_gb": bytes_read(target) / 1e9, "draft_gb": bytes_read(draft) / 1e9}
    if target.device.type != "cuda":
        return sizes
    matrix = torch.randn(16384, 32768, dtype=torch.bfloat16, device=target.device)
    vector = torch.randn(32768, 1, dtype=torch.bfloat16, device=target.device)
    seconds = _gpu_seconds(lambda: matrix @ vector)
    bandwidth = matrix.numel() * 2 / seconds
    cycle = (settings.gamma * bytes_read(draft) + bytes_read(target)) / bandwidth
    return {
        **sizes,
        "bandwidth_tb_s": bandwidth / 1e12,
        "cycle_ms": 1e3 * cycle,
        "tokens_per_s": (settings.accept + 1) / cycle,
        "plain_tokens_per_s": bandwidth / bytes_read(target),
    }


def _stock(target: PreTrainedModel, draft: PreTrainedModel, inputs: dict[str, Any], settings: BenchSettings) -> float:
    """Seconds of transformers' assisted generation with the same acceptance."""
    config = draft.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = settings.gamma, "constant"
    config.assistant_confidence_threshold = 0.0
    with Agreement(draft, settings.accept, settings.prompt) as force:

        def run(count: int) -> Any:
            return target.generate(
                **inputs, max_new_tokens=count, assistant_model=draft, logits_processor=force.processors
            )

        return _fastest(run, settings)[0]


def _fastest(run: Callable[[int], Any], settings: BenchSettings) -> tuple[float, float]:
    """Seconds of the fastest of several runs, and of the first call, which sets everything up."""
    begun = time.perf_counter()
    run(min(24, settings.new_tokens))
    _wait()
    first = time.perf_counter() - begun
    run(settings.new_tokens)
    best = float("inf")
    for _ in range(settings.repeats):
        _wait()
        begun = time.perf_counter()
        run(settings.new_tokens)
        _wait()
        best = min(best, time.perf_counter() - begun)
    return best, first


def _gpu_seconds(function: Callable[[], Any], repeats: int = 50) -> float:
    for _ in range(3):
        function()
    _wait()
    begun = time.perf_counter()
    for _ in range(repeats):
        function()
    _wait()
    return (time.perf_counter() - begun) / repeats


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
