"""The parts of a judge's card that are tables and lists. Everything quoted from a build is escaped."""

from __future__ import annotations

import re
from typing import Any

from ..config import JudgeConfig

FIGURES = {
    "roc": ("ROC", "ROC curve of the judge on held-out prompts, with its operating points"),
    "precision_recall": ("Trade-off", "precision against the share of acceptable tokens that is accepted"),
}
"""Figures of a report that a card shows: file name -> heading, description."""
EXAMPLES = 10
_MARKUP = {ord(sign): f"&#{ord(sign)};" for sign in "\\`*_[]<>&|~$#!\"'"}


def plain(text: Any) -> str:
    """Text that markdown and HTML leave alone, on one line."""
    return " ".join(str(text).split()).translate(_MARKUP)


def code(text: Any) -> str:
    """Text as code, on one line."""
    return f"`{' '.join(str(text).replace('`', ' ').replace('|', ' ').split())}`"


def token(text: Any) -> str:
    """A token or a piece of a response as code in which spaces and line breaks show."""
    shown = str(text).replace("\n", "↵").replace("\r", "").replace("\t", "⇥")
    shown = re.sub("^ +| +$", lambda spaces: "␣" * len(spaces[0]), shown)
    return f"<code>{shown.translate(_MARKUP)}</code>"


def table(head: list[str], rows: list[list[str]], words: int = 1) -> str:
    """A markdown table; the first `words` columns are text, the others numbers."""
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def operating_points(config: JudgeConfig, report: dict[str, Any]) -> str:
    """The thresholds by both conventions, and what was measured at each."""
    measured = {point["name"]: point for point in report.get("calibration", {}).get("points", [])}
    head = ["threshold", "theta: accept above", "1 - theta (paper)"]
    if measured:
        head += ["draft tokens accepted", "of the acceptable", "wrong among accepted", "guaranteed below"]
    rows = []
    for name, theta in sorted(config.thresholds.items(), key=lambda item: (item[1], item[0])):
        row = [
            f"{code(name)}{' (default)' if name == config.default_threshold else ''}",
            _n(theta, 4),
            _n(1 - theta, 4),
        ]
        point = measured.get(name, {})
        if measured:
            shares = ("accepted", "acceptable_accepted", "wrong", "bound")
            row += [_percent(point.get(share)) for share in shares]
        rows.append(row)
    text = table(head, rows)
    if measured:
        text += (
            "\n\nShares of the mismatched draft tokens of held-out prompts, those where draft and target differ; a "
            "threshold of 1 accepts none."
        )
    return text


def quality(config: JudgeConfig, report: dict[str, Any]) -> str:
    """AUC, label statistics by source, figures."""
    calibration = report.get("calibration", {})
    lines = []
    if "auc" in calibration:
        interval = calibration.get("auc_interval")
        low_high = f" (95 % interval {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
        lines.append(
            f"ROC-AUC {calibration['auc']:.3f}{low_high} on {calibration.get('rows')} mismatches of "
            f"{calibration.get('prompts')} held-out prompts; calibration error {_n(calibration.get('ece'), 3)}."
        )
        paper = report.get("paper") or {}
        if paper.get("calibration_auc") is not None:
            lines.append(f"The paper's features (the hidden state alone) reach {paper['calibration_auc']:.3f} there.")
        text = " ".join(lines)
    else:
        facts = [f"- {plain(name)}: {_value(value)}" for name, value in config.metrics.items()]
        text = "\n".join(facts) or "Nothing was recorded."
    if report.get("sources"):
        text += f"\n\n{_sources(report['sources'])}"
        shown = [f"![{heading}: {about}](report/{name}.png)" for name, (heading, about) in FIGURES.items()]
        text += "\n\n" + "\n\n".join(shown)
    return text


def _sources(found: list[dict[str, Any]]) -> str:
    head = ["prompts from", "prompts", "mismatches", "labelled acceptable", "AUC", "accepted", "wrong among accepted"]
    rows = [
        [
            code(source["source"]),
            str(source.get("prompts", "-")),
            str(source.get("mismatches", "-")),
            _percent(source.get("acceptable")),
            _n(source.get("auc"), 3),
            _percent(source.get("accepted")),
            _percent(source.get("wrong")),
        ]
        for source in found
    ]
    return table(head, rows)


def examples(report: dict[str, Any]) -> str:
    """Substitutions that the judge accepts and rejects, the most frequent first and a few of each kind."""
    found = report.get("substitutions", {})
    if not found.get("accepted"):
        return "No examples were recorded with this judge."
    parts = []
    for name, about in (("accepted", "Accepted"), ("rejected", "Rejected")):
        rows = [
            [
                plain(entry["category"]),
                token(entry["before"][-40:]),
                token(entry["target"]),
                token(entry["draft"]),
                f"{entry['acceptable']} of {entry['count']}",
            ]
            for entry in _mixed(found.get(name, []))
        ]
        if rows:
            head = ["kind", "after", "target", "draft", "labelled acceptable"]
            parts.append(f"{about} at the default threshold:\n\n{table(head, rows, words=4)}")
    return "\n\n".join(parts)


def _mixed(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A few entries, at most two of a kind, the most frequent of each kind first."""
    kept: list[dict[str, Any]] = []
    for entry in sorted(entries, key=lambda entry: -entry["count"]):
        if sum(other["category"] == entry["category"] for other in kept) < 2:
            kept.append(entry)
    return kept[:EXAMPLES]


def limits(config: JudgeConfig, report: dict[str, Any], local: list[str]) -> str:
    """What the judge is not good for; `local` are the models of its pair that are not on the Hub."""
    lines = [f"- {' and '.join(map(code, local))}: not on the Hub, load your own copy."] if local else []
    lines += [
        "- Labels come from the target's own likelihoods and answers, not from people; a token that the target finds "
        "as likely as its own can still be wrong.",
        "- Figures hold for prompts like those it was trained and calibrated on (below).",
    ]
    if config.labels.get("rule"):
        lines.append(
            f"- It was tuned beside the rule {code(config.labels['rule'])} and has seen nothing else: use it beside "
            "this rule, or a stricter one of its kind."
        )
    if config.needs_draft_logits:
        lines.append("- It reads the draft's distribution, so it does not work with prompt lookup.")
    wrong = [source for source in report.get("sources", []) if (source.get("wrong") or 0) > 0.1]
    for source in wrong:
        lines.append(
            f"- On {code(source['source'])} {_percent(source['wrong'])} of what it accepts by default was labelled "
            "unacceptable: take a higher theta there."
        )
    lines += [f"- {plain(note)}" for note in report.get("calibration", {}).get("notes", [])]
    return "\n".join(lines)


def provenance(config: JudgeConfig, report: dict[str, Any]) -> str:
    """Where the judge comes from."""
    kind = f"MLP with hidden layers {list(config.hidden_units)}" if config.hidden_units else "logistic regression"
    lines = [f"- classifier: {kind} on {config.input_size} inputs: {', '.join(map(code, config.features))}"]
    models = report.get("models", {})
    for role in ("target", "draft"):
        reference = getattr(config, role)
        if reference is not None:
            more = [f"revision {code(reference.revision)}"] if reference.revision else []
            more += [code(models[role]["dtype"])] if models.get(role, {}).get("dtype") else []
            lines.append(f"- {role}: {code(reference.id)}{''.join(f', {part}' for part in more)}")
    lines += [f"- {plain(name)}: {_value(value)}" for name, value in config.labels.items()]
    if report.get("packages"):
        lines.append("- made with " + ", ".join(f"{plain(name)} {plain(v)}" for name, v in report["packages"].items()))
    if report:
        lines.append("- all figures: `report/report.json`")
    lines.append("- method: SelfJudge (ICML 2026), implemented by the package `hf-selfjudge`")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{plain(name)} {_value(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return " to ".join(_value(part) for part in value) if len(value) == 2 else ", ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else plain(value)


def _n(value: Any, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: Any) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
