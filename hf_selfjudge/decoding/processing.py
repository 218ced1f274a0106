"""Logits processors over a whole block."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

ROW_WISE = tuple(
    getattr(logits_process, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "LogitNormalization",
        "SuppressTokensLogitsProcessor",
    )
)
"""Processors that look at one row of scores and never at the text, so that a block's rows can go through at once."""


def process_scores(
    processors: LogitsProcessorList, texts: Iterable[Tensor], draft_tokens: Tensor, logits: Tensor
) -> Tensor:
    """Scores of a block: each row processed with the text that precedes it. (rows, gamma + 1, vocab)"""
    if len(processors) == 0:
        return logits
    if _row_wise(processors):
        return processors(next(iter(texts)), logits.flatten(0, 1).clone()).view(logits.shape)
    steps = [process_step(processors, texts, draft_tokens[:, :at], logits[:, at]) for at in range(logits.shape[1])]
    return torch.stack(steps, dim=1)


def process_step(processors: LogitsProcessorList, texts: Iterable[Tensor], drafted: Tensor, logits: Tensor) -> Tensor:
    """Scores of the token after each text and what was drafted behind it. (rows, vocab)"""
    if len(processors) == 0:
        return logits
    if _row_wise(processors):
        return processors(next(iter(texts)), logits.clone())
    rows = [
        processors(torch.cat([text, drafted[row : row + 1]], dim=1), logits[row : row + 1].clone())
        for row, text in enumerate(texts)
    ]
    return torch.cat(rows)


def _row_wise(processors: LogitsProcessorList) -> bool:
    return all(type(processor) in ROW_WISE for processor in processors)
