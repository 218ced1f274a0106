"""What the stages hand to each other. Token ids and tensors; no models.

Prompts and responses are lists of small objects (jsonl on disk); everything per mismatch is a table of tensors, one row
per substitution, sorted by prompt, position and rank (safetensors on disk).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor

from ..config import VECTOR_FEATURES
from .settings import REDUCTIONS, SUFFIXES

SPLITS = ("train", "validation", "calibration")


@dataclass(frozen=True)
class Prompt:
    """A prompt as the target reads it."""

    prompt_id: int
    """Its place in the build's list."""
    source: str
    """Where it came from: a preset's, dataset's or file's name."""
    split: str
    """train, validation or calibration."""
    text: str
    """The user's message."""
    tokens: list[int]
    """With the chat template and its generation header."""
    checker: str | None = None
    """Name in `hf_selfjudge.checkers` of what tells whether two responses give the same answer."""
    reference: Any = None
    """What that checker needs beside the response, such as a program's tests; JSON."""


@dataclass(frozen=True)
class Response:
    """A prompt and the target's greedy answer to it."""

    prompt_id: int
    prompt: list[int]
    answer: list[int]
    """The new tokens, the end-of-sequence token included if it was reached."""


@dataclass(frozen=True)
class Table:
    """Columns of equal length. A dict field holds named columns."""

    @property
    def columns(self) -> dict[str, Tensor]:
        """Every column by name, those of dict fields as `field.name`."""
        found: dict[str, Tensor] = {}
        for known in fields(self):
            value = getattr(self, known.name)
            if isinstance(value, dict):
                found |= {f"{known.name}.{key}": column for key, column in value.items()}
            elif isinstance(value, Tensor):
                found[known.name] = value
        return found

    @classmethod
    def from_columns(cls, columns: dict[str, Tensor], **others: Any) -> Self:
        """The table of these columns; `others` are the fields that are not tensors."""
        plain: dict[str, Any] = {name: column for name, column in columns.items() if "." not in name}
        for name, column in columns.items():
            if "." in name:
                group, key = name.split(".", 1)
                plain.setdefault(group, {})[key] = column
        return cls(**plain, **others)

    def select(self, rows: Tensor) -> Self:
        """Some of the rows: indices or a mask."""
        return self.from_columns({name: column[rows] for name, column in self.columns.items()}, **self._others())

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All rows of several tables, sorted."""
        if not parts:
            raise ValueError(f"No {cls.__name__} to join: nothing was mined or scored.")
        names = parts[0].columns
        joined = {name: torch.cat([part.columns[name] for part in parts]) for name in names}
        return cls.from_columns(joined, **parts[0]._others()).sorted()

    def sorted(self) -> Self:
        """The rows by prompt, position and rank, however they were computed."""
        order = torch.arange(len(self))
        for key in ("ranks", "positions", "prompt_ids"):
            column = self.columns[key]
            order = order[column[order].argsort(stable=True)]
        return self.select(order)

    def _others(self) -> dict[str, Any]:
        return {
            known.name: getattr(self, known.name)
            for known in fields(self)
            if not isinstance(getattr(self, known.name), (Tensor, dict))
        }

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Mismatches(Table):
    """Where the draft, reading the responses, would have said something else."""

    prompt_ids: Tensor  # (rows,) which prompt
    positions: Tensor  # (rows,) index into the answer
    target_tokens: Tensor  # (rows,) what stands there
    draft_tokens: Tensor  # (rows,) what the draft says
    ranks: Tensor  # (rows,) 0 for the draft's best token, 1 for its second, ...
    log_q: Tensor  # (rows,) the draft's log-probability of its token
    continuations: Tensor  # (rows, look_ahead) how the draft goes on after its own token; -1 behind its end

    def substitutes(self, follow: int = 0) -> list[list[int]]:
        """What each row puts in the place of the target's token: the draft's, and the next `follow` ones it says."""
        rows = torch.cat([self.draft_tokens[:, None], self.continuations[:, :follow].long()], dim=1).tolist()
        return [[token for token in row if token >= 0] for row in rows]


@dataclass(frozen=True)
class Substitutions(Table):
    """Scored substitutions: the ingredients of every variant of the score, and the judge's features."""

    prompt_ids: Tensor  # (rows,)
    positions: Tensor  # (rows,)
    target_tokens: Tensor  # (rows,)
    draft_tokens: Tensor  # (rows,)
    ranks: Tensor  # (rows,)
    prefix: Tensor  # (rows,) log P(z) - log P(y)
    suffix_tokens: Tensor  # (rows, lengths): how many tokens the suffix really had
    likelihood: Tensor  # (rows, lengths): change of the original suffix's log-likelihood
    confidence: Tensor  # (rows, lengths): change of the target's summed top-1 log-probability along it
    rejoin: Tensor | None = None  # (rows, lengths): how much of its text the target writes again, if it was tried
    features: dict[str, Tensor] = field(default_factory=dict)  # by name: (rows, hidden_size) or (rows,)
    original_features: dict[str, Tensor] = field(default_factory=dict)  # the same of the target's own tokens, if kept
    lengths: tuple[int, ...] = (20,)
    """The suffix lengths N of the columns."""

    def score(self, length: int, suffix: str = "likelihood", reduction: str = "sum") -> Tensor:
        """The semantic preservation score (equation 7) of every row, or how far it rejoins the old text. (rows,)"""
        if length not in self.lengths:
            raise ValueError(f"Suffix length {length} was not scored; there are {list(self.lengths)}.")
        at = self.lengths.index(length)
        if suffix == "rejoin":
            if self.rejoin is None:
                raise ValueError("The target did not write on after the substitutions: score with rejoin=True.")
            return self.rejoin[:, at]
        total = self.prefix + getattr(self, suffix)[:, at]
        return total / (self.suffix_tokens[:, at] + 1) if reduction == "mean" else total

    @property
    def variants(self) -> list[tuple[int, str, str]]:
        """Every N, suffix and reduction that was scored; without a suffix the last two make no difference."""
        suffixes = [name for name in SUFFIXES if name != "rejoin" or self.rejoin is not None]
        return [
            (length, suffix, reduction)
            for length in self.lengths
            for suffix in (suffixes if length else suffixes[:1])
            for reduction in (REDUCTIONS if length and suffix != "rejoin" else REDUCTIONS[:1])
        ]

    def matrix(self, names: Sequence[str], original: bool = False) -> Tensor:
        """The named features side by side, as the judge reads them. (rows, input_size) float32"""
        features = self.original_features if original else self.features
        missing = [name for name in names if name not in features]
        if missing:
            raise ValueError(f"Features {missing} were not kept when scoring; there are {sorted(features)}.")
        return torch.cat(
            [features[name].float().reshape(len(self), -1) for name in names],
            dim=1,
        )

    @property
    def hidden_size(self) -> int:
        """Width of the vector features."""
        return next(features.shape[1] for name, features in self.features.items() if name in VECTOR_FEATURES)


@dataclass(frozen=True)
class Outcomes(Table):
    """AutoJudge's evidence: how often the answer survived each substitution, and how often unchanged text kept it."""

    prompt_ids: Tensor  # (rows,)
    positions: Tensor  # (rows,)
    draft_tokens: Tensor  # (rows,)
    ranks: Tensor  # (rows,)
    kept: Tensor  # (rows,) completions after the substitution that gave the same answer
    tried: Tensor  # (rows,) completions after the substitution
    control_kept: Tensor  # (rows,) completions of the unchanged text that did
    control_tried: Tensor  # (rows,) 0 without repeats: a greedy completion of unchanged text is the response itself
