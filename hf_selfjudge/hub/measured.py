"""What comparisons measured with a judge: measured.json in its folder, and the section of its card made from it.

Knows the layout of `selfjudge compare`'s compare.json, not how it comes about.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import write_text
from .card_sections import code, plain, table

FILE = "measured.json"
MAX_BYTES = 1 << 24
WEIGHTS = "model.safetensors"
_FIGURES = ("accepted_per_cycle", "length_ratio", "tokens_per_target_forward", "score_difference")
_HEAD = ["rule", "accepted per cycle", "exact = 1", "tokens per target forward", "task score, points from exact"]
_HOW = (
    "Draft tokens accepted per cycle and task score, means over the tasks that have a score, against exact speculative "
    "decoding of the same items; brackets: 95 % paired bootstrap intervals. A rule `judge:NAME@T` accepts above "
    "theta = T, `&floor:P` also asks for a target probability of at least P, `+digits` never relaxes a digit. "
    "`generate` takes such a rule as `judge=`, with the folder or Hub id for NAME (and `tokenizer=` for `+digits`)."
)


def record(folder: Path, comparisons: Sequence[Path]) -> None:
    """Keep what some comparisons (compare.json) measured with the judge in `folder`, in its measured.json."""
    write_text(folder / FILE, json.dumps(gather(folder, comparisons), indent=1) + "\n")


def gather(folder: Path, comparisons: Sequence[Path]) -> dict[str, Any]:
    """What some comparisons (compare.json) measured with the judge in `folder`."""
    name = folder.resolve().name
    from ..evaluation.judges import weights_hash
    from ..judge import SelfJudgeVerifier

    weights = weights_hash(SelfJudgeVerifier.from_pretrained(folder))
    found = []
    for path in comparisons:
        try:
            results = json.loads(path.read_text(encoding="utf-8"))
            found.append(extract(results, name, weights))
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path} is not the compare.json of a finished comparison ({error!r}). Run `selfjudge compare` first."
            ) from None
    return {"weights": _weights(folder), "comparisons": found}


def extract(results: dict[str, Any], name: str, weights: str | None = None) -> dict[str, Any]:
    """The points of a comparison that ask the judge called `name`, exact decoding first, and its conditions.

    Args:
        results: compare.json.
        name: the judge's folder, without its path.
        weights: hash of its weights, which must be those that were compared, where the comparison tells.
    """
    folders = asks(results, name)
    if len(folders) != 1:
        known = ", ".join(results["judges"].values()) or "none"
        raise ValueError(f"The comparison has {len(folders)} judges named {name} ({known}), expected one.")
    if weights is not None and results.get("weights", {}).get(folders[0], weights) != weights:
        raise ValueError(
            f"The comparison asked another judge named {name}, with other weights than this one; compare this one."
        )
    asked = re.compile(rf"judge:{re.escape(folders[0])}(?=$|[@&|+])")
    bench, conditions = results["settings"]["bench"], results["conditions"]
    points = [
        {"rule": point["rule"], **_point(point["test"], results["pooled_over"])}
        for point in results["points"]
        if "test" in point and (point["rule"] == "exact" or asked.search(point["spec"]))
    ]
    return {
        **{key: bench[key] for key in ("gamma", "dtype", "max_new_tokens")},
        **{key: conditions[key] for key in ("hardware", "torch", "transformers")},
        "items": {
            task: found["count"] - (found.get("left_out") or 0) for task, found in conditions["items"]["test"].items()
        },
        "points": points,
    }


def asks(results: dict[str, Any], name: str) -> list[str]:
    """The folders of a comparison's judges called `name`."""
    return [folder for folder in results["judges"].values() if folder.rstrip("/").rsplit("/", 1)[-1] == name]


def section(folder: Path) -> str:
    """The card's section with its heading; empty where nothing was measured, or with other weights than these."""
    path = folder / FILE
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        return ""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["weights"] != _weights(folder) or not kept["comparisons"]:
            return ""
        return render(kept)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        return ""


def render(kept: dict[str, Any]) -> str:
    """The card's section of what was gathered."""
    return "\n\n".join(["## Measured", *(_comparison(found) for found in kept["comparisons"]), _HOW])


def rule_code(text: str) -> str:
    """A rule as code for a table: judges without their folder's path, long numbers with four digits."""
    short = re.sub(r"judge:[^@&|+]*/", "judge:", text)
    short = re.sub(r"\d+\.\d{5,}", _few_digits, short)
    return "\\|".join(code(part).strip("`") for part in short.split("|")).join("``")


def _few_digits(number: re.Match[str]) -> str:
    short = f"{float(number[0]):.4g}"
    return number[0] if short == "1" else short  # theta = 1 is exact decoding, 0.99999 is not


def _point(test: dict[str, Any], scored: Sequence[str]) -> dict[str, Any]:
    """A point's pooled figures, and the task on which it loses most."""
    losses = {task: test["tasks"][task]["score_difference"]["estimate"] for task in scored}
    worst = min(losses, key=lambda task: losses[task], default=None)
    return {
        **{name: test["pooled"][name] for name in _FIGURES},
        "worst": None if worst is None else {"task": worst, "score_difference": losses[worst]},
    }


def _comparison(found: dict[str, Any]) -> str:
    """One comparison: its conditions in a sentence, then a line per rule, the longest first."""
    points = sorted(found["points"], key=lambda point: -point["accepted_per_cycle"]["estimate"])
    rows = []
    for point in points:
        loss, worst = point["score_difference"], point["worst"]
        bounds = "-" if loss is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(
            *(100 * loss[key] for key in ("estimate", "low", "high"))
        )  # fmt: skip
        lengths = [point["accepted_per_cycle"]["estimate"], point["length_ratio"]["estimate"]]
        lengths.append(point["tokens_per_target_forward"])
        task = "-" if worst is None else f"{_task(worst['task'])} {100 * worst['score_difference']:+.2f}"
        rows.append([rule_code(point["rule"]), *(f"{length:.2f}" for length in lengths), bounds, task])
    items = ", ".join(f"{_task(task)} {count}" for task, count in found["items"].items())
    longest = f", at most {found['max_new_tokens']} new tokens" if found["max_new_tokens"] else ""
    versions = f"torch {plain(found['torch'])}, transformers {plain(found['transformers'])}"
    text = (
        f"Gamma {found['gamma']}, greedy{longest}, {plain(found['dtype'])}, {plain(found['hardware'])}, {versions}; "
        f"test items: {items}."
    )
    return f"{text}\n\n{table([*_HEAD, 'worst task'], rows)}"


def _task(name: str) -> str:
    return plain(name.rsplit("/", 1)[-1])


def _weights(folder: Path) -> str:
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
