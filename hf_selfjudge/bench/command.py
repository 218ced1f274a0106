"""The subcommand `bench`."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

EXAMPLE = """
examples:
  selfjudge bench                                             (small shapes on this machine's CPU or GPU)
  selfjudge bench --target llama-3.1-8b --draft llama-3.2-1b --batch 1,8,32 --gamma 20 --accept 11
  selfjudge bench --target org/target --draft org/draft       (real models; acceptance is forced all the same)
  selfjudge bench --engine vllm --target T --draft D --judge J --threshold f1 --prompts gsm8k:64 --batch 1,16
  selfjudge bench --engine vllm --target T --draft D --judge J --engine-args '{"tensor_parallel_size": 4}'

--engine vllm needs vLLM, real models and a judge, and times greedy answers to real prompts, nothing forced: plain
decoding, stock speculation, our worker with the judge off, and the judge. Each engine has a process of its own, one
after the other. accepted_per_cycle counts draft tokens kept (vLLM's mean acceptance length is 1 more); judge_share is
the judge's part of the workers' step time, from a further engine with its clock on.
"""

ONLY: dict[str, dict[str, Any]] = {
    "transformers": {"accept": 5, "prompt": 128, "compiled": False, "device": None},
    "vllm": {"judge": None, "threshold": None, "prompts": None, "engine_args": None},
}
"""Options of one engine alone, with their defaults."""


def add_bench(commands: Any) -> None:
    """Add the subparser."""
    bench = commands.add_parser(
        "bench",
        help="tokens per second against plain, stock assisted generation and the memory floor",
        description="Time judge decoding on a pair in one run with plain and stock assisted generation. Acceptance is "
        "forced, the same for all methods, so that random weights of a named shape do the work of real ones. With "
        "--engine vllm: real models and prompts in vLLM, see below.",
        epilog=EXAMPLE,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("--engine", choices=tuple(ONLY), default="transformers", help="(default: %(default)s)")
    bench.add_argument("--target", default="tiny-5m", help="named shape, folder or Hub id (default: %(default)s)")
    bench.add_argument("--draft", default="tiny-0.4m", help="named shape, folder or Hub id (default: %(default)s)")
    bench.add_argument("--gamma", type=int, default=8, help="tokens drafted per block (default: %(default)s)")
    bench.add_argument("--accept", type=int, help="of which are accepted (default: 5)")
    bench.add_argument("--batch", default="1", help="batch sizes, comma separated (default: %(default)s)")
    bench.add_argument("--prompt", type=int, help="tokens of the prompt (default: 128)")
    bench.add_argument("--new-tokens", type=int, default=120, help="tokens per sequence (default: %(default)s)")
    bench.add_argument("--repeats", type=int, default=3, help="timed runs, the fastest counts (default: %(default)s)")
    bench.add_argument("--compiled", action="store_true", help="also time transformers' compiled plain decoding")
    bench.add_argument("--device", help="default: cuda if there is one")
    bench.add_argument(
        "--dtype", default=None, help="default: bfloat16 (vllm: the models' own) on a GPU, float32 on a CPU"
    )
    bench.add_argument("--out", type=Path, default=None, help="write the results here as JSON")
    vllm = bench.add_argument_group("with --engine vllm")
    vllm.add_argument("--judge", help="folder or Hub id, a rule such as topk:2, or playground; needed")
    vllm.add_argument("--threshold", help="the judge's operating point, a name or a theta (default: the judge's own)")
    sources = "as in `selfjudge build`, several times if need be (default COUNT 64; default source: playground:32)"
    vllm.add_argument("--prompts", action="append", metavar="SOURCE", help=sources)
    vllm.add_argument("--engine-args", metavar="JSON", help="further arguments of vllm.LLM, as a JSON object")
    bench.set_defaults(run=bench_command)


def bench_command(engine: str, batch: str, out: Path | None, **others: Any) -> None:
    """Measure with one engine, print a table; the last line of stdout is one JSON document."""
    from ..files import write_text

    others = with_defaults(engine, others)
    try:
        batches = tuple(int(size) for size in batch.split(","))
    except ValueError:
        raise ValueError(f"--batch is {batch!r}, expected sizes such as 1,8,32.") from None
    found, shown = (run_vllm if engine == "vllm" else run_transformers)(batches=batches, **others)
    sys.stdout.write(shown)
    if out is not None:
        write_text(out, json.dumps(found, indent=2) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")


def with_defaults(engine: str, given: dict[str, Any]) -> dict[str, Any]:
    """What was given, with the defaults of this engine's own options; those of the other engine are refused."""
    for other, options in ONLY.items():
        wrong = [f"--{name.replace('_', '-')}" for name in options if name in given and other != engine]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} belongs to --engine {other} and does nothing with --engine {engine}.")
    return {**ONLY[engine], **given}


def run_vllm(
    batches: tuple[int, ...],
    judge: str | None,
    threshold: str | None,
    prompts: list[str] | None,
    engine_args: str | None,
    **others: Any,
) -> tuple[dict[str, Any], str]:
    """The results of vLLM's engines, and their table."""
    from . import vllm_engine as bench

    if judge is None:
        raise ValueError("--engine vllm needs --judge: a folder, a Hub id, a rule such as topk:2, or playground.")
    try:
        options = json.loads(engine_args or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ValueError(f'--engine-args is {engine_args!r}, expected a JSON object like {{"enforce_eager": true}}.')
    settings = bench.VllmBenchSettings(
        judge=judge,
        threshold=bench.threshold(threshold),
        prompts=tuple(prompts or ["playground:32"]),
        batches=batches,
        engine_args=options,
        **others,
    )
    named = {name: getattr(settings, name) for name in ("target", "draft", "judge", "threshold")}
    kept = ("gamma", "new_tokens", "batches", "repeats", "engine_args")
    shown = {"prompts": list(settings.prompts), **{name: getattr(settings, name) for name in kept}}
    found = {"command": "selfjudge bench --engine vllm", **named, "settings": shown, **bench.measure_vllm(settings)}
    return found, bench.table(found)


def run_transformers(
    batches: tuple[int, ...], target: str, draft: str, device: str | None, dtype: str | None, **others: Any
) -> tuple[dict[str, Any], str]:
    """The results of the loop in transformers, and their table."""
    import torch
    import transformers

    import hf_selfjudge

    from ..devices import named_dtype, usable_device
    from .measure import BenchSettings, measure
    from .shapes import load

    hf_selfjudge.install()
    settings = BenchSettings(batches=batches, **others)
    place = usable_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    numbers = named_dtype(dtype)
    if place.type == "cuda" and place.index is not None:
        torch.cuda.set_device(place)  # clocks and memory counters look at the current device
    models = [load(name, str(place), numbers, role) for role, name in (("target", target), ("draft", draft))]
    found = {
        "command": "selfjudge bench",
        "target": target,
        "draft": draft,
        "device": torch.cuda.get_device_name() if place.type == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "settings": {**others, "batch": list(batches)},
        **measure(models[0], models[1], settings),
    }
    return found, table(found)


def table(found: dict[str, Any]) -> str:
    """The results for people."""
    rows = [("plain generate", found["plain"]["tokens_per_s"], "")]
    if "compiled_plain" in found:
        rows.append(("compiled plain generate", found["compiled_plain"]["tokens_per_s"], ""))
    rows.append(("stock assisted", found["stock_assisted"]["tokens_per_s"], ""))
    for run in found["ours"]:
        phases = ", ".join(f"{name} {value:.2f}" for name, value in run["phases_ms"].items())
        rows.append((f"ours, batch {run['batch']}", run["tokens_per_s"], f"cycle {run['cycle_ms']:.2f} ms: {phases}"))
    if "tokens_per_s" in found["floor"]:
        rows.append(("memory floor, batch 1", found["floor"]["tokens_per_s"], ""))
    lines = [f"{name:26s} {speed:10.1f} tok/s   {note}".rstrip() for name, speed, note in rows]
    return "\n".join([f"{found['target']} / {found['draft']}, {found['device']}, {found['dtype']}", *lines, ""])
