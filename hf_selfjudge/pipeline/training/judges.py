"""One judge from labelled rows: logistic regression, regression of the score, or a small MLP.

Knows features as columns only; which features there are and which judge is best is decided in `fit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from .linear_models import C_GRID, Columns, linear_state, logistic_path, platt, ridge_path
from .metrics import auc

BATCH_SIZE = 256
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 0.1
DROPOUT = 0.2
MAX_EPOCHS = 100
PATIENCE = 8
"""Epochs without a better validation loss after which an MLP's training ends."""


@dataclass(frozen=True)
class Examples:
    """What one judge is trained and chosen on."""

    columns: Columns  # the training rows
    labels: Tensor  # (train,) bool
    scores: Tensor  # (train,) the semantic preservation score
    validation: Tensor  # (validation, columns) raw features
    validation_labels: Tensor  # (validation,) bool
    balanced: bool = False
    """Whether both classes weigh the same."""


@dataclass(frozen=True)
class Trained:
    """The weights of a judge on raw features."""

    state: dict[str, Tensor]
    """As `SelfJudgeVerifier` loads them."""
    c: float | None
    """The chosen inverse regularisation strength; None for an MLP."""
    converged: bool


def train(
    model: str, examples: Examples, grid: Sequence[float] = C_GRID, hidden_units: int = 64, seed: int = 0
) -> Trained:
    """Train one kind of judge; C is the one of the grid with the best ROC-AUC on the validation rows."""
    if model == "logistic":
        return _logistic(examples, grid)
    if model == "regression":
        return _regression(examples, grid)
    if model == "mlp":
        return Trained(_mlp(examples, hidden_units, seed), None, True)
    raise ValueError(f"model is {model!r}, expected logistic, regression or mlp.")


def class_weights(labels: Tensor, balanced: bool) -> Tensor:
    """One weight per row: 1, or such that both classes weigh half of all rows. (rows,)"""
    weights = torch.ones(len(labels), dtype=torch.float64)
    if balanced:
        for value in (False, True):
            rows = labels.bool().cpu() == value
            weights[rows] = len(labels) / (2 * int(rows.sum()))
    return weights


def _logistic(examples: Examples, grid: Sequence[float]) -> Trained:
    columns, rows = examples.columns, examples.columns.like(examples.validation)
    weights = class_weights(examples.labels, examples.balanced)
    best = (-1.0, 0.0, rows[0], True)
    for c, solution, converged in logistic_path(columns, examples.labels, weights, grid):
        found = auc(rows @ solution, examples.validation_labels)
        if found > best[0]:  # of equals the smallest C: the strongest regularisation
            best = (found, c, solution, converged)
    return Trained(linear_state(columns, best[2]), best[1], best[3])


def _regression(examples: Examples, grid: Sequence[float]) -> Trained:
    """Ridge regression of the score, squashed around the boundary of the labels, then a sigmoid on it.

    Raw scores reach down to minus hundreds, and how bad a hopeless substitution is would take all of the fit, so it
    learns tanh((s - boundary) / scale): the same order, no tails. The sigmoid is fitted on the validation rows, where
    the regression is not flattered by having seen the answers.
    """
    columns, rows, scores = examples.columns, examples.columns.like(examples.validation), examples.scores.double()
    boundary = torch.quantile(scores, 1 - float(examples.labels.double().mean()))
    scale = (scores - boundary).abs().median().clamp(min=1e-6)
    best = (-1.0, 0.0, rows[0])
    for c, solution in ridge_path(columns, torch.tanh((scores - boundary) / scale), grid):
        found = auc(rows @ solution, examples.validation_labels)
        if found > best[0]:
            best = (found, c, solution)
    _, c, solution = best
    labels = examples.validation_labels
    slope, offset = platt(rows @ solution, labels, class_weights(labels, examples.balanced))
    solution = solution * slope
    solution[-1] += offset
    return Trained(linear_state(columns, solution), c, True)


def _mlp(examples: Examples, hidden_units: int, seed: int) -> dict[str, Tensor]:
    """One hidden layer with ReLU, as `SelfJudgeVerifier` computes it; the epoch with the least validation loss."""
    columns = examples.columns
    values, rows = columns.values[:, :-1].float(), columns.like(examples.validation)[:, :-1].float()
    truth, answers = examples.labels.to(values), examples.validation_labels.to(values)
    weights = class_weights(examples.labels, examples.balanced).to(values)
    answer_weights = class_weights(examples.validation_labels, examples.balanced).to(values)
    generator = torch.Generator().manual_seed(seed)
    layers = [_first_weights(values.shape[1], hidden_units, generator), _first_weights(hidden_units, 1, generator)]
    parameters = [tensor.to(values.device).requires_grad_() for layer in layers for tensor in layer]
    optimiser = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def logits(inputs: Tensor, keep: Tensor | float = 1.0) -> Tensor:
        first, bias, second, offset = parameters
        return ((torch.relu(inputs @ first.T + bias) * keep) @ second.T + offset).squeeze(-1)

    best, state, waited = float("inf"), [tensor.detach().clone() for tensor in parameters], 0
    for _ in range(MAX_EPOCHS):
        for batch in torch.randperm(len(values), generator=generator).split(BATCH_SIZE):
            kept = torch.rand(len(batch), hidden_units, generator=generator) > DROPOUT
            at, keep = batch.to(values.device), (kept / (1 - DROPOUT)).to(values)
            loss = binary_cross_entropy_with_logits(logits(values[at], keep), truth[at], weights[at])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            found = float(binary_cross_entropy_with_logits(logits(rows), answers, answer_weights))
        waited += 1
        if found < best:
            best, state, waited = found, [tensor.detach().clone() for tensor in parameters], 0
        if waited >= PATIENCE:
            break
    weight, bias = columns.fold(state[0], state[1])
    second = {"layers.1.weight": state[2].cpu(), "layers.1.bias": state[3].cpu()}
    return {"layers.0.weight": weight, "layers.0.bias": bias, **second}


def _first_weights(fan_in: int, fan_out: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Uniform in +-1/sqrt(fan_in), as nn.Linear starts, but from a generator of our own."""
    bound = fan_in**-0.5
    weight = torch.empty(fan_out, fan_in).uniform_(-bound, bound, generator=generator)
    return weight, torch.empty(fan_out).uniform_(-bound, bound, generator=generator)
