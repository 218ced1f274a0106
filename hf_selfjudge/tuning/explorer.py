"""A rule that accepts at random where another rule would accept, and writes down every such decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..config import AHEAD_FEATURES, SCALAR_FEATURES
from ..features import Block, judge_features
from ..judge import SelfJudgeVerifier
from ..rules import Rule
from ..verification import ask_at_mismatches

SCALARS = SCALAR_FEATURES + AHEAD_FEATURES
"""What is written down of a decision beside the judges' opinions."""


@dataclass(frozen=True)
class Decisions:
    """Tokens that only chance kept or refused, in the order of decoding."""

    sequences: Tensor  # (decisions,) which answer
    taken: Tensor  # (decisions,) bool: accepted
    gains: Tensor  # (decisions,) how many tokens of the block were kept behind it; 0 where it was refused
    inputs: Tensor  # (decisions, judges + scalars): the judges' log-odds, then SCALARS

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The columns by name."""
        return {known.name: getattr(self, known.name) for known in fields(self)}

    @classmethod
    def read(cls, column: Callable[[str], Tensor]) -> Decisions:
        """Decisions from what gives a column by its name."""
        return cls(**{known.name: column(known.name) for known in fields(cls)})

    @classmethod
    def join(cls, parts: Sequence[Decisions]) -> Decisions:
        """All decisions of several tables."""
        return cls.read(lambda name: torch.cat([getattr(part, name) for part in parts]))

    def select(self, rows: Tensor) -> Decisions:
        """Some of the decisions. (decisions,) bool"""
        return Decisions.read(lambda name: getattr(self, name)[rows])

    def __len__(self) -> int:
        return len(self.taken)


class Explorer(Rule):
    """Accepts a share of what `rule` accepts, by lot.

    Two-stage verification asks it about every drafted token, but a block ends at the first one that nobody accepts:
    only mismatches up to there are decisions.
    """

    needs_draft_logits = True

    def __init__(self, rule: Rule, judges: Sequence[SelfJudgeVerifier], share: float, seed: int) -> None:
        self._rule, self._judges, self._share, self._seed = rule, list(judges), share, seed
        self._generator: torch.Generator | None = None
        self._calls: list[tuple[Sequence[int] | None, list[Decisions]]] = [(None, [])]

    def begin(self, items: Sequence[int]) -> None:
        """From now on the rows of blocks are these items; those of the last call that come again were not answered."""
        last, _ = self._calls[-1]
        if last is not None and not set(last).isdisjoint(items):
            self._calls.pop()
        self._calls.append((list(items), []))

    def to(self, device: torch.device) -> Rule:
        """The same explorer with its parts on `device`."""
        self._rule = self._rule.to(device)
        self._judges = [judge.to(device) for judge in self._judges]
        if self._generator is None or self._generator.device != device:  # every call of `generate` asks: lots go on
            self._generator = torch.Generator(device).manual_seed(self._seed)
        return self

    def accept(self, block: Block) -> Tensor:
        """What the rule accepts and the lot as well. (batch, gamma)"""
        if self._generator is None:
            self.to(block.draft_tokens.device)
        shape = block.draft_tokens.shape
        lots = torch.rand(shape, generator=self._generator, device=block.draft_tokens.device)
        drawn = lots < self._share
        proposed = ask_at_mismatches(block, self._rule)[0] if self._rule.by_place else self._rule.accept(block)
        stands = (block.matches | (proposed & drawn)) & block.drafted
        accepted = stands.long().cumprod(-1).sum(-1, keepdim=True)  # (batch, 1)
        places = torch.arange(shape[1], device=accepted.device)[None]
        asked = proposed & ~block.matches & block.drafted & (places <= accepted)
        if block.sequences is not None and bool(asked.any()):
            gains = torch.where(drawn, accepted - places - 1, 0)
            items, found = self._calls[-1]
            sequences = block.sequences
            if items is not None:
                sequences = torch.tensor(items, device=sequences.device)[sequences]
            found.append(
                Decisions(
                    sequences[:, None].expand(shape)[asked],
                    drawn[asked],
                    gains[asked],
                    self._inputs(block, asked),
                )
            )
        return proposed & drawn

    def _inputs(self, block: Block, asked: Tensor) -> Tensor:
        """What is known of the places asked about. (decisions, judges + scalars)"""
        places = block.at(*asked.nonzero(as_tuple=True))
        opinions = [judge.logit(judge_features(places, judge.config.features)) for judge in self._judges]
        return torch.cat([*(opinion.unsqueeze(-1) for opinion in opinions), judge_features(places, SCALARS)], -1)[:, 0]

    def decisions(self) -> Decisions:
        """Everything written down so far, on the CPU."""
        width = len(self._judges) + len(SCALARS)
        nothing = torch.empty(0, dtype=torch.long)
        empty = Decisions(nothing, nothing.bool(), nothing, torch.empty(0, width))
        tables = [table for _, found in self._calls for table in found]
        found = Decisions.join(tables) if tables else empty
        return Decisions.read(lambda name: getattr(found, name).cpu())
