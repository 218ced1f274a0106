"""The rows a judge is fitted on: which are decided, which division they are in, what stands in their columns.

Knows nothing of models of judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...config import VECTOR_FEATURES
from ..records import SPLITS, Substitutions
from ..settings import ROWS
from .judges import Examples
from .linear_models import Columns

TRAIN, VALIDATION, CALIBRATION = range(len(SPLITS))


@dataclass(frozen=True)
class Inputs:
    """What a judge reads of every row."""

    values: Tensor  # (rows, columns)
    originals: Tensor | None  # (rows, columns) of the target's own tokens, if these are trained on


@dataclass(frozen=True)
class LabelledRows:
    """The rows of a build, checked."""

    substitutions: Substitutions
    labels: Tensor  # (rows,) int8
    splits: Tensor  # (rows,) index into SPLITS; -1 for undecided rows, which nothing uses
    scores: Tensor  # (rows,)
    originals: Tensor | None  # (rows,) bool: the first row of each position; None without originals

    @classmethod
    def of(
        cls,
        substitutions: Substitutions,
        labels: Tensor,
        splits: Sequence[str] | Tensor,
        rows: str,
        scores: Tensor | None,
    ) -> LabelledRows:
        """Check and take the arguments of `fit`."""
        codes = splits if isinstance(splits, Tensor) else torch.tensor([_code(name) for name in splits])
        labels = labels.cpu().to(torch.int8)
        if not len(substitutions) == len(labels) == len(codes):
            raise ValueError(
                f"There are {len(substitutions)} substitutions, {len(labels)} labels and {len(codes)} splits, expected "
                "one label and one split for each substitution."
            )
        if rows not in ROWS:
            raise ValueError(f"rows is {rows!r}, expected one of {', '.join(ROWS)}.")
        _check_prompts(substitutions.prompt_ids, codes)
        codes = torch.where(labels >= 0, codes, -1)
        for split in (TRAIN, VALIDATION):
            _check_classes(labels[codes == split] == 1, SPLITS[split])
        if scores is None:
            scores = substitutions.score(max(substitutions.lengths))
        originals = None
        if rows == "with-originals":
            if not substitutions.original_features:
                raise ValueError("rows=with-originals needs the originals' features: score with originals=True.")
            originals = _first_of_each(substitutions.prompt_ids, substitutions.positions)
        return cls(substitutions, labels, codes, scores, originals)

    @property
    def hidden_size(self) -> int | None:
        """Width of the vector features, if any was kept."""
        known = [self.substitutions.features[name] for name in VECTOR_FEATURES if name in self.substitutions.features]
        return known[0].shape[1] if known else None

    def missing(self, features: Sequence[str]) -> list[str]:
        """The features that were not kept."""
        kept = set(self.substitutions.features)
        if self.originals is not None:
            kept &= set(self.substitutions.original_features)
        return [name for name in features if name not in kept]

    def division(self, number: int, seed: int) -> Tensor:
        """The given split, or for number > 0 another one of the same sizes; calibration prompts never move. (rows,)"""
        if number == 0:
            return self.splits
        prompt_ids, movable = self.substitutions.prompt_ids, (self.splits == TRAIN) | (self.splits == VALIDATION)
        prompts = prompt_ids[movable].unique()
        count = len(prompt_ids[self.splits == VALIDATION].unique())
        generator = torch.Generator().manual_seed(1000 * seed + number)
        chosen = prompts[torch.randperm(len(prompts), generator=generator)[:count]]
        moved = torch.isin(prompt_ids, chosen).long()  # TRAIN is 0, VALIDATION is 1
        return torch.where(movable, moved, self.splits)

    def inputs(self, features: Sequence[str]) -> Inputs:
        """The columns of these features."""
        values = self.substitutions.matrix(features)
        others = None if self.originals is None else self.substitutions.matrix(features, original=True)
        for found in (values, others):
            if found is not None and not torch.isfinite(found).all():
                at = int((~torch.isfinite(found)).any(0).nonzero()[0])
                raise ValueError(f"Column {at} of the features {list(features)} is NaN or infinite. Score again.")
        return Inputs(values, others)

    def examples(
        self, inputs: Inputs, splits: Tensor, labels: Tensor, balanced: bool, device: str | torch.device
    ) -> Examples:
        """Training and validation rows of one division, with labels (rows,) bool."""
        training, validation = splits == TRAIN, splits == VALIDATION
        values, truth, scores = inputs.values[training], labels[training], self.scores[training]
        if inputs.originals is not None and self.originals is not None:
            added = inputs.originals[training & self.originals]
            values = torch.cat([values, added])
            truth = torch.cat([truth, truth.new_ones(len(added))])
            scores = torch.cat([scores, scores.new_zeros(len(added))])  # s of the target's own token is 0
        return Examples(
            Columns.of(values, device), truth, scores, inputs.values[validation], labels[validation], balanced
        )


def _code(split: str) -> int:
    if split not in SPLITS:
        raise ValueError(f"A split is {split!r}, expected one of {', '.join(SPLITS)}.")
    return SPLITS.index(split)


def _check_prompts(prompt_ids: Tensor, codes: Tensor) -> None:
    """Refuse a prompt with rows in two splits: its rows are alike, so what is held out would have been seen."""
    order = torch.stack([prompt_ids.long(), codes.long()], dim=1).unique(dim=0)
    prompts, counts = order[:, 0].unique(return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"Prompt {int(prompts[counts > 1][0])} is in two splits, expected each prompt in one.")


def _check_classes(labels: Tensor, split: str) -> None:
    if not len(labels):
        raise ValueError(f"There are no decided {split} rows: give more prompts, or another share of {split} prompts.")
    if labels.all() or not labels.any():
        raise ValueError(
            f"The {len(labels)} {split} rows are all {'acceptable' if labels.all() else 'unacceptable'}: nothing to "
            "learn. Choose another tau, or give more prompts."
        )


def _first_of_each(prompt_ids: Tensor, positions: Tensor) -> Tensor:
    """The first row of each position: several substitutions there share one original. (rows,) bool"""
    first = torch.zeros(len(positions), dtype=torch.bool)
    seen: set[tuple[int, int]] = set()
    for row, key in enumerate(zip(prompt_ids.tolist(), positions.tolist(), strict=True)):
        first[row] = key not in seen
        seen.add(key)
    return first
