"""The parts of the page beside this file that come from build.json, what collect.py keeps of the builds."""

from __future__ import annotations

from typing import Any

from hf_selfjudge.hub.card_sections import code, table

NAMES = {"likelihood": "likelihood of the old suffix (the paper)", "confidence": "top-1 confidence"}
RANKED = (
    (0, "likelihood"),
    (20, "likelihood"),
    (40, "likelihood"),
    (40, "confidence"),
    (20, "rejoin"),
    (40, "rejoin"),
)
"""Scores of the ranking's table: N and suffix."""


def build_text(builds: dict[str, Any]) -> str:
    """What the builds cost, in words."""
    first = builds["autojudge"]
    stages, lengths = first["stages"], first["settings"]["score"]["lengths"]
    seconds = {name: entry["seconds"] for name, entry in stages.items()}
    writing = seconds["score"]
    return (
        f"{stages['prompts']['rows']:,} prompts answered in {seconds['respond']:.0f} s, "
        f"{stages['mine']['rows']:,} mismatches mined in {seconds['mine']:.0f} s, scored for N = "
        f"{', '.join(map(str, lengths))} and both suffix terms, with the target writing {max(lengths)} tokens after "
        f"each of them (rejoin), in {writing:.0f} s ({stages['score']['rows'] / writing:,.0f} per second), "
        f"{stages['autojudge']['rows']:,} answers finished for AutoJudge in {seconds['autojudge']:.0f} s, a judge "
        f"fitted in {seconds['fit']:.0f} s. All stages of the {len(builds)} judges ({', '.join(builds)}), those that "
        f"judges share counted once: {total_seconds(builds):.0f} s, loading the models not included. Look-ahead "
        f"{' and '.join(sorted({str(build['settings']['mine']['look_ahead']) for build in builds.values()}))}; torch "
        f"{first['packages']['torch']}, transformers {first['packages']['transformers']}."
    )


def total_seconds(builds: dict[str, Any]) -> float:
    """Seconds of all stages; one that was copied from another build has the same rows and seconds, and counts once."""
    spent = {
        (name, entry["rows"], entry["seconds"]) for build in builds.values() for name, entry in build["stages"].items()
    }
    return float(sum(seconds or 0.0 for _, _, seconds in spent))


def ranking_table(builds: dict[str, Any]) -> str:
    """How well every score ranks kept answers above changed ones, and the shares kept along it, in Markdown."""
    greedy, control = builds["autojudge"], builds["rejoin"]
    rows = []
    for length, suffix in RANKED:
        name = "the token alone, log p" if not length else f"{NAMES.get(suffix, '**rejoin**')}, N = {length}"
        rows.append([name, *(f"{_ranking(build, length, suffix):.3f}" for build in (greedy, control))])
    by_score, by_rejoin = (
        ", ".join(f"{100 * part['kept']:.0f}" for part in builds[name]["kept_by_score"]) for name in ("paper", "rejoin")
    )
    labels, asked = control["labels"], control["settings"]["label"]
    text = (
        f"{greedy['labels']['autojudge_tried']:,} substitutions in GSM8K responses that ended; with noise control "
        f"({asked['repeats']} samples after the substitution, {asked['repeats']} of the unchanged text) "
        f"{labels['autojudge_tried']:,} of {asked['autojudge_prompts']} prompts: {100 * labels['flip_rate']:.0f} % of "
        f"the samples change the answer after a substitution, {100 * labels['control_flip_rate']:.0f} % without one. "
        f"Answers kept from the lowest fifth of the scores to the highest, in percent: {by_score} by the paper's "
        f"score, {by_rejoin} by rejoin."
    )
    head = ["score", "one greedy completion (AUC)", "with noise control (AUC)"]
    return f"{table(head, rows)}\n\n{text}"


def feature_table(builds: dict[str, Any]) -> str:
    """How well judges on every set of features predict their labels, in Markdown."""
    rows = []
    for name, build in builds.items():
        seeds = build["settings"]["fit"]["seeds"]
        best = max(entry["mean"] for entry in build["judges"])
        for entry in build["judges"]:
            spread = f" ± {entry['sd']:.3f}" if seeds > 1 else ""
            bold = "**" if entry["mean"] == best and len(build["judges"]) > 1 else ""
            kind = entry["feature_set"] + ("" if entry["model"] == "logistic" else f", {entry['model']}")
            rows.append([name, _labels(build), code(kind), f"{bold}{entry['mean']:.3f}{bold}{spread}", str(seeds)])
    calibrated = ", ".join(f"{name} {build['calibration_auc']:.3f}" for name, build in builds.items())
    text = (
        "ROC-AUC of predicting a judge's own labels on its validation prompts, mean ± standard deviation over seeds; "
        "judges with different labels cannot be compared by it. The judges that were kept, on the calibration "
        f"prompts: {calibrated}."
    )
    return f"{table(['judge', 'labels', 'features', 'AUC', 'seeds'], rows, words=3)}\n\n{text}"


def _labels(build: dict[str, Any]) -> str:
    """What a build's labels are, in words."""
    settings = build["settings"]["label"]
    follow = build["settings"]["score"].get("follow")
    score = f"{settings['suffix']}, N = {settings['length']}" + (f", follow {follow}" if follow else "")
    kinds = {"score": score, "autojudge": "answer preserved", "hybrid": f"answer preserved, else {score}"}
    return kinds.get(settings["labels"], settings["labels"])


def _ranking(build: dict[str, Any], length: int, suffix: str) -> float:
    found = [
        entry["auc"]
        for entry in build["rankings"]
        if (entry["length"], entry["suffix"], entry["reduction"]) == (length, suffix, "sum")
    ]
    return float(found[0])
