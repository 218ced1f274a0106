"""The comparison as a CSV file and as one self-contained HTML page; everything in them comes from compare.json."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..decoding.statistics import PHASES
from ..files import write_text
from .figure import draw

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } img { width: 100%; height: auto; }
.verdict { border-left: 4px solid #D55E00; padding: .4rem 1rem; background: #fdf3ec; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .86rem; width: 100%; }
th, td { padding: .22rem .45rem; text-align: right; vertical-align: top; } td { white-space: nowrap; }
th { border-bottom: 2px solid #222; vertical-align: bottom; line-height: 1.25; }
th.text, td.text { text-align: left; } tr:nth-child(even) td { background: #f6f6f6; }
tr.ours td { font-weight: 600; background: #fdf3ec; } .how { color: #555; font-size: .9rem; }
summary { cursor: pointer; margin: .6rem 0; }
small { display: block; color: #666; font-weight: 400; font-size: .8em; line-height: 1.1; }
"""
NUMBERS = ("score", "score_difference", "accepted_per_cycle", "length_ratio")
PLAIN = (
    "items",
    "tokens_per_target_forward",
    "forwards_per_answer",
    "acceptance_rate",
    "relaxed_share",
    "same_answers",
    "lost",
    "gained",
)
HOW = (
    "Accepted per cycle: draft tokens kept per target forward, corrections and bonus tokens not counted; a ratio of "
    "sums within a task. Pooled figures are means over the tasks with a score. Brackets: 95 % percentile intervals of "
    "a paired bootstrap, items resampled within tasks, the same for all rules. Lost and gained: items whose score is "
    "below or above exact decoding's; where both are 0 the interval of the score difference is a single point, which "
    "says less than it seems to. Same answers: share of answers that are exact decoding's word for word."
)


def report(results: dict[str, Any], out: Path) -> list[Path]:
    """Write compare.csv, tradeoff.png (if matplotlib is there and a task has a score) and index.html."""
    write_text(out / "compare.csv", table_csv(results))
    figure = out / "tradeoff.png"
    drawn = bool(results["matched"]) and draw(results, figure)
    write_text(out / "index.html", page(results, figure if drawn else None))
    return [out / "compare.json", out / "compare.csv", *([figure] if drawn else []), out / "index.html"]


def table_csv(results: dict[str, Any]) -> str:
    """One line per set of items, rule, and task or pool."""
    bounded = [f"{name}{suffix}" for name in NUMBERS for suffix in ("", "_low", "_high")]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["set", "method", "rule", "task", *bounded, *PLAIN, "new_tokens", "seconds", "other_figures"])
    for point in results["points"]:
        for name in ("selection", "test"):
            for task, row in _rows(point[name]) if name in point else ():
                values = [row[number][key] if row[number] else "" for number in NUMBERS for key in _BOUNDS]
                plain = [row[key] for key in (*PLAIN, "new_tokens", "seconds")]
                others = {key: found["score"]["estimate"] for key, found in row.get("figures", {}).items()}
                plain.append(" ".join(f"{key}={value}" for key, value in others.items()))
                writer.writerow([name, point["method"], point["rule"], task, *values, *plain])
    return text.getvalue()


def page(results: dict[str, Any], figure: Path | None) -> str:
    """The page's text."""
    picture = "<p class='how'>No figure: matplotlib is not installed, or no task has a score.</p>"
    if figure is not None:
        data = base64.b64encode(figure.read_bytes()).decode()
        picture = f"<img alt='score difference against accepted length' src='data:image/png;base64,{data}'>"
    criterion = results["settings"]["criterion"]
    others = "".join(
        f"<details><summary>{escape(name)}: {escape(found['meaning'])}</summary><p>{escape(found['verdict'])}</p>"
        f"{_matched(results, name)}</details>"
        for name, found in results["matched"].items()
        if name != criterion
    )
    main = _matched(results, criterion) if results["matched"] else ""
    return "".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Acceptance rules compared</title>",
            f"<style>{STYLE}</style></head><body><h1>Acceptance rules compared</h1>",
            f"<p class='verdict'>{escape(results['verdict'])}</p>",
            f"<p class='how'>{escape(conditions(results))}</p>",
            picture,
            f"<h2>At matched score</h2>{main}<p class='how'>Other readings of matched score:</p>{others}",
            f"<h2>All points, test items, pooled</h2>{_points(results, None)}<p class='how'>{escape(HOW)}</p>",
            _selection(results),
            "<h2>By task</h2>",
            *(
                f"<details><summary>{escape(task)}</summary>{_points(results, task)}</details>"
                for task in results["points"][0]["test"]["tasks"]
            ),
            f"<h2>Where the time went</h2>{_phases(results)}",
            "</body></html>\n",
        ]
    )


def conditions(results: dict[str, Any]) -> str:
    """How it was measured, in a few sentences."""
    known, settings = results["conditions"], results["settings"]
    bench = settings["bench"]
    items = {name: ", ".join(_items(task, found) for task, found in tasks.items())
             for name, tasks in known["items"].items()}  # fmt: skip
    sources = {"train": "training split", "held-out": "further items of the test split"}
    source = "tasks of their own" if settings.get("selection_tasks") else sources.get(settings["select_on"])
    chosen = (
        f"Points were chosen on selection items ({source}): {items['selection']}."
        if "selection" in items
        else "Points were chosen on the test items themselves, which favours methods with many points."
    )
    if shared := known.get("shared_prompts"):
        chosen += f" {shared} prompts are both selection and test items."
    if len(made := known.get("made_with", ())) > 1:
        parts = [f"{one['results']} results with {one['hardware']}, batch {one['batch_size']}, torch {one['torch']}, "
                 f"transformers {one['transformers']}" for one in made]  # fmt: skip
        chosen += f" Not all results were made with the same things, which may decide near ties: {'; '.join(parts)}."
    return (
        f"Target {bench['target']}, draft {bench['draft']}, greedy, {bench['mode']}, gamma {bench['gamma']}, "
        f"{bench['dtype']}, batch {bench['batch_size']}, {known['hardware']}, {bench['workers']} process(es); torch "
        f"{known['torch']}, transformers {known['transformers']}. Test items: {items['test']}. {chosen} "
        f"{settings['resamples']} resamples."
    )


def _items(task: str, found: dict[str, Any]) -> str:
    """How many items of a task there are."""
    left_out = found.get("left_out")
    if not left_out:
        return f"{task} {found['count']}"
    return f"{task} {found['count'] - left_out} (of {found['count']}; {left_out} prompts were too long)"


def _matched(results: dict[str, Any], criterion: str) -> str:
    found = results["matched"][criterion]
    heads = [
        "method",
        "rule",
        "points tried",
        "accepted per cycle",
        "ratio to exact",
        "score difference, points",
        "worst task",
        "kept on test",
    ]
    if found["ours"] is not None:
        heads += ["ours minus this: accepted", "ours minus this: score", "outcome"]
    order = sorted(found["methods"], key=lambda name: -found["methods"][name]["test"]["accepted_per_cycle"]["estimate"])
    lines = []
    for name in order:
        entry = found["methods"][name]
        test = entry["test"]
        rule = results["points"][entry["point"]]["rule"] + (" (no point matched)" if entry["none_matched"] else "")
        cells = [
            name,
            rule,
            str(len(results["methods"][name])),
            _bounded(test["accepted_per_cycle"]),
            _bounded(test["length_ratio"]),
            _bounded(test["score_difference"], 100, "+"),
            f"{100 * test['worst_task_difference']:+.2f}",
            "yes" if entry["holds_on_test"] else "no",
        ]
        if gap := entry.get("ours_minus_this"):
            sure = "" if gap["familywise"] or gap["outcome"] == "no clear difference" else " (not after Bonferroni)"
            cells += [_bounded(gap["accepted_per_cycle"], 1, "+"), _bounded(gap["score"], 100, "+")]
            cells += [{"longer": "ours longer", "shorter": "ours shorter"}.get(gap["outcome"], gap["outcome"]) + sure]
        elif found["ours"] is not None:
            cells += ["", "", ""]
        lines.append((name == found["ours"], cells))
    return _table(heads, lines, text=2)


def _selection(results: dict[str, Any]) -> str:
    """All points on the items that chose among them, where not all were tested."""
    if all("test" in point for point in results["points"]):
        return ""
    return (
        "<details><summary>All points, selection items, pooled; those not chosen were not tested</summary>"
        f"{_points(results, None, 'selection')}</details>"
    )


def _points(results: dict[str, Any], task: str | None, name: str = "test") -> str:
    """All points of one set of items, on one task or pooled."""
    heads = ["rule", "score", "difference, points", "accepted per cycle", "ratio to exact", "tokens per target forward"]
    heads += ["forwards per answer", "acceptance, %", "relaxed tokens, %", "same answers, %", "lost", "gained"]
    ours = next(iter(results["matched"].values()))["ours"] if results["matched"] else None
    lines = []
    measured = [point for point in results["points"] if name in point]
    figures = measured[0][name]["tasks"][task].get("figures", {}) if task else {}
    heads += [text for figure in figures for text in (figure, f"{figure}: difference, points")]
    for point in measured:
        row = dict(_rows(point[name]))[task or "pooled"]
        shares = [f"{100 * row[name]:.1f}" for name in ("acceptance_rate", "relaxed_share", "same_answers")]
        cells = [
            point["rule"],
            _bounded(row["score"], 100),
            _bounded(row["score_difference"], 100, "+"),
            _bounded(row["accepted_per_cycle"]),
            _bounded(row["length_ratio"]),
            f"{row['tokens_per_target_forward']:.2f}",
            f"{row['forwards_per_answer']:.2f}",
            *shares,
            str(row["lost"]),
            str(row["gained"]),
        ]
        for found in (row["figures"][figure] for figure in figures):
            cells += [_bounded(found["score"], 100), _bounded(found["score_difference"], 100, "+")]
        lines.append((point["method"] == ours, cells))
    return _table(heads, lines, text=1)


def _phases(results: dict[str, Any]) -> str:
    names = (*PHASES, "other")
    heads = ["rule", "seconds", "tokens per second", *(f"{name}, %" for name in names)]
    lines = []
    for point in (point for point in results["points"] if "phases" in point):
        found = point["phases"]
        shares = [f"{100 * found['shares'][name]:.1f}" for name in names]
        cells = [point["rule"], f"{found['seconds']:.1f}", f"{found['tokens_per_second']:.0f}", *shares]
        lines.append((False, cells))
    note = (
        "Batched decoding of all test items; with several processes on one device they slow each other down, so read "
        "the shares, not the speeds. Judge: the rule, learned or not."
    )
    return f"{_table(heads, lines, text=1)}<p class='how'>{note}</p>"


_BOUNDS = ("estimate", "low", "high")


def _rows(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The rows of one point on one set: tasks, then the pool."""
    return [*found["tasks"].items(), ("pooled", found["pooled"])]


def _bounded(value: dict[str, float] | None, factor: float = 1.0, sign: str = "") -> str:
    """An estimate and its interval; two decimals."""
    if value is None:
        return "-"
    estimate, low, high = (format(factor * value[key], f"{sign}.2f") for key in _BOUNDS)
    return f"{estimate} [{low}, {high}]"


def _table(heads: Sequence[str], lines: Sequence[tuple[bool, Sequence[str]]], text: int) -> str:
    """An HTML table whose first `text` columns are words; marked lines are ours."""

    def cell(tag: str, at: int, value: str) -> str:
        if at < text:
            return f"<{tag} class='text'>{escape(value)}</{tag}>"
        number, bracket, bounds = escape(value).partition(" [")
        return f"<{tag}>{number}{f' <small>[{bounds}</small>' if bracket else ''}</{tag}>"

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(cell(tag, at, value) for at, value in enumerate(values))

    body = "".join(f"<tr{' class=' + repr('ours') if mark else ''}>{cells('td', row)}</tr>" for mark, row in lines)
    return f"<div class='scroll'><table><tr>{cells('th', heads)}</tr>{body}</table></div>"
