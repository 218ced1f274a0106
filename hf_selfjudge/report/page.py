"""The report on disk: report.json, the figures, and one HTML page that needs neither network nor other files."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ..files import atomic_path, write_text
from .figures import draw_figures
from .markup import context, count, decimal, duration, percent, picture, rate, settings_table, table, token

PLACES = {
    "quality": ("roc", "precision_recall", "reliability"),
    "labels": ("scores",),
    "features": ("features", "lengths"),
}
"""Which figures stand in which part of the page."""

WORDS = {
    "roc": "ROC curve with the operating points",
    "precision_recall": "precision-recall curve with the operating points",
    "reliability": "predicted probability against the observed share",
    "scores": "histogram of the scores by label, with tau",
    "features": "validation AUC of each feature set",
    "lengths": "validation AUC per suffix length and kind of score",
}


def write_report(folder: Path, report: dict[str, Any]) -> list[Path]:
    """Write `report.json`, one PNG per figure and `report.html`; returns their paths."""
    light, dark = draw_figures(report), draw_figures(report, dark=True)
    paths = [folder / "report.json", *(folder / f"{name}.png" for name in light), folder / "report.html"]
    write_text(paths[0], json.dumps(report, indent=1, allow_nan=False) + "\n")
    for name, data in light.items():
        with atomic_path(folder / f"{name}.png") as temporary:
            temporary.write_bytes(data)
    write_text(paths[-1], page(report, light, dark))
    return paths


def page(report: dict[str, Any], light: dict[str, bytes], dark: dict[str, bytes]) -> str:
    """The page's text."""
    figures = {
        part: "".join(picture(light[name], dark[name], WORDS[name]) for name in names if name in light)
        or "<p class='quiet'>Install matplotlib (hf-selfjudge[train]) for the figures.</p>"
        for part, names in PLACES.items()
    }
    delta = report["settings"].get("calibrate", {}).get("delta")
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        figures,
        title=escape(_title(report)),
        verdict=escape(_verdict(report)),
        cards=_cards(report),
        notes=_notes(report["notes"]),
        measured=escape(_measured(report)),
        points=_points(report),
        confidence="1 - delta" if delta is None else f"{100 * (1 - delta):g} %",
        labelled=escape(_labelled(report)),
        sources=_sources(report),
        compared=escape(_compared(report)),
        table=_candidates(report),
        substituted=escape(_substituted(report)),
        categories=_categories(report),
        accepted=_pairs(report["substitutions"]["accepted"], "accepted"),
        rejected=_pairs(report["substitutions"]["rejected"], "rejected"),
        stages=_stages(report),
        made=_made(report),
    )


def _title(report: dict[str, Any]) -> str:
    names = [report["models"].get(role, {}).get("id", f"an unnamed {role}") for role in ("target", "draft")]
    return "A judge for {} with {}".format(*(str(name).rstrip("/").rsplit("/", 1)[-1] for name in names))


def _point(report: dict[str, Any]) -> dict[str, Any]:
    """The default operating point."""
    return next(point for point in report["calibration"]["points"] if point["name"] == report["judge"]["threshold"])


def _verdict(report: dict[str, Any]) -> str:
    found, point = report["calibration"], _point(report)
    interval = found["auc_interval"]
    spread = f" (95 % interval {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    text = f"On {count(found['prompts'])} held-out prompts its AUC is {found['auc']:.3f}{spread}"
    paper = report["paper"]
    if paper and paper["calibration_auc"] is not None and report["judge"]["features"] != ["hidden"]:
        text += f", that of the paper's judge {paper['calibration_auc']:.3f}"
    text += f". At its default threshold {point['name']} it accepts {percent(point['accepted'])} of the mismatches"
    if point["precision"] is not None:
        text += f"; {percent(point['precision'])} of those are acceptable"
    return f"{text}."


def _cards(report: dict[str, Any]) -> str:
    found, point, labels = report["calibration"], _point(report), report["labels"]["counts"]
    total = report["sources"][-1]
    speed = next((stage["per_second"] for stage in report["stages"] if stage["stage"] == "score"), None)
    spent = sum(stage["seconds"] for stage in report["stages"])
    cards = [
        (decimal(found["auc"]), "AUC on calibration prompts"),
        (percent(point["accepted"]), f"of mismatches accepted at {point['name']}"),
        (percent(point["precision"]), "of those acceptable"),
        (percent(point["unacceptable_rejected"]), "of unacceptable ones rejected"),
        (count(labels["acceptable"] + labels["unacceptable"]), "labels"),
        (percent(total["acceptable"]), "of them acceptable"),
        *([(rate(speed), "substitutions scored per second")] if speed is not None else []),
        *([(duration(spent), "for all stages")] if report["stages"] else []),
    ]
    return "".join(f"<div class='card'><b>{value}</b><span>{escape(words)}</span></div>" for value, words in cards)


def _notes(notes: list[str]) -> str:
    if not notes:
        return ""
    return "<h3>To know</h3><ul class='notes'>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _measured(report: dict[str, Any]) -> str:
    found = report["calibration"]
    return (
        f"Measured on the {count(found['rows'])} labelled mismatches of {count(found['prompts'])} calibration prompts, "
        f"on which nothing but the thresholds was chosen; {percent(found['acceptable'])} of them are acceptable. "
        f"Expected calibration error {found['ece']:.3f}, Brier score {found['brier']:.3f}."
    )


def _points(report: dict[str, Any]) -> str:
    heads = ("threshold", "&theta;", "the paper's 1 - &theta;", "accepted", "precision", "acceptable accepted",
             "unacceptable rejected", "F1", "wrong", "bound of wrong")  # fmt: skip
    points = report["calibration"]["points"]
    rows = [
        (
            escape(point["name"]),
            decimal(point["theta"], 4),
            decimal(point["paper_theta"], 4),
            percent(point["accepted"]),
            percent(point["precision"]),
            percent(point["acceptable_accepted"]),
            percent(point["unacceptable_rejected"]),
            decimal(point["f1"]),
            percent(point["wrong"]),
            percent(point["bound"]),
        )
        for point in points
    ]
    classes = ["chosen" if point["name"] == report["judge"]["threshold"] else "" for point in points]
    return table(heads, rows, classes=classes, name="points")


def _labelled(report: dict[str, Any]) -> str:
    labels = report["labels"]
    tau = "" if labels.get("tau") is None else f" tau is {labels['tau']:.3f} ({labels.get('tau_from', 'given')})."
    return (
        f"A substitution puts the draft's token in the place of the target's.{tau} AUC, accepted and wrong are the "
        f"judge's on the calibration prompts of each source, at threshold {report['judge']['threshold']}."
    )


def _sources(report: dict[str, Any]) -> str:
    heads = (
        "source",
        "prompts",
        "responses",
        "tokens",
        "mismatches",
        "labels",
        "acceptable",
        "AUC",
        "accepted",
        "wrong",
    )
    rows = [
        (
            escape(line["source"]),
            count(line["prompts"]),
            count(line["responses"]),
            count(line["tokens"]),
            count(line["mismatches"]),
            count(line["labelled"]),
            percent(line["acceptable"]),
            decimal(line["auc"]),
            percent(line["accepted"]),
            percent(line["wrong"]),
        )
        for line in report["sources"]
    ]
    return table(heads, rows, classes=["" for _ in rows[1:]] + ["total"], name="sources")


def _compared(report: dict[str, Any]) -> str:
    divisions = max(len(entry["auc"]) for entry in report["fit"]["table"])
    return (
        f"Validation AUC over {divisions} division{'s' if divisions > 1 else ''} of the prompts into training and "
        "validation; calibration prompts take no part. Labels from other scores: how well the same features predict "
        "the labels that another N, suffix or reduction would give at the same share of acceptable tokens."
    )


def _candidates(report: dict[str, Any]) -> str:
    fit = report["fit"]
    table_rows = sorted(fit["table"], key=lambda entry: -entry["mean"])
    rows = [
        (
            escape(entry["feature_set"]),
            escape(entry["model"]),
            count(entry["columns"]),
            count(entry["rows"]),
            "\u2013" if entry["c"] is None else f"{entry['c']:.3g}",
            decimal(entry["mean"], 4),
            decimal(entry["sd"], 4),
            decimal(entry["calibration_auc"], 4),
        )
        for entry in table_rows
    ]
    heads = ("features", "model", "columns", "training rows", "C", "validation AUC", "sd", "calibration AUC")
    classes = ["chosen" if entry == fit["winner"] else "" for entry in table_rows]
    return table(heads, rows, text=2, classes=classes, name="candidates")


def _substituted(report: dict[str, Any]) -> str:
    return (
        f"What the judge does with the {count(report['substitutions']['rows'])} labelled mismatches of the calibration "
        f"prompts at threshold {report['judge']['threshold']}. In the examples the target's token is struck out."
    )


def _categories(report: dict[str, Any]) -> str:
    heads = ("category", "mismatches", "acceptable", "accepted", "wrongly accepted")
    names = ("rows", "acceptable", "accepted", "wrong")
    lines = report["substitutions"]["categories"]
    rows = [(escape(line["category"]), *(count(line[name]) for name in names)) for line in lines]
    return table(heads, rows, name="categories")


def _pairs(lines: list[dict[str, Any]], name: str) -> str:
    if not lines:
        return "<p class='quiet'>None.</p>"
    rows, last = [], None
    for line in lines:
        kind = "" if line["category"] == last else escape(line["category"])
        last = line["category"]
        pair = f"{token(line['target'])} &rarr; {token(line['draft'])}"
        rows.append((kind, pair, context(line), count(line["count"]), count(line["acceptable"])))
    heads = ("category", "target &rarr; draft", "example", "times", "acceptable")
    return table(heads, rows, text=3, name=name)


def _stages(report: dict[str, Any]) -> str:
    rows = [
        (escape(stage["stage"]), count(stage["rows"]), duration(stage["seconds"]), rate(stage["per_second"]))
        for stage in report["stages"]
    ]
    return table(("stage", "rows", "time", "rows per second"), rows, name="stages")


def _made(report: dict[str, Any]) -> str:
    models = [
        (role, f"<code>{escape(str(entry.get('id')))}</code>", escape(str(entry.get("revision") or "")))
        for role, entry in report["models"].items()
    ]
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    return (
        table(("model", "id", "revision"), models, text=3, name="models")
        + f"<p class='quiet'>{escape(packages)}</p>"
        + f"<details><summary>All settings</summary>{settings_table(report['settings'])}</details>"
    )
