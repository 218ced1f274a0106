"""One sequence of a batch as it grows, and the outcome of a cycle for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..features import Block
from ..verification import Verdict
from .drafting import Draft
from .statistics import JudgeStats, Replacement, Source


@dataclass(frozen=True)
class Outcome:
    """A verdict on the host: a row's new tokens before any stop, and where each came from."""

    drafted: int
    accepted: int
    tokens: list[int]
    sources: list[Source]
    target_tokens: list[int] = field(default_factory=list)
    """The target's choice at each drafted position, where a rule was asked."""
    probabilities: list[list[float]] = field(default_factory=list)
    """What the target gives each drafted token and, if a judge was asked, P(acceptable)."""

    @classmethod
    def read(cls, block: Block, verdict: Verdict, draft: Draft, explain: bool) -> list[Outcome]:
        """Fetch the outcomes of all rows in one transfer: the only host sync of a cycle.

        With `explain`, also what the statistics tell of tokens that only the rule accepted.
        """
        gamma = draft.tokens.shape[1]
        parts = [draft.lengths[:, None], verdict.accepted[:, None], verdict.next_token[:, None]]
        parts += [draft.tokens, verdict.aligned]
        if explain and gamma:
            judged = verdict.opinion.probability
            parts += [block.target_choice, block.draft_log_p.exp()] + ([] if judged is None else [judged])
        packed = torch.cat([part.double() for part in parts], dim=1).tolist()  # ids are exact in float64
        return [cls._of(values, gamma) for values in packed]

    @classmethod
    def _of(cls, values: list[float], gamma: int) -> Outcome:
        drafted, accepted, next_token = (int(value) for value in values[:3])
        starts = range(3, len(values), gamma) if gamma else ()
        tokens, aligned, *rest = [values[start : start + gamma] for start in starts] or [[], []]
        sources = [Source.MATCHED if match else Source.JUDGED for match in aligned[:accepted]]
        sources.append(Source.BONUS if accepted == drafted else Source.CORRECTION)
        return cls(
            drafted,
            accepted,
            [*(int(token) for token in tokens[:accepted]), next_token],
            sources,
            [int(token) for token in rest[0]] if rest else [],
            [list(place) for place in zip(*rest[1:], strict=True)],
        )


class Row:
    """A sequence with its statistics."""

    def __init__(self, mode: str) -> None:
        self.text: Tensor | None = None  # (1, length), the prompt and its padding included; once it is done
        self.stats = JudgeStats(mode=mode)
        self.done = False
        self.kept = 0
        """New tokens of the last cycle."""
        self.accepted = 0
        """Draft tokens among them."""

    def advance(self, outcome: Outcome, kept: int) -> None:
        """Take over the first `kept` new tokens."""
        self.kept, self.accepted = kept, min(kept, outcome.accepted)
        sources = outcome.sources[:kept]
        self.stats.add_cycle(sources, outcome.drafted, outcome.accepted)
        start = self.stats.new_tokens - len(sources)
        self.stats.replacements += _replacements(outcome, sources, start)


def _replacements(outcome: Outcome, sources: list[Source], start: int) -> list[Replacement]:
    """The tokens of a row's block that stand only by the rule."""
    found = []
    for at, source in enumerate(sources):
        if source is Source.JUDGED:
            p, *judged = outcome.probabilities[at]
            target, drafted = outcome.target_tokens[at], outcome.tokens[at]
            found.append(Replacement(start + at, target, drafted, p, judged[0] if judged else None))
    return found
