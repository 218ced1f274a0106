"""What turns rows of logits into log-probabilities, without ever writing a row of the vocabulary's width.

A score needs a few log-probabilities of each row. With the row's log sum exp, each is one logit less one number, so
the logits are read once, as the model left them, and summed in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    from . import triton_log_probs as gpu
except ImportError:  # no triton: a CPU or another accelerator
    gpu = None  # type: ignore[assignment]

CHUNK = 1 << 24
"""Most logits that plain torch widens at a time."""


def normalise(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The log sum exp of each row and its largest log-probability, in float32. (rows, vocab) -> (rows,), (rows,)"""
    if gpu is not None and logits.is_cuda and logits.dtype in gpu.PRECISIONS:
        return gpu.normalise(logits)
    if not len(logits):
        return logits.new_empty(0, dtype=torch.float32), logits.new_empty(0, dtype=torch.float32)
    log_sums, best = [], []
    for part in logits.split(max(1, CHUNK // logits.shape[1])):
        wide = part.float()
        top = wide.amax(-1)
        above = (wide - top[:, None]).exp_().sum(-1).log_()  # how far the log sum lies above the largest logit
        log_sums.append(top + above)
        best.append(-above)
    return torch.cat(log_sums), torch.cat(best)
