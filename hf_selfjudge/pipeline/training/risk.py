"""How many of the accepted tokens are wrong at most: a bound that holds for new prompts, and the theta it allows.

The risk of a theta is the share of unacceptable tokens among the mismatches it accepts. That is what a reader of the
output meets: of the tokens the judge let in, so many should not be there. (The share of all unacceptable tokens that
slips through is the threshold `recall`'s business; it says little where nearly all mismatches are unacceptable.)

Tokens of one prompt are not independent: a judge that misreads a prompt is wrong in it again and again. A bound that
counts tokens as independent promises to fail in 5 % of all cases and fails in 15 to 70 % when errors come in clusters.
So prompts are what is counted. Clopper-Pearson's bound for k wrong ones of n is the quantile of Beta(k + 1, n - k): the
distribution of a share after one more wrong one. Here the one more is a whole prompt, wrong throughout and as long as
the prompt of an average accepted token, and the spread of the share is the spread between prompts (the linearised
variance of a ratio) instead of that between tokens. With prompts of one size that are wholly right or wholly wrong this
is Clopper-Pearson on prompts, which is exact; the more errors are spread over prompts, the more every token counts.
Between these it is an approximation: in simulations (see the tests) it fails in at most about 5 % of all cases from
independent to wholly clustered errors, with equal and very unequal prompts. It assumes that new prompts are like the
calibration prompts, and it speaks of substitutions in the target's own text, as they were labelled.

What no method can give: with n prompts nothing below about 3 / n, because that share of prompts may be wrong throughout
and yet be missed by n draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 200
"""Thetas that are tested, from few accepted tokens to all."""

PLACES = (0.6, 0.3, 0.15)
"""Where testing begins: the first theta whose bound, if nothing accepted were wrong, is this part of the risk."""

FIRST_SHARE = 0.005
"""Share of rows that the strictest tested theta accepts."""


def risk_bound(accepted: Tensor, wrong: Tensor, delta: float) -> Tensor:
    """An upper bound, with confidence 1 - delta, of the share of wrong tokens among accepted ones. (...)

    Args:
        accepted: accepted tokens of each prompt. (..., prompts)
        wrong: how many of them are unacceptable. (..., prompts)
        delta: the probability with which the bound may fail.
    """
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    sizes, errors = accepted.double(), wrong.double()
    total = sizes.sum(-1, keepdim=True)
    extra = (sizes**2).sum(-1, keepdim=True) / total.clamp(min=1)  # tokens in the prompt of an average accepted token
    sizes, errors = torch.cat([sizes, extra], dim=-1), torch.cat([errors, extra], dim=-1)
    total = sizes.sum(-1, keepdim=True).clamp(min=1)
    share = errors.sum(-1, keepdim=True) / total
    spread = ((errors - share * sizes) ** 2 / total**2).sum(-1)
    share = share.squeeze(-1)
    count = share * (1 - share) / spread.clamp(min=1e-12)  # how many independent observations know the share as well
    known = (spread > 0) & (share < 1)  # otherwise nothing was accepted, or all of it is wrong
    shape = (torch.where(known, values, 1.0).numpy() for values in (share * count, (1 - share) * count))
    return torch.where(known, torch.as_tensor(betaincinv(*shape, 1 - delta)), 1.0)


def control_risk(
    probability: Tensor, labels: Tensor, prompt_ids: Tensor, thetas: Tensor, risk: float, delta: float
) -> tuple[float, float]:
    """The most permissive theta whose risk is at most `risk` with confidence 1 - delta, and its bound.

    Learn-then-test: thetas are tested from strict to permissive, each only if the one before has passed, and the last
    that passes is taken, so the probability of taking a theta with a greater risk is at most delta. A strict theta
    accepts few tokens, with which little can be shown, and a permissive first one may already fail, so delta is shared
    between three places to begin at; a run that reaches the next place takes that share along (the fallback procedure).
    The places must not depend on labels: they are where the bound would be a certain part of `risk` if no accepted
    token were wrong. Where no theta passes, theta is 1 (nothing is accepted), and the bound is the best that these
    prompts could give.

    Args:
        probability: P(acceptable) of each row. (rows,)
        labels: whether it is acceptable. (rows,) bool
        prompt_ids: its prompt. (rows,)
        thetas: the thetas to choose from, ascending.
        risk: the largest share of wrong tokens among accepted ones.
        delta: the probability with which the bound may fail.
    """
    tested = _sequence(probability, thetas)
    accepted, wrong = _counts(probability, labels, prompt_ids, tested)
    at_best = risk_bound(accepted, torch.zeros_like(accepted), delta)  # (steps,)
    starts = _starts(at_best, risk)
    bounds = [risk_bound(accepted, wrong, delta * shares / len(PLACES)) for shares in range(1, len(PLACES) + 1)]
    theta, reached, shares = 1.0, float(at_best.min()), 0
    for step in range(len(tested)):
        shares += starts.count(step)
        if shares and float(bounds[shares - 1][step]) <= risk:
            theta, reached = float(tested[step]), float(bounds[shares - 1][step])
        else:
            shares = 0  # this run has ended; a later place may begin another with its own share
    return theta, reached


def _starts(at_best: Tensor, risk: float) -> list[int]:
    """The steps where a share of delta comes in; shares of places that do not exist go to the last that does."""
    for places in (PLACES, (1.0,)):
        found = [int(steps[0]) for part in places if len(steps := (at_best <= part * risk).nonzero())]
        if found:
            return sorted(found) + [max(found)] * (len(PLACES) - len(found))
    return []


def _sequence(probability: Tensor, thetas: Tensor) -> Tensor:
    """Thetas from strict to permissive, at geometric steps of the share of accepted rows. (steps,)"""
    shares = torch.logspace(torch.tensor(FIRST_SHARE).log10(), 0, STEPS, dtype=torch.float64)
    above = 1 - torch.searchsorted(probability.sort().values, thetas, right=True) / len(probability)  # descending
    at = len(thetas) - 1 - torch.searchsorted(above.double().flip(0), shares)  # the strictest that accepts this share
    return thetas[at.clamp(min=0)].unique().flip(0)


def _counts(probability: Tensor, labels: Tensor, prompt_ids: Tensor, thetas: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted and wrongly accepted tokens of each prompt at each theta (descending). Both (thetas, prompts)"""
    prompts, owner = prompt_ids.unique(return_inverse=True)
    step = len(thetas) - torch.searchsorted(thetas.flip(0), probability)  # the first theta that accepts a row, if any
    accepted, wrong = torch.zeros(2, len(thetas) + 1, len(prompts), dtype=torch.float64)
    places = (step, owner)
    accepted.index_put_(places, torch.ones(len(owner), dtype=torch.float64), accumulate=True)
    wrong.index_put_(places, (~labels).double(), accumulate=True)
    return accepted.cumsum(0)[:-1], wrong.cumsum(0)[:-1]
