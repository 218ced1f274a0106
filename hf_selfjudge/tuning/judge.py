"""From effects to a judge: other judges' log-odds are linear in their features, so that everything folds into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import FEATURES, VECTOR_FEATURES, JudgeConfig
from ..judge import SelfJudgeVerifier
from .effects import Effects
from .explorer import SCALARS

SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9)
"""Thresholds are named by the share of the explored decisions that they accept."""
DEFAULT_THRESHOLD = "accept-50%"


def worth(effects: Effects, inputs: Tensor) -> tuple[Tensor, float]:
    """w . z + price * (1 + gain) as weights of z, and the price: what the average decision costs per token it wins.

    A decision is worth taking if it wins its tokens below that price.
    """
    known = effects.known(inputs)
    saved = effects.gain.clone()
    saved[-1] += 1.0  # the token itself
    cost, tokens = float((known @ effects.cost).mean()), float((known @ saved).mean())
    price = max(0.0, -cost) / max(tokens, 1e-6)
    return effects.cost + price * saved, price


def make_judge(
    effects: Effects, judges: Sequence[SelfJudgeVerifier], inputs: Tensor, hidden_size: int, **config: Any
) -> tuple[SelfJudgeVerifier, float]:
    """The judge whose log-odds are a decision's worth, in units of its spread; and the price of a token.

    Args:
        effects: what accepting costs and wins.
        judges: the linear judges whose log-odds come first in the inputs.
        inputs: of the explored decisions, for price, spread and thresholds. (decisions, inputs)
        hidden_size: of the target.
        config: the other fields of its config.
    """
    weights, price = worth(effects, inputs)
    values = effects.known(inputs) @ weights
    scale = float(values.std()) or 1.0
    raw = weights[:-1] / effects.std / scale
    bias = (float(weights[-1]) - float((weights[:-1] * effects.mean / effects.std).sum())) / scale
    columns: dict[str, Tensor] = {name: raw[len(judges) + at] for at, name in enumerate(SCALARS)}
    for judge, factor in zip(judges, raw, strict=False):
        bias += float(factor) * float(judge.layers[0].bias)  # type: ignore[arg-type]
        for name, part in _parts(judge).items():
            columns[name] = columns.get(name, torch.zeros_like(part)) + factor * part
    features = tuple(name for name in FEATURES if name in columns)
    thresholds = {
        f"accept-{100 * share:g}%": float(torch.sigmoid(torch.quantile(_few(values / scale), 1 - share)))
        for share in SHARES
    }
    made = SelfJudgeVerifier(
        JudgeConfig(hidden_size, features, (), thresholds, default_threshold=DEFAULT_THRESHOLD, **config)
    )
    weight = torch.cat([columns[name].reshape(-1) for name in features])
    return made.set_weights(weight.float(), bias), price


def _parts(judge: SelfJudgeVerifier) -> dict[str, Tensor]:
    """A linear judge's weights by feature."""
    sizes = [judge.config.hidden_size if name in VECTOR_FEATURES else 1 for name in judge.config.features]
    weight = judge.layers[0].weight.double().reshape(-1)  # type: ignore[operator]
    return dict(zip(judge.config.features, weight.split(sizes), strict=True))


def _few(values: Tensor) -> Tensor:
    """At most a million of the values: torch.quantile takes no more than sixteen."""
    return values[:: max(1, len(values) // 1_000_000)]
