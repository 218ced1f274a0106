"""The parts of the page beside this file that come from comparisons (compare.json), again.json and speed.json.

Every figure and every condition comes from these files; which points keep the score is what the comparison says.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_selfjudge.evaluation.matched import keeps_score
from hf_selfjudge.evaluation.page import conditions
from hf_selfjudge.hub.card_sections import table
from hf_selfjudge.hub.measured import rule_code

CRITERION = "indistinguishable"
PAPER = "paper"
NAMED = ("floor with guard", PAPER)
"""Methods beside ours whose loss is shown task by task."""
LENGTHS = ["accepted per cycle", "exact = 1", "tokens per target forward"]
BENCH = ("target", "draft", "gamma", "device", "dtype", "batch_size", "workers", "max_new_tokens")
GIVEN = ("max_prompt_tokens", "select_on", "test", "seed", "resamples", "criterion", "margin", "ours", "nli_model")
"""Options of a comparison that its command names."""
DATA_FILE = re.compile(r"=(?:[^=:]*/)?(?=[^=:/]+$|[^=:/]+:)")
JUDGE_FOLDER = re.compile(r"judge:[^@&|+,]*/")
RIGHT_OR_WRONG = ("gsm8k", "math500", "mmlu_cot", "humaneval")
"""Tasks whose score of an answer is 0 or 1."""
RUN_LENGTHS = ("accepted_per_cycle", "tokens_per_target_forward")
LOSS = "task score, points from exact"


def main_table(results: dict[str, Any]) -> str:
    """Every point on every task and pooled, the longest first, in Markdown."""
    tasks = list(results["points"][0]["test"]["tasks"])
    rows = []
    for point in longest_first(results):
        found = point["test"]
        bold = "**" if keeps_score(found["pooled"], CRITERION, 0.0) else ""
        cells = [_length_and_score(found["tasks"][task]) for task in tasks]
        length, *more = lengths(found["pooled"])
        rows.append(
            [f"{bold}{point['method']}{bold}", rule_code(point["rule"]), *cells, f"{bold}{length}{bold}", *more]
        )
        rows[-1].append(bounded(found["pooled"]["score_difference"]))
    head = ["method", "rule", *map(_short, tasks), *LENGTHS, LOSS]
    text = (
        "Under each task: draft tokens accepted per cycle / task score in percent. The last four columns are over the "
        f"{len(results['pooled_over'])} tasks with a score: means of the tasks' figures, and for tokens per target "
        f"forward all tokens by all forwards. **Bold**: {_meaning(results)}. {told_conditions(results)}"
    )
    return f"{table(head, rows, words=2)}\n\n{text}"


def short_table(runs: Sequence[dict[str, Any]]) -> str:
    """The rules that all of some comparisons in other blocks have, by the length in the first, in Markdown."""
    points = [{point["rule"]: point["test"]["pooled"] for point in longest_first(results)} for results in runs]
    head, rows = ["rule"], [[rule] for rule in points[0] if all(rule in found for found in points)]
    for results, found in zip(runs, points, strict=True):
        head += [f"gamma {results['settings']['bench']['gamma']}: accepted per cycle", "exact = 1", LOSS]
        for row in rows:
            pooled = found[row[0]]
            bold = "**" if keeps_score(pooled, CRITERION, 0.0) else ""
            row += [*lengths(pooled)[:2], f"{bold}{bounded(pooled['score_difference'])}{bold}"]
    bench, known = runs[0]["settings"]["bench"], runs[0]["conditions"]
    items = known["items"]["test"]
    counts = {task: items[task]["count"] - (items[task].get("left_out") or 0) for task in runs[0]["pooled_over"]}
    told = ", ".join(f"{_short(task)} ({count:,})" for task, count in counts.items())
    text = (
        f"Means over {told}, with "
        f"95 % paired intervals. **Bold**: {_meaning(runs[0])}. {Path(bench['target']).name} with "
        f"{Path(bench['draft']).name}, greedy, {bench['dtype']}, batch {bench['batch_size']}, {known['hardware']}; "
        "accepted per cycle: draft tokens kept per verified block."
    )
    return f"{table(head, [[rule_code(row[0]), *row[1:]] for row in rows])}\n\n{text}"


def matched_table(results: dict[str, Any]) -> str:
    """The longest point of each method that keeps the score, and what it says in words, in Markdown."""
    found = results["matched"][CRITERION]
    kept = {name: entry for name, entry in found["methods"].items() if not entry["none_matched"]}
    gaps = found["ours"] in kept  # else exact decoding would stand for ours
    rows = []
    for name in sorted(kept, key=lambda name: -_accepted(kept[name]["test"])):
        entry, bold = kept[name], "**" if name == found["ours"] else ""
        gap = entry.get("ours_minus_this") if gaps else None
        rows.append([f"{bold}{name}{bold}", rule_code(results["points"][entry["point"]]["rule"])])
        rows[-1] += [*lengths(entry["test"]), bounded(entry["test"]["score_difference"])]
        if gaps:
            rows[-1].append(bounded(gap["accepted_per_cycle"], 1.0) if gap else "")
    head = ["method", "rule", *LENGTHS, LOSS, *(["ours minus this, accepted per cycle"] if gaps else [])]
    return f"{table(head, rows, words=2)}\n\n{matched_text(results)}"


def matched_text(results: dict[str, Any]) -> str:
    """Which method is the longest at matched score, and where ours, the paper's judge and rules without one stand."""
    found = results["matched"][CRITERION]
    methods, ours = found["methods"], found["ours"]
    kept = {name: entry for name, entry in methods.items() if not entry["none_matched"]}
    longest = max(kept, key=lambda name: _accepted(kept[name]["test"]))
    sentences = [f"At matched score ({_meaning(results)}) the longest is {longest}, {_place(results, longest)}."]
    if ours is not None and ours != longest:
        sentences.append(f"Ours, {ours}: {_place(results, ours)}.")
    if PAPER in methods and longest != PAPER:
        sentences.append(f"The paper's judge: {_place(results, PAPER)}.")
    free = [name for name in kept if name != "exact" and "judge:" not in results["points"][kept[name]["point"]]["spec"]]
    best = max(free, key=lambda name: _accepted(kept[name]["test"]), default=longest)
    if best != longest:
        sentences.append(f"The longest rule without a judge, {best}: {_place(results, best)}.")
    lost = [name for name in methods if name not in kept]
    if lost:
        sentences.append(f"No point kept the score: {', '.join(lost)}.")
    return " ".join(sentences)


def task_table(results: dict[str, Any]) -> str:
    """What ours and a few other methods lose on each task, in Markdown."""
    ours = results["matched"][CRITERION]["ours"]
    methods = [name for name in dict.fromkeys((ours, *NAMED)) if name in results["methods"]]
    tasks = list(results["points"][0]["test"]["tasks"])
    rows, hurt = [], []
    for name in methods:
        point = _shown(results, name)
        losses = {task: point["test"]["tasks"][task]["score_difference"] for task in tasks}
        rows.append([name, rule_code(point["rule"])])
        rows[-1] += [bounded(loss) for loss in (*losses.values(), point["test"]["pooled"]["score_difference"])]
        below = [_short(task) for task, loss in losses.items() if loss is not None and loss["high"] < 0]
        hurt.append(f"{name}: {', '.join(below) or 'none'}")
    text = (
        "Points of task score from exact decoding, 95 % paired intervals. Each method at its longest point that keeps "
        "the pooled score, or where none does at the one that loses least. Tasks whose whole interval lies below 0: "
        f"{'; '.join(hurt)}."
    )
    return f"{table(['method', 'rule', *map(_short, tasks), 'all tasks'], rows, words=2)}\n\n{text}"


def command_text(results: dict[str, Any]) -> str:
    """The command that makes a comparison again, from its settings; folders are TARGET, DRAFT, JUDGES and DATA."""
    settings = results["settings"]
    given = {**settings["bench"], **{name: settings.get(name) for name in GIVEN}, "target": "TARGET", "draft": "DRAFT"}
    if given["nli_model"] is not None:
        given["nli_model"] = given["nli_model"].replace(settings["bench"]["target"], "TARGET")
    named = {key.replace("_", "-"): given[key] for key in (*BENCH, *GIVEN) if given[key] is not None}
    options = [f"--{key} {shlex.quote(str(value))}" for key, value in named.items()]
    tasks = [
        f"--tasks {re.sub(DATA_FILE, r'=DATA/', task)}" for entry in settings["tasks"] for task in entry.split(",")
    ]
    rules = [f"--rules {shlex.quote(rule)}" for rule in _rules(settings["rules"])]
    return "```\nselfjudge compare " + " \\\n    ".join([" ".join(options), *tasks, *rules]) + " --out OUT\n```"


def sweep_table(results: dict[str, Any], least: float = -0.065) -> str:
    """The points of a comparison that lose little, the longest first, in Markdown."""
    rows = []
    for point in longest_first(results):
        row = point["test"]["pooled"]
        if row["score_difference"]["estimate"] >= least:
            length, ratio, _ = lengths(row)
            rows.append([rule_code(point["rule"]), length, ratio, bounded(row["score_difference"], digits=1)])
    text = (
        f"Points that lose at most {-100 * least:g} points, {len(rows)} of {len(results['points'])}. "
        f"{told_conditions(results)}"
    )
    return f"{table(['rule', 'accepted per cycle', 'exact = 1', LOSS], rows)}\n\n{text}"


def price_table(results: dict[str, Any]) -> str:
    """What a relaxed token saves and what it changes, over the tasks whose answers are right or wrong, in Markdown."""
    tasks = [task for task in results["points"][0]["test"]["tasks"] if _short(task) in RIGHT_OR_WRONG]
    exact = next(point for point in results["points"] if point["method"] == "exact")["test"]["tasks"]
    rows = []
    for point in longest_first(results):
        found = [point["test"]["tasks"][task] for task in tasks]
        relaxed = sum(row["relaxed_share"] * row["new_tokens"] for row in found)
        if not relaxed:
            continue
        answers = sum(row["items"] for row in found)
        saved = sum((exact[task]["forwards_per_answer"] - row["forwards_per_answer"]) * row["items"]
                    for task, row in zip(tasks, found, strict=True))  # fmt: skip
        lost, gained = (sum(row[name] for row in found) for name in ("lost", "gained"))
        rows.append(
            [
                rule_code(point["rule"]),
                f"{relaxed / answers:.1f}",
                f"{saved / relaxed:.2f}",
                f"{100 * lost / answers:.1f}",
                f"{100 * gained / answers:.1f}",
                f"{100 * (lost - gained) / saved:.2f}",
            ]
        )
    head = ["rule", "relaxed tokens per answer", "forwards saved by each", "right answers lost, %", "gained, %",
            "net loss per 100 forwards saved"]  # fmt: skip
    text = (
        f"Over {', '.join(map(_short, tasks))}, all answers together. Relaxed: kept although exact decoding would not. "
        "Forwards: of the target, against exact decoding. Lost: right by exact decoding and wrong here; gained: the "
        "reverse."
    )
    return f"{table(head, rows)}\n\n{text}"


def again_table(found: dict[str, Any]) -> str:
    """What other runs of exact decoding change (again.json), in Markdown."""
    rows = []
    for run in found["runs"]:
        answers, judged = run["answers"], run["right_or_wrong"]
        rows.append([str(run["gamma"]), str(run["batch_size"]), f"{100 * run['same'] / answers:.1f}"])
        rows[-1] += [f"{100 * run[name] / judged:.1f}" for name in ("lost", "gained")]
        rows[-1].append(f"{100 * (run['gained'] - run['lost']) / judged:+.2f}")
    base = found["base"]
    text = (
        f"Against exact decoding in blocks of {base['gamma']} and batches of {base['batch_size']}; {answers:,} answers "
        f"together, {judged:,} of them right or wrong."
    )
    head = ["gamma", "batch", "same text, %", "right answers lost, %", "gained, %", "points from the first run"]
    return f"{table(head, rows)}\n\n{text}"


def speed_table(report: dict[str, Any]) -> str:
    """Tokens per second of every way to decode, in Markdown."""
    names = {
        "plain": "`generate`",
        "stock assisted": "`generate(assistant_model=)`",
        "plain, same engine": "ours, target alone",
        "exact": "ours, exact",
        "judge": f"ours, {rule_code(report['rule'])}",
    }
    exact = report["methods"]["exact"]["tokens_per_s"]
    rounds = ", ".join(f"{ratio:.2f}" for ratio in report["judge_over_exact_by_round"])
    rows = []
    for key, run in report["methods"].items():
        cells = [f"{run[name]:.2f}" if name in run else "" for name in RUN_LENGTHS]
        speed = run["tokens_per_s"]
        rows.append([names.get(key, key), str(run["prompts"]), f"{speed:.0f}", f"{speed / exact:.2f}x", *cells])
    text = (
        f"{report['device']}, {report['dtype']}, batch {report['batch']}, greedy, gamma {report['gamma']}, at most "
        f"{report['new_tokens']} new tokens; torch {report['torch']}, transformers {report['transformers']}. Ours "
        f"exact is {report['exact_over_stock_assisted']:.1f} times stock assisted generation and "
        f"{report['exact_over_plain']:.1f} times plain; {report['exact_over_plain_same_engine']:.2f} times the target "
        f"alone in our engine. The rule is {report['judge_over_exact']:.2f} times exact; the "
        f"tokens per target forward predict {report['predicted_by_lengths']:.2f}: measured over predicted "
        f"{report['measured_over_predicted']:.3f}. Round by round the rule is {rounds} times exact."
    )
    if not report.get("warmed_up"):
        text += " Stock generation was timed in its first call, on one prompt: the ratios to it are upper bounds."
    head = ["decoding", "prompts", "tokens/s", "exact = 1", "accepted per cycle", "tokens per target forward"]
    return f"{table(head, rows)}\n\n{text}"


def _rules(texts: list[str]) -> list[str]:
    """The rules of each method, judges' folders in JUDGES."""
    methods: dict[str, list[str]] = {}
    for rule in (rule.strip() for text in texts for rule in text.split(",")):
        methods.setdefault(rule.split("=")[0] if "=" in rule else "", []).append(rule)
    return [re.sub(JUDGE_FOLDER, "judge:JUDGES/", ",".join(rules)) for rules in methods.values()]


def _shown(results: dict[str, Any], name: str) -> dict[str, Any]:
    """A method's matched point, or where it has none the one that loses least."""
    entry = results["matched"][CRITERION]["methods"][name]
    if not entry["none_matched"]:
        return dict(results["points"][entry["point"]])
    members = [point for index in results["methods"][name] if "test" in (point := results["points"][index])]
    return dict(max(members, key=lambda point: point["test"]["pooled"]["score_difference"]["estimate"]))


def _place(results: dict[str, Any], name: str) -> str:
    """Where a method stands, in words."""
    point, entry = _shown(results, name), results["matched"][CRITERION]["methods"][name]
    pooled = point["test"]["pooled"]
    length, ratio, _ = lengths(pooled)
    return (
        f"{'no point keeps the score; the one that loses least is ' if entry['none_matched'] else ''}"
        f"{rule_code(point['rule'])} with {length} draft tokens accepted per cycle, {ratio} times exact decoding "
        f"({bounded(pooled['score_difference'])} points)"
    )


def longest_first(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The points that were tested."""
    measured = [point for point in results["points"] if "test" in point]
    return sorted(measured, key=lambda point: -_accepted(point["test"]["pooled"]))


def _accepted(row: dict[str, Any]) -> float:
    return float(row["accepted_per_cycle"]["estimate"])


def lengths(row: dict[str, Any]) -> list[str]:
    """Draft tokens accepted per cycle, the same with exact = 1, and tokens per target forward."""
    figures = (_accepted(row), row["length_ratio"]["estimate"], row["tokens_per_target_forward"])
    return [f"{figure:.2f}" for figure in figures]


def _length_and_score(row: dict[str, Any]) -> str:
    score = "-" if row["score"] is None else f"{100 * row['score']['estimate']:.1f}"
    return f"{_accepted(row):.2f} / {score}"


def bounded(value: dict[str, float] | None, factor: float = 100.0, digits: int = 2) -> str:
    """A difference with its interval; scores in points."""
    if value is None:
        return "-"
    estimate, low, high = (f"{factor * value[key]:+.{digits}f}" for key in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}]"


def _meaning(results: dict[str, Any]) -> str:
    return str(results["matched"][CRITERION]["meaning"])


def _short(task: str) -> str:
    return task.rsplit("/", 1)[-1]


def told_conditions(results: dict[str, Any]) -> str:
    """How it was measured, with models by their names instead of paths."""
    bench = results["settings"]["bench"]
    named = {**bench, **{role: Path(bench[role]).name for role in ("target", "draft")}}
    told = conditions({**results, "settings": {**results["settings"], "bench": named}})
    return told + (f" At most {bench['max_new_tokens']} new tokens." if bench["max_new_tokens"] else "")


COMPARISON = {
    "command": command_text,
    "main": main_table,
    "matched": matched_table,
    "tasks": task_table,
    "prices": price_table,
}
"""The blocks of one comparison."""
