"""Stage 7: the judge's operating points and how far its probabilities can be trusted, from the calibration prompts.

A token is accepted if its probability is strictly above theta, as in decoding. The positive class is "acceptable".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from .settings import CalibrateSettings
from .training.metrics import auc, auc_interval, reliability
from .training.risk import control_risk

CURVE_POINTS = 200
"""Most points kept of a curve."""


@dataclass(frozen=True)
class Calibration:
    """Named thresholds and what was measured on the calibration prompts. JSON values only."""

    thresholds: dict[str, float]
    """theta by name."""
    default_threshold: str
    points: list[dict[str, Any]]
    """For each threshold: theta, the paper's convention 1 - theta, the share of mismatches accepted, the precision and
    the recall of accepting, the recall of rejecting unacceptable ones, F1, the share of wrong ones among the accepted
    and, for a risk threshold, the bound of that share."""
    roc: dict[str, list[float]]
    """`unacceptable_accepted` (x) and `acceptable_accepted` (y) at each `theta`, from strict to permissive."""
    precision_recall: dict[str, list[float]]
    """`recall` (x) and `precision` (y) of accepting at each `theta`."""
    reliability: list[dict[str, float]]
    """Predicted and observed shares in bins of the probability."""
    ece: float
    """Expected calibration error: mean distance between predicted and observed share."""
    brier: float
    """Mean squared error of the probability."""
    auc: float
    auc_interval: list[float] | None
    """95 % interval by drawing whole prompts."""
    rows: int
    prompts: int
    acceptable: float
    """Share of acceptable rows."""
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> dict[str, Any]:
        """The figures without tables and curves."""
        names = ("auc", "auc_interval", "ece", "brier", "rows", "prompts", "acceptable")
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Calibration:
        """What `to_dict` gave."""
        return cls(**found)


def calibrate(
    probability: Tensor, labels: Tensor, prompt_ids: Tensor, settings: CalibrateSettings | None = None
) -> Calibration:
    """Choose operating points and measure the judge.

    - `f1`: the best F1 of the acceptable class (the paper's -F).
    - `recall`: the best precision of rejecting among thetas that reject at least the share `settings.recall` of the
      unacceptable (its -R).
    - `youden`: the largest difference between the shares of acceptable and of unacceptable tokens accepted.
    - `risk-x%`: the most permissive theta with at most x % wrong tokens among the accepted ones, with confidence
      1 - delta on new prompts (see `risk`); 1, accepting nothing, where these prompts cannot show that.

    Args:
        probability: P(acceptable) of the calibration rows. (rows,)
        labels: 1 acceptable, 0 not, -1 undecided (left out). (rows,)
        prompt_ids: the prompt of each. (rows,)
        settings: which operating points.
    """
    settings = settings or CalibrateSettings()
    probability, truth, prompt_ids = _checked(probability, labels, prompt_ids)
    table = _Outcomes.of(probability, truth)
    thresholds, bounds, notes = _best(table, settings.recall), dict[str, float](), list[str]()
    for risk in settings.risks:
        name = f"risk-{100 * risk:g}%"
        theta, bound = control_risk(probability, truth, prompt_ids, table.thetas, risk, settings.delta)
        thresholds[name] = theta
        if theta < 1.0:
            bounds[name] = bound
        elif bound > risk:
            notes.append(
                f"{name}: accepts nothing, because {len(prompt_ids.unique())} prompts could not show less than "
                f"{100 * bound:.2g} % even without any error"
            )
        else:
            notes.append(f"{name}: accepts nothing, because too many accepted tokens are wrong")
    if settings.default_threshold not in thresholds:
        raise ValueError(
            f"default_threshold is {settings.default_threshold!r}, expected one of {', '.join(thresholds)}."
        )
    trust = reliability(probability, truth)
    return Calibration(
        thresholds=thresholds,
        default_threshold=settings.default_threshold,
        points=[{"name": name, **table.at(theta), "bound": bounds.get(name)} for name, theta in thresholds.items()],
        **table.curves(),
        reliability=trust["bins"],
        ece=trust["ece"],
        brier=trust["brier"],
        auc=auc(probability, truth),
        auc_interval=auc_interval(probability, truth, prompt_ids),
        rows=len(truth),
        prompts=len(prompt_ids.unique()),
        acceptable=float(truth.double().mean()),
        notes=notes,
    )


@dataclass(frozen=True)
class _Outcomes:
    """What every theta that makes a difference accepts."""

    thetas: Tensor  # (thetas,) float32, ascending from 0 to 1
    good: Tensor  # (thetas,) acceptable rows accepted
    bad: Tensor  # (thetas,) unacceptable rows accepted
    all_good: float
    all_bad: float

    @classmethod
    def of(cls, probability: Tensor, truth: Tensor) -> _Outcomes:
        """Thetas half-way between neighbouring probabilities: rounding on another device moves no row across."""
        levels = probability.unique()
        middle = (levels[:-1] + levels[1:]) / 2
        middle = torch.where(middle < levels[1:], middle, levels[:-1])  # neighbouring floats have nothing in between
        thetas = torch.cat([torch.zeros(1), middle, torch.ones(1)]).unique()
        kept = [
            len(part) - torch.searchsorted(part.sort().values, thetas, right=True)
            for part in (probability[truth], probability[~truth])
        ]
        return cls(thetas, kept[0].double(), kept[1].double(), float(truth.sum()), float((~truth).sum()))

    @property
    def f1(self) -> Tensor:
        """Of the acceptable class. (thetas,)"""
        return 2 * self.good / (self.good + self.bad + self.all_good)

    def at(self, theta: float) -> dict[str, Any]:
        """One line of the table of operating points."""
        at = int(torch.searchsorted(self.thetas, theta, right=True)) - 1
        good, bad = float(self.good[at]), float(self.bad[at])
        accepted = good + bad
        return {
            "theta": theta,
            "paper_theta": 1 - theta,
            "accepted": accepted / (self.all_good + self.all_bad),
            "precision": good / accepted if accepted else None,
            "acceptable_accepted": good / self.all_good,
            "unacceptable_rejected": 1 - bad / self.all_bad,
            "f1": float(self.f1[at]),
            "wrong": bad / accepted if accepted else None,
        }

    def curves(self) -> dict[str, dict[str, list[float]]]:
        """Points of the ROC and the precision-recall curve, thinned evenly along the curve."""
        strict_first = [column.flip(0) for column in (self.thetas, self.good, self.bad)]
        theta, good, bad = strict_first
        along = (good / self.all_good + bad / self.all_bad) / 2  # 0 to 1
        keep = torch.searchsorted(along, torch.linspace(0, 1, CURVE_POINTS, dtype=torch.float64))
        keep = keep.clamp(max=len(along) - 1).unique()
        theta, good, bad = theta[keep], good[keep], bad[keep]
        some = good + bad > 0  # precision of nothing is not defined
        roc = {"theta": theta, "unacceptable_accepted": bad / self.all_bad, "acceptable_accepted": good / self.all_good}
        precision_recall = {
            "theta": theta[some],
            "recall": (good / self.all_good)[some],
            "precision": (good / (good + bad))[some],
        }
        return {
            "roc": {name: column.tolist() for name, column in roc.items()},
            "precision_recall": {name: column.tolist() for name, column in precision_recall.items()},
        }


def _best(table: _Outcomes, recall: float) -> dict[str, float]:
    """The thresholds that maximise something; of equals the strictest."""
    rejected_bad = table.all_bad - table.bad
    rejected = rejected_bad + table.all_good - table.good
    precision = rejected_bad / rejected.clamp(min=1)
    precision[rejected_bad / table.all_bad < recall] = -1.0  # theta = 1 rejects everything, so one always qualifies
    criteria = {
        "f1": table.f1,
        "recall": precision,
        "youden": table.good / table.all_good - table.bad / table.all_bad,
    }
    return {name: float(table.thetas[_last_maximum(values)]) for name, values in criteria.items()}


def _last_maximum(values: Tensor) -> int:
    return int((values == values.max()).nonzero()[-1])


def _checked(probability: Tensor, labels: Tensor, prompt_ids: Tensor) -> Sequence[Tensor]:
    """The decided rows: probability float32, truth bool, prompts."""
    if not len(probability) == len(labels) == len(prompt_ids):
        raise ValueError(
            f"There are {len(probability)} probabilities, {len(labels)} labels and {len(prompt_ids)} prompt ids, "
            "expected one of each per row."
        )
    probability, labels, prompt_ids = probability.float().cpu(), labels.cpu().to(torch.int8), prompt_ids.cpu()
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ValueError("Some probabilities are NaN or outside [0, 1]: train the judge again.")
    decided = labels >= 0
    truth = labels[decided] == 1
    if not len(truth) or truth.all() or not truth.any():
        raise ValueError(
            f"The {len(truth)} decided calibration rows are not of both classes: thresholds need acceptable and "
            "unacceptable ones. Give more prompts, or a larger share of calibration prompts."
        )
    return probability[decided], truth, prompt_ids[decided]
