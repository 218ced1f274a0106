"""Stage 5: the judge's weights: logistic regression on labelled features, the paper's grid over C, scaler folded in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

C_GRID = tuple(10.0 ** (-3 + 5 * step / 9) for step in range(10))
"""Ten values from 1e-3 to 1e2, evenly spaced in the logarithm: the paper's grid."""


@dataclass(frozen=True)
class LinearFit:
    """A fitted logistic regression on raw features."""

    weight: Tensor  # (input_size,)
    bias: float
    c: float
    """The chosen inverse regularisation strength."""
    validation_auc: float

    def probability(self, features: Tensor) -> Tensor:
        """P(acceptable). (rows, input_size) -> (rows,)"""
        return torch.sigmoid(features.float() @ self.weight + self.bias)


def split_by_prompt(prompt_ids: Tensor, share: float, seed: int) -> Tensor:
    """A mask of the rows whose prompt falls into the held-out share; a prompt is never on both sides."""
    prompts = prompt_ids.unique()
    generator = torch.Generator().manual_seed(seed)
    held_out = prompts[torch.randperm(len(prompts), generator=generator)[: max(1, round(share * len(prompts)))]]
    return torch.isin(prompt_ids, held_out)


def fit(features: Tensor, labels: Tensor, held_out: Tensor, c_grid: tuple[float, ...] = C_GRID) -> LinearFit:
    """Fit one model per C on the rows not held out, and keep the one with the best ROC-AUC on those that are."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    for name, part in (("training", labels[~held_out]), ("validation", labels[held_out])):
        if part.all() or not part.any():
            raise ValueError(
                f"The {len(part)} {name} rows are all {'acceptable' if len(part) and part.all() else 'unacceptable'}: "
                "nothing to learn. Choose another tau, or give more prompts."
            )
    mean, std = features[~held_out].mean(0), features[~held_out].std(0)
    std[std == 0] = 1.0
    scaled = ((features - mean) / std).numpy()
    truth, train, test = labels.numpy(), (~held_out).numpy(), held_out.numpy()
    best: LinearFit | None = None
    for c in c_grid:
        model = LogisticRegression(C=c, max_iter=2000).fit(scaled[train], truth[train])
        auc = float(roc_auc_score(truth[test], model.decision_function(scaled[test])))
        if best is None or auc > best.validation_auc:
            weight = torch.from_numpy(model.coef_[0]).float() / std
            best = LinearFit(weight, float(model.intercept_[0] - (weight * mean).sum()), c, auc)
    if best is None:
        raise ValueError("c_grid is empty, expected at least one C.")
    return best
