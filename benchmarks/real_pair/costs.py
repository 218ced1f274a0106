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
    rows = [["**predicted cost, on unseen prompts**: kept answers", *_cells(results["effects"], "kept")]]
    rows.append(["**the same**: resemblance", *_cells(results["effects"], "resemblance")])
    for entry in results["inputs"]:
        if entry["input"] in NAMES:
            rows.append([NAMES[entry["input"]], *_both(entry["effects"])])
    head = ["fifths of the decisions by", "lowest", "second", "third", "fourth", "highest", "tokens won, ends"]
    every = next(entry for entry in results["inputs"] if entry["input"] == "(all)")
    settings = results["settings"]
    text = (
        "Points that accepting one more token changes, with standard errors, of answers that are what most rollouts of "
        "the prompt give (kept), or of the resemblance to exact decoding's text (tokens in common, in order); along "
        "single inputs both, kept / resemblance, with about the same errors; a dash where a fifth is empty. "
        f"{results['answers']:,} answers with {results['decisions']:,} decisions that chance "
        f"made (share {settings['share']:g} of what {code(settings['rule'])} accepts, {settings['rollouts']} rollouts "
        f"of {results['prompts']:,} prompts, {results['new_tokens']:,} tokens). Kept: {100 * results['kept']:.1f} % of "
        f"the explored answers, {100 * results['exact_kept']:.1f} % of exact decoding's. The average decision wins "
        f"{1 + every['gain']:.1f} tokens, its own included."
    )
    return f"{table(head, rows)}\n\n{text}"


def _both(effects: list[dict[str, float]]) -> list[str]:
    """Points of kept answers and of resemblance, and the tokens won at both ends."""
    cells = [f"{part['kept']:+.1f} / {part['resemblance']:+.1f}" if part["decisions"] else "-" for part in effects]
    return [*cells, _ends(effects)]


def _cells(effects: list[dict[str, float]], name: str) -> list[str]:
    """Points with errors of the fifths that hold something, and the tokens won at both ends."""
    cells = [f"{part[name]:+.1f} ± {part[f'{name}_error']:.1f}" if part["decisions"] else "-" for part in effects]
    return [*cells, _ends(effects)]


def _ends(effects: list[dict[str, float]]) -> str:
    held = [part for part in effects if part["decisions"]]
    return f"{1 + held[0]['gain']:.1f}, {1 + held[-1]['gain']:.1f}"
