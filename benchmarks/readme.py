"""Put the measured figures of the result files into README.md: `python benchmarks/readme.py` (or `make readme`).

Every figure in the README stands between markers and comes from a file in benchmarks/results; a test checks that they
agree.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def demo_table(results: dict[str, Any]) -> str:
    """The demo's table in Markdown, with the conditions it was measured under."""
    lines = [
        "| task (held-out items) | method | task score | accepted per cycle | tokens per target forward | speed |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    labels = {"plain": "target alone", "exact": "exact speculative", "judge": "**judge**"}
    for task, rows in results["tasks"].items():
        for method, row in rows.items():
            name = f"{task.replace('_', ' ')} ({row['items']})" if method == "plain" else ""
            score = "-" if row["score"] is None else f"{100 * row['score']:.1f}"
            accepted = "-" if row["accepted_per_cycle"] is None else f"{row['accepted_per_cycle']:.2f}"
            cells = (score, accepted, f"{row['tokens_per_target_forward']:.2f}", f"{row['relative_speed']:.2f}x")
            lines.append(f"| {name} | {labels[method]} | {' | '.join(cells)} |")
    known = results["conditions"]
    conditions = (
        f"\n`{results['command']}`: {known['models']}, {known['hardware']}, {known['dtype']}, gamma "
        f"{results['settings']['gamma']}, greedy; batch {known['batch']}. Accepted per cycle: "
        f"{known['accepted_per_cycle']}. Judge: {known['judge']}, threshold `{results['threshold']['name']}`."
    )
    return "\n".join(lines) + "\n" + conditions


def loop_table(results: dict[str, Any]) -> str:
    """Our loop against stock assisted generation in Markdown."""
    lines = [
        "| target / draft (random weights) | accepted per cycle | speed of our exact loop, stock assisted = 1 "
        "| judge's share of the loop |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, row in results["shapes"].items():
        sizes = f"{row['target_parameters'] / 1e6:.0f}M / {row['draft_parameters'] / 1e6:.1f}M ({name})"
        share = f"{100 * row['judge_share_of_loop']:.2f} %"
        lines.append(
            f"| {sizes} | {row['accepted_per_cycle']:.2f} | {row['exact_over_stock_assisted']:.2f}x | {share} |"
        )
    conditions = (
        f"\n`{results['command']}`: {results['device']}, {results['threads']} thread(s), {results['dtype']}, batch "
        f"{results['batch']}, gamma {results['gamma']}, {results['new_tokens']} new tokens, median of "
        f"{results['repeats']} interleaved runs, equal acceptance forced; torch {results['versions']['torch']}, "
        f"transformers {results['versions']['transformers']}."
    )
    return "\n".join(lines) + "\n" + conditions


def render(text: str) -> str:
    """README's text with every marked block made anew."""
    blocks = {
        "demo": demo_table(json.loads((RESULTS / "demo.json").read_text())),
        "loop": loop_table(json.loads((RESULTS / "assisted-cpu.json").read_text())),
    }
    for name, block in blocks.items():
        pattern = re.compile(rf"(<!-- {name}: .*?-->\n).*?(\n<!-- end -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, block=block: match[1] + block + match[2], text)
        if count != 1:
            raise ValueError(f"README.md has {count} blocks marked {name}, expected one.")
    return text


def main() -> None:
    """Rewrite README.md."""
    path = ROOT / "README.md"
    path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write("README.md is up to date\n")


if __name__ == "__main__":
    main()
