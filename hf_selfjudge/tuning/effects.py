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

from .explorer import Decisions

PRIORS = (0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.2, 0.4)
"""Spreads that the costs may have, in log-odds per spread of an input: the prior's standard deviations to try."""
PARTS = 5
"""Parts of the decisions, from the most harmful to the least, whose effect is measured."""
FOLDS = 5
"""Parts of the prompts: what is said of one is fitted on the others."""
RIDGE = 1e-3
"""Of the regression of gains, in units of the inputs' variance."""
NEWTON_STEPS = 100
TINY = 1e-9
"""Keeps a matrix of columns that say the same invertible."""
CERTAIN = 0.02
"""An agreement of all others counts as 1 minus this."""


@dataclass(frozen=True)
class Evidence:
    """Explored answers and the decisions in them."""

    kept: Tensor  # (answers,) bool
    others: Tensor  # (answers,) how often the prompt's other answers agree with each other
    prompts: Tensor  # (answers,) which prompt
    decisions: Decisions  # whose sequences are indices of answers
    share: float

    @property
    def folds(self) -> Tensor:
        """The fold of each answer; answers to one prompt share it. (answers,)"""
        return self.prompts % FOLDS

    def select(self, answers: Tensor) -> Evidence:
        """Some of the answers. (answers,) bool"""
        place = answers.long().cumsum(0) - 1
        decisions, mine = self.decisions, answers[self.decisions.sequences]
        return Evidence(
            self.kept[answers],
            self.others[answers],
            self.prompts[answers],
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

    def design(self, columns: Tensor) -> Tensor:
        """Those sums, the log-odds of `others`, and a one. (decisions, width) -> (answers, width + 2)"""
        agreement = torch.logit(self.others.double().clamp(CERTAIN, 1 - CERTAIN))
        return torch.cat([self.sums(columns), torch.stack([agreement, torch.ones_like(agreement)], dim=1)], dim=1)


@dataclass(frozen=True)
class Effects:
    """What accepting costs and wins, as linear functions of what is known of a decision."""

    mean: Tensor  # (inputs,) of the decisions
    std: Tensor  # (inputs,)
    cost: Tensor  # (inputs + 1,) w, in log-odds of keeping the answer
    gain: Tensor  # (inputs + 1,) tokens kept behind the decision
    prior: float
    """Standard deviation of the normal prior on the costs but the last."""

    def known(self, inputs: Tensor) -> Tensor:
        """z: inputs in units of their spread, and a one. (decisions, inputs) -> (decisions, inputs + 1)"""
        values = (inputs.double() - self.mean) / self.std
        return torch.cat([values, values.new_ones(len(values), 1)], dim=1)


def fit(evidence: Evidence, priors: Sequence[float] = PRIORS) -> tuple[Effects, list[dict[str, float]]]:
    """The effects, and a table of what they are worth on prompts that their fit has not seen.

    The prior is the one with the least log loss on unseen folds; it does not hold back what accepting costs on average.
    """
    folds = evidence.folds
    for fold in range(FOLDS):
        part = evidence.select(folds == fold)
        if len(part.kept.unique()) < 2 or not len(part.decisions):
            raise ValueError(
                f"Of the {len(part.kept)} answers in a fifth of the prompts {int(part.kept.sum())} are kept, with "
                f"{len(part.decisions)} decisions; expected both kinds of answers. Give more prompts, or a laxer rule."
            )
    losses = torch.zeros(len(priors), len(evidence.kept), dtype=torch.float64)
    costs = torch.zeros(len(priors), len(evidence.decisions), dtype=torch.float64)
    for fold in range(FOLDS):
        unseen = folds == fold
        training, test = evidence.select(~unseen), evidence.select(unseen)
        theirs = unseen[evidence.decisions.sequences]
        for at, (effects, logits) in enumerate(_path(training, test, priors)):
            truth = test.kept.double()
            losses[at, unseen] = binary_cross_entropy_with_logits(logits, truth, reduction="none")
            costs[at, theirs] = effects.known(test.decisions.inputs) @ effects.cost
    chosen = int(losses.mean(1).argmin())
    ((final, _),) = _path(evidence, evidence, (priors[chosen],))
    return final, effect_table(costs[chosen], evidence)


def _path(training: Evidence, unseen: Evidence, priors: Sequence[float]) -> list[tuple[Effects, Tensor]]:
    """For every prior the effects, and the log-odds of the unseen answers."""
    inputs = training.decisions.inputs.double()
    std = inputs.std(0, correction=0)
    frame = Effects(inputs.mean(0), torch.where(std > 1e-9, std, 1.0), torch.empty(0), torch.empty(0), 0.0)
    known = frame.known(inputs)
    design, other = training.design(known), unseen.design(frame.known(unseen.decisions.inputs))
    taken = training.decisions.taken
    gain = _ridge(known[taken], training.decisions.gains[taken].double())
    width, found = known.shape[1], []
    for prior in priors:
        penalty = torch.zeros(design.shape[1], dtype=torch.float64)
        penalty[: width - 1] = prior**-2
        solution = _logistic(design, training.kept.double(), penalty)
        found.append((Effects(frame.mean, frame.std, solution[:width], gain, prior), other @ solution))
    return found


def _logistic(design: Tensor, truth: Tensor, penalty: Tensor) -> Tensor:
    """Penalised logistic regression by Newton's method. (rows, width), (rows,), (width,) -> (width,)"""
    solution = torch.zeros_like(penalty)
    for _ in range(NEWTON_STEPS):
        chance = torch.sigmoid(design @ solution)
        gradient = design.T @ (truth - chance) - penalty * solution
        weights = (chance * (1 - chance)).clamp(min=1e-6)
        step = torch.linalg.solve(design.T @ (weights[:, None] * design) + (penalty + TINY).diag(), gradient)
        solution = solution + step.clamp(-2, 2)  # far from the optimum Newton's steps may be too long
        if float(step.abs().max()) < 1e-9:
            break
    return solution


def _ridge(known: Tensor, gains: Tensor) -> Tensor:
    """Least squares, with as much ridge as inputs that say the same need. (rows, width), (rows,) -> (width,)"""
    penalty = torch.full((known.shape[1],), RIDGE * len(known), dtype=known.dtype)
    penalty[-1] = 0.0
    return torch.linalg.solve(known.T @ known + penalty.diag(), known.T @ gains)


def effect_table(predicted: Tensor, evidence: Evidence) -> list[dict[str, float]]:
    """For each fifth of the decisions by a prediction: what taking one really changed, in points, and won in tokens.

    The effect is a linear regression's, with its standard error. `most` is the largest prediction of the fifth; a
    prediction with few values leaves fifths empty. (decisions,)
    """
    decisions = evidence.decisions
    some = predicted[:: max(1, len(predicted) // 1_000_000)]  # torch.quantile takes sixteen million at most
    edges = torch.quantile(some, torch.linspace(0, 1, PARTS + 1, dtype=some.dtype))
    part = torch.bucketize(predicted, edges[1:-1])
    member = torch.nn.functional.one_hot(part, PARTS).double()
    design = evidence.design(member)
    truth = evidence.kept.double()
    inverse = torch.linalg.pinv(design.T @ design)
    solution = inverse @ design.T @ truth
    residual = truth - design @ solution
    variance = residual.square().sum() / max(1, len(truth) - design.shape[1])
    errors = (inverse.diagonal().clamp(min=0.0) * variance).sqrt()
    table = []
    for number in range(PARTS):
        taken = (part == number) & decisions.taken
        table.append(
            {
                "most": float(edges[number + 1]),
                "decisions": int((part == number).sum()),
                "points": 100 * float(solution[number]),
                "standard_error": 100 * float(errors[number]),
                "gain": float(decisions.gains[taken].double().mean()) if bool(taken.any()) else 0.0,
            }
        )
    return table
