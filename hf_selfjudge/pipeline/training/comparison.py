"""Judges of different features and models on the same rows and divisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...config import JudgeConfig
from ...judge import SelfJudgeVerifier
from ..settings import FitSettings
from .judges import Trained, train
from .labelled_rows import CALIBRATION, TRAIN, VALIDATION, LabelledRows
from .linear_models import C_GRID
from .metrics import auc


def verifier(
    features: Sequence[str], hidden_units: Sequence[int], state: dict[str, Tensor], hidden_size: int, **config: Any
) -> SelfJudgeVerifier:
    """The judge of these weights."""
    judge = SelfJudgeVerifier(JudgeConfig(hidden_size, tuple(features), tuple(hidden_units), **config))
    judge.load_state_dict(state)
    return judge.eval()


@dataclass
class Candidate:
    """One model on one feature set: the judge of the given division, and its AUC in every division."""

    feature_set: str
    features: tuple[str, ...]
    model: str
    trained: Trained
    calibration_auc: float | None
    rows: int
    """Training rows."""
    columns: int
    auc: list[float | None] = field(default_factory=list)
    """On the validation rows of each division; None where these are of one class."""

    def entry(self) -> dict[str, Any]:
        """Its line in the table of all candidates."""
        known = torch.tensor([value for value in self.auc if value is not None], dtype=torch.float64)
        return {
            "feature_set": self.feature_set,
            "features": list(self.features),
            "model": self.model,
            "c": self.trained.c,
            "auc": self.auc,
            "mean": float(known.mean()),
            "sd": float(known.std()) if len(known) > 1 else 0.0,
            "calibration_auc": self.calibration_auc,
            "rows": self.rows,
            "columns": self.columns,
            "converged": self.trained.converged,
        }


def compare(
    rows: LabelledRows,
    feature_set: str,
    features: tuple[str, ...],
    settings: FitSettings,
    seed: int,
    device: str | torch.device,
) -> list[Candidate]:
    """Every model on one feature set, for each division; C is chosen on the given one and kept for the others."""
    inputs = rows.inputs(features)
    values, labels = inputs.values, rows.labels == 1
    found: dict[str, Candidate] = {}
    for number in range(settings.seeds):
        splits = rows.division(number, seed)
        if any(len(labels[splits == part].unique()) < 2 for part in (TRAIN, VALIDATION)):
            for candidate in found.values():
                candidate.auc.append(None)
            continue
        examples = rows.examples(inputs, splits, labels, settings.balanced, device)
        for model in settings.models:
            chosen = found[model].trained.c if model in found else None
            grid = C_GRID if chosen is None else (chosen,)
            trained = train(model, examples, grid, settings.hidden_units, 1000 * seed + number)
            units = (settings.hidden_units,) if model == "mlp" else ()
            judge = verifier(features, units, trained.state, rows.hidden_size or 1)
            if number == 0:
                held_out = _auc(judge, values, labels, splits == CALIBRATION)
                found[model] = Candidate(
                    feature_set, features, model, trained, held_out, len(examples.labels), values.shape[1]
                )
            found[model].auc.append(_auc(judge, values, labels, splits == VALIDATION))
    return list(found.values())


def variants(rows: LabelledRows, features: Sequence[str], c: float, device: str | torch.device) -> list[dict[str, Any]]:
    """How well features predict the labels of each N, suffix and reduction at the same share of acceptable rows.

    One logistic regression each; `agreement` is the share of rows that have the same label as in the build.
    """
    inputs = rows.inputs(features)
    labels, training = rows.labels == 1, rows.splits == TRAIN
    share = float(labels[training].double().mean())
    examples = rows.examples(inputs, rows.splits, labels, False, device)
    added = examples.labels[int(training.sum()) :]  # the originals' labels do not change
    validation = rows.splits == VALIDATION
    found = []
    for variant in rows.substitutions.variants:
        scores = rows.substitutions.score(*variant).double()
        other = scores > torch.quantile(scores[training], 1 - share)
        if any(len(other[part].unique()) < 2 for part in (training, validation)):
            continue
        truth = torch.cat([other[training], added])
        trained = train("logistic", replace(examples, labels=truth, validation_labels=other[validation]), (c,))
        judge = verifier(features, (), trained.state, rows.hidden_size or 1)
        found.append(
            {
                **dict(zip(("length", "suffix", "reduction"), variant, strict=True)),
                "auc": _auc(judge, inputs.values, other, validation),
                "agreement": float((other == labels)[rows.splits >= 0].double().mean()),
            }
        )
    return found


def _auc(judge: SelfJudgeVerifier, values: Tensor, labels: Tensor, rows: Tensor) -> float | None:
    """The judge's AUC on some rows, from the probabilities that decoding would see; None with one class only."""
    if len(labels[rows].unique()) < 2:
        return None
    return auc(judge.probability(values[rows]), labels[rows])
