"""Packed scoring against one forward per mismatch: same model, same mismatches, same run.

Random weights: speed does not depend on them. The released code's way sends the whole text through the target once per
mismatch; ours packs the branches of many responses into one forward and runs the lm_head only where something counts.
Rates are compared with a large square matmul of the same precision on the same device. FLOPs are counted twice:
`useful` leaves out padding and masked attention, `executed` has both. The last line of output is one JSON document.

Attention is scaled_dot_product_attention with a dense mask, for which the queries go in parts ("whole": in one). Flex
attention, which skips what is masked, lost on an H200: 1032 against 1116 mismatches/s, compiled, one part.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from hf_selfjudge.bench.shapes import load
from hf_selfjudge.files import write_text
from hf_selfjudge.lm_head import output_head
from hf_selfjudge.pipeline.packing import split_attention
from hf_selfjudge.pipeline.packing.grouping import Plan, make_groups
from hf_selfjudge.pipeline.packing.rows import padded
from hf_selfjudge.pipeline.records import Mismatches, Response, Substitutions
from hf_selfjudge.pipeline.score import score
from hf_selfjudge.pipeline.settings import ScoreSettings

SHAPES = {"llama-3.1-8b": "llama-3.1-8b", "tiny": "tiny-0.1m"}
PROMPT, ANSWER, MISMATCHES, SUFFIX = 100, 300, 28, 20
PAPER = 34716
"""Mismatches of the paper's training data."""


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--responses", type=int, help="of the full run; default: the paper's mismatches, or 6 for tiny")
    parser.add_argument("--tuning-responses", type=int, help="of the runs that compare settings")
    parser.add_argument("--one-by-one", type=int, default=6, help="responses of the slow ways")
    parser.add_argument("--max-tokens", type=int, nargs="+", help="budgets of one forward to compare")
    parser.add_argument("--compile", action="store_true", help="also with compiled layers")
    parser.add_argument("--quick", action="store_true", help="compiled layers only, two budgets, no profiles")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    tiny = arguments.shape == "tiny"
    full = arguments.responses or (6 if tiny else -(-PAPER // MISMATCHES))
    tuning = min(full, arguments.tuning_responses or (4 if tiny else 140))
    budgets = arguments.max_tokens or ([1024, 2048] if tiny else [8192, 16384, 32768][arguments.quick :])
    with torch.no_grad():
        results = run(arguments, full, tuning, budgets)
    if arguments.out:
        write_text(arguments.out, json.dumps(results, indent=2) + "\n")
    print(json.dumps(results))  # noqa: T201


def run(arguments: argparse.Namespace, full: int, tuning: int, budgets: list[int]) -> dict[str, Any]:
    """All measurements."""
    device = torch.device(arguments.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    bench = Bench(load(SHAPES[arguments.shape], str(device), dtype), device, matmul_rate(dtype, device))
    say(f"matmul rate: {bench.peak / 1e12:.4g} TFLOP/s")
    results: dict[str, Any] = {
        "command": f"python benchmarks/labelling.py --shape {arguments.shape}"
        + " --compile" * arguments.compile
        + " --quick" * arguments.quick,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "dtype": str(dtype).removeprefix("torch."),
        "work": {"prompt": PROMPT, "answer": ANSWER, "mismatches": MISMATCHES, "N": SUFFIX, "features": ["hidden"]},
        "matmul_tflops": float(f"{bench.peak / 1e12:.4g}"),
        "float32_difference": float32_difference(device),
    }
    responses, mismatches = workload(full, bench.model.config.vocab_size)
    few = responses[:tuning], mismatches.select(mismatches.prompt_ids < tuning)
    results["one_by_one"] = slow = one_by_one(bench.model, responses, mismatches, arguments.one_by_one, device)
    say(
        f"one by one: {slow['whole_per_second']} mismatches/s whole, {slow['to_suffix_per_second']} to the suffix's end"
    )
    results["tuning"] = tune(bench, few, cases(arguments, budgets, device))
    best = max(results["tuning"], key=lambda row: row["mismatches_per_second"])
    chosen = settings_of(best["max_tokens"], best["compile"])
    row, found = bench.measure(responses, mismatches, chosen, best["attention"])
    row["agreement"] = agreement(found, slow.pop("scores"))
    row["times_whole"] = round(row["mismatches_per_second"] / slow["whole_per_second"], 1)
    row["times_to_suffix"] = round(row["mismatches_per_second"] / slow["to_suffix_per_second"], 1)
    row["paper_seconds"] = round(row["seconds"] * PAPER / row["mismatches"], 1)
    results["full"] = row
    say(json.dumps(row))
    if not arguments.quick:
        for kernel, compiled in {("default", False), (best["attention"], best["compile"])}:
            say(bench.profile(few, settings_of(best["max_tokens"], compiled), kernel))
    return results


def cases(arguments: argparse.Namespace, budgets: list[int], device: torch.device) -> list[tuple[int, bool, str]]:
    """Budget, compiled layers or not, and attention kernel of the runs to compare."""
    compiled = [(budget, True, "default") for budget in budgets] + [(budgets[-1], True, "whole")]
    if arguments.quick:
        return compiled
    eager = [(budget, False, "default") for budget in budgets] + [(budgets[-1], False, "whole")]
    eager += [(budget, False, "cudnn") for budget in budgets if device.type == "cuda"]
    return eager + compiled * arguments.compile


def tune(
    bench: Bench, work: tuple[list[Response], Mismatches], cases: list[tuple[int, bool, str]]
) -> list[dict[str, Any]]:
    """Time budgets of a forward, with and without compiled layers, and attention kernels."""
    rows = []
    say("max_tokens compile attention mismatches/s  useful executed    GiB")
    for budget, compile_it, kernel in cases:
        try:
            begun = time.perf_counter()
            bench.measure(*work, settings_of(budget, compile_it), kernel, limit=4 * budget)  # warm-up, compilation
            warm_up = time.perf_counter() - begun
            row, _ = bench.measure(*work, settings_of(budget, compile_it), kernel)
        except Exception as error:  # a kernel that this device or version lacks
            say(f"{budget:10} {compile_it!s:>7} {kernel:>9} failed: {str(error).splitlines()[0][:120]}")
            continue
        rows.append(row | {"warm_up_seconds": round(warm_up, 1)})
        say(
            f"{budget:10} {compile_it!s:>7} {kernel:>9} {row['mismatches_per_second']:12} {row['useful_share']:7.1%} "
            f"{row['executed_share']:8.1%} {row['peak_gib']:6.1f}"
        )
    return rows


class Bench:
    """A model on a device, and how fast the device can be."""

    def __init__(self, model: PreTrainedModel, device: torch.device, peak: float) -> None:
        self.model, self.device, self.peak = model, device, peak
        self._head_rows = 0
        output_head(model).register_forward_hook(self._count_head_rows)

    def _count_head_rows(self, module: torch.nn.Module, args: tuple, output: torch.Tensor) -> None:
        self._head_rows += output.shape[:-1].numel()

    def measure(
        self,
        responses: list[Response],
        mismatches: Mismatches,
        settings: ScoreSettings,
        attention: str = "default",
        limit: int | None = None,
    ) -> tuple[dict[str, Any], Substitutions]:
        """Score, with the time and the work it took; `limit` takes about that many tokens of text only."""
        if limit is not None:
            responses = responses[: max(2, limit // (PROMPT + ANSWER + MISMATCHES * SUFFIX))]
            mismatches = mismatches.select(mismatches.prompt_ids < len(responses))
        self._head_rows = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with attention_kernel(attention):
            seconds, found = timed(lambda: score(self.model, responses, mismatches, settings), self.device)
        useful, executed = self._flops(responses, mismatches, settings, 1 if attention == "whole" else None)
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else 0.0
        return {
            "max_tokens": settings.max_tokens,
            "compile": settings.compile,
            "attention": attention,
            "mismatches": len(mismatches),
            "seconds": round(seconds, 3),
            "mismatches_per_second": round(len(mismatches) / seconds, 1),
            "useful_tflops": round(useful / seconds / 1e12, 2),
            "executed_tflops": round(executed / seconds / 1e12, 2),
            "useful_share": round(useful / seconds / self.peak, 4),
            "executed_share": round(executed / seconds / self.peak, 4),
            "peak_gib": round(peak, 1),
        }, found

    def _flops(
        self, responses: list[Response], mismatches: Mismatches, settings: ScoreSettings, parts: int | None
    ) -> tuple[float, float]:
        """What had to be computed, and what was, with padding and masked attention in this many parts."""
        parts = parts or split_attention.PARTS
        share = (parts + 1) / (2 * parts)  # of the square of a row's width
        plan = Plan.make(responses, mismatches, settings)
        groups = make_groups(responses, mismatches, plan, settings)
        head = output_head(self.model)
        linear = sum(
            2 * module.weight.numel()
            for module in self.model.modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        )
        config = self.model.config
        pair = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
        tokens = pairs = wide_tokens = wide_pairs = 0
        for group in groups:
            width = padded(group[0].size)
            wide_tokens += len(group) * width
            wide_pairs += share * len(group) * width**2
            for part in group:
                starts, lengths = plan.starts[part.rows], plan.lengths[part.rows]
                tokens += part.size
                pairs += part.trunk * (part.trunk + 1) // 2
                pairs += int((starts * lengths + lengths * (lengths + 1) // 2).sum())
        heads = 2 * head.weight.numel() * self._head_rows
        return linear * tokens + pair * pairs + heads, linear * wide_tokens + pair * wide_pairs + heads

    def profile(self, work: tuple[list[Response], Mismatches], settings: ScoreSettings, attention: str) -> str:
        """Where the time of one group goes."""
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device.type == "cuda")
        limit = settings.max_tokens
        self.measure(*work, settings, attention, limit)
        with profile(activities=activities) as profiler:
            self.measure(*work, settings, attention, limit)
        by = "self_cuda_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        title = f"one group of {settings.max_tokens} tokens, compile={settings.compile}, {attention}\n"
        return title + profiler.key_averages().table(sort_by=by, row_limit=15, max_name_column_width=90)


def settings_of(max_tokens: int, compile: bool) -> ScoreSettings:
    """The measured work: one N, the hidden state only."""
    return ScoreSettings(lengths=(SUFFIX,), features=("hidden",), max_tokens=max_tokens, compile=compile)


@contextmanager
def attention_kernel(name: str) -> Iterator[None]:
    """During the body prefer cuDNN's kernel, or send all queries through attention at once."""
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    own = split_attention.PARTS
    split_attention.PARTS = 1 if name == "whole" else own
    try:
        with sdpa_kernel(order, set_priority=True) if name == "cudnn" else nullcontext():
            yield
    finally:
        split_attention.PARTS = own


def workload(count: int, vocabulary: int) -> tuple[list[Response], Mismatches]:
    """Random texts, and random tokens at random places of them."""
    draw = np.random.default_rng(0)
    texts = draw.integers(0, vocabulary, (count, PROMPT + ANSWER))
    responses = [Response(index, text[:PROMPT].tolist(), text[PROMPT:].tolist()) for index, text in enumerate(texts)]
    positions = np.sort(np.stack([draw.permutation(ANSWER)[:MISMATCHES] for _ in range(count)]), axis=1)
    rows = np.repeat(np.arange(count), MISMATCHES)
    flat = positions.reshape(-1)
    size = len(rows)
    columns = {
        "prompt_ids": torch.from_numpy(rows),
        "positions": torch.from_numpy(flat),
        "target_tokens": torch.from_numpy(texts[rows, PROMPT + flat]),
        "draft_tokens": torch.from_numpy(draw.integers(0, vocabulary, size)),
        "ranks": torch.zeros(size, dtype=torch.long),
        "log_q": torch.zeros(size),
        "continuations": torch.zeros((size, 0), dtype=torch.long),
    }
    return responses, Mismatches.from_columns(columns)


def one_by_one(
    model: PreTrainedModel, responses: list[Response], mismatches: Mismatches, count: int, device: torch.device
) -> dict[str, Any]:
    """The slow ways on the first responses: a warm-up, then three times each in turn; medians, scores of the whole way.

    Each substitution costs one forward: over the whole text (the released code's way), or over the text up to the
    suffix's end with the lm_head at the suffix only. The unchanged text is read once per response. The second and third
    time find every length's kernels chosen already, which only the second way, with its many lengths, can gain from.
    """
    timed_rows = mismatches.select(mismatches.prompt_ids < count)
    warm_up = mismatches.select(mismatches.prompt_ids == 0)
    rates: dict[str, list[float]] = {"whole": [], "to_suffix": []}
    scores = None
    for short in (False, True):
        slow_scores(model, responses, warm_up, short)
    for _ in range(3):
        for name, short in (("whole", False), ("to_suffix", True)):
            seconds, found = timed(lambda short=short: slow_scores(model, responses, timed_rows, short), device)
            rates[name].append(round(len(timed_rows) / seconds, 2))
            scores = found if scores is None else scores
    medians = {f"{name}_per_second": statistics.median(values) for name, values in rates.items()}
    return medians | {"mismatches": len(timed_rows), "blocks": rates, "scores": scores}


def slow_scores(model: PreTrainedModel, responses: list[Response], mismatches: Mismatches, short: bool) -> torch.Tensor:
    """The score's definition, one forward per substitution. (rows,)"""
    scores, original, known = [], None, None
    rows = zip(
        mismatches.prompt_ids.tolist(), mismatches.positions.tolist(), mismatches.draft_tokens.tolist(), strict=True
    )
    for prompt_id, position, z in rows:
        text = responses[prompt_id].prompt + responses[prompt_id].answer
        if known != prompt_id:
            ids = torch.tensor([text], device=model.device)
            original, known = model(input_ids=ids, use_cache=False).logits[0], prompt_id
        at = PROMPT + position
        end = min(at + SUFFIX, len(text) - 1)
        ids = torch.tensor([[*text[:at], z, *text[at + 1 :]]], device=model.device)
        if short:
            kept = model(input_ids=ids[:, : end + 1], use_cache=False, logits_to_keep=end - at + 1).logits[0, :-1]
        else:
            kept = model(input_ids=ids, use_cache=False).logits[0, at:end]
        before = original[at - 1].log_softmax(-1, dtype=torch.float32)
        suffix = ids[0, at + 1 : end + 1, None]
        changed = kept.log_softmax(-1, dtype=torch.float32).gather(1, suffix).sum()
        unchanged = original[at:end].log_softmax(-1, dtype=torch.float32).gather(1, suffix).sum()
        scores.append(before[z] - before[text[at]] + changed - unchanged)
    return torch.stack(scores).cpu()


def agreement(found: Substitutions, slow: torch.Tensor) -> dict[str, float]:
    """How far packed scores are from those of one forward each."""
    fast = found.score(SUFFIX)[: len(slow)]
    difference = (fast - slow).abs()
    return {
        "compared": len(slow),
        "largest_difference": round(float(difference.max()), 6),
        "mean_difference": round(float(difference.mean()), 6),
        "mean_size_of_score": round(float(slow.abs().mean()), 4),
        "correlation": round(float(torch.corrcoef(torch.stack([fast, slow]))[0, 1]), 6),
    }


def float32_difference(device: torch.device) -> float:
    """The largest difference between packed and one-by-one scores of the tiny shape in float32."""
    model = load(SHAPES["tiny"], str(device), torch.float32)
    responses, mismatches = workload(2, model.config.vocab_size)
    packed = score(model, responses, mismatches, settings_of(4096, False)).score(SUFFIX)
    difference = float((packed - slow_scores(model, responses, mismatches, short=False)).abs().max())
    say(f"packed against one by one, float32, tiny shape: {difference:.1e}")
    if difference > 1e-3:
        raise RuntimeError(f"Packed scores differ from one-by-one scores by {difference} in float32.")
    return difference


def matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of a large square matmul, the best of several sizes."""
    best = 0.0
    for size in (8192, 16384) if device.type == "cuda" else (1024,):
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        timed(lambda a=a, b=b: multiply(a, b, 3), device)
        seconds, _ = timed(lambda a=a, b=b: multiply(a, b, 20), device)
        best = max(best, 2 * size**3 * 20 / seconds)
    return best


def multiply(a: torch.Tensor, b: torch.Tensor, repeats: int) -> None:
    """The same product several times."""
    out = torch.empty_like(a)
    for _ in range(repeats):
        torch.matmul(a, b, out=out)


def timed(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Seconds of wall clock, and the result."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun, result


def say(text: str) -> None:
    """Progress and tables; the JSON comes last."""
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
