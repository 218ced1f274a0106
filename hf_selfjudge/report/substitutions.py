"""Which substitutions the judge accepts and rejects most often, with their text and an example of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..pipeline.records import Response, Substitutions
from .categories import CATEGORIES, category

PER_CATEGORY = 8
"""Most lines of a category in one table."""
BEFORE, AFTER = 60, 40
"""Characters of an example's context."""


class Texts:
    """The text of tokens and of their surroundings, each decoded once."""

    def __init__(self, tokenizer: Any, responses: Sequence[Response]) -> None:
        self._tokenizer = tokenizer
        self._answers = {response.prompt_id: response.answer for response in responses}
        self._tokens: dict[int, str] = {}
        self.special = frozenset(getattr(tokenizer, "all_special_ids", ()))

    def token(self, token: int) -> str:
        """A token as it stands inside a text."""
        if token not in self._tokens:
            text = self._tokenizer.decode([token])
            piece = self._tokenizer.convert_ids_to_tokens(token)
            # some decoders drop the space at the start of a text, and a single token is one
            marked = isinstance(piece, str) and piece.startswith("\u2581")
            self._tokens[token] = f" {text}" if marked and not text.startswith(" ") else text
        return self._tokens[token]

    def around(self, prompt_id: int, position: int) -> tuple[str, str]:
        """The end of what stands before a position, and the start of what follows it."""
        answer = self._answers.get(prompt_id)
        if answer is None:
            return "", ""
        before = self._tokenizer.decode(answer[max(0, position - BEFORE) : position], skip_special_tokens=True)
        after = self._tokenizer.decode(answer[position + 1 : position + 1 + AFTER], skip_special_tokens=True)
        return before[-BEFORE:], after[:AFTER]


def frequent_substitutions(rows: Substitutions, labels: Tensor, accepted: Tensor, texts: Texts) -> dict[str, Any]:
    """Counts per category, and the most frequent pairs of tokens among the accepted and among the rejected.

    Args:
        rows: decided, held-out substitutions.
        labels: whether each is acceptable. (rows,) bool
        accepted: whether the judge accepts it. (rows,) bool
        texts: of the tokens.
    """
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, pair in enumerate(zip(rows.target_tokens.tolist(), rows.draft_tokens.tolist(), strict=True)):
        pairs[pair].append(row)
    kinds = {
        (target, draft): category(
            texts.token(target), texts.token(draft), target in texts.special or draft in texts.special
        )
        for target, draft in pairs
    }
    right, let_in = labels.tolist(), accepted.tolist()
    return {
        "categories": [
            _count(kind, [row for pair, found in pairs.items() if kinds[pair] == kind for row in found], right, let_in)
            for kind in CATEGORIES
            if kind in kinds.values()
        ],
        "accepted": _lines(rows, pairs, kinds, right, [bool(value) for value in let_in], texts),
        "rejected": _lines(rows, pairs, kinds, right, [not value for value in let_in], texts),
    }


def _count(kind: str, found: list[int], right: list[bool], let_in: list[bool]) -> dict[str, Any]:
    return {
        "category": kind,
        "rows": len(found),
        "acceptable": sum(right[row] for row in found),
        "accepted": sum(let_in[row] for row in found),
        "wrong": sum(let_in[row] and not right[row] for row in found),
    }


def _lines(
    rows: Substitutions,
    pairs: dict[tuple[int, int], list[int]],
    kinds: dict[tuple[int, int], str],
    right: list[bool],
    chosen: list[bool],
    texts: Texts,
) -> list[dict[str, Any]]:
    """The most frequent pairs among the chosen rows, by category."""
    counted = {pair: [row for row in found if chosen[row]] for pair, found in pairs.items()}
    ranked = sorted((pair for pair, found in counted.items() if found), key=lambda pair: (-len(counted[pair]), pair))
    lines = []
    for kind in CATEGORIES:
        for target, draft in [pair for pair in ranked if kinds[pair] == kind][:PER_CATEGORY]:
            found = counted[target, draft]
            first = found[0]
            before, after = texts.around(int(rows.prompt_ids[first]), int(rows.positions[first]))
            lines.append(
                {
                    "category": kind,
                    "target": texts.token(target),
                    "draft": texts.token(draft),
                    "count": len(found),
                    "acceptable": sum(right[row] for row in found),
                    "before": before,
                    "after": after,
                }
            )
    return lines
