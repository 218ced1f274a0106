"""What accepting a token does to the answer and to the block, estimated from decisions that chance made.

Each answer is kept or not. With a_i whether decision i was taken, rho the share that is taken and z_i what was known of
it (in units of its spread, and a one),

    log-odds(kept) = b + c * log-odds(others) + sum_i (a_i - rho) w . z_i

so w . z is what accepting costs, in log-odds, and cannot be mistaken for what made the prompt hard: a_i - rho is
chance alone. `others` is how often the prompt's other answers agree. How many tokens a taken decision wins behind it is
a linear regression on the same z.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..pipeline.training.linear_models import C_GRID, Columns, logistic_path
from .explorer import Decisions

PARTS = 5
"""Parts of the decisions, from the most harmful to the least, whose effect is measured on held-out prompts."""
RIDGE = 1e-3
"""Of the regression of gains, in units of the inputs' variance."""
CERTAIN = 0.02
"""An agreement of all others counts as 1 minus this."""


@dataclass(frozen=True)
class Evidence:
    """Explored answers and the decisions in them."""

    kept: Tensor  # (answers,) bool
    others: Tensor  # (answers,) how often the prompt's other answers agree with each other
    held_out: Tensor  # (answers,) bool
    decisions: Decisions  # whose sequences are indices of answers
    share: float

    def select(self, answers: Tensor) -> Evidence:
        """Some of the answers. (answers,) bool"""
        place = answers.long().cumsum(0) - 1
        decisions, mine = self.decisions, answers[self.decisions.sequences]
        return Evidence(
            self.kept[answers],
            self.others[answers],
            self.held_out[answers],
            Decisions(
                place[decisions.sequences[mine]], decisions.taken[mine], decisions.gains[mine], decisions.inputs[mine]
            ),
            self.share,
        )

    def sums(self, columns: Tensor) -> Tensor:
        """sum_i (a_i - rho) z_i of every answer. (decisions, width) -> (answers, width)"""
        signs = self.decisions.taken.to(columns) - self.share
        empty = columns.new_zeros(len(self.kept), columns.shape[1])
        return empty.index_add(0, self.decisions.sequences, signs[:, None] * columns)

    @property
    def agreement(self) -> Tensor:
        """The log-odds of `others`. (answers, 1)"""
        return torch.logit(self.others.double().clamp(CERTAIN, 1 - CERTAIN))[:, None]


@dataclass(frozen=True)
class Effects:
    """What accepting costs and wins, as linear functions of what is known of a decision."""

    mean: Tensor  # (inputs,) of the decisions
    std: Tensor  # (inputs,)
    cost: Tensor  # (inputs + 1,) w, in log-odds of keeping the answer
    gain: Tensor  # (inputs + 1,) tokens kept behind the decision
    c: float
    """Inverse regularisation strength of the logistic regression."""

    def known(self, inputs: Tensor) -> Tensor:
        """z: inputs in units of their spread, and a one. (decisions, inputs) -> (decisions, inputs + 1)"""
        values = (inputs.double() - self.mean) / self.std
        return torch.cat([values, values.new_ones(len(values), 1)], dim=1)


def fit(evidence: Evidence, grid: Sequence[float] = C_GRID) -> tuple[Effects, list[dict[str, float]]]:
    """The effects, and a table of what they are worth on prompts that the fit has not seen.

    C is the one with the least log loss on the held-out answers; the effects returned are fitted on all of them.
    """
    training, unseen = evidence.select(~evidence.held_out), evidence.select(evidence.held_out)
    for part, name in ((training, "training"), (unseen, "held-out")):
        if len(part.kept.unique()) < 2 or not len(part.decisions):
            raise ValueError(
                f"The {len(part.kept)} {name} answers hold {len(part.decisions)} decisions, and {int(part.kept.sum())} "
                "answers are kept; expected both kinds of answers. Give more prompts, or a laxer rule."
            )
    losses: dict[float, float] = {}
    found: dict[float, Effects] = {}
    for effects, logits in _path(training, unseen, grid):
        losses[effects.c] = float(binary_cross_entropy_with_logits(logits, unseen.kept.double()))
        found[effects.c] = effects
    best = min(losses, key=lambda c: losses[c])
    ((final, _),) = _path(evidence, unseen, (best,))
    return final, held_out_effects(found[best], unseen, training)


def _path(training: Evidence, unseen: Evidence, grid: Sequence[float]) -> list[tuple[Effects, Tensor]]:
    """For every C the effects, and the log-odds of the unseen answers."""
    inputs = training.decisions.inputs.double()
    std = inputs.std(0, correction=0)
    frame = Effects(inputs.mean(0), torch.where(std > 1e-9, std, 1.0), torch.empty(0), torch.empty(0), 0.0)
    known, other = frame.known(inputs), frame.known(unseen.decisions.inputs)
    columns = Columns.of(torch.cat([training.sums(known), training.agreement], dim=1))
    rows = columns.like(torch.cat([unseen.sums(other), unseen.agreement], dim=1))
    gain = _ridge(known[training.decisions.taken], training.decisions.gains[training.decisions.taken].double())
    found = []
    for c, solution, _ in logistic_path(columns, training.kept, torch.ones(len(training.kept)), grid):
        raw, _ = columns.fold(solution[None, :-1], solution[-1:])
        cost = raw[0, :-1].double()
        found.append((Effects(frame.mean, frame.std, cost, gain, c), (rows @ solution).double()))
    return found


def _ridge(known: Tensor, gains: Tensor) -> Tensor:
    """Least squares, with as much ridge as inputs that say the same need. (rows, width), (rows,) -> (width,)"""
    penalty = torch.full((known.shape[1],), RIDGE * len(known), dtype=known.dtype)
    penalty[-1] = 0.0
    return torch.linalg.solve(known.T @ known + penalty.diag(), known.T @ gains)


def held_out_effects(effects: Effects, unseen: Evidence, training: Evidence) -> list[dict[str, float]]:
    """For each part of the decisions, by predicted cost: what taking one really changed, in points, and won in tokens.

    The parts are equal in the training answers. The effect is a linear regression's, with its standard error.
    """
    predicted = effects.known(training.decisions.inputs) @ effects.cost
    edges = torch.quantile(predicted[:: max(1, len(predicted) // 1_000_000)], torch.linspace(0, 1, PARTS + 1).double())
    decisions = unseen.decisions
    part = torch.bucketize(effects.known(decisions.inputs) @ effects.cost, edges[1:-1])
    member = torch.nn.functional.one_hot(part, PARTS).double()
    design = torch.cat([unseen.sums(member), unseen.agreement, torch.ones(len(unseen.kept), 1)], dim=1).double()
    truth = unseen.kept.double()
    inverse = torch.linalg.pinv(design.T @ design)
    solution = inverse @ design.T @ truth
    residual = truth - design @ solution
    errors = (inverse.diagonal() * residual.square().sum() / max(1, len(truth) - design.shape[1])).sqrt()
    table = []
    for number in range(PARTS):
        taken = (part == number) & decisions.taken
        table.append(
            {
                "decisions": int((part == number).sum()),
                "points": 100 * float(solution[number]),
                "standard_error": 100 * float(errors[number]),
                "gain": float(decisions.gains[taken].double().mean()) if bool(taken.any()) else 0.0,
            }
        )
    return table
