"""One sequence of a batch as it grows, and the outcome of a cycle for it."""

from __future__ import annotations

from dataclasses import dataclass

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

    @classmethod
    def read(cls, verdict: Verdict, draft: Draft) -> list[Outcome]:
        """Fetch the outcomes of all rows in one transfer: the only host sync of verification."""
        gamma = draft.tokens.shape[1]
        heads = torch.stack([verdict.accepted, verdict.next_token], dim=1)
        packed = torch.cat([heads, draft.tokens, verdict.aligned.long()], dim=1).tolist()
        outcomes = []
        for drafted, (accepted, next_token, *rest) in zip(draft.lengths, packed, strict=True):
            sources = [Source.MATCHED if aligned else Source.JUDGED for aligned in rest[gamma : gamma + accepted]]
            last = Source.BONUS if accepted == drafted else Source.CORRECTION
            outcomes.append(cls(drafted, accepted, [*rest[:accepted], next_token], [*sources, last]))
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

    def advance(self, block: Block, verdict: Verdict, outcome: Outcome, kept: int, index: int) -> None:
        """Append the first `kept` new tokens; `index` is the row's place in the block."""
        self.kept, self.accepted = kept, min(kept, outcome.accepted)
        sources = outcome.sources[:kept]
        self.stats.add_cycle(sources, outcome.drafted, outcome.accepted)
        start = self.text.shape[1] - self._prompt_length
        self.stats.replacements += _replacements(block, verdict, sources, start, index)
        new = torch.tensor([outcome.tokens[:kept]], dtype=self.text.dtype, device=self.text.device)
        self.text = torch.cat([self.text, new], dim=1)


def _replacements(block: Block, verdict: Verdict, sources: list[Source], start: int, index: int) -> list[Replacement]:
    """The tokens of a row's block that stand only by the rule; costs nothing where there are none."""
    at = [place for place, source in enumerate(sources) if source is Source.JUDGED]
    if not at:
        return []
    log_p = block.p_scores[index : index + 1, :-1].float().log_softmax(-1)
    drafted = block.draft_tokens[index : index + 1]
    p = token_log_probs(log_p, drafted)[0].exp().tolist()
    chosen, tokens = log_p[0].argmax(-1).tolist(), drafted[0].tolist()
    opinion = verdict.opinion.probability
    judged = [None] * len(tokens) if opinion is None else opinion[index].tolist()
    return [Replacement(start + i, chosen[i], tokens[i], p[i], judged[i]) for i in at]
