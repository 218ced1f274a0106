"""Acceptance rules by name, and everything `judge=` may be.

The learned rule and the training-free ones share one interface (`base.Rule`), so that every engine runs all of them and
comparisons are fair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from ..judge import SelfJudgeVerifier
from .base import AllOf, AnyOf, NeverRelax, Rule
from .learned import JudgeRule
from .training_free import (
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

RULES: dict[str, tuple[Callable[..., Rule], tuple[Callable[[str], Any], ...]]] = {
    "exact": (ExactMatch, ()),
    "rejection": (RejectionSampling, ()),
    "topk": (TopK, (int,)),
    "floor": (ProbabilityFloor, (float,)),
    "margin": (Margin, (float, int)),
    "typical": (Typical, (float, float)),
    "kl": (KLThreshold, (float,)),
    "reverse-kl": (partial(KLThreshold, reverse=True), (float,)),
    "ensemble": (Ensemble, (float,)),
    "fly": (FLy, (float, int, int)),
}
"""Rules by the name used in specs and on the command line, with the types of their numbers."""


def parse_rule(spec: str) -> Rule:
    """A rule from its spec: a name and its numbers, such as "topk:2", "ensemble:0.7" or "fly:0.3:5"."""
    name, *numbers = spec.split(":")
    if name not in RULES:
        raise ValueError(f"Unknown rule {spec!r}; expected one of {sorted(RULES)}, with numbers behind it ('topk:2').")
    rule, types = RULES[name]
    if len(numbers) > len(types):
        raise ValueError(f"Rule {spec!r} has {len(numbers)} numbers, but {name} takes at most {len(types)}.")
    try:
        values = [cast(number) for cast, number in zip(types, numbers, strict=False)]
    except ValueError:
        raise ValueError(f"Rule {spec!r}: {numbers} are not the numbers that {name} takes.") from None
    return rule(*values)


def as_rule(judge: SelfJudgeVerifier | Rule | str) -> Rule:
    """What `judge=` accepts, as a rule: a judge, a rule, a spec such as "topk:2", or a judge's folder or Hub id."""
    if isinstance(judge, Rule):
        return judge
    if isinstance(judge, SelfJudgeVerifier):
        return JudgeRule(judge)
    if isinstance(judge, str):
        is_spec = ":" in judge or judge in RULES
        return parse_rule(judge) if is_spec else JudgeRule(SelfJudgeVerifier.from_pretrained(judge))
    raise TypeError(
        f"judge= got {type(judge).__name__}; expected a SelfJudgeVerifier, a rule of hf_selfjudge.rules, a rule's spec "
        "such as 'topk:2', or a judge's folder or Hub id."
    )


def never_relax(
    judge: SelfJudgeVerifier | Rule | str,
    tokens: Iterable[int] | Callable[[str], bool] | str,
    tokenizer: Any = None,
) -> NeverRelax:
    """A judge or rule that never relaxes the given tokens.

    Args:
        judge: what to restrict.
        tokens: token ids, a predicate on a token's text, or one of "digits" and "special".
        tokenizer: needed for a predicate or a name.
    """
    if isinstance(tokens, str) or callable(tokens):
        if tokenizer is None:
            raise ValueError(
                "never_relax needs tokenizer= to find tokens by a predicate or by name; or pass token ids."
            )
        ids = tokens_where(tokens, tokenizer)
    else:
        ids = [int(token) for token in tokens]
    return NeverRelax(as_rule(judge), torch.tensor(sorted(ids), dtype=torch.long))


def tokens_where(tokens: Callable[[str], bool] | str, tokenizer: Any) -> list[int]:
    """Ids of the tokens whose text satisfies a predicate, or of a named kind."""
    if tokens == "special":
        return [int(token) for token in tokenizer.all_special_ids]
    if tokens == "digits":
        tokens = _has_digit
    if isinstance(tokens, str):
        raise ValueError(f"never_relax knows no tokens named {tokens!r}; expected 'digits' or 'special'.")
    size = len(tokenizer)
    texts = tokenizer.batch_decode([[token] for token in range(size)])
    return [token for token, text in enumerate(texts) if tokens(text)]


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


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
    "never_relax",
    "parse_rule",
    "tokens_where",
]
