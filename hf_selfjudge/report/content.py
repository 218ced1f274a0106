"""The report as one JSON document, made of what the stages found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..pipeline.calibrate import Calibration
from ..pipeline.fit import FitResult
from ..pipeline.records import Prompt, Response, Substitutions
from ..pipeline.training.metrics import auc
from .substitutions import Texts, frequent_substitutions

BINS = 60


def build_report(
    prompts: Sequence[Prompt],
    responses: Sequence[Response],
    substitutions: Substitutions,
    labels: Tensor,
    statistics: dict[str, Any],
    fit: FitResult,
    calibration: Calibration,
    tokenizer: Any,
    manifest: dict[str, Any],
    scores: Tensor | None = None,
    probability: Tensor | None = None,
) -> dict[str, Any]:
    """Everything the report shows.

    Args:
        prompts: all prompts.
        responses: the target's answers.
        substitutions: the scored substitutions.
        labels: 1 acceptable, 0 not, -1 undecided. (rows,)
        statistics: of the labels, as `Labels.statistics` has them.
        fit: the judge and those it was compared with.
        calibration: its operating points.
        tokenizer: the pair's.
        manifest: of the build: `models`, `packages`, `settings` and, in `stages`, rows and seconds of each.
        scores: the score the labels were made of; default: the longest N. (rows,)
        probability: P(acceptable) of each substitution, if it is known already. (rows,)
    """
    scores = substitutions.score(max(substitutions.lengths)) if scores is None else scores
    probability = fit.probability(substitutions) if probability is None else probability
    split_of = {prompt.prompt_id: prompt.split for prompt in prompts}
    splits = [split_of[prompt_id] for prompt_id in substitutions.prompt_ids.tolist()]
    held_out = torch.tensor([split == "calibration" for split in splits]) & (labels >= 0)
    training = torch.tensor([split == "train" for split in splits])
    theta = calibration.thresholds[calibration.default_threshold]
    rows = substitutions.select(held_out.nonzero()[:, 0])
    truth, accepted = labels[held_out] == 1, probability[held_out] > theta
    report = {
        "models": manifest.get("models", {}),
        "judge": {
            "features": list(fit.features),
            "feature_set": fit.winner["feature_set"],
            "model": fit.winner["model"],
            "threshold": calibration.default_threshold,
            "theta": theta,
        },
        "labels": {**statistics, "counts": _label_counts(labels)},
        "sources": _sources(prompts, responses, substitutions, labels, held_out, probability, theta),
        "scores": _histogram(scores[training], labels[training], statistics.get("tau")),
        "fit": fit.to_dict(),
        "paper": fit.paper,
        "calibration": calibration.to_dict(),
        "substitutions": {
            "rows": len(rows),
            **frequent_substitutions(rows, truth, accepted, Texts(tokenizer, responses)),
        },
        "stages": _stages(manifest.get("stages", {})),
        "settings": manifest.get("settings", {}),
        "packages": manifest.get("packages", {}),
        "notes": [*statistics.get("warnings", []), *fit.notes, *calibration.notes],
    }
    return plain(report)


def plain(value: Any) -> Any:
    """JSON values only: tuples become lists, and numbers that JSON does not know become null."""
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _label_counts(labels: Tensor) -> dict[str, int]:
    return {name: int((labels == value).sum()) for name, value in (("acceptable", 1), ("unacceptable", 0))} | {
        "undecided": int((labels < 0).sum()),
        "rows": len(labels),
    }


def _sources(
    prompts: Sequence[Prompt],
    responses: Sequence[Response],
    substitutions: Substitutions,
    labels: Tensor,
    held_out: Tensor,
    probability: Tensor,
    theta: float,
) -> list[dict[str, Any]]:
    """The label statistics of each source and of all, and how the judge does on their calibration rows."""
    names = list(dict.fromkeys(prompt.source for prompt in prompts))
    of_prompt = {prompt.prompt_id: names.index(prompt.source) for prompt in prompts}
    source = torch.tensor([of_prompt[prompt_id] for prompt_id in substitutions.prompt_ids.tolist()])
    answered = [(of_prompt[response.prompt_id], len(response.answer)) for response in responses]
    lines = []
    for index, name in [*enumerate(names), (-1, "all")]:
        own = (source == index) | (index < 0)
        decided, measured = own & (labels >= 0), own & held_out
        tokens = [count for at, count in answered if index in (at, -1)]
        truth, accepted = labels[measured] == 1, probability[measured] > theta
        lines.append(
            {
                "source": name,
                "prompts": sum(index in (at, -1) for at in of_prompt.values()),
                "responses": len(tokens),
                "tokens": sum(tokens),
                "mismatches": len(_positions(substitutions, own)),
                "substitutions": int(own.sum()),
                "labelled": int(decided.sum()),
                "acceptable": _share(labels[decided] == 1),
                "auc": auc(probability[measured], truth) if len(truth.unique()) == 2 else None,
                "accepted": _share(accepted),
                "wrong": _share(~truth[accepted]),
            }
        )
    return lines


def _positions(substitutions: Substitutions, rows: Tensor) -> Tensor:
    """Places with a mismatch: several substitutions of one place are one. (places, 2)"""
    return torch.stack([substitutions.prompt_ids[rows], substitutions.positions[rows]], dim=1).unique(dim=0)


def _share(mask: Tensor) -> float | None:
    return float(mask.double().mean()) if len(mask) else None


def _histogram(scores: Tensor, labels: Tensor, tau: float | None) -> dict[str, Any]:
    """Counts of training scores by label; the few far outside are counted in the outermost bins."""
    values = scores.double()
    low, high = (float(torch.quantile(values, share)) for share in (0.01, 0.999))
    if tau is not None:
        low, high = min(low, tau), max(high, tau)
    margin = 0.02 * max(high - low, 1e-3)
    edges = torch.linspace(low - margin, high + margin, BINS + 1, dtype=torch.float64)
    inside = values.clamp(float(edges[0]), float(edges[-1]))
    counts = {
        name: torch.histc(inside[labels == value], BINS, float(edges[0]), float(edges[-1])).long().tolist()
        for name, value in (("acceptable", 1), ("unacceptable", 0))
    }
    outside = int(((values < edges[0]) | (values > edges[-1])).sum())
    return {"tau": tau, "edges": edges.tolist(), **counts, "outside": outside}


def _stages(stages: dict[str, Any]) -> list[dict[str, Any]]:
    """Time of each stage, and how much it did in it."""
    found = []
    for name, entry in stages.items():
        seconds, rows = entry.get("seconds"), entry.get("rows")
        if seconds is not None:
            rate = rows / seconds if rows is not None and seconds > 0 else None
            found.append({"stage": name, "rows": rows, "seconds": seconds, "per_second": rate})
    return found
