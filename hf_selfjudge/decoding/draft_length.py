"""How many tokens to draft: a fixed gamma, transformers' heuristic, or what pays.

`AdaptiveLength` weighs one more drafted token against its cost. Drafting earns tokens at some rate (tokens per second
of whole cycles). One more draft is worth it while the chance that it will stand is above that rate times the seconds it
costs (its own forward and its share of the verification). The chance is learned in the call from who accepted what,
judge included; the costs are measured in the call. Where drafting never pays, it stops drafting and looks again from
time to time.
"""

from __future__ import annotations

from collections.abc import Sequence

CONFIDENCE_EDGES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Acceptance is learned by the draft's confidence in its token, in these bins."""
MEMORY = 0.97
"""Weight of the past after each cycle."""
PRIOR = 4.0
"""How many observations the pooled acceptance rate counts for in a bin."""
LOOK_AGAIN = 24
"""Cycles without drafts after which a block is drafted to see whether it pays now."""


class FixedLength:
    """Always gamma."""

    watches = False
    """Whether the length is decided while drafting, by the draft's confidence."""

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma

    def goes_on(self, confidences: Sequence[Sequence[float]]) -> bool:
        """Whether to draft another token after those with these confidences, row by row."""
        return True

    def observe(
        self,
        drafted: Sequence[int],
        accepted: Sequence[int],
        seconds: tuple[float, float],
        confidences: Sequence[Sequence[float]],
    ) -> None:
        """Learn from a cycle: tokens drafted and accepted by row, and seconds of drafting and of verifying."""


class HeuristicLength(FixedLength):
    """transformers' schedule: two more after a fully accepted block, else one less.

    Args:
        gamma: to begin with.
        longest: never more than this.
    """

    def __init__(self, gamma: int, longest: int | None = None) -> None:
        super().__init__(gamma)
        self._longest = longest

    def observe(
        self,
        drafted: Sequence[int],
        accepted: Sequence[int],
        seconds: tuple[float, float],
        confidences: Sequence[Sequence[float]],
    ) -> None:
        """Adapt gamma."""
        self.gamma = self.gamma + 2 if list(accepted) == list(drafted) else max(1, self.gamma - 1)
        if self._longest is not None:
            self.gamma = min(self.gamma, self._longest)


class AdaptiveLength(FixedLength):
    """As many as pay.

    Args:
        longest: never more than this.
        watches: decide while drafting, by confidence; else once per block, by position only. Looking at a token costs a
            GPU more than it gains.
        costs: fixed seconds (per draft step, of a target forward, per token of it) instead of measured ones.
    """

    def __init__(self, longest: int, watches: bool, costs: tuple[float, float, float] | None = None) -> None:
        super().__init__(min(longest, 4))
        self.watches = watches
        self._longest = longest
        self._fixed_costs = costs
        self._acceptance = _Acceptance()
        self._draft_step = _Average()
        self._target = _Line()
        self._tokens, self._seconds = 0.0, 0.0
        self._idle = 0

    def goes_on(self, confidences: Sequence[Sequence[float]]) -> bool:
        """Whether the next token's chance to stand is worth its cost; in a batch, the sum over the rows."""
        drafted = max(len(row) for row in confidences)
        if drafted >= self.gamma:
            return False
        if not self.watches or self._seconds == 0.0:
            return True
        gain = sum(self._acceptance.standing(row) for row in confidences)  # and then the next is accepted
        return gain * self._acceptance.pooled > self._tokens / self._seconds * self._marginal_cost

    def observe(
        self,
        drafted: Sequence[int],
        accepted: Sequence[int],
        seconds: tuple[float, float],
        confidences: Sequence[Sequence[float]],
    ) -> None:
        """Learn acceptance and costs, and choose the next block's longest length."""
        steps = max(drafted, default=0)
        for row, (count, stands) in enumerate(zip(drafted, accepted, strict=True)):
            self._acceptance.observe(count, stands, confidences[row] if self.watches and steps else [])
        if self._fixed_costs is not None:
            step, forward, token = self._fixed_costs
            seconds = (step * steps, forward + token * (steps + 1))
        if steps:
            self._draft_step.add(seconds[0] / steps)
        self._target.add(steps + 1, seconds[1])
        self._tokens = MEMORY * self._tokens + sum(accepted) + len(accepted)
        self._seconds = MEMORY * self._seconds + sum(seconds)
        self._choose(len(drafted))

    def _choose(self, rows: int) -> None:
        """The length with the best rate by position; none if plain decoding has a better one."""
        if self._draft_step.count < 2:
            return
        best = max(range(1, self._longest + 1), key=self._rate)
        plain = 1.0 / self._target.at(1)
        if self._rate(best) >= plain or self._idle >= LOOK_AGAIN:
            self._idle = 0
            # while watching, confidence ends a block: leave it room to be surprised
            self.gamma = self._longest if self.watches else best
        else:
            self._idle += 1
            self.gamma = 0

    def _rate(self, length: int) -> float:
        """Tokens per second and row of blocks of this length."""
        expected, standing = 1.0, 1.0
        for position in range(length):
            standing *= self._acceptance.at(position)
            expected += standing
        return expected / (length * self._draft_step.value + self._target.at(length + 1))

    @property
    def _marginal_cost(self) -> float:
        return self._draft_step.value + self._target.slope


class _Acceptance:
    """P(a drafted token is accepted, given that those before it are), by confidence and by position."""

    def __init__(self) -> None:
        self._all = [1.0, 2.0]  # accepted, seen: no opinion yet
        self._by_bin = [[0.0, 0.0] for _ in range(len(CONFIDENCE_EDGES) + 1)]
        self._by_position: list[list[float]] = []

    @property
    def pooled(self) -> float:
        """Whatever the confidence and position."""
        return self._all[0] / self._all[1]

    def at(self, position: int) -> float:
        """By position in the block."""
        seen = self._by_position[position] if position < len(self._by_position) else [0.0, 0.0]
        return (seen[0] + PRIOR * self.pooled) / (seen[1] + PRIOR)

    def standing(self, confidences: Sequence[float]) -> float:
        """That all tokens with these confidences are accepted."""
        chance = 1.0
        for confidence in confidences:
            seen = self._by_bin[_bin(confidence)]
            chance *= (seen[0] + PRIOR * self.pooled) / (seen[1] + PRIOR)
        return chance

    def observe(self, drafted: int, accepted: int, confidences: Sequence[float]) -> None:
        """A row's block; nothing is known of tokens behind the first rejected one."""
        tables = [self._all, *self._by_bin, *self._by_position]
        for table in tables:
            table[:] = [MEMORY * value for value in table]
        for position in range(min(drafted, accepted + 1)):
            while len(self._by_position) <= position:
                self._by_position.append([0.0, 0.0])
            seen = [self._all, self._by_position[position]]
            if position < len(confidences):
                seen.append(self._by_bin[_bin(confidences[position])])
            for table in seen:
                table[0] += position < accepted
                table[1] += 1


class _Average:
    """A mean that forgets."""

    def __init__(self) -> None:
        self.count, self._sum, self._weight = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self._sum, self._weight = MEMORY * self._sum + value, MEMORY * self._weight + 1.0

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0


class _Line:
    """Seconds of a forward as a line in its number of tokens, by least squares that forget; never falling."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # weight, x, y, xx, xy

    def add(self, x: float, y: float) -> None:
        new = (1.0, x, y, x * x, x * y)
        self._sums = [MEMORY * old + value for old, value in zip(self._sums, new, strict=True)]

    @property
    def slope(self) -> float:
        n, x, y, xx, xy = self._sums
        spread = xx * n - x * x
        return max(0.0, (xy * n - x * y) / spread) if spread > 1e-9 * max(xx * n, 1.0) else 0.0

    def at(self, x: float) -> float:
        n, mean_x, mean_y = self._sums[0], self._sums[1], self._sums[2]
        if not n:
            return 0.0
        value = mean_y / n + self.slope * (x - mean_x / n)
        return max(value, 0.1 * mean_y / n)  # a steep line must not promise free forwards


def _bin(confidence: float) -> int:
    return sum(confidence >= edge for edge in CONFIDENCE_EDGES)
