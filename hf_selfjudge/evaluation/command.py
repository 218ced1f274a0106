"""The subcommand `compare`. Heavy imports happen when it runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

GRAMMAR = """\
rules: a comma-separated list of
  exact, topk:2, floor:0.01, margin:0.3, typical:0.09:0.3, kl:0.5, reverse-kl:0.5, ensemble:0.7, fly:0.3:2
  judge:FOLDER@f1   a judge (folder, Hub id, or `playground`) at a named threshold or a theta
  a&b, a|b          both accept, either accepts
  ...+digits        never relaxes digits (or +special: special tokens)
  NAME=...          names the curve; without it, rules that differ only in numbers form one curve
several points at once, each one more point of the curve:
  topk:2..5   floor:0.1/0.01   judge:FOLDER@0.5/0.9   topk:sweep   judge:FOLDER@sweep
  training-free     NAME:sweep of every training-free rule
example:
  selfjudge compare --rules 'training-free,ours=judge:playground@sweep&floor:0.01+digits' --out report
"""


def add_compare(commands: Any) -> None:
    """Add `compare` to the `selfjudge` command."""
    parser = commands.add_parser(
        "compare",
        help="acceptance rules side by side: task score against accepted length",
        description="Decode the same prompts under many acceptance rules and compare them at matched task score: "
        "table, trade-off figure, paired bootstrap intervals and a verdict. Resumable: finished results are kept.",
        epilog=GRAMMAR,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--target", default="playground", help="folder, Hub id, or playground (default: %(default)s)")
    add("--draft", default="playground", help="folder, Hub id, or playground (default: %(default)s)")
    add("--rules", action="append", help="see below; exact is always there; may be repeated")
    add(
        "--tasks",
        action="append",
        help="playground, playground/TASK[:COUNT], lm_eval/TASK[=FILE][:COUNT], or your own prompts written as in "
        "`selfjudge build`, scored by their checker: 'prompts/my.jsonl?checker=math&reference=answer:200' (default: "
        "playground)",
    )
    add("--selection-tasks", action="append", help="tasks that choose each method's point, written like --tasks; a "
        "FILE's rows are taken as they are (default: --tasks, from where --select-on says)")  # fmt: skip
    add("--test", default="all", help="points decoded on the test items: all; chosen: those that some criterion "
        "chooses on the selection items, and exact; verdict: only by --criterion; none: only the selection "
        "(default: %(default)s)")  # fmt: skip
    add("--shares", help="shares of the mismatches that judges at @sweep accept, such as 0.2,0.4,0.6 (default: many, "
        "and the named thresholds)")  # fmt: skip
    add("--also", action="append", help="rules that --test chosen tests in any case; written like --rules")
    add("--items", type=int, default=500, help="test items of tasks without a count (default: %(default)s)")
    add("--gamma", type=int, default=5, help="tokens drafted per block (default: %(default)s)")
    add("--mode", default="two-stage", help="two-stage or judge-only (default: %(default)s)")
    add("--select-on", default="train", help="items that choose each method's point: train, held-out (further test "
        "items) or test (the same; favours methods with many points) (default: %(default)s)")  # fmt: skip
    add("--selection-items", type=int, help="how many of them per task (default: as many as test items)")
    add("--max-new-tokens", type=int, help="longest answer (default: each task's own)")
    add("--max-prompt-tokens", type=int, help="leave out items with longer prompts")
    add("--nli-model", help="what judges factual consistency: an NLI model's folder or Hub id, or prompt:FOLDER for a "
        "chat model that is asked (default: the task's own)")  # fmt: skip
    add("--criterion", default="within", help="matched score of the verdict: within (the margin), indistinguishable "
        "or non-inferior (default: %(default)s)")  # fmt: skip
    add("--margin", type=float, default=1.0, help="points of score a point may lose (default: %(default)s)")
    add("--ours", help="method that the others are compared with (default: the first one with a judge)")
    add("--resamples", type=int, default=10_000, help="bootstrap resamples (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of test items and bootstrap (default: %(default)s)")
    add("--selection-seed", type=int, default=2000, help="seed of selection items from train (default: %(default)s)")
    add("--device", default="cpu", help="cpu, cuda, ... (default: %(default)s)")
    add("--dtype", default="float32", help="float32, bfloat16, ... (default: %(default)s)")
    add("--batch-size", type=int, default=64, help="sequences decoded together (default: %(default)s)")
    add("--workers", type=int, default=1, help="processes, each with its own copy of the pair (default: %(default)s)")
    add("--score-workers", type=int, default=0, help="processes that score answers (default: one per core)")
    add("--decode-only", action="store_true", help="decode what is missing; no score, no report, no program is run "
        "(with another --test than all, selection items are scored). The same command without it, also on another "
        "machine, goes on from there")  # fmt: skip
    add("--score-only", action="store_true", help="score the answers that are there; decode nothing, no report")
    add("--mix", action="store_true", help="decode although other answers were made with another device or versions")
    add("--intervals", action="store_true", help="draw intervals in the figure")
    add("--redraw", action="store_true", help="only make figure, table and page again from compare.json in --out")
    add("--out", type=Path, default=Path("report"), help="folder for results and page (default: %(default)s)")
    parser.set_defaults(run=run_compare)


def run_compare(
    out: Path, redraw: bool = False, decode_only: bool = False, score_only: bool = False, **options: Any
) -> None:
    """Compare and report; the last line of stdout is one JSON document."""
    if redraw + decode_only + score_only > 1:
        raise ValueError("Several of --redraw, --decode-only and --score-only are given; give one of them.")
    if not redraw and not options["rules"]:
        raise ValueError("--rules is missing: the rules to compare, such as 'training-free,judge:FOLDER@sweep'.")
    from .page import report

    whole = not (decode_only or score_only)
    results = _stored(out) if redraw else _compare(out, decode=not score_only, report=whole, **options)
    if not whole:
        sys.stdout.write(json.dumps({"computed": results["computed"], "out": str(out)}) + "\n")
        return
    if "selection" in results:
        for point in results["selection"]["points"]:
            change = point["score_difference"]
            sys.stdout.write(
                f"{point['accepted_per_cycle']:7.2f} accepted per cycle  {100 * change['estimate']:+6.2f} points "
                f"[{100 * change['low']:+.2f}, {100 * change['high']:+.2f}]  {point['method']}: {point['rule']}\n"
            )
        sys.stdout.write(json.dumps(results) + "\n")
        return
    if redraw:
        results["settings"]["intervals"] = options["intervals"]
    files = report(results, out)
    sys.stdout.write(results["verdict"] + "\n")
    summary = {
        "verdict": results["verdict"],
        "computed": results["computed"],
        "matched": {
            criterion: {name: _brief(results, entry) for name, entry in found["methods"].items()}
            for criterion, found in results["matched"].items()
        },
        "files": [str(path) for path in files],
    }
    sys.stdout.write(json.dumps(summary) + "\n")


def _compare(out: Path, decode: bool, report: bool, **options: Any) -> dict[str, Any]:
    from transformers.utils import logging

    from .compare import compare
    from .settings import CompareSettings
    from .workers import BenchSettings

    logging.disable_progress_bar()  # one bar is enough
    bench = {name: options.pop(name) for name in BenchSettings.__dataclass_fields__}
    options["tasks"] = options["tasks"] or ["playground"]
    shares = [share.strip() for share in (options.get("shares") or "").split(",") if share.strip()]
    try:
        options["shares"] = tuple(map(float, shares))
    except ValueError:
        raise ValueError(f"--shares is {options['shares']!r}, expected numbers such as 0.2,0.4,0.6.") from None
    for name in ("rules", "tasks", "selection_tasks", "also"):
        options[name] = tuple(options[name] or ())
    return compare(CompareSettings(bench=BenchSettings(**bench), **options), out, decode=decode, report=report)


def _stored(out: Path) -> dict[str, Any]:
    path = out / "compare.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; run the comparison without --redraw first.")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _brief(results: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """A method's matched point in a few figures."""
    test = entry["test"]
    return {
        "rule": results["points"][entry["point"]]["rule"],
        "accepted_per_cycle": test["accepted_per_cycle"]["estimate"],
        "score_difference": test["score_difference"]["estimate"],
        "outcome": entry.get("ours_minus_this", {}).get("outcome"),
    }
