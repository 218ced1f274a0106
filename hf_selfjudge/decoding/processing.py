"""Logits processors over a whole block."""

from __future__ import annotations

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


def process_scores(processors: LogitsProcessorList, input_ids: Tensor, draft_tokens: Tensor, logits: Tensor) -> Tensor:
    """Scores of a block: each row processed with the text that precedes it. (1, gamma + 1, vocab)"""
    if len(processors) == 0:
        return logits
    if all(type(processor) in ROW_WISE for processor in processors):
        return processors(input_ids, logits[0].clone()).unsqueeze(0)
    text = torch.cat([input_ids, draft_tokens], dim=1)
    length = input_ids.shape[1]
    rows = [processors(text[:, : length + row], logits[:, row].clone()) for row in range(logits.shape[1])]
    return torch.stack(rows, dim=1)
