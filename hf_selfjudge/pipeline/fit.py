"""Stage 6: the judge's weights. Judges that read different features are trained and the best on validation is kept.

AUC is always that of mismatches only: how well a judge orders the draft's substitutions by whether they are acceptable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..config import AHEAD_FEATURES, FEATURES, SCALAR_FEATURES
from ..judge import SelfJudgeVerifier
from .records import Substitutions
from .settings import FitSettings
from .training.comparison import Candidate, compare, variants, verifier
from .training.labelled_rows import LabelledRows
from .training.linear_models import C_GRID

GROUPS = {
    "paper": ("hidden",),
    "previous": ("previous_hidden",),
    "next": ("next_hidden",),
    "scalars": SCALAR_FEATURES,
    "ahead": AHEAD_FEATURES,
}
"""Short names for features in a feature set; every feature is also known by its own name."""


@dataclass(frozen=True)
class FitResult:
    """The best judge and how the others did."""

    features: tuple[str, ...]
    """What it reads, in the order of the weight's columns."""
    hidden_units: tuple[int, ...]
    """Widths of its hidden layers; empty for a linear judge."""
    state: dict[str, Tensor]
    """Its weights, as `SelfJudgeVerifier` loads them."""
    hidden_size: int | None
    """Width of the target's hidden state; None if no feature with it was kept."""
    winner: dict[str, Any]
    """Its entry in the table."""
    table: list[dict[str, Any]]
    """One entry per feature set and model: C, validation AUC per seed with mean and sd, AUC on the calibration split,
    on which nothing was chosen, rows and columns."""
    variants: list[dict[str, Any]] = field(default_factory=list)
    """How well the winner's features predict the labels of other scores: every N, suffix and reduction."""
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""

    @property
    def paper(self) -> dict[str, Any] | None:
        """The entry of the paper's judge (logistic regression on the hidden state), if it was compared."""
        found = [entry for entry in self.table if entry["features"] == ["hidden"] and entry["model"] == "logistic"]
        return found[0] if found else None

    def judge(self, hidden_size: int | None = None, **config: Any) -> SelfJudgeVerifier:
        """The judge; `config` are further fields of `JudgeConfig`, such as thresholds, target and draft."""
        size = hidden_size or self.hidden_size
        if size is None:
            raise ValueError("No feature of the target's width was kept: give its hidden_size to judge().")
        return verifier(self.features, self.hidden_units, self.state, size, **config)

    def probability(self, substitutions: Substitutions) -> Tensor:
        """P(acceptable) of every row, as the judge computes it in decoding. (rows,) float32"""
        judge = verifier(self.features, self.hidden_units, self.state, self.hidden_size or 1)
        return judge.probability(substitutions.matrix(self.features))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the weights, as JSON values."""
        return {
            "features": list(self.features),
            "hidden_units": list(self.hidden_units),
            "hidden_size": self.hidden_size,
            "winner": self.winner,
            "table": self.table,
            "variants": self.variants,
            "notes": self.notes,
        }

    @classmethod
    def from_dict(cls, found: dict[str, Any], state: dict[str, Tensor]) -> FitResult:
        """What `to_dict` gave, with the weights."""
        tuples = {name: tuple(found[name]) for name in ("features", "hidden_units")}
        return cls(**{**found, **tuples}, state=state)


def fit(
    substitutions: Substitutions,
    labels: Tensor,
    splits: Sequence[str] | Tensor,
    settings: FitSettings | None = None,
    rows: str = "mismatch",
    seed: int = 0,
    scores: Tensor | None = None,
    device: str | torch.device = "cpu",
) -> FitResult:
    """Train every model on every feature set and keep the one with the best mean validation AUC.

    A logistic regression is kept where it is within half a standard deviation of the best: it is simpler.

    Args:
        substitutions: the scored substitutions with their features.
        labels: 1 acceptable, 0 not, -1 undecided (left out). (rows,)
        splits: of every row, "train", "validation" or "calibration", or its index in that list. (rows,)
        settings: what to compare.
        rows: "with-originals" also trains on the target's own tokens, as acceptable.
        seed: of the MLP and of the further divisions. The first division is the given one; for the spread of AUC the
            prompts of training and validation are divided anew, `settings.seeds` divisions in all.
        scores: the score that the labels were made of, for models that learn it; default: the longest N.
        device: where to compute.
    """
    settings = settings or FitSettings()
    device = "cpu" if torch.device(device).type == "mps" else device  # there is no float64 on mps
    data = LabelledRows.of(substitutions, labels, splits, rows, scores)
    notes: list[str] = []
    candidates: list[Candidate] = []
    for name in dict.fromkeys(settings.feature_sets):
        features = expand(name)
        missing = data.missing(features)
        if missing:
            notes.append(f"{name}: left out, {', '.join(missing)} not kept when scoring")
        else:
            candidates += compare(data, name, features, settings, seed, device)
    if not candidates:
        raise ValueError(f"No feature set can be fitted: {'; '.join(notes)}. Score with more features.")
    table = [candidate.entry() for candidate in candidates]
    notes += [f"{entry['feature_set']}: {entry['model']} did not converge" for entry in table if not entry["converged"]]
    winner = choose(table)
    best = candidates[table.index(winner)]
    return FitResult(
        features=best.features,
        hidden_units=(settings.hidden_units,) if best.model == "mlp" else (),
        state=best.trained.state,
        hidden_size=data.hidden_size,
        winner=winner,
        table=table,
        variants=variants(data, best.features, _linear_c(table, winner), device),
        notes=notes,
    )


def fit_one(
    substitutions: Substitutions,
    labels: Tensor,
    splits: Sequence[str] | Tensor,
    feature_set: str = "paper",
    model: str = "logistic",
    settings: FitSettings | None = None,
    **arguments: Any,
) -> FitResult:
    """The judge of one feature set and one model, whatever the others would do; arguments as of `fit`."""
    settings = replace(settings or FitSettings(), feature_sets=(feature_set,), models=(model,))
    return fit(substitutions, labels, splits, settings, **arguments)


def expand(feature_set: str) -> tuple[str, ...]:
    """The features of a set written as names joined by "+": groups (see `GROUPS`) or single features."""
    names: list[str] = []
    for part in feature_set.split("+"):
        if part not in GROUPS and part not in FEATURES:
            raise ValueError(
                f"Unknown feature {part!r} in {feature_set!r}; join names out of {sorted(GROUPS)} and {list(FEATURES)}."
            )
        names += GROUPS.get(part, (part,))
    return tuple(dict.fromkeys(names))


def choose(table: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The entry with the best mean AUC, or the best logistic regression if half a standard deviation decides."""
    ranked = sorted(table, key=lambda entry: (-entry["mean"], entry["columns"]))
    best = ranked[0]
    near = [entry for entry in ranked if entry["mean"] >= best["mean"] - 0.5 * best["sd"]]
    return next((entry for entry in near if entry["model"] == "logistic"), best)


def _linear_c(table: Sequence[dict[str, Any]], winner: dict[str, Any]) -> float:
    """The C of a logistic regression on the winner's features, or the middle of the grid where none was fitted."""
    same = [entry["c"] for entry in table if entry["features"] == winner["features"] and entry["model"] == "logistic"]
    return same[0] if same else C_GRID[len(C_GRID) // 2]
