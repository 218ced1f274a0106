"""What happened in one `generate` call: who accepted what, how long blocks were, where the time went.

Two averages are easily confused, so both carry full names: `accepted_per_cycle` counts draft tokens only, while
`tokens_per_target_forward` counts every new token, the target's own corrections and bonus tokens included.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

PHASES = ("draft", "target", "judge", "verify")


class Source(str, Enum):
    """Who put a token into the response."""

    MATCHED = "matched"
    """Drafted, and the exact rule accepts it."""
    JUDGED = "judged"
    """Drafted, and only the judge (or other relaxed rule) accepts it: this is where the output may differ."""
    CORRECTION = "correction"
    """The target's own token in place of a rejected one."""
    BONUS = "bonus"
    """The target's own token after a fully accepted block (or where nothing was drafted)."""


@dataclass(frozen=True)
class Replacement:
    """A draft token that stands where the target would have chosen another."""

    position: int
    """Index in the response, from 0."""
    target_token: int
    """The target's most likely token there."""
    draft_token: int
    """The token that was accepted instead."""
    target_probability: float
    """p(draft token) under the target, after logits processors."""
    judge_probability: float | None
    """The judge's P(acceptable), if the rule was a judge."""


@dataclass
class JudgeStats:
    """Counts of one call, or the sum of several (`a + b`).

    Every drafted token ends in one bin: drafted = matched + judged_in + rejected + discarded.
    """

    mode: str = "two-stage"
    cycles: int = 0
    """Blocks verified, each by one target forward."""
    new_tokens: int = 0
    drafted: int = 0
    matched: int = 0
    """Draft tokens kept that the exact rule accepts."""
    judged_in: int = 0
    """Draft tokens kept that only the judge accepts. Zero means the output is exactly the target's."""
    rejected: int = 0
    """Draft tokens at which a block ended because nobody accepted them."""
    discarded: int = 0
    """Draft tokens after a rejection or after the end of the response."""
    bonus: int = 0
    """Target tokens gained after fully accepted blocks."""
    drafted_by_position: list[int] = field(default_factory=list)
    """How often a block had a token at each position."""
    accepted_by_position: list[int] = field(default_factory=list)
    """How often that token was kept."""
    sources: list[Source] = field(default_factory=list)
    """For each new token, who put it there."""
    replacements: list[Replacement] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PHASES, "total"), 0.0))
    """Time in the draft, in the target's forwards, in the judge (or other rule), in the rest of verification (logits
    processors, acceptance), and of the whole loop."""

    rows: list[JudgeStats] = field(default_factory=list)
    """The statistics of each sequence of a batch (empty for one sequence); a batch's times are only in the total."""

    @property
    def accepted(self) -> int:
        """Draft tokens kept."""
        return self.matched + self.judged_in

    @property
    def accepted_per_cycle(self) -> float:
        """Draft tokens kept per block; corrections and bonus tokens are not counted."""
        return self.accepted / self.cycles if self.cycles else 0.0

    @property
    def tokens_per_target_forward(self) -> float:
        """All new tokens per target forward (1.0 is plain decoding)."""
        return self.new_tokens / self.cycles if self.cycles else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of drafted tokens that were kept."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def lossy(self) -> bool:
        """Whether any token stands that exact decoding would not have taken."""
        return self.judged_in > 0 or self.mode == "judge-only"

    def add_cycle(self, kept: Iterable[Source], drafted: int, accepted: int) -> None:
        """Count one block: the sources of the tokens kept, and how many of `drafted` were accepted before any stop."""
        kept = list(kept)
        counts = Counter(kept)
        self.cycles += 1
        self.new_tokens += len(kept)
        self.drafted += drafted
        self.matched += counts[Source.MATCHED]
        self.judged_in += counts[Source.JUDGED]
        self.bonus += counts[Source.BONUS]
        kept_drafts = counts[Source.MATCHED] + counts[Source.JUDGED]
        # a stop inside the accepted part discards the rest without anybody having rejected it
        rejected = int(accepted < drafted and kept_drafts == accepted and counts[Source.CORRECTION] > 0)
        self.rejected += rejected
        self.discarded += drafted - kept_drafts - rejected
        self.sources.extend(kept)
        for counter, length in ((self.drafted_by_position, drafted), (self.accepted_by_position, kept_drafts)):
            counter.extend([0] * (drafted - len(counter)))
            for position in range(length):
                counter[position] += 1

    def __add__(self, other: JudgeStats) -> JudgeStats:
        """The sum over two calls; positions of replacements stay relative to their own response."""
        total = JudgeStats(mode=self.mode if self.mode == other.mode else "mixed")
        for name in ("cycles", "new_tokens", "drafted", "matched", "judged_in", "rejected", "discarded", "bonus"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        for name in ("drafted_by_position", "accepted_by_position"):
            a, b = getattr(self, name), getattr(other, name)
            size = max(len(a), len(b))
            padded = [values + [0] * (size - len(values)) for values in (a, b)]
            setattr(total, name, [x + y for x, y in zip(*padded, strict=True)])
        total.sources = self.sources + other.sources
        total.replacements = self.replacements + other.replacements
        total.seconds = {key: self.seconds[key] + other.seconds[key] for key in self.seconds}
        return total

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, the derived averages included."""
        values = asdict(self)
        values["sources"] = [source.value for source in self.sources]
        for name in ("accepted_per_cycle", "tokens_per_target_forward", "acceptance_rate", "lossy"):
            values[name] = getattr(self, name)
        return values

    def to_json(self) -> str:
        """`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        total = self.seconds["total"]
        shares = ", ".join(f"{name} {100 * self.seconds[name] / total if total else 0:.1f} %" for name in PHASES)
        positions = " ".join(
            f"{100 * kept / drafted:.0f}"
            for kept, drafted in zip(self.accepted_by_position, self.drafted_by_position, strict=True)
            if drafted
        )
        exact = "may differ from the target's own" if self.lossy else "the target's own"
        return "\n".join(
            [
                f"judge decoding ({self.mode}): {self.new_tokens} new tokens in {self.cycles} cycles; output: {exact}",
                f"  accepted draft tokens per cycle   {self.accepted_per_cycle:.2f}   (no corrections, no bonus)",
                f"  tokens per target forward         {self.tokens_per_target_forward:.2f}   (all new tokens)",
                f"  drafted {self.drafted} = matched {self.matched} + judged in {self.judged_in}"
                f" + rejected {self.rejected} + discarded {self.discarded}; bonus {self.bonus}",
                f"  accepted by position in block, %  {positions}",
                f"  time {total:.3f} s: {shares}",
            ]
        )
