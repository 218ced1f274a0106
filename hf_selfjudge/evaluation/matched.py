"""Methods at matched score: each at its longest point that keeps the score, and what lies between them.

A method's point is chosen on one set of items and reported on another, so that no method profits from having many
points to pick from. A method none of whose points keeps the score stands at exact decoding, where any method can go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .bootstrap import LEVEL, interval
from .tables import DIGITS, EXACT, Table, bounded

CRITERIA = ("within", "indistinguishable", "non-inferior")


def points(value: float) -> str:
    """A number of points, in words."""
    return f"{value:g} point" if abs(value) == 1 else f"{value:g} points"


def meaning(criterion: str, margin: float) -> str:
    """What a criterion asks of a point, in words."""
    return {
        "within": f"score at most {points(margin)} below exact decoding's",
        "indistinguishable": "95 % interval of the score difference from exact decoding reaches 0",
        "non-inferior": f"95 % interval of the score difference from exact decoding stays above {points(-margin)}",
    }[criterion]


def keeps_score(pooled: dict[str, Any], criterion: str, margin: float) -> bool:
    """Whether a point with these pooled figures meets a criterion; `margin` in points."""
    difference = pooled["score_difference"]
    value, bound = {
        "within": (difference["estimate"], -margin / 100),
        "indistinguishable": (difference["high"], 0.0),
        "non-inferior": (difference["low"], -margin / 100),
    }[criterion]
    return bool(value >= bound - 1e-9)


def choose(rows: Sequence[dict[str, Any]], members: Sequence[int], criterion: str, margin: float) -> int:
    """The longest of a method's points that keeps the score (of equals the better one), or exact decoding.

    Args:
        rows: pooled figures of all points.
        members: which of them are the method's.
        criterion: one of `CRITERIA`.
        margin: in points.
    """
    fit = [index for index in members if keeps_score(rows[index], criterion, margin)]

    def rank(index: int) -> tuple[float, float]:
        return rows[index]["accepted_per_cycle"]["estimate"], rows[index]["score"]["estimate"]

    return max(fit, key=rank, default=EXACT)


def match(
    selection: Sequence[dict[str, Any]],
    test: Table,
    rows: Sequence[dict[str, Any]],
    methods: dict[str, list[int]],
    ours: str | None,
    criterion: str,
    margin: float,
    tested: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Every method at its matched point, and ours against each of them.

    Args:
        selection: pooled figures of all points that choose among them.
        test: what is reported.
        rows: its pooled figures of the points it has.
        methods: places of each method's points.
        ours: the method that the others are compared with.
        criterion: one of `CRITERIA`.
        margin: in points.
        tested: which points the test has, in its order; all if None.
    """
    places = {index: at for at, index in enumerate(range(len(selection)) if tested is None else tested)}
    chosen = {name: choose(selection, members, criterion, margin) for name, members in methods.items()}
    found: dict[str, Any] = {"meaning": meaning(criterion, margin), "ours": ours, "methods": {}}
    others = [name for name in methods if name != ours]
    for name, index in chosen.items():
        entry: dict[str, Any] = {
            "point": index,
            "none_matched": index not in methods[name],
            "selection": selection[index],
            "test": rows[places[index]],
            "holds_on_test": keeps_score(rows[places[index]], criterion, margin),
        }
        if ours is not None and name != ours:
            entry["ours_minus_this"] = difference(test, places[chosen[ours]], places[index], len(others))
        found["methods"][name] = entry
    return found


def difference(table: Table, a: int, b: int, comparisons: int = 1) -> dict[str, Any]:
    """Point a minus point b on the same items: pooled length and score, with paired intervals.

    The outcome in words goes by the 95 % interval; `familywise` says whether it stands when the error rate is shared
    between all `comparisons` (Bonferroni).
    """
    estimate, samples = table.pooled
    lengths = samples.length[:, a] - samples.length[:, b]
    length = bounded(estimate.length[0, a] - estimate.length[0, b], lengths)
    assert length is not None
    wide = interval(lengths, 1 - (1 - LEVEL) / max(1, comparisons))
    outcome = "longer" if length["low"] > 0 else "shorter" if length["high"] < 0 else "no clear difference"
    return {
        "accepted_per_cycle": length,
        "relative": round(float(estimate.length[0, a] / estimate.length[0, b]) - 1, DIGITS),
        "score": bounded(
            float(estimate.score[0, a] - estimate.score[0, b]), np.asarray(samples.score[:, a] - samples.score[:, b])
        ),
        "outcome": outcome,
        "familywise": outcome != "no clear difference" and (wide[0] > 0 or wide[1] < 0),
    }


def verdict(found: dict[str, Any], rules: Sequence[str], chosen_on: str) -> str:
    """The comparison in words."""
    methods, ours = found["methods"], found["ours"]
    start = f"Each method at its longest point that keeps the score on the {chosen_on} items ({found['meaning']}), "
    if ours is None:
        best = max(methods, key=lambda name: methods[name]["test"]["accepted_per_cycle"]["estimate"])
        return f"{start}measured on the test items: {best} is the longest, {_place(methods[best], rules)}."
    mine = methods[ours]
    stands = (
        f"no point of {ours} keeps it, and exact decoding stands for it, at"
        if mine["none_matched"]
        else f"{ours} is at"
    )
    parts = [f"{start}measured on the test items: {stands} {_place(mine, rules)}."]
    by_outcome: dict[str, list[str]] = {"longer": [], "shorter": [], "no clear difference": []}
    shaky = []
    for name, entry in methods.items():
        if name == ours:
            continue
        gap = entry["ours_minus_this"]
        length = gap["accepted_per_cycle"]
        by_outcome[gap["outcome"]].append(
            f"{name} ({'no point kept the score; ' if entry['none_matched'] else ''}{length['estimate']:+.2f} "
            f"[{length['low']:+.2f}, {length['high']:+.2f}])"
        )
        if gap["outcome"] != "no clear difference" and not gap["familywise"]:
            shaky.append(name)
    words = {"longer": "longer than", "shorter": "shorter than", "no clear difference": "not clearly different from"}
    parts += [f"It is {words[key]} {', '.join(names)}." for key, names in by_outcome.items() if names]
    if shaky:
        parts.append(f"With the error rate shared between all comparisons, not clear for {', '.join(shaky)}.")
    missed = [name for name, entry in methods.items() if not entry["holds_on_test"]]
    if missed:
        parts.append(f"On the test items the score is not kept by {', '.join(missed)}.")
    return " ".join(parts)


def _place(entry: dict[str, Any], rules: Sequence[str]) -> str:
    """A point's figures in words."""
    test = entry["test"]
    change, ratio = test["score_difference"], test["length_ratio"]
    times = "" if ratio is None else f"{ratio['estimate']:.2f} times exact decoding, "
    return (
        f"{test['accepted_per_cycle']['estimate']:.2f} draft tokens kept per cycle, "
        f"{times}score {100 * change['estimate']:+.2f} points "
        f"[{100 * change['low']:+.2f}, {100 * change['high']:+.2f}] (rule {rules[entry['point']]})"
    )
