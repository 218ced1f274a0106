"""What accepting a token does to the answer and to the block, estimated from decisions that chance made.

With a_i whether decision i of an answer was taken, rho the share that is taken and z_i what was known of it (in units
of its spread, and a one), the answer's outcome is

    y = b + c * others + sum_i (a_i - rho) w . z_i + noise

so w . z is what accepting costs, and cannot be mistaken for what made the prompt hard: a_i - rho is chance alone.
`others` is the mean outcome of the prompt's other answers, which takes out much of the noise. How many tokens a taken
decision wins behind it is a linear regression on the same z.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .explorer import Decisions

PRIORS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
"""Standard deviations to try of the normal prior on the costs: outcome per spread of an input."""
PARTS = 5
"""Parts of the decisions, from the most harmful to the least, whose effect is measured."""
FOLDS = 5
"""Parts of the prompts: what is said of one is fitted on the others."""
RIDGE = 1e-3
"""Of the regression of gains, in units of the inputs' variance."""
FEWEST = 50
"""Answers without which nothing is fitted."""


@dataclass(frozen=True)
class Evidence:
    """Explored answers and the decisions in them."""

    kept: Tensor  # (answers,) 1 if the answer is what most others give, 0 if not, NaN where nobody can say
    resemblance: Tensor  # (answers,) to exact decoding's text, in [0, 1]
    prompts: Tensor  # (answers,) which prompt
    decisions: Decisions  # whose sequences are indices of answers
    share: float

    @property
    def outcome(self) -> Tensor:
        """What the costs are measured in: the mean of both, or the resemblance alone. (answers,)"""
        kept, resemblance = self.kept.double(), self.resemblance.double()
        return torch.where(kept.isnan(), resemblance, (kept + resemblance) / 2)

    @property
    def folds(self) -> Tensor:
        """The fold of each answer; answers to one prompt share it. (answers,)"""
        return self.prompts % FOLDS

    def select(self, answers: Tensor) -> Evidence:
        """Some of the answers. (answers,) bool"""
        place = answers.long().cumsum(0) - 1
        mine = self.decisions.select(answers[self.decisions.sequences])
        decisions = replace(mine, sequences=place[mine.sequences])
        return Evidence(self.kept[answers], self.resemblance[answers], self.prompts[answers], decisions, self.share)

    def design(self, columns: Tensor, outcome: Tensor) -> Tensor:
        """sum_i (a_i - rho) z_i of every answer, `others`, and a one. (decisions, width) -> (answers, width + 2)"""
        signs = self.decisions.taken.to(columns) - self.share
        empty = columns.new_zeros(len(self.kept), columns.shape[1])
        sums = empty.index_add(0, self.decisions.sequences, signs[:, None] * columns)
        return torch.cat([sums, torch.stack([self._others(outcome), torch.ones_like(outcome)], dim=1)], dim=1)

    def _others(self, outcome: Tensor) -> Tensor:
        """The mean outcome of each prompt's other answers; of all answers where there is no other. (answers,)"""
        _, owner, count = self.prompts.unique(return_inverse=True, return_counts=True)
        total = outcome.new_zeros(len(count)).index_add(0, owner, outcome)
        others = (total[owner] - outcome) / (count[owner] - 1).clamp(min=1)
        return torch.where(count[owner] > 1, others, outcome.mean())


@dataclass(frozen=True)
class Effects:
    """What accepting costs and wins, as linear functions of what is known of a decision."""

    mean: Tensor  # (inputs,) of the decisions
    std: Tensor  # (inputs,)
    cost: Tensor  # (inputs + 1,) w: what accepting changes in the outcome, so negative where it harms
    gain: Tensor  # (inputs + 1,) tokens kept behind the decision
    prior: float
    """Standard deviation of the normal prior on the costs but the last."""

    def known(self, inputs: Tensor) -> Tensor:
        """z: inputs in units of their spread, and a one. (decisions, inputs) -> (decisions, inputs + 1)"""
        values = (inputs.double() - self.mean) / self.std
        return torch.cat([values, values.new_ones(len(values), 1)], dim=1)


def fit(evidence: Evidence, priors: Sequence[float] = PRIORS) -> tuple[Effects, list[dict[str, float | None]]]:
    """The effects, and a table of what they are worth on prompts that their fit has not seen.

    The prior is the one with the least error on unseen folds; it does not hold back what accepting costs on average.
    """
    folds, outcome = evidence.folds, evidence.outcome
    errors = torch.zeros(len(priors), dtype=torch.float64)
    costs = torch.zeros(len(priors), len(evidence.decisions), dtype=torch.float64)
    for fold in range(FOLDS):
        unseen = folds == fold
        training, test = evidence.select(~unseen), evidence.select(unseen)
        _check(training)
        theirs = unseen[evidence.decisions.sequences]
        for at, (effects, predicted) in enumerate(_path(training, test, priors)):
            errors[at] += (outcome[unseen] - predicted).square().sum()
            costs[at, theirs] = effects.known(test.decisions.inputs) @ effects.cost
    chosen = int(errors.argmin())
    ((final, _),) = _path(evidence, evidence, (priors[chosen],))
    return final, effect_table(costs[chosen], evidence)


def _check(training: Evidence) -> None:
    """Refuse what nothing can be fitted on."""
    taken = int(training.decisions.taken.sum())
    if len(training.kept) < FEWEST or not taken or float(training.outcome.std()) == 0.0:
        raise ValueError(
            f"{len(training.kept)} answers with {taken} of {len(training.decisions)} decisions taken are left to fit "
            f"on in a fold; expected at least {FEWEST} that differ. Give more prompts, a laxer rule, a larger --share."
        )


def _path(training: Evidence, unseen: Evidence, priors: Sequence[float]) -> list[tuple[Effects, Tensor]]:
    """For every prior the effects, and the outcomes predicted for the unseen answers."""
    inputs = training.decisions.inputs.double()
    std = inputs.std(0, correction=0)
    frame = Effects(inputs.mean(0), torch.where(std > 1e-9, std, 1.0), torch.empty(0), torch.empty(0), 0.0)
    known = frame.known(inputs)
    outcome = training.outcome
    design = training.design(known, outcome)
    other = unseen.design(frame.known(unseen.decisions.inputs), unseen.outcome)
    free = torch.full((design.shape[1],), 1e-9, dtype=torch.float64)
    noise = float((outcome - design @ _ridge(design, outcome, free)).square().mean())
    taken, width = training.decisions.taken, known.shape[1]
    few = torch.full((width,), RIDGE * int(taken.sum()), dtype=torch.float64)
    few[-1] = 0.0
    gain = _ridge(known[taken], training.decisions.gains[taken].double(), few)
    found = []
    for prior in priors:
        penalty = free.clone()
        penalty[: width - 1] = noise / prior**2
        solution = _ridge(design, outcome, penalty)
        found.append((Effects(frame.mean, frame.std, solution[:width], gain, prior), other @ solution))
    return found


def _ridge(design: Tensor, outcome: Tensor, penalty: Tensor) -> Tensor:
    """Least squares with a penalty on each weight's square. (rows, width), (rows,), (width,) -> (width,)"""
    return torch.linalg.solve(design.T @ design + penalty.diag(), design.T @ outcome)


def effect_table(predicted: Tensor, evidence: Evidence) -> list[dict[str, float | None]]:
    """For each fifth of the decisions by a prediction: what taking one really changed, and won in tokens.

    `kept` and `resemblance` are in points, each with its standard error; `most` is the largest prediction of the fifth.
    A prediction with few values leaves fifths empty. (decisions,)
    """
    decisions = evidence.decisions
    some = predicted[:: max(1, len(predicted) // 1_000_000)]  # torch.quantile takes sixteen million at most
    edges = torch.quantile(some, torch.linspace(0, 1, PARTS + 1, dtype=some.dtype))
    part = torch.bucketize(predicted, edges[1:-1].contiguous())
    found = {name: _changes(part, evidence, name) for name in ("kept", "resemblance")}
    table: list[dict[str, float | None]] = []
    for number in range(PARTS):
        taken = (part == number) & decisions.taken
        entry: dict[str, float | None] = {
            "most": float(edges[number + 1]),
            "decisions": int((part == number).sum()),
            "gain": float(decisions.gains[taken].double().mean()) if bool(taken.any()) else 0.0,
        }
        for name, change in found.items():
            entry[name] = None if change is None else 100 * float(change[0][number])
            entry[f"{name}_error"] = None if change is None else 100 * float(change[1][number])
        table.append(entry)
    return table


def _changes(part: Tensor, evidence: Evidence, name: str) -> tuple[Tensor, Tensor] | None:
    """What taking a decision of each part changes in one measure, with standard errors; None if nobody can say."""
    known = ~getattr(evidence, name).isnan()
    some = evidence.select(known)
    if len(some.kept) < FEWEST:
        return None
    member = torch.nn.functional.one_hot(part[known[evidence.decisions.sequences]], PARTS).double()
    truth = getattr(some, name).double()
    design = some.design(member, truth)
    inverse = torch.linalg.pinv(design.T @ design)
    solution = inverse @ design.T @ truth
    # a prompt's answers go together, and outcomes near certainty vary less: errors by prompts, not by answers
    prompts, owner = some.prompts.unique(return_inverse=True)
    scores = design.new_zeros(len(prompts), design.shape[1])
    scores.index_add_(0, owner, design * (truth - design @ solution)[:, None])
    return solution, (scores @ inverse).square().sum(0).sqrt()
