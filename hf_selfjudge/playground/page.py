"""The demo's results as one self-contained HTML page."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path
from typing import Any

from hf_selfjudge.files import write_text

# Okabe-Ito colours: distinct for colour-blind readers
COLOURS = {"plain": "#999999", "exact": "#0072B2", "judge": "#E69F00"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { padding: .3rem .6rem; text-align: right; }
th { border-bottom: 2px solid #222; } th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
tr.first td { border-top: 1px solid #bbb; } tr.judge td { font-weight: 600; background: #fdf4e0; }
.answer { white-space: pre-wrap; margin: .2rem 0 .8rem; } .prompt { white-space: pre-wrap; font-weight: 600; }
.how { color: #555; font-size: .9rem; }
.matched { background: #d9ecf7; } .judged { background: #E69F00; } .correction { background: #f3d5e4; }
.bonus { background: #e4e4e4; } svg { max-width: 100%; height: auto; }
"""
MEANINGS = {
    "matched": "drafted, matches the target",
    "judged": "drafted, accepted by the judge",
    "correction": "target's correction",
    "bonus": "target's bonus token",
}


def write_page(path: Path, results: dict[str, Any], samples: list[dict[str, Any]]) -> None:
    """Write the page."""
    from .demo import LABELS, verdict

    legend = " ".join(f'<span class="{name}">&nbsp;{meaning}&nbsp;</span>' for name, meaning in MEANINGS.items())
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Judge decoding on the embedded pair</title>",
        f"<style>{STYLE}</style></head><body><h1>Judge decoding on the embedded pair</h1>",
        f"<p>{escape(verdict(results))}</p>",
        _table(results, LABELS),
        f"<p class='how'>{escape(_conditions(results))}</p>",
        _figures(results, LABELS),
        "<h2>Who wrote which token</h2>",
        f"<p>{legend}</p>",
        *(_sample(sample, LABELS) for sample in samples),
        "</body></html>\n",
    ]
    write_text(path, "".join(parts))


def _table(results: dict[str, Any], labels: dict[str, str]) -> str:
    heads = (
        "task",
        "method",
        "items",
        "task score",
        "accepted per cycle",
        "tokens per target forward",
        "forwards saved",
        "speed",
    )
    lines = ["<table><tr>", *(f"<th>{head}</th>" for head in heads), "</tr>"]
    for task, rows in results["tasks"].items():
        for method, row in rows.items():
            score = "&ndash;" if row["score"] is None else f"{100 * row['score']:.1f}"
            accepted = "&ndash;" if row["accepted_per_cycle"] is None else f"{row['accepted_per_cycle']:.2f}"
            cells = (
                task.replace("_", " ") if method == "plain" else "",
                labels[method],
                row["items"],
                score,
                accepted,
                f"{row['tokens_per_target_forward']:.2f}",
                f"{100 * row['target_forwards_saved']:.0f} %",
                f"{row['relative_speed']:.2f}&times;",
            )
            kind = "first" if method == "plain" else method
            lines += [f"<tr class='{kind}'>", *(f"<td>{cell}</td>" for cell in cells), "</tr>"]
    return "".join([*lines, "</table>"])


def _conditions(results: dict[str, Any]) -> str:
    """How the figures were measured, in a sentence or two."""
    known = results["conditions"]
    return (
        f"{known['models']}, {known['hardware']}, {known['dtype']}, gamma {results['settings']['gamma']}, batch "
        f"{known['batch']}; torch {known['versions']['torch']}, transformers {known['versions']['transformers']}. "
        f"Accepted per cycle: {known['accepted_per_cycle']}. Judge: {known['judge']}, threshold "
        f"{results['threshold']['name']}."
    )


def _sample(sample: dict[str, Any], labels: dict[str, str]) -> str:
    lines = [f"<h3>{escape(sample['task'].replace('_', ' '))}</h3><p class='prompt'>{escape(sample['prompt'])}</p>"]
    for method, pieces in sample["answers"].items():
        spans = "".join(f'<span class="{source}">{escape(text)}</span>' for text, source in pieces)
        lines.append(f"<div class='how'>{labels[method]}</div><div class='answer'>{spans}</div>")
    return "".join(lines)


def _figures(results: dict[str, Any], labels: dict[str, str]) -> str:
    """Accepted tokens and task scores side by side, as inline SVG; left out where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return "<p class='how'>Install matplotlib (hf-selfjudge[train]) for the figures.</p>"
    matplotlib.use("svg")
    from matplotlib import pyplot

    tasks = results["tasks"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    names = [task.replace("_", "\n") for task in tasks]
    scored = {task: rows for task, rows in tasks.items() if rows["exact"]["score"] is not None}
    for offset, method in ((-0.2, "exact"), (0.2, "judge")):
        values = [rows[method]["accepted_per_cycle"] for rows in tasks.values()]
        bars = left.bar(
            [i + offset for i in range(len(tasks))], values, 0.38, color=COLOURS[method], label=labels[method]
        )
        left.bar_label(bars, fmt="%.2f", fontsize=8)
        values = [100 * rows[method]["score"] for rows in scored.values()]
        bars = right.bar([i + offset for i in range(len(scored))], values, 0.38, color=COLOURS[method])
        right.bar_label(bars, fmt="%.1f", fontsize=8)
    left.set(title="accepted draft tokens per cycle", xticks=range(len(tasks)), xticklabels=names)
    right.set(title="task score, %", ylim=(0, 110), xticks=range(len(scored)))
    right.set_xticklabels([task.replace("_", "\n") for task in scored])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="upper left", ncols=2)
    left.set_ylim(0, 1.2 * left.get_ylim()[1])
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    pyplot.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
