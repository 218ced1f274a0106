"""One rule on one task: every prompt answered in batches through `generate(judge=...)`, greedily, with all counts."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..decoding.statistics import PHASES
from ..rules import Rule
from .providers import Task

COUNTS = ("cycles", "new_tokens", "drafted", "accepted", "judged_in")


@dataclass(frozen=True)
class Outcome:
    """What one rule made of one task, item by item, so that everything can be resampled."""

    scores: list[float | None]
    """Task scores; None where the task has no checker."""
    cycles: list[int]
    """Target forwards of each answer."""
    new_tokens: list[int]
    drafted: list[int]
    accepted: list[int]
    """Draft tokens kept."""
    judged_in: list[int]
    """Those of them that exact verification would have rejected."""
    checksums: list[int]
    """CRC-32 of each answer's text: tells which answers are exact decoding's."""
    seconds: float
    """Wall time of all generate calls."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds in draft, target, judge (the rule) and the rest of verification."""

    def __len__(self) -> int:
        return len(self.scores)


def tokenize(tokenizer: Any, task: Task) -> list[list[int]]:
    """The prompts as the target reads them; user messages get the chat template with its generation header."""
    if not task.chat:
        return [list(ids) for ids in tokenizer(list(task.prompts))["input_ids"]]
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True, tokenize=False)
        for p in task.prompts
    ]
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def decode(
    pair: tuple[Any, Any, Any],
    task: Task,
    rule: Rule,
    *,
    gamma: int,
    mode: str = "two-stage",
    batch_size: int = 64,
    advance: Callable[[int], None] = lambda count: None,
) -> Outcome:
    """Answer every prompt of a task under one rule.

    Args:
        pair: target, draft and tokenizer (which pads on the left).
        task: what to answer.
        rule: the acceptance rule.
        gamma: tokens per block.
        mode: as in `generate(judge_mode=...)`.
        batch_size: sequences decoded together; prompts of similar length share a batch.
        advance: called with the number of items just finished.
    """
    target, draft, tokenizer = pair
    prompts = tokenize(tokenizer, task)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    texts = [""] * len(prompts)
    counts = {name: [0] * len(prompts) for name in COUNTS}
    seconds, phases = 0.0, dict.fromkeys((*PHASES, "total"), 0.0)
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        inputs = tokenizer.pad({"input_ids": [prompts[index] for index in batch]}, return_tensors="pt", padding=True)
        begun = time.perf_counter()
        out = target.generate(
            **inputs.to(target.device),
            assistant_model=draft,
            judge=rule,
            judge_mode=mode,
            num_assistant_tokens=gamma,
            do_sample=False,
            max_new_tokens=task.max_new_tokens,
            return_dict_in_generate=True,
        )
        answers = out.sequences[:, inputs["input_ids"].shape[1] :].tolist()  # waits for the device
        seconds += time.perf_counter() - begun
        for name in phases:
            phases[name] += out.judge_stats.seconds[name]
        for index, answer, stats in zip(batch, answers, out.judge_stats.rows or [out.judge_stats], strict=True):
            texts[index] = tokenizer.decode(answer, skip_special_tokens=True)
            for name in COUNTS:
                counts[name][index] = getattr(stats, name)
        advance(len(batch))
    return Outcome(
        scores=[task.score(index, text) for index, text in enumerate(texts)],
        checksums=[zlib.crc32(text.encode()) for text in texts],
        seconds=seconds,
        phases=phases,
        **counts,
    )
