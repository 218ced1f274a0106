"""What a rule is, and how rules combine.

A rule is a pure function of a `Block` giving a boolean mask (batch, gamma); it decides each position by itself, and
the caller stops at the first position nobody accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..features import Block


class Rule:
    """An acceptance rule. Subclasses implement `accept`; `a | b` and `a & b` combine rules."""

    needs_draft_logits: bool = False
    """Whether the rule reads the draft's distribution, so that it cannot work with prompt lookup."""
    by_place: bool = False
    """Whether the rule decides each place by itself, so that it can be asked about some places of a block only
    (`Block.at`); what a judge sees behind a place is there as well."""

    def accept(self, block: Block) -> Tensor:
        """Which drafted tokens the rule accepts. (batch, gamma) bool"""
        raise NotImplementedError

    def weigh(self, block: Block) -> tuple[Tensor, Tensor | None]:
        """The mask and, where the rule decides by one, the judge's P(acceptable) behind it. Both (batch, gamma)"""
        return self.accept(block), None

    def to(self, device: torch.device) -> Rule:
        """The rule with its tensors on `device`."""
        return self

    def __or__(self, other: Rule) -> Rule:
        return AnyOf((self, other))

    def __and__(self, other: Rule) -> Rule:
        return AllOf((self, other))


@dataclass(frozen=True)
class _Combination(Rule):
    """Several rules asked at once."""

    rules: tuple[Rule, ...]

    @property
    def needs_draft_logits(self) -> bool:  # type: ignore[override]
        """Whether any of the rules does."""
        return any(rule.needs_draft_logits for rule in self.rules)

    @property
    def by_place(self) -> bool:  # type: ignore[override]
        """Whether all of the rules do."""
        return all(rule.by_place for rule in self.rules)

    def accept(self, block: Block) -> Tensor:
        """The combined mask."""
        return self.weigh(block)[0]

    def weigh(self, block: Block) -> tuple[Tensor, Tensor | None]:
        """The combined mask, and the first probability any of the rules has."""
        weighed = [rule.weigh(block) for rule in self.rules]
        probability = next((found for _, found in weighed if found is not None), None)
        return reduce(self._join, (mask for mask, _ in weighed)), probability

    def _join(self, one: Tensor, other: Tensor) -> Tensor:
        raise NotImplementedError

    def to(self, device: torch.device) -> Rule:
        """Every rule on `device`."""
        return type(self)(tuple(rule.to(device) for rule in self.rules))


class AnyOf(_Combination):
    """Accepted by at least one of the rules."""

    def _join(self, one: Tensor, other: Tensor) -> Tensor:
        return one | other


class AllOf(_Combination):
    """Accepted by every one of the rules."""

    def _join(self, one: Tensor, other: Tensor) -> Tensor:
        return one & other


@dataclass(frozen=True, eq=False)
class NeverRelax(Rule):
    """A rule that keeps its hands off some tokens: neither the drafted token nor the one it would replace is listed."""

    rule: Rule
    token_ids: Tensor

    @property
    def needs_draft_logits(self) -> bool:  # type: ignore[override]
        """As the rule inside."""
        return self.rule.needs_draft_logits

    @property
    def by_place(self) -> bool:  # type: ignore[override]
        """As the rule inside."""
        return self.rule.by_place

    def accept(self, block: Block) -> Tensor:
        """The rule's mask without the protected tokens."""
        return self.weigh(block)[0]

    def weigh(self, block: Block) -> tuple[Tensor, Tensor | None]:
        """The rule's mask without the protected tokens, and its probability."""
        mask, probability = self.rule.weigh(block)
        replaced = torch.stack([block.draft_tokens, block.target_choice], dim=-1)  # (batch, gamma, 2)
        # torch.isin would wait for the device if many tokens are listed
        touched = (replaced.unsqueeze(-1) == self.token_ids).flatten(-2).any(-1)
        return mask & ~touched, probability

    def to(self, device: torch.device) -> Rule:
        """Rule and token ids on `device`."""
        return replace(self, rule=self.rule.to(device), token_ids=self.token_ids.to(device))


def require(ok: bool, name: str, found: Any, expected: str) -> None:
    """Refuse a rule's parameter with a message that says what was expected."""
    if not ok:
        raise ValueError(f"Rule parameter {name} is {found!r}, expected {expected}.")
