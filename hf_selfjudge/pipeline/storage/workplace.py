"""A build's folder as the stages see it: the results of the earlier stages, and the pair.

build/prompts/00000.jsonl            all prompts
build/respond/00000.jsonl, ...       the target's responses, one shard of prompts each
build/mine/00000.safetensors, ...    mismatches
build/score/00000.safetensors, ...   scored substitutions
build/autojudge/00000.safetensors    AutoJudge's evidence, where labels need it
build/label, fit, calibrate          one file each: labels, the judge's weights, P(acceptable) of every substitution
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from torch import Tensor

from ..build_settings import BuildSettings
from ..models import Pair
from ..records import Mismatches, Outcomes, Prompt, Response, Substitutions
from .shards import Note, Shards, read_prompts, read_responses, read_table, read_tensors

if TYPE_CHECKING:
    from ..calibrate import Calibration
    from ..fit import FitResult

SUFFIXES = {"prompts": "jsonl", "respond": "jsonl"}
"""Stages whose shards are lists of small objects; those of the others are tables."""

SHARDED = frozenset({"respond", "mine", "score", "autojudge"})
"""Stages computed shard by shard, by all processes; the others at once, by the first."""


class Workplace:
    """Reads a build's folder; nothing is read before it is asked for."""

    def __init__(self, folder: Path, settings: BuildSettings, pair: Pair, stages: Sequence[str]) -> None:
        self.settings = settings
        self.pair = pair
        self.shards = {name: Shards(folder / name, SUFFIXES.get(name, "safetensors")) for name in stages}

    @cached_property
    def prompts(self) -> list[Prompt]:
        """All prompts, by prompt_id."""
        return read_prompts(self.shards["prompts"].path(0))

    @cached_property
    def order(self) -> list[list[Prompt]]:
        """The prompts of each shard: the longest first, so that batches have little padding and the last are quick."""
        ordered = sorted(self.prompts, key=lambda prompt: (-len(prompt.tokens), prompt.prompt_id))
        size = self.settings.respond.shard_size
        return [ordered[start : start + size] for start in range(0, len(ordered), size)]

    def shard_count(self, stage: str) -> int:
        """How many shards a stage has."""
        return math.ceil(len(self.prompts) / self.settings.respond.shard_size) if stage in SHARDED else 1

    def paths(self, stage: str) -> list[Path]:
        """The files of a stage's shards."""
        return [self.shards[stage].path(index) for index in range(self.shard_count(stage))]

    def note(self, stage: str) -> Note:
        """What a stage that is not sharded said about its result."""
        found = self.shards[stage].note(0)
        if found is None:
            raise ValueError(f"{stage} has no result yet.")
        return found

    def responses(self, index: int) -> list[Response]:
        """A shard's responses with something in them; one that ends at once holds nothing to mine."""
        found = read_responses(self.shards["respond"].path(index))
        return [response for response in found if not is_empty(response, self.pair.end_tokens)]

    @cached_property
    def all_responses(self) -> list[Response]:
        """The responses to all prompts."""
        return [response for path in self.paths("respond") for response in read_responses(path)]

    def mismatches(self, index: int) -> Mismatches | None:
        """A shard's mismatches; None if there are none."""
        return read_table(Mismatches, [self.shards["mine"].path(index)])

    @cached_property
    def substitutions(self) -> Substitutions:
        """All scored substitutions."""
        return read_table(Substitutions, self.paths("score")) or nothing_to_judge()

    @cached_property
    def autojudged(self) -> set[int]:
        """The prompts that need AutoJudge's evidence."""
        from ..autojudge import autojudge_prompts

        return set(autojudge_prompts(self.prompts, self.settings.label))

    @cached_property
    def outcomes(self) -> Outcomes | None:
        """AutoJudge's evidence, if it was asked for."""
        return read_table(Outcomes, self.paths("autojudge")) if self.autojudged else None

    @cached_property
    def labels(self) -> Tensor:
        """1 acceptable, 0 not, -1 undecided. (rows,)"""
        return read_tensors(self.shards["label"].path(0))[0]["values"]

    @cached_property
    def splits(self) -> list[str]:
        """The split of each substitution's prompt."""
        return [self.prompts[prompt_id].split for prompt_id in self.substitutions.prompt_ids.tolist()]

    @property
    def fit_result(self) -> FitResult:
        """The fitted judge and how the others did."""
        from ..fit import FitResult

        return FitResult.from_dict(self.note("fit").info, read_tensors(self.shards["fit"].path(0))[0])

    @property
    def calibration(self) -> Calibration:
        """The judge's operating points and what was measured."""
        from ..calibrate import Calibration

        return Calibration.from_dict(self.note("calibrate").info)

    @cached_property
    def probability(self) -> Tensor:
        """P(acceptable) of every substitution. (rows,)"""
        return read_tensors(self.shards["calibrate"].path(0))[0]["probability"]


def is_empty(response: Response, end_tokens: Sequence[int]) -> bool:
    """Whether the target had nothing to say."""
    return all(token in end_tokens for token in response.answer)


def nothing_to_judge() -> NoReturn:
    """Say what it means that there is no mismatch at all."""
    raise ValueError(
        "There is no mismatch in any response: the draft says what the target says everywhere, so there is nothing to "
        "judge. Give more prompts, longer responses or a smaller draft."
    )
