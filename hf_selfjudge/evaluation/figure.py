"""The trade-off figure: score against accepted length, one curve per method."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..files import atomic_path
from .matched import points

COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#8C6D31", "#5D4FB3", "#A6A000", "#666666")
"""Told apart by colour-blind readers together with `MARKERS`; mostly Okabe and Ito's."""
OURS = "#D55E00"
MARKERS = "os^DvPXp<>h*"
ZOOM = 3.0
"""The right panel shows score losses down to this many margins."""


def draw(results: dict[str, Any], path: Path) -> bool:
    """Draw the test items' trade-off as a PNG file; False where matplotlib is not installed.

    A line goes from exact decoding through those points of a method that have no longer one with a better score; the
    other points are faint.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    margin = results["settings"]["margin"]
    figure = Figure(figsize=(12, 6.6), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    whole, near = figure.subplots(1, 2)
    for axes in (whole, near):
        _draw_curves(axes, results)
        axes.axhline(0, color="#222", linewidth=0.8)
        axes.axhline(-margin, color="#222", linewidth=0.8, linestyle=(0, (2, 3)))
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("accepted draft tokens per cycle")
        axes.grid(color="#eee")
        axes.set_axisbelow(True)
    whole.set_ylabel("score difference from exact decoding, points")
    whole.set_title("all points", fontsize=11)
    near.set_title(f"near exact decoding's score (dotted: {points(-margin)})", fontsize=11)
    _zoom(near, results, ZOOM * max(margin, 0.5))
    handles, labels = whole.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False, fontsize=10)
    scope = ", ".join(name.split("/")[-1].replace("_", " ") for name in results["pooled_over"])
    figure.suptitle(f"Score against accepted length, test items; mean over {scope}", fontsize=12)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")
    return True


def coordinates(results: dict[str, Any], index: int) -> tuple[float, float]:
    """Accepted length and score difference in points of one point."""
    pooled = results["points"][index]["test"]["pooled"]
    return pooled["accepted_per_cycle"]["estimate"], 100 * pooled["score_difference"]["estimate"]


def tested(results: dict[str, Any], members: Iterable[int]) -> list[int]:
    """Those of some points that were measured on the test items."""
    return [index for index in members if "test" in results["points"][index]]


def frontier(places: list[tuple[float, float]]) -> list[int]:
    """Which of some (length, score) have no longer one with a better score, by length."""
    order = sorted(range(len(places)), key=lambda index: (-places[index][0], -places[index][1]))
    best, kept = float("-inf"), []
    for index in order:
        if places[index][1] >= best:
            best = places[index][1]
            kept.append(index)
    return kept[::-1]


def _draw_curves(axes: Any, results: dict[str, Any]) -> None:
    settings = results["settings"]
    chosen = results["matched"][settings["criterion"]]
    methods = {name: tested(results, members) for name, members in results["methods"].items()}
    shown = [name for name, members in methods.items() if members not in ([0], [])]
    others = [name for name in shown if name != chosen["ours"]]
    axes.plot(*coordinates(results, 0), "s", color="black", markersize=8, label="exact", zorder=4)
    for name in sorted(shown, key=lambda name: name != chosen["ours"]):  # ours first, so that its thick line hides none
        members, ours = methods[name], name == chosen["ours"]
        number = 0 if ours else others.index(name)
        colour = OURS if ours else COLOURS[number % len(COLOURS)]
        marker = "*" if ours else MARKERS[number % (len(MARKERS) - 1)]
        places = [coordinates(results, index) for index in members]
        if settings["intervals"]:
            _draw_intervals(axes, results, members, colour)
        axes.plot(*zip(*places, strict=True), marker, color=colour, alpha=0.35, markersize=4, markeredgewidth=0)
        places.insert(0, coordinates(results, 0))  # any method can be turned off
        line = [places[at] for at in frontier(places)]
        size, width = (10.0, 4.0) if ours else (5.0, 1.2)
        axes.plot(*zip(*line, strict=True), color=colour, marker=marker, markersize=size, linewidth=width, label=name)
        entry = chosen["methods"][name]
        if not entry["none_matched"]:
            place = coordinates(results, entry["point"])
            axes.plot(*place, "o", markersize=14, markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.4)
    axes.plot(
        [], [], "o", markersize=12, markerfacecolor="none", markeredgecolor="#555", label="chosen at matched score"
    )


def _draw_intervals(axes: Any, results: dict[str, Any], members: list[int], colour: str) -> None:
    for index in members:
        pooled = results["points"][index]["test"]["pooled"]
        x, y = coordinates(results, index)
        length, score = pooled["accepted_per_cycle"], pooled["score_difference"]
        axes.errorbar(
            x,
            y,
            xerr=[[x - length["low"]], [length["high"] - x]],
            yerr=[[y - 100 * score["low"]], [100 * score["high"] - y]],
            color=colour,
            alpha=0.5,
            linewidth=0.8,
        )


def _zoom(axes: Any, results: dict[str, Any], depth: float) -> None:
    """Limits around the points that lose at most `depth` points."""
    places = [coordinates(results, index) for index in tested(results, range(len(results["points"])))]
    near = [place for place in places if place[1] >= -depth]
    xs, ys = zip(*near, strict=True)
    pad = max(0.05, 0.06 * (max(xs) - min(xs)))
    axes.set_xlim(min(xs) - pad, max(xs) + pad)
    axes.set_ylim(-depth, max(ys) + 0.15 * depth)
