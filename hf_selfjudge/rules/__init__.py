"""Acceptance rules: what they are (`base`), the learned one and the training-free ones, and rules as text (`spec`).

All of them share one interface (`base.Rule`), so that every engine runs all of them and comparisons are fair.
"""

from __future__ import annotations

from .base import AllOf, AnyOf, NeverRelax, Rule
from .learned import JudgeRule
from .spec import as_rule, is_spec, never_relax, parse_rule, tokens_where
from .training_free import (
    RULES,
    Ensemble,
    ExactMatch,
    FLy,
    KLThreshold,
    Margin,
    ProbabilityFloor,
    RejectionSampling,
    TopK,
    Typical,
)

__all__ = [
    "RULES",
    "AllOf",
    "AnyOf",
    "Ensemble",
    "ExactMatch",
    "FLy",
    "JudgeRule",
    "KLThreshold",
    "Margin",
    "NeverRelax",
    "ProbabilityFloor",
    "RejectionSampling",
    "Rule",
    "TopK",
    "Typical",
    "as_rule",
    "is_spec",
    "never_relax",
    "parse_rule",
    "tokens_where",
]
