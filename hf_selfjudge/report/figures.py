"""The report's figures, drawn from the report alone. Each as PNG, for light and for dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

# Okabe-Ito colours: distinct for colour-blind readers
BLUE, ORANGE, GREEN, RED, SKY, PINK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
GREY = "#8c8c8c"
MARKS = {"f1": ("o", ORANGE), "recall": ("s", GREEN), "youden": ("D", PINK)}
RISK_MARKS = ("^", "v", "<", ">", "P", "X")
LIGHT = {"page": "#ffffff", "ink": "#222222", "curve": BLUE}
DARK = {"page": "#1b1d21", "ink": "#e4e4e4", "curve": SKY}
Colours = dict[str, str]
Draw = Callable[[Any, dict[str, Any], Colours], None]
SIZE = (5.4, 3.9)


def draw_figures(report: dict[str, Any], dark: bool = False) -> dict[str, bytes]:
    """Every figure by name, as PNG; nothing where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return {}
    colours = DARK if dark else LIGHT
    style = {
        "font.size": 9.5,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "axes.facecolor": colours["page"],
        "figure.facecolor": colours["page"],
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), colours["ink"]
        ),
    }
    with matplotlib.rc_context(style):
        return {name: _png(draw, report, colours) for name, draw in FIGURES.items()}


def _png(draw: Draw, report: dict[str, Any], colours: Colours) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = len(report["fit"]["table"]) if draw is _features else 0
    figure = Figure(figsize=(SIZE[0], max(SIZE[1], 1.0 + 0.36 * lines)), layout="constrained", dpi=160)
    FigureCanvasAgg(figure)
    draw(figure.subplots(), report, colours)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _roc(axes: Any, report: dict[str, Any], colours: Colours) -> None:
    found = report["calibration"]
    curve = found["roc"]
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.plot(curve["unacceptable_accepted"], curve["acceptable_accepted"], color=colours["curve"], linewidth=2)
    _mark(axes, found, lambda point: (1 - point["unacceptable_rejected"], point["acceptable_accepted"]), colours["ink"])
    axes.set(
        title=f"ROC curve, AUC {found['auc']:.3f}",
        xlabel="unacceptable tokens accepted (share)",
        ylabel="acceptable tokens accepted (share)",
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.04),
    )
    axes.legend(loc="lower right")


def _precision_recall(axes: Any, report: dict[str, Any], colours: Colours) -> None:
    found = report["calibration"]
    curve = found["precision_recall"]
    axes.axhline(found["acceptable"], color=GREY, linewidth=1, linestyle=":")
    place = (0.7, found["acceptable"])
    axes.annotate(
        "accepting everything", place, (0, 3), textcoords="offset points", ha="center", fontsize=8, color=GREY
    )
    axes.plot(curve["recall"], curve["precision"], color=colours["curve"], linewidth=2)
    _mark(axes, found, lambda point: (point["acceptable_accepted"], point["precision"]), colours["ink"])
    axes.set(
        title="Precision and recall of accepting",
        xlabel="acceptable tokens accepted (recall)",
        ylabel="acceptable among accepted (precision)",
        xlim=(-0.02, 1.02),
        ylim=(0, 1.04),
    )
    axes.legend(loc="lower left")


def _mark(axes: Any, found: dict[str, Any], place: Callable[[dict[str, Any]], tuple[float, float]], ink: str) -> None:
    """The operating points that accept anything, on a curve."""
    risky = [point["name"] for point in found["points"] if point["name"] not in MARKS]
    for point in found["points"]:
        if not point["accepted"]:
            continue
        name = point["name"]
        marker, colour = MARKS.get(name) or (RISK_MARKS[risky.index(name) % len(RISK_MARKS)], RED)
        label = f"{name}  (\u03b8 {point['theta']:.3f})"
        x, y = place(point)
        axes.plot(x, y, marker, color=colour, markersize=8, markeredgecolor=ink, markeredgewidth=0.7, label=label)


def _scores(axes: Any, report: dict[str, Any], colours: Colours) -> None:
    found = report["scores"]
    edges = found["edges"]
    for name, colour in (("unacceptable", RED), ("acceptable", colours["curve"])):
        axes.stairs(found[name], edges, fill=True, color=colour, alpha=0.45)
        axes.stairs(found[name], edges, color=colour, linewidth=1.3, label=f"{name} ({sum(found[name]):,})")
    if found["tau"] is not None:
        axes.axvline(
            found["tau"], color=colours["ink"], linewidth=1.2, linestyle="--", label=f"\u03c4 = {found['tau']:.2f}"
        )
    axes.set(
        title="Scores of the training substitutions",
        xlabel="semantic preservation score s (nats)",
        ylabel="substitutions",
    )
    axes.legend(loc="upper left")


def _features(axes: Any, report: dict[str, Any], colours: Colours) -> None:
    """Validation AUC of each candidate: the bar is the mean over divisions, the points are the divisions."""
    fit = report["fit"]
    table = sorted(fit["table"], key=lambda entry: entry["mean"])
    several = len({entry["model"] for entry in table}) > 1
    names = []
    for place, entry in enumerate(table):
        chosen = entry == fit["winner"]
        axes.barh(place, entry["mean"], 0.62, color=ORANGE if chosen else SKY, alpha=1.0 if chosen else 0.75)
        known = [value for value in entry["auc"] if value is not None]
        axes.plot(known, [place] * len(known), "|", color=colours["ink"], markersize=9, markeredgewidth=1.2)
        best = max([entry["mean"], *known])
        axes.annotate(
            f"{entry['mean']:.3f}", (best, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5
        )
        names.append(entry["feature_set"].replace("+", " + ") + (f", {entry['model']}" if several else ""))
    values = [value for entry in table for value in [entry["mean"], *entry["auc"]] if value is not None]
    start = min(0.5, min(values) - 0.02)  # bars begin at chance
    axes.set(xlim=(start, max(values) + 0.14 * (max(values) - start)), yticks=range(len(table)))
    axes.set_yticklabels([_wrapped(name) for name in names], fontsize=8.5)
    axes.set(title="What the judge reads", xlabel="validation ROC-AUC on mismatches")
    axes.grid(visible=False, axis="y")


def _lengths(axes: Any, report: dict[str, Any], colours: Colours) -> None:
    """AUC per N, one line per way to score; lengths are evenly spaced because they are few and uneven."""
    found = report["fit"]["variants"]
    lengths = sorted({entry["length"] for entry in found})
    places = {length: place for place, length in enumerate(lengths)}
    shared = [entry for entry in found if entry["length"] == 0]
    looks = {
        ("likelihood", "sum"): (BLUE, "o", "-"),
        ("likelihood", "mean"): (SKY, "s", "--"),
        ("confidence", "sum"): (RED, "^", "-"),
        ("confidence", "mean"): (ORANGE, "v", "--"),
        ("rejoin", "sum"): (GREEN, "D", "-"),
    }
    for (suffix, reduction), (colour, marker, line) in looks.items():
        own = [entry for entry in found if (entry["suffix"], entry["reduction"]) == (suffix, reduction)]
        points = sorted({entry["length"]: entry["auc"] for entry in [*shared, *own]}.items())
        if points and own:
            x, y = [places[length] for length, _ in points], [value for _, value in points]
            name = suffix if suffix == "rejoin" else f"{suffix}, {reduction}"
            axes.plot(x, y, line, marker=marker, color=colour, linewidth=1.6, markersize=5.5, label=name)
    axes.set(
        title="Labels from other scores",
        xlabel="suffix length N (tokens)",
        ylabel="validation ROC-AUC",
        xticks=range(len(lengths)),
        xticklabels=lengths,
    )
    if found:
        axes.legend(loc="best")
    axes.margins(x=0.08, y=0.12)


def _reliability(axes: Any, report: dict[str, Any], colours: Colours) -> None:
    found = report["calibration"]
    bins = found["reliability"]
    rows = sum(entry["rows"] for entry in bins)
    for entry in bins:
        axes.bar(
            (entry["from"] + entry["to"]) / 2, entry["rows"] / rows, (entry["to"] - entry["from"]) * 0.92, color=GREY,
            alpha=0.3,
        )  # fmt: skip
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.plot(
        [entry["predicted"] for entry in bins],
        [entry["observed"] for entry in bins],
        "-o",
        color=colours["curve"],
        markersize=5,
    )
    axes.annotate("bars: share of tokens", (0.02, 0.95), xycoords="axes fraction", fontsize=8, color=GREY)
    axes.set(
        title=f"Reliability, ECE {found['ece']:.3f}",
        xlabel="predicted P(acceptable)",
        ylabel="observed share acceptable",
        xlim=(0, 1),
        ylim=(0, 1.02),
    )


def _wrapped(name: str, width: int = 22) -> str:
    """A long name in several lines, broken at spaces."""
    lines = [""]
    for word in name.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


FIGURES: dict[str, Draw] = {
    "roc": _roc,
    "precision_recall": _precision_recall,
    "scores": _scores,
    "features": _features,
    "lengths": _lengths,
    "reliability": _reliability,
}
