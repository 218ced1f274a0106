"""How far a measure of factual consistency can be trusted: real highlights against ones that cannot be right.

Two kinds of wrong ones: highlights of another article (any measure should see that), and highlights with one number or
name replaced by another (the kind of slip that matters). Deterministic by the seed.
"""

from __future__ import annotations

import json
import random
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from .data import documents
from .factual_consistency import consistencies

Row = tuple[str, str]
"""Article and highlights."""
_NUMBER = re.compile(r"(?<![\w.,])\d[\d,.]*\d|(?<![\w.,])\d\b")
_NAME = re.compile(r"\b[A-Z][a-z]{2,}(?:[ -][A-Z][a-z]{2,})*\b")
_STARTS = re.compile(r"(?:^|[.!?:]\s+|\n\s*|[\"'\u201c]\s*)$")
_DATES = frozenset(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August "  # noqa: SIM905
    "September October November December".split()
)
RESAMPLES = 1000


def read_rows(file: str, count: int | None, seed: int) -> list[Row]:
    """Articles and their highlights from a file, in an order that the seed decides."""
    source = {
        "name": "cnn_dailymail",
        "prompt": "article",
        "reference": '{"article": article, "highlights": highlights}',
    }
    if count is not None and count < 2:
        raise ValueError(f"count is {count}, expected at least 2: highlights of another article are needed.")
    references = [json.loads(row["reference"]) for row in documents(source, data_files=file)]
    random.Random(seed).shuffle(references)
    if len(references) < max(2, count or 0):
        raise ValueError(
            f"{file} has {len(references)} rows, expected at least {max(2, count or 0)}; give a smaller --count."
        )
    return [(found["article"], found["highlights"]) for found in references[:count]]


def check(rows: Sequence[Row], model: str, seed: int = 0) -> dict[str, Any]:
    """AUC of real highlights against wrong ones, with 95 % intervals over articles; JSON values.

    Args:
        rows: articles and highlights.
        model: as in `factual_consistency.consistencies`.
        seed: decides what is replaced.
    """
    begun = time.perf_counter()
    others = [(article, rows[(at + 1) % len(rows)][1]) for at, (article, _) in enumerate(rows)]
    changes = [replace_one(rows, at, seed) for at in range(len(rows))]
    changed = {at: (rows[at][0], text) for at, text in enumerate(changes) if text is not None}
    # one call, so that batches are full
    found = consistencies([*rows, *others, *changed.values()], model)
    values = [one.by_probability for one in found]
    real, other, slipped = values[: len(rows)], values[len(rows) : 2 * len(rows)], values[2 * len(rows) :]
    return {
        "command": "selfjudge fc-check",
        "nli_model": model,
        "rows": len(rows),
        "real": _summary(real),
        "other_article": {**_summary(other), **_compared([*zip(real, other, strict=True)], seed)},
        "one_replaced": {
            **_summary(slipped),
            **_compared([(real[at], value) for at, value in zip(changed, slipped, strict=True)], seed),
        },
        "examples": [{"highlights": rows[at][1], "replaced": text} for at, (_, text) in list(changed.items())[:3]],
        "seconds": round(time.perf_counter() - begun, 1),
    }


def replace_one(rows: Sequence[Row], at: int, seed: int) -> str | None:
    """The highlights of one row with one number or name replaced by another one of the same kind.

    The new one comes from the article itself, else from the next articles; None where nothing can be replaced.
    """
    rng = random.Random(f"{seed} {at}")
    article, highlights = rows[at]
    places = [(kind, match) for kind in (numbers, names) for match in kind(highlights)]
    rng.shuffle(places)
    for kind, match in places:
        for distance in range(min(3, len(rows))):
            source = rows[(at + distance) % len(rows)][0]
            known = sorted({found[0] for found in kind(source)})
            fit = [text for text in known if not _alike(text, match[0]) and text not in highlights]
            if distance:
                fit = [text for text in fit if text not in article]
            if fit:
                return highlights[: match.start()] + rng.choice(fit) + highlights[match.end() :]
    return None


def numbers(text: str) -> list[re.Match[str]]:
    """Numbers in digits."""
    return list(_NUMBER.finditer(text))


def names(text: str) -> list[re.Match[str]]:
    """Capitalised words in a row, no dates; not where only the beginning of a sentence explains the capital."""
    found = []
    for match in _NAME.finditer(text):
        first = bool(_STARTS.search(text[: match.start()]))
        if match[0] not in _DATES and (not first or " " in match[0]):
            found.append(match)
    return found


def auc(real: Sequence[float], wrong: Sequence[float]) -> float:
    """How often a real one has the larger value than a wrong one; ties count half."""
    ordered = sorted(wrong)
    below = sum(bisect_left(ordered, value) + bisect_right(ordered, value) for value in real)
    return below / (2 * len(real) * len(wrong))


def in_words(found: dict[str, Any]) -> str:
    """The check in a few lines."""
    lines = [f"{found['nli_model']} on {found['rows']} articles, real highlights: {_said(found['real'])}"]
    for key, name in (("other_article", "of another article"), ("one_replaced", "one number or name replaced")):
        one = found[key]
        if not one["items"]:
            lines.append(f"{name}: nothing could be replaced")
            continue
        lines.append(
            f"{name} ({one['items']}): AUC {one['auc']:.3f} [{one['low']:.3f}, {one['high']:.3f}], lower than the same "
            f"article's real ones {100 * one['paired']:.1f} %, {_said(one)}"
        )
    return "\n".join(lines)


def _said(one: dict[str, Any]) -> str:
    return f"mean {one['mean']:+.3f}, supported {100 * one['supported']:.1f} %"


def _alike(a: str, b: str) -> bool:
    """Whether two numbers or names may mean the same: one is in the other."""
    a, b = (text.lower().replace(",", "") for text in (a, b))
    return a in b or b in a


def _summary(values: Sequence[float]) -> dict[str, Any]:
    """How many, their mean, and how many of them are called supported."""
    if not values:
        return {"items": 0}
    return {
        "items": len(values),
        "mean": round(fmean(values), 6),
        "supported": round(fmean(value > 0 for value in values), 6),
    }


def _compared(pairs: Sequence[tuple[float, float]], seed: int) -> dict[str, float]:
    """AUC of (real, wrong) over all pairs of articles with its interval, and within articles."""
    if not pairs:
        return {}
    real, wrong = zip(*pairs, strict=True)
    rng = random.Random(seed)
    sample = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(pairs, k=len(pairs))
        sample.append(auc([one for one, _ in drawn], [other for _, other in drawn]))
    sample.sort()
    return {
        "auc": round(auc(real, wrong), 6),
        "low": round(sample[int(0.025 * RESAMPLES)], 6),
        "high": round(sample[int(0.975 * RESAMPLES) - 1], 6),
        "paired": round(fmean((a > b) + 0.5 * (a == b) for a, b in pairs), 6),
    }
