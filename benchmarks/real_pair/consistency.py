"""The parts of the page beside this file about factual consistency: fc/compare.json, and fc-check.json."""

from __future__ import annotations

from typing import Any

from hf_selfjudge.hub.card_sections import code, table
from hf_selfjudge.hub.measured import rule_code

from .tables import bounded, lengths, longest_first, told_conditions

SUPPORTED = "fc_probability"
SHOWN = {SUPPORTED: "P(supported)", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
"""Figures of a summary whose differences from exact decoding are shown."""


def consistency_table(results: dict[str, Any]) -> str:
    """What each rule does to summaries, the longest first, in Markdown."""
    (task,) = results["points"][0]["test"]["tasks"]
    rows = []
    for point in longest_first(results):
        found = point["test"]["tasks"][task]
        length, ratio, _ = lengths(found)
        rows.append([rule_code(point["rule"]), length, ratio, f"{100 * found['score']['estimate']:.1f}"])
        rows[-1] += [bounded(found["figures"][name]["score_difference"]) for name in SHOWN]
    head = ["rule", "accepted per cycle", "exact = 1", "called supported"]
    head += [f"{name}, points from exact" for name in SHOWN.values()]
    text = (
        "Called supported: supported summaries minus others, in percent. P(supported) is 2 P - 1 of that answer, ROUGE "
        f"is against the reference. 95 % paired intervals. {told_conditions(results)}"
    )
    return f"{table(head, rows)}\n\n{text}"


def check_text(found: dict[str, Any]) -> str:
    """How far the measure can be trusted, in words."""
    other, slip = found["other_article"], found["one_replaced"]
    return (
        f"{code(found['nli_model'])} on the highlights of {found['rows']} articles: it calls "
        f"{100 * found['real']['supported']:.1f} % of them supported, {100 * other['supported']:.1f} % of those of "
        f"another article, and {100 * slip['supported']:.1f} % of those with one number or name replaced. Its "
        f"P(supported) ranks real highlights above another article's with AUC {other['auc']:.3f} "
        f"[{other['low']:.3f}, {other['high']:.3f}], above ones with a slip with AUC {slip['auc']:.3f} "
        f"[{slip['low']:.3f}, {slip['high']:.3f}]; of the two versions of one article's highlights the real one gets "
        f"more in {100 * slip['paired']:.0f} % of {slip['items']} cases."
    )
