"""The pair at work: held-out items decoded in batches under one acceptance rule, with scores and statistics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from hf_selfjudge.decoding.statistics import JudgeStats

from .evaluate import MAX_NEW_TOKENS, prompt_ids
from .world import Item, score


@dataclass(frozen=True)
class Decoded:
    """What one rule made of some items."""

    texts: list[str]
    """The answers, in the items' order."""
    scores: list[float | None]
    """Task scores; None where the task has no checker."""
    rows: list[JudgeStats]
    """Statistics of each answer."""
    seconds: float
    """Wall time of all generate calls."""

    @property
    def stats(self) -> JudgeStats:
        """The sum over all answers."""
        return reduce(add, self.rows)

    @property
    def score(self) -> float | None:
        """The mean task score."""
        known = [value for value in self.scores if value is not None]
        return sum(known) / len(known) if known else None


def decode(
    pair: tuple[Any, Any, Any],
    items: Sequence[Item],
    judge: Any,
    *,
    gamma: int = 7,
    mode: str = "two-stage",
    batch_size: int = 64,
    advance: Callable[[int], None] = lambda count: None,
) -> Decoded:
    """Answer every item by judge decoding.

    Args:
        pair: target, draft and tokenizer.
        items: what to answer.
        judge: a judge or any rule; with mode "alignment-only" it is not asked.
        gamma: tokens per block.
        mode: as in `generate(judge_mode=...)`.
        batch_size: sequences decoded together; prompts of similar length share a batch.
        advance: called with the number of items just finished.
    """
    target, draft, tokenizer = pair
    prompts = [prompt_ids(tokenizer, item) for item in items]
    order = sorted(range(len(items)), key=lambda index: len(prompts[index]))
    texts: list[str] = [""] * len(items)
    rows: list[JudgeStats] = [JudgeStats()] * len(items)
    seconds = 0.0
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        inputs = tokenizer.pad({"input_ids": [prompts[index] for index in batch]}, return_tensors="pt", padding=True)
        begun = time.perf_counter()
        out = target.generate(
            **inputs.to(target.device),
            assistant_model=draft,
            judge=judge,
            judge_mode=mode,
            num_assistant_tokens=gamma,
            do_sample=False,
            max_new_tokens=MAX_NEW_TOKENS,
            return_dict_in_generate=True,
        )
        seconds += time.perf_counter() - begun
        new = out.sequences[:, inputs["input_ids"].shape[1] :]
        answers = tokenizer.batch_decode(new, skip_special_tokens=True)
        for index, text, stats in zip(batch, answers, out.judge_stats.rows or [out.judge_stats], strict=True):
            texts[index], rows[index] = text, stats
        advance(len(batch))
    return Decoded(texts, [score(item, text) for item, text in zip(items, texts, strict=True)], rows, seconds)
