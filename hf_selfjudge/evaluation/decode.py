"""One rule on some prompts: each answered in batches through `generate(judge=...)`, greedily, with all counts.

Nothing is scored here: answers are kept as text, so that another machine can score them later.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..decoding.caches import NoStaticCaches, RowCaches
from ..decoding.drafting import DraftSettings
from ..decoding.statistics import PHASES, JudgeStats
from ..engine.forward import why_too_large
from ..engine.suitability import why_not_static
from ..rules import Rule
from .providers import Task

log = logging.getLogger(__name__)
QUEUED = 8
"""Batches' worth of prompts in one call whose rows are refilled."""
COUNTS = ("cycles", "new_tokens", "drafted", "accepted", "judged_in")


@dataclass(frozen=True)
class Answers:
    """What one rule answered to one task's prompts, item by item."""

    texts: list[str]
    cycles: list[int]
    """Target forwards of each answer."""
    new_tokens: list[int]
    drafted: list[int]
    accepted: list[int]
    """Draft tokens kept."""
    judged_in: list[int]
    """Those of them that exact verification would have rejected."""
    seconds: float
    """Wall time of all generate calls."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds in draft, target, judge (the rule) and the rest of verification."""
    made_with: dict[str, Any] = field(default_factory=dict)
    """Device, versions and batch size: told, but not part of what finds the answers again."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def checksums(self) -> list[int]:
        """CRC-32 of each text."""
        return [zlib.crc32(text.encode(errors="replace")) for text in self.texts]

    @property
    def checksum(self) -> int:
        """CRC-32 of all texts: tells whether scores are these answers'."""
        return zlib.crc32("\0".join(self.texts).encode(errors="replace"))


def tokenize(tokenizer: Any, task: Task) -> list[list[int]]:
    """The prompts as the target reads them; user messages get the chat template, if there is one, with its header."""
    if not task.chat or not tokenizer.chat_template:
        return [list(ids) for ids in tokenizer(list(task.prompts))["input_ids"]]
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True, tokenize=False)
        for p in task.prompts
    ]
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def decode(
    pair: tuple[Any, Any, Any],
    prompts: Sequence[list[int]],
    rule: Rule,
    *,
    gamma: int,
    max_new_tokens: int,
    mode: str = "two-stage",
    batch_size: int = 64,
    expected: Sequence[int] | None = None,
    refill: bool | None = None,
    begin: Callable[[Sequence[int]], None] = lambda items: None,
    advance: Callable[[int], None] = lambda count: None,
) -> Answers:
    """Answer every prompt under one rule.

    Args:
        pair: target, draft and tokenizer (which pads on the left).
        prompts: their tokens.
        rule: the acceptance rule.
        gamma: tokens per block.
        max_new_tokens: longest answer.
        mode: as in `generate(judge_mode=...)`.
        batch_size: sequences decoded together; prompts of similar length share a batch.
        expected: how long the answers are likely to take, such as another rule's cycles; alike ones then share a batch,
            which is done when its slowest answer is.
        refill: whether answers that are done make room for others at once, on static caches; else the rest of a batch
            goes on without them. Default: on a GPU.
        begin: called before each call of `generate` with the prompts that its rows answer. Where a call does not fit
            into memory, the same prompts come again in smaller ones.
        advance: called with the number of items just finished.
    """
    order = _order(prompts, expected)
    texts = [""] * len(prompts)
    counts: dict[str, Any] = {name: [0] * len(prompts) for name in COUNTS}
    seconds, phases = 0.0, dict.fromkeys((*PHASES, "total"), 0.0)
    refill = _refills(pair) if refill is None else refill
    waiting = [(part, batch_size) for part in _parts(order, prompts, batch_size, refill)][::-1]
    failed = False
    while waiting:
        if failed:  # what the failed call held is free only now
            torch.cuda.empty_cache()
            failed = False
        part, rows = waiting.pop()
        asked, rows = [prompts[index] for index in part], min(rows, len(part))
        if rows > 1 and _crowded(pair, asked, rows, gamma, max_new_tokens):
            waiting += _halved(part, rows, refill)
            continue
        begin(part)
        try:
            answers, found, spent = _together(pair, asked, rule, gamma, max_new_tokens, mode, rows)
        except (torch.OutOfMemoryError, NoStaticCaches):  # the latter if another process was faster
            if len(part) == 1:
                raise
            failed = True
            waiting += _halved(part, rows, refill)
            log.warning("%d answers do not fit into memory together: decoding %d at once.", rows, waiting[-1][1])
            continue
        seconds += spent
        for name in phases:
            phases[name] += found.seconds[name]
        for index, text, stats in zip(part, answers, found.rows or [found], strict=True):
            texts[index] = text
            for name in COUNTS:
                counts[name][index] = getattr(stats, name)
        advance(len(part))
    return Answers(texts=texts, seconds=seconds, phases=phases, **counts)


def _parts(order: Sequence[int], prompts: Sequence[list[int]], batch_size: int, refill: bool) -> list[list[int]]:
    """What one call answers: a batch, or many prompts of similar length that take each other's places."""
    if not refill:
        return [list(order[first : first + batch_size]) for first in range(0, len(order), batch_size)]
    found: list[list[int]] = []
    for index in order:
        first = prompts[found[-1][0]] if found else []
        if found and len(found[-1]) < QUEUED * batch_size and _alike(first) == _alike(prompts[index]):
            found[-1].append(index)
        else:
            found.append([index])
    return found


def _halved(part: list[int], rows: int, refill: bool) -> list[tuple[list[int], int]]:
    """The same work with half as many rows at once, the first ones last."""
    half = (rows + 1) // 2
    if refill and half > 1:
        return [(part, half)]
    return [(part[first : first + half], half) for first in range(0, len(part), half)][::-1]


def _refills(pair: tuple[Any, Any, Any]) -> bool:
    """Whether static caches, in which places are refilled, are what the pair gets."""
    return pair[0].device.type == "cuda" and all(why_not_static(model) is None for model in pair[:2])


def _crowded(
    pair: tuple[Any, Any, Any], prompts: Sequence[list[int]], rows: int, gamma: int, max_new_tokens: int
) -> bool:
    """Whether only the lack of memory keeps a batch from static caches: half of it with them is far faster."""
    models = pair[:2]
    if any(why_not_static(model) is not None for model in models):
        return False
    caches = RowCaches([0] * rows, True, DraftSettings(gamma), max(map(len, prompts)) + max_new_tokens)
    return why_too_large(models, rows, caches.capacity) is not None


def _together(
    pair: tuple[Any, Any, Any],
    prompts: Sequence[list[int]],
    rule: Rule,
    gamma: int,
    max_new_tokens: int,
    mode: str,
    rows: int,
) -> tuple[list[str], JudgeStats, float]:
    """One call, of so many rows at once: the answers, the statistics of the call, and its seconds."""
    target, draft, tokenizer = pair
    inputs = tokenizer.pad({"input_ids": list(prompts)}, return_tensors="pt", padding=True)
    begun = time.perf_counter()
    out = target.generate(
        **inputs.to(target.device),
        assistant_model=draft,
        judge=rule,
        judge_mode=mode,
        num_assistant_tokens=gamma,
        do_sample=False,
        max_new_tokens=max_new_tokens,
        return_dict_in_generate=True,
        **({"judge_rows_at_once": rows, "cache_implementation": "static"} if rows < len(prompts) else {}),
    )
    answers = out.sequences[:, inputs["input_ids"].shape[1] :].tolist()  # waits for the device
    seconds = time.perf_counter() - begun
    return tokenizer.batch_decode(answers, skip_special_tokens=True), out.judge_stats, seconds


def _order(prompts: Sequence[list[int]], expected: Sequence[int] | None) -> list[int]:
    """The longest prompts first, so that a batch that does not fit into memory fails at once.

    Where answers' lengths are expected, prompts count as equally long within a factor of two.
    """
    if expected is None:
        return sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    return sorted(range(len(prompts)), key=lambda index: (-_alike(prompts[index]), -expected[index]))


def _alike(prompt: list[int]) -> int:
    """The same for prompts that are equally long within a factor of two."""
    return len(prompt).bit_length()
