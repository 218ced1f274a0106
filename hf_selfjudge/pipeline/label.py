"""Stage 4: which substitutions are acceptable.

A substitution is labelled acceptable if its score exceeds tau. tau comes from substitutions known to change the outcome
(AutoJudge labels: let the target finish after the substitution, is the answer unchanged?): it is the quantile of their
scores that rejects the wanted share of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .completion import complete, end_tokens
from .records import Mismatches, Response


def label(scores: Tensor, tau: float) -> Tensor:
    """Acceptable where the score is above tau. (rows,) bool"""
    return scores > tau


def calibrate_tau(unacceptable_scores: Tensor, reject: float = 0.9) -> float:
    """The tau that rejects the share `reject` of substitutions known to be unacceptable."""
    if not 0.0 < reject < 1.0:
        raise ValueError(f"reject is {reject!r}, expected a share in (0, 1).")
    if unacceptable_scores.numel() == 0:
        raise ValueError("No unacceptable substitution to calibrate tau on: give more prompts, or a tau.")
    return float(torch.quantile(unacceptable_scores.double(), reject))


def finish(
    target: PreTrainedModel,
    responses: Sequence[Response],
    mismatches: Sequence[Mismatches],
    max_new_tokens: int,
    batch_size: int = 64,
) -> list[list[list[int]]]:
    """For each response and mismatch, the whole answer with the draft's token in place and the rest by the target."""
    kept, owners = [], []
    for row, (response, found) in enumerate(zip(responses, mismatches, strict=True)):
        for position, token in zip(found.positions, found.draft_tokens, strict=True):
            kept.append([*response.answer[:position], token])
            owners.append(row)
    # a substituted end-of-sequence token ends the answer right there
    ended = end_tokens(target)
    going = [index for index, start in enumerate(kept) if start[-1] not in ended]
    answers = list(kept)
    prefixes = [responses[owners[index]].prompt + kept[index] for index in going]
    for place, rest in complete(target, prefixes, max_new_tokens, batch_size, "finish"):
        answers[going[place]] = kept[going[place]] + rest
    finished: list[list[list[int]]] = [[] for _ in responses]
    for owner, answer in zip(owners, answers, strict=True):
        finished[owner].append(answer)
    return finished
