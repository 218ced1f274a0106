"""One sequence of a batch as it grows, and the outcome of a cycle for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..features import Block, token_log_probs
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
    def read(cls, block: Block, verdict: Verdict, draft: Draft) -> list[Outcome]:
        """Fetch the outcomes of all rows together: the only host sync of verification."""
        gamma = draft.tokens.shape[1]
        heads = torch.stack([draft.lengths, verdict.accepted, verdict.next_token], dim=1)
        packed = torch.cat([heads, draft.tokens, verdict.aligned.long()], dim=1).tolist()
        outcomes = []
        for drafted, accepted, next_token, *rest in packed:
            sources = [Source.MATCHED if aligned else Source.JUDGED for aligned in rest[gamma : gamma + accepted]]
            last = Source.BONUS if accepted == drafted else Source.CORRECTION
            outcomes.append(cls(drafted, accepted, [*rest[:accepted], next_token], [*sources, last]))
        if any(Source.JUDGED in outcome.sources for outcome in outcomes):
            return _explained(outcomes, block, verdict)
        return outcomes


class Row:
    """A sequence with its statistics."""

    def __init__(self, prompt: Tensor, mode: str) -> None:
        self.text = prompt  # (1, length), the prompt's padding included
        self.stats = JudgeStats(mode=mode)
        self.done = False
        self.kept = 0
        """New tokens of the last cycle."""
        self.accepted = 0
        """Draft tokens among them."""
        self._prompt_length = prompt.shape[1]

    def advance(self, outcome: Outcome, kept: int) -> None:
        """Append the first `kept` new tokens."""
        self.kept, self.accepted = kept, min(kept, outcome.accepted)
        sources = outcome.sources[:kept]
        self.stats.add_cycle(sources, outcome.drafted, outcome.accepted)
        start = self.text.shape[1] - self._prompt_length
        self.stats.replacements += _replacements(outcome, sources, start)
        new = torch.tensor([outcome.tokens[:kept]], dtype=self.text.dtype, device=self.text.device)
        self.text = torch.cat([self.text, new], dim=1)


def _explained(outcomes: list[Outcome], block: Block, verdict: Verdict) -> list[Outcome]:
    """The outcomes with what the statistics say of replaced tokens; one more transfer, only where there are any."""
    scores = block.p_scores[:, :-1]
    log_p = token_log_probs(scores, block.draft_tokens).float() - scores.float().logsumexp(-1)
    known = [log_p.exp()] if verdict.opinion.probability is None else [log_p.exp(), verdict.opinion.probability.float()]
    values = torch.stack([block.target_choice.double(), *(tensor.double() for tensor in known)]).tolist()
    return [
        replace(
            outcome,
            target_tokens=[int(token) for token in values[0][row]],
            probabilities=[list(place) for place in zip(*(part[row] for part in values[1:]), strict=True)],
        )
        for row, outcome in enumerate(outcomes)
    ]


def _replacements(outcome: Outcome, sources: list[Source], start: int) -> list[Replacement]:
    """The tokens of a row's block that stand only by the rule."""
    found = []
    for at, source in enumerate(sources):
        if source is Source.JUDGED:
            p, *judged = outcome.probabilities[at]
            target, drafted = outcome.target_tokens[at], outcome.tokens[at]
            found.append(Replacement(start + at, target, drafted, p, judged[0] if judged else None))
    return found
