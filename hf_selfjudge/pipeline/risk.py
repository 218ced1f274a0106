"""How many of the accepted tokens are wrong at most: a bound that holds for new prompts, and the theta it allows.

The risk of a theta is the share of unacceptable tokens among the mismatches it accepts. That is what a reader of the
output meets: of the tokens the judge let in, so many should not be there. (The share of all unacceptable tokens that
slips through is the threshold `recall`'s business; it says little where nearly all mismatches are unacceptable.)

Tokens of one prompt are not independent: a judge that misreads a prompt is wrong in it again and again. A bound that
counts tokens as independent promises 95 % and fails in a quarter to a half of all cases when errors come in clusters.
So prompts are what is counted. Clopper-Pearson's bound for k wrong ones of n is the quantile of Beta(k + 1, n - k): the
distribution of a share after one more wrong one. Here the one more is a whole prompt, wrong throughout and as long as
the prompt of an average accepted token, and the spread of the share is the spread between prompts (the linearised
variance of a ratio) instead of that between tokens. With prompts of one size that are wholly right or wholly wrong this
is Clopper-Pearson on prompts; the more errors are spread over prompts, the more every token counts. Simulations (in the
tests) keep the promise for all degrees of clustering, where neither more nor less is assumed than that new prompts are
like the calibration prompts.

What no method can give: with n prompts nothing below about 3 / n, because that share of prompts may be wrong throughout
and yet be missed by n draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 300
"""Thetas that are tested, from few accepted tokens to all."""

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

    Learn-then-test with a fixed sequence: thetas are tested from strict to permissive, each at level delta, up to the
    first that fails; the one before is taken, so the probability of ever taking a theta with a greater risk is at most
    delta. Where the sequence starts must not depend on labels: it is the strictest theta whose bound would be half of
    `risk` if no accepted token were wrong, which leaves the first test some errors to survive. Where no theta passes,
    theta is 1 (nothing is accepted), and the bound is the best that these prompts could give.

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
    bounds = risk_bound(accepted, wrong, delta)
    starts = [int(found[0]) for share in (0.5, 1.0) if len(found := (at_best <= share * risk).nonzero())]
    theta, reached = 1.0, float(at_best.min())
    for step in range(starts[0], len(tested)) if starts else ():
        if bounds[step] > risk:
            break
        theta, reached = float(tested[step]), float(bounds[step])
    return theta, reached


def _sequence(probability: Tensor, thetas: Tensor) -> Tensor:
    """Thetas from strict to permissive, at geometric steps of the share of accepted rows. (steps,)"""
    shares = torch.logspace(torch.tensor(FIRST_SHARE).log10(), 0, STEPS, dtype=torch.float64)
    above = 1 - torch.searchsorted(probability.sort().values, thetas, right=True) / len(probability)  # descending
    at = (above[None] >= shares[:, None]).sum(1).clamp(min=1) - 1  # the strictest theta that accepts this share
    return thetas[at].unique().flip(0)


def _counts(probability: Tensor, labels: Tensor, prompt_ids: Tensor, thetas: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted and wrongly accepted tokens of each prompt at each theta (descending). Both (thetas, prompts)"""
    prompts, owner = prompt_ids.unique(return_inverse=True)
    # the first theta of the sequence that accepts a row, or len(thetas)
    step = (probability[None] <= thetas[:, None]).sum(0)
    accepted, wrong = torch.zeros(2, len(thetas) + 1, len(prompts), dtype=torch.float64)
    places = (step, owner)
    accepted.index_put_(places, torch.ones(len(owner), dtype=torch.float64), accumulate=True)
    wrong.index_put_(places, (~labels).double(), accumulate=True)
    return accepted.cumsum(0)[:-1], wrong.cumsum(0)[:-1]
