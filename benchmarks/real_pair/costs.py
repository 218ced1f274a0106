"""The part of the page beside this file that comes from tune.json: what accepting a token costs in the loop."""

from __future__ import annotations

from typing import Any

from hf_selfjudge.hub.card_sections import code, table

NAMES = {
    "judge:rejoin": "opinion of the rejoin judge",
    "judge:autojudge": "opinion of AutoJudge",
    "judge:paper-features": "opinion of the judge with the paper's labels",
    "log_p": "the target's log p of the token",
    "s_prefix": "log p minus that of the target's choice",
    "margin": "margin of the target's two best",
    "entropy": "the target's entropy",
    "kl_qp": "KL(q, p)",
    "ahead_matches": "next drafted tokens that match, up to four",
}
"""The inputs that the table shows, in words."""


def cost_table(results: dict[str, Any]) -> str:
    """What taking a decision changed, fifth by fifth along its predicted cost and along single inputs, in Markdown."""
    rows = [["**predicted cost, on unseen prompts**", *_cells(results["effects"])]]
    for entry in results["inputs"]:
        if entry["input"] in NAMES:
            rows.append([NAMES[entry["input"]], *_cells(entry["effects"])])
    head = [
        "fifths of the decisions by",
        "lowest",
        "second",
        "third",
        "fourth",
        "highest",
        "tokens won, lowest to highest",
    ]
    every = next(entry for entry in results["inputs"] if entry["input"] == "(all)")
    settings = results["settings"]
    text = (
        f"Points of kept answers that accepting one more token changes, with standard errors; a dash where a fifth is "
        f"empty. {results['answers']:,} answers with {results['decisions']:,} decisions that chance made (share "
        f"{settings['share']:g} of what {code(settings['rule'])} accepts, {settings['rollouts']} rollouts of "
        f"{results['prompts']:,} prompts, {results['new_tokens']:,} tokens). Kept: {100 * results['kept']:.1f} % of "
        f"the explored answers, {100 * results['exact_kept']:.1f} % of exact decoding's. The average decision costs "
        f"{-every['cost']:.3f} in log-odds and wins {1 + every['gain']:.1f} tokens, its own included."
    )
    return f"{table(head, rows)}\n\n{text}"


def _cells(effects: list[dict[str, float]]) -> list[str]:
    """Points with errors of the fifths that hold something, and the tokens won at both ends."""
    cells = [f"{part['points']:+.1f} ± {part['standard_error']:.1f}" if part["decisions"] else "-" for part in effects]
    held = [part for part in effects if part["decisions"]]
    return [*cells, f"{1 + held[0]['gain']:.1f} to {1 + held[-1]['gain']:.1f}"]
