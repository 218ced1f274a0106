"""Which substitutions go through the target together: the branches to read, as rows of a token budget.

Host side only: numbers, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...config import LOOK_AHEAD_FEATURES
from ...features import AHEAD
from ..records import Mismatches, Response
from ..settings import ScoreSettings
from .rows import ALIGNMENT, Branches, Ints, padded


@dataclass(frozen=True)
class Plan:
    """What is read for each mismatch."""

    starts: Ints  # (rows,): its position in the text, the prompt counted
    tokens: Ints  # (rows,): z
    suffixes: Ints  # (rows,): tokens of the original suffix that are scored
    known: Ints  # (rows,): tokens of the draft's continuation that the features may see
    continuations: Ints  # (rows, most known)

    @property
    def lengths(self) -> Ints:
        """Tokens of the branch: z and the suffix without its last token, which is only predicted; at least z."""
        return np.maximum(self.suffixes, 1)

    @property
    def asides(self) -> Ints:
        """Tokens of the continuation to read: the last is only predicted, but the first one's state is a feature."""
        return np.maximum(self.known - 1, np.minimum(self.known, 1))

    def select(self, rows: Ints) -> Plan:
        """The plan of some of the mismatches."""
        return Plan(*(column[rows] for column in vars(self).values()))

    @classmethod
    def make(cls, responses: Sequence[Response], table: Mismatches, settings: ScoreSettings) -> Plan:
        """Plan the branches, and check that the mismatches are those of the responses."""
        prompts = {response.prompt_id: len(response.prompt) for response in responses}
        answers = {response.prompt_id: len(response.answer) for response in responses}
        ids, positions = table.prompt_ids.tolist(), table.positions.numpy()
        missing = sorted(set(ids) - set(prompts))
        if missing:
            raise ValueError(f"There are mismatches of prompts {missing[:5]}, but no responses to them: mine again.")
        left = np.array([answers[prompt] for prompt in ids], dtype=np.int64) - 1 - positions
        if (left < 0).any() or any(prompts[prompt] == 0 for prompt in set(ids)):
            raise ValueError("A mismatch lies behind its answer's end, or its prompt has no tokens: mine again.")
        ahead = not LOOK_AHEAD_FEATURES.isdisjoint(settings.features)
        known = known_ahead(table) if ahead else np.zeros_like(positions)
        return cls(
            starts=np.array([prompts[prompt] for prompt in ids], dtype=np.int64) + positions,
            tokens=table.draft_tokens.numpy(),
            suffixes=np.minimum(left, max(settings.lengths)),
            known=known,
            continuations=table.continuations.numpy()[:, : int(known.max(initial=0))],
        )


def known_ahead(mismatches: Mismatches) -> Ints:
    """How many tokens of the draft's continuation each training row knows. (rows,)

    When decoding, a token's place in its block decides how much of its future the forward has seen. Here the number is
    drawn from 0 to the continuation's width, all alike, by a hash of prompt, position and rank: the same in every run,
    however the work is shared. Features see at most AHEAD tokens.
    """
    look_ahead = mismatches.continuations.shape[1]
    drawn = np.zeros(len(mismatches), dtype=np.uint64)
    for column in (mismatches.prompt_ids, mismatches.positions, mismatches.ranks):
        drawn = (drawn ^ column.numpy().astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)  # wraps around
        drawn ^= drawn >> np.uint64(29)
    there = (mismatches.continuations >= 0).sum(dim=1).numpy()
    return np.minimum((drawn % np.uint64(look_ahead + 1)).astype(np.int64), np.minimum(there, AHEAD))


@dataclass(frozen=True)
class Part:
    """A response and some of its mismatches: one row of a forward."""

    text: Ints  # prompt and answer
    trunk: int  # how much of the text is read
    rows: Ints  # the mismatches, rows of the table
    size: int  # tokens of the row


def make_groups(
    responses: Sequence[Response], table: Mismatches, plan: Plan, settings: ScoreSettings
) -> list[list[Part]]:
    """Rows to read together, as many as the token budget allows; a response with many branches is split over rows."""
    parts: list[Part] = []
    sizes = plan.lengths + plan.asides
    # the trunk must reach the last original token that predicts one, or whose own features are kept
    reach = plan.starts + np.maximum(plan.suffixes, int(settings.originals))
    ids, budget = table.prompt_ids.numpy(), settings.max_tokens - settings.max_tokens % ALIGNMENT
    for response in responses:
        start, end = np.searchsorted(ids, response.prompt_id), np.searchsorted(ids, response.prompt_id, side="right")
        text = np.array(response.prompt + response.answer)
        while start < end:
            # at least one, even if the text alone is longer than the budget
            count = max(1, int(np.searchsorted(np.cumsum(sizes[start:end]), budget - len(text), side="right")))
            rows = np.arange(start, start + count)
            trunk = int(reach[rows].max())
            parts.append(Part(text, trunk, rows, trunk + int(sizes[rows].sum())))
            start += count
    groups: list[list[Part]] = []
    for part in sorted(parts, key=lambda part: -part.size):
        if groups and (len(groups[-1]) + 1) * padded(groups[-1][0].size) <= settings.max_tokens:
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


@dataclass(frozen=True)
class Group:
    """The parts of one forward as arrays over its branches."""

    parts: list[Part]
    rows: Ints  # (branches,): which part
    plan: Plan
    suffix: Ints  # (branches, longest N + 1): y_i and the tokens behind it, zeros behind the answer's end

    @classmethod
    def make(cls, parts: list[Part], plan: Plan, longest: int) -> Group:
        """Gather what the branches of these parts need."""
        rows = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
        plan = plan.select(np.concatenate([part.rows for part in parts]))
        texts = np.zeros((len(parts), max(len(part.text) for part in parts) + longest + 1), dtype=np.int64)
        for row, part in enumerate(parts):
            texts[row, : len(part.text)] = part.text
        return cls(parts, rows, plan, texts[rows[:, None], plan.starts[:, None] + np.arange(longest + 1)])

    @property
    def table_rows(self) -> Ints:
        """Which mismatch of the table each branch is. (branches,)"""
        return np.concatenate([part.rows for part in self.parts])

    @property
    def trunks(self) -> list[Ints]:
        """The tokens of each part's trunk."""
        return [part.text[: part.trunk] for part in self.parts]

    @property
    def branches(self) -> Branches:
        """The branches to pack: z with its suffix, and the draft's continuation behind z."""
        plan = self.plan
        tokens = self.suffix[:, : max(1, self.suffix.shape[1] - 1)].copy()
        tokens[:, 0] = plan.tokens
        return Branches(self.rows, plan.starts, tokens, plan.lengths, plan.continuations, plan.asides)
