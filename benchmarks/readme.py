"""Put the measured figures of the result files into the documents: `python benchmarks/readme.py` (or `make readme`).

Every measured figure in README.md, benchmarks/real_pair/README.md and docs/vllm.md stands between markers and comes
from a file in benchmarks/results; a test checks that they agree. The real pair's blocks are made by the modules in
benchmarks/real_pair.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from real_pair import builds, consistency, costs, tables

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
REAL_PAIR = "benchmarks/real_pair/README.md"
VLLM = "docs/vllm.md"
DOCUMENTS = ("README.md", REAL_PAIR, VLLM)
REAL_PAIR_BLOCKS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "build": ("build", builds.build_text),
    "rankings": ("build", builds.ranking_table),
    "features": ("build", builds.feature_table),
    "sweep": ("sweep", tables.sweep_table),
    "costs": ("tune", costs.cost_table),
    **{
        f"{name}-{gamma}": (f"gamma{gamma}/compare", make)
        for gamma in (20, 8)
        for name, make in tables.COMPARISON.items()
    },
    "consistency": ("fc/compare", consistency.consistency_table),
    "consistency-check": ("fc-check", consistency.check_text),
    "command-consistency": ("fc/compare", tables.command_text),
    "again": ("again", tables.again_table),
    "speed": ("speed", tables.speed_table),
    "speed-8": ("speed-8", tables.speed_table),
}
"""Blocks of the real pair's page: its result file and what makes it; a block whose file is not there is left out."""


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


def loop_table(runs: list[dict[str, Any]]) -> str:
    """The loop on a CPU against stock assisted generation in Markdown."""
    lines = [
        "| target / draft | gamma, accepted | stock assisted = 1 | batch 8 over batch 1 | judge's share of a cycle |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for results in runs:
        one, eight = results["ours"]
        settings = results["settings"]
        lines.append(
            f"| {results['target']} / {results['draft']} | {settings['gamma']}, {settings['accept']} "
            f"| {one['over_stock_assisted']:.2f}x | {eight['over_batch_1']:.2f}x | {100 * one['judge_share']:.2f} % |"
        )
    known = runs[0]
    conditions = (
        f"\n`{known['command']}`: {known['device']}, {known['threads']} thread, {known['dtype']}, equal acceptance "
        f"forced, fastest of a few runs; torch {known['versions']['torch']}, transformers "
        f"{known['versions']['transformers']}."
    )
    return "\n".join(lines) + "\n" + conditions


def engine_table(results: dict[str, Any], batches: dict[str, Any]) -> str:
    """The engine on a GPU against plain and stock assisted generation, and larger batches, in Markdown."""
    stock = results["stock_assisted"]["tokens_per_s"]
    ours = results["ours"][0]
    rows = [
        ("`generate`, greedy", results["plain"]["tokens_per_s"], ""),
        ("`generate(assistant_model=)`", stock, "1.0x"),
        ("`generate(assistant_model=, judge=)`", ours["tokens_per_s"], f"**{ours['over_stock_assisted']:.1f}x**"),
        ("floor: every weight read once per forward", results["floor"]["tokens_per_s"], ""),
    ]
    lines = ["| batch 1 | tokens/s | stock assisted = 1 |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {speed:.0f} | {ratio} |" for name, speed, ratio in rows]
    split = ", ".join(f"{name} {value:.2f}" for name, value in ours["phases_ms"].items())
    larger = ", ".join(
        f"{run['tokens_per_s']:.0f} tokens/s at batch {run['batch']} ({run['over_batch_1']:.1f}x batch 1)"
        for run in batches["ours"]
        if run["batch"] > 1
    )
    settings = results["settings"]
    memory = batches["ours"][-1]["memory_gb"]
    conditions = (
        f"\n`{results['command']}`: {results['target']} / {results['draft']} shapes with random weights, "
        f"{results['device']}, {results['dtype']}, prompt {settings['prompt']}, {settings['new_tokens']} new tokens, "
        f"gamma {settings['gamma']}, {settings['accept']} draft tokens accepted per cycle (forced, the same for both "
        f"assisted methods); torch {results['versions']['torch']}, transformers {results['versions']['transformers']}. "
        f"A cycle takes {ours['cycle_ms']:.1f} ms ({split}); the judge is {100 * ours['judge_share']:.2f} % of it. "
        f"Larger batches, in a run of their own: {larger}; peak memory at batch {batches['ours'][-1]['batch']} "
        f"{memory['peak']:.1f} GB, of which weights {memory['weights']:.1f} and caches {memory['caches']:.1f}."
    )
    return "\n".join(lines) + "\n" + conditions


def labelling_text(results: dict[str, Any]) -> str:
    """The speed of scoring in one sentence."""
    full, one = results["full"], results["one_by_one"]
    return (
        f"{full['mismatches']:,} mismatches scored in {full['seconds']:.0f} s ({full['mismatches_per_second']:.0f} per "
        f"second, {full['times_whole']:.0f} times one forward per mismatch, {100 * full['useful_share']:.0f} % of the "
        f"card's matmul rate): `{results['command']}`, {results['device']}, {results['dtype']}, random weights, "
        f"prompts of {results['work']['prompt']} and responses of {results['work']['answer']} tokens, "
        f"{results['work']['mismatches']} mismatches each, N = {results['work']['N']}; one by one "
        f"{one['whole_per_second']:.0f} per second."
    )


def rules_table(results: dict[str, Any]) -> str:
    """Every method at matched score, in Markdown."""
    lines = [
        "| method | its point, chosen on other items | accepted per cycle | task score, points from exact |",
        "| --- | --- | ---: | ---: |",
    ]
    found = results["matched"]["within"]["methods"]
    figures = {name: entry["test"] for name, entry in found.items()}
    for name in sorted(figures, key=lambda name: -figures[name]["accepted_per_cycle"]["estimate"]):
        test, rule = figures[name], results["points"][found[name]["point"]]["rule"]
        loss = test["score_difference"]
        bold = "**" if name == "ours" else ""
        lines.append(
            f"| {bold}{name}{bold} | `{rule}` | {test['accepted_per_cycle']['estimate']:.2f} "
            f"| {100 * loss['estimate']:+.2f} [{100 * loss['low']:+.2f}, {100 * loss['high']:+.2f}] |"
        )
    bench, known = results["settings"]["bench"], results["conditions"]
    tasks = known["items"]["test"]
    conditions = (
        f"\n`{results['command']}`: embedded pair, {known['hardware']}, {bench['dtype']}, gamma {bench['gamma']}, "
        f"greedy, {len(tasks)} tasks with {next(iter(tasks.values()))['count']} test items each, 95 % paired bootstrap "
        "intervals. Each method stands at its longest point that lost at most one point of score on "
        f"{next(iter(known['items']['selection'].values()))['count']} training-split items per task; a method "
        "without such a point stands at exact. Accepted per cycle: draft tokens kept per verified block. "
        "If instead the whole interval must lie above minus one point on those items: "
    )
    strict = results["matched"]["non-inferior"]["methods"]
    longest = sorted(strict, key=lambda name: -strict[name]["test"]["accepted_per_cycle"]["estimate"])[:6]
    conditions += "; ".join(
        f"{name} {strict[name]['test']['accepted_per_cycle']['estimate']:.2f} "
        f"({100 * strict[name]['test']['score_difference']['estimate']:+.2f}, "
        f"`{results['points'][strict[name]['point']]['rule']}`)"
        for name in longest
    )
    return "\n".join(lines) + "\n" + conditions + "."


def vllm_table(results: dict[str, Any]) -> str:
    """vLLM's engines one after the other in Markdown."""
    lines = [
        "| at once | engine | tokens/s | accepted per cycle | judge's share of the step |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    names = {"plain": "plain", "stock": "stock speculation", "judge_off": "our worker, judge off"}
    for run in results["runs"]:
        for key, name in (names | {"judge": f"judge, `{results['threshold']}`"}).items():
            one = run[key]
            accepted = f"{one['accepted_per_cycle']:.2f}" if "accepted_per_cycle" in one else ""
            share = f"{100 * one['judge_share']:.1f} %" if "judge_share" in one else ""
            lines.append(f"| {run['batch']} | {name} | {one['tokens_per_s']:.0f} | {accepted} | {share} |")
    return "\n".join(lines)


def render(text: str, name: str = "README.md") -> str:
    """A document's text with every marked block made anew."""
    made_blocks = _blocks(name)
    for block, made in made_blocks.items():
        pattern = re.compile(rf"(<!-- {block}: [^>]*-->\n).*?(\n?<!-- end -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, made=made: match[1] + made + "\n<!-- end -->", text)
        if count != 1:
            raise ValueError(f"{name} has {count} blocks marked {block}, expected one.")
    unmade = set(re.findall(r"^<!-- ([\w-]+): from ", text, re.MULTILINE)) - made_blocks.keys()
    if unmade:
        raise ValueError(f"{name} has blocks that no result file makes: {', '.join(sorted(unmade))}.")
    return text


def _blocks(name: str) -> dict[str, str]:
    """The marked blocks of a document."""
    if name == REAL_PAIR:
        return {
            block: make(_read(f"real-pair/{file}"))
            for block, (file, make) in REAL_PAIR_BLOCKS.items()
            if (RESULTS / "real-pair" / f"{file}.json").is_file()
        }
    if name == VLLM:
        return {"engines": vllm_table(_read("bench-vllm-cpu"))}
    return {
        "demo": demo_table(_read("demo")),
        "loop": loop_table([_read("bench-cpu-playground"), _read("bench-cpu")]),
        "engine": engine_table(_read("bench-h200"), _read("bench-h200-batches")),
        "labelling": labelling_text(_read("labelling-h200")),
        "rules": rules_table(_read("rules-playground/compare")),
        "real-pair": tables.short_table([_read(f"real-pair/gamma{gamma}/compare") for gamma in (20, 8)]),
    }


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def main() -> None:
    """Rewrite the documents."""
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(render(path.read_text(encoding="utf-8"), name), encoding="utf-8")
        sys.stdout.write(f"{name} is up to date\n")


if __name__ == "__main__":
    main()
