"""How well probabilities order and match labels. Pure torch, shared by the stages that choose and that measure a judge.

The positive class is "acceptable" everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def auc(values: Tensor, labels: Tensor) -> float:
    """ROC-AUC of rows ordered by `values`; ties count half. (rows,), (rows,) bool -> NaN with one class only."""
    return float(weighted_auc(values, labels, torch.ones(1, len(values), dtype=torch.float64))[0])


def weighted_auc(values: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """ROC-AUC of the same rows under several weightings (a bootstrap's multiplicities). (draws, rows) -> (draws,)"""
    levels, level = values.cpu().unique(return_inverse=True)
    labels, weights = labels.cpu().bool(), weights.double()
    totals = torch.zeros(2, len(weights), len(levels), dtype=torch.float64)  # acceptable, unacceptable per level
    totals[0].index_add_(1, level, weights * labels)
    totals[1].index_add_(1, level, weights * ~labels)
    good, bad = totals
    below = bad.cumsum(1) - bad  # unacceptable weight ranked strictly lower
    return (good * (below + 0.5 * bad)).sum(1) / (good.sum(1) * bad.sum(1))


def auc_interval(
    values: Tensor, labels: Tensor, prompt_ids: Tensor, draws: int = 500, share: float = 0.95, seed: int = 0
) -> list[float] | None:
    """A bootstrap interval of the AUC that draws whole prompts: rows of one prompt are not independent."""
    prompts, owner = prompt_ids.cpu().unique(return_inverse=True)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for start in range(0, draws, 50):  # a few draws at a time: a draw holds one weight per row
        count = min(50, draws - start)
        drawn = torch.randint(len(prompts), (count, len(prompts)), generator=generator)
        times = torch.zeros(count, len(prompts), dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
        found.append(weighted_auc(values, labels, times[:, owner]))
    sample = torch.cat(found)
    sample = sample[sample.isfinite()]  # a draw without both classes has no AUC
    if not len(sample):
        return None
    tail = (1 - share) / 2
    return [float(value) for value in torch.quantile(sample, torch.tensor([tail, 1 - tail], dtype=torch.float64))]


def reliability(probability: Tensor, labels: Tensor, bins: int = 12) -> dict[str, Any]:
    """How often tokens of a predicted probability really are acceptable, in bins of equal width.

    `ece`, the expected calibration error, is the mean distance between both over all rows; `brier` the mean squared
    error of the probability.
    """
    values, truth = probability.cpu().double(), labels.cpu().double()
    at = (values * bins).long().clamp(0, bins - 1)
    counts, predicted, observed = (torch.zeros(bins, dtype=torch.float64) for _ in range(3))
    counts.index_add_(0, at, torch.ones_like(values))
    predicted.index_add_(0, at, values)
    observed.index_add_(0, at, truth)
    filled = counts > 0
    gap = (predicted - observed).abs()[filled].sum() / len(values)
    return {
        "bins": [
            {"from": index / bins, "to": (index + 1) / bins, "rows": int(counts[index]),
             "predicted": float(predicted[index] / counts[index]), "observed": float(observed[index] / counts[index])}
            for index in filled.nonzero()[:, 0].tolist()
        ],
        "ece": float(gap),
        "brier": float(((values - truth) ** 2).mean()),
    }  # fmt: skip
