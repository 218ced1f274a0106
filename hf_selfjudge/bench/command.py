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
"""


def add_bench(commands: Any) -> None:
    """Add the subparser."""
    bench = commands.add_parser(
        "bench",
        help="tokens per second against plain, stock assisted generation and the memory floor",
        description="Time judge decoding on a pair in one run with plain and stock assisted generation. Acceptance is "
        "forced, the same for all methods, so that random weights of a named shape do the work of real ones.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("--target", default="tiny-5m", help="named shape, folder or Hub id (default: %(default)s)")
    bench.add_argument("--draft", default="tiny-0.4m", help="named shape, folder or Hub id (default: %(default)s)")
    bench.add_argument("--gamma", type=int, default=8, help="tokens drafted per block (default: %(default)s)")
    bench.add_argument("--accept", type=int, default=5, help="of which are accepted (default: %(default)s)")
    bench.add_argument("--batch", default="1", help="batch sizes of our loop, comma separated (default: %(default)s)")
    bench.add_argument("--prompt", type=int, default=128, help="tokens of the prompt (default: %(default)s)")
    bench.add_argument("--new-tokens", type=int, default=120, help="tokens per sequence (default: %(default)s)")
    bench.add_argument("--repeats", type=int, default=3, help="timed runs, the fastest counts (default: %(default)s)")
    bench.add_argument("--compiled", action="store_true", help="also time transformers' compiled plain decoding")
    bench.add_argument("--device", help="default: cuda if there is one")
    bench.add_argument("--dtype", help="default: bfloat16 on a GPU, float32 on a CPU")
    bench.add_argument("--out", type=Path, help="write the results here as JSON")
    bench.set_defaults(run=bench_command)


def bench_command(
    target: str, draft: str, batch: str, device: str | None, dtype: str | None, out: Path | None, **others: Any
) -> None:
    """Load, measure, print a table; the last line of stdout is one JSON document."""
    import torch
    import transformers

    import hf_selfjudge

    from ..files import write_text
    from .measure import BenchSettings, measure
    from .shapes import load

    hf_selfjudge.install()
    try:
        batches = tuple(int(size) for size in batch.split(","))
    except ValueError:
        raise ValueError(f"--batch is {batch!r}, expected sizes such as 1,8,32.") from None
    settings = BenchSettings(batches=batches, **others)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    named = {"target": target, "draft": draft}
    models = [load(name, device, getattr(torch, dtype), role) for role, name in named.items()]
    found = {
        "command": "selfjudge bench",
        "target": target,
        "draft": draft,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "settings": {**others, "batch": list(batches)},
        **measure(models[0], models[1], settings),
    }
    sys.stdout.write(table(found))
    if out is not None:
        write_text(out, json.dumps(found, indent=2) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")


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
