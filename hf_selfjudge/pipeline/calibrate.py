"""Stage 6: named thresholds on P(acceptable), from held-out substitutions."""

from __future__ import annotations

import torch
from torch import Tensor


def calibrate(probability: Tensor, labels: Tensor, recall: float = 0.9) -> dict[str, float]:
    """Operating points by name.

    - `f1`: the best F1 of the acceptable class (the paper's -F).
    - `recall`: the best precision among thetas that reject at least the share `recall` of the unacceptable (its -R).
    - `youden`: the largest difference between the shares of acceptable and of unacceptable tokens accepted.

    A token is accepted if its probability is strictly above theta, as in decoding.
    """
    if labels.all() or not labels.any():
        raise ValueError("Thresholds need both acceptable and unacceptable held-out rows.")
    thetas = torch.cat([torch.zeros(1), probability.float().unique(), torch.ones(1)]).unique()
    accepted = probability[None, :].float() > thetas[:, None]  # (thetas, rows)
    good, bad = labels.sum(), (~labels).sum()
    kept_good = (accepted & labels).sum(1).double()
    kept_bad = (accepted & ~labels).sum(1).double()
    f1 = 2 * kept_good / (kept_good + kept_bad + good).clamp(min=1)
    youden = kept_good / good - kept_bad / bad
    rejected_bad = bad - kept_bad
    rejected = (good - kept_good) + rejected_bad
    precision = rejected_bad / rejected.clamp(min=1)
    precision[rejected_bad / bad < recall] = -1.0  # theta = 1 rejects everything, so one always qualifies
    return {
        "f1": float(thetas[f1.argmax()]),
        "recall": float(thetas[precision.argmax()]),
        "youden": float(thetas[youden.argmax()]),
    }
