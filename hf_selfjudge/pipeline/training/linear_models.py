"""Solvers: from standardised columns to the weights of a judge on raw features. Pure torch, on any device.

The logistic regression is scikit-learn's (the same objective, L2 without the bias), solved with a preconditioner: in
wide, correlated columns plain L-BFGS needs a thousand steps for large C and stops short of the optimum; with the
Cholesky factor of the expected Hessian it needs some dozens, and all C share one Gram matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

C_GRID = tuple(10.0 ** (-3 + 5 * step / 9) for step in range(10))
"""Ten inverse regularisation strengths from 1e-3 to 1e2, evenly spaced in the logarithm: the paper's grid."""

MAX_STEPS = 2000
"""L-BFGS steps; reached only by a problem that does not converge."""

DOUBLE_LIMIT = 1 << 24
"""Problems of up to this many numbers are solved in float64, which costs nothing there."""

EXACT_LIMIT = 2e10
"""Multiplications that a fresh Hessian may cost on a CPU: a second or two."""


@dataclass(frozen=True)
class Columns:
    """Training features in units of their own spread, and a last column of ones for the bias."""

    values: Tensor  # (rows, columns + 1)
    gram: Tensor  # (columns + 1, columns + 1): the mean outer product of the rows
    mean: Tensor  # (columns,)
    std: Tensor  # (columns,); 1 where a column is constant

    @classmethod
    def of(cls, features: Tensor, device: str | torch.device = "cpu") -> Columns:
        """Standardise raw features. (rows, columns)"""
        dtype = torch.float64 if features.numel() <= DOUBLE_LIMIT else torch.float32
        raw = features.to(device, dtype)
        mean, std = raw.mean(0), raw.std(0, correction=0)
        # a column that only differs by rounding carries nothing, and must not be blown up
        std = torch.where(std > 1e-6 * mean.abs().clamp(min=1e-6), std, torch.ones_like(std))
        values = torch.cat([(raw - mean) / std, raw.new_ones(len(raw), 1)], dim=1)
        return cls(values, values.T @ values / len(values), mean, std)

    @property
    def exact_curvature(self) -> bool:
        """Whether weighting the Gram matrix anew is cheap beside the steps it saves."""
        rows, width = self.values.shape
        return self.values.is_cuda or rows * width**2 <= EXACT_LIMIT

    def curvature(self, weights: Tensor) -> Tensor:
        """The log loss's second derivative for these weights of the rows, or an estimate that costs nothing."""
        if self.exact_curvature:
            return self.values.T @ (weights[:, None] * self.values)
        return self.gram * weights.sum()

    def like(self, rows: Tensor) -> Tensor:
        """Other raw rows, standardised the same way, with the column of ones. (rows, columns + 1)"""
        raw = rows.to(self.mean)
        return torch.cat([(raw - self.mean) / self.std, raw.new_ones(len(raw), 1)], dim=1)

    def fold(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """A layer on standardised columns as one on raw features. (units, columns), (units,) -> float32 on the CPU"""
        raw = weight.double() / self.std.double()
        offset = bias.double() - raw @ self.mean.double()
        return raw.float().cpu(), offset.float().cpu()


def linear_state(columns: Columns, solution: Tensor) -> dict[str, Tensor]:
    """The state dict of a linear judge from a solution whose last entry is the bias. (columns + 1,)"""
    weight, bias = columns.fold(solution[None, :-1], solution[-1:])
    return {"layers.0.weight": weight, "layers.0.bias": bias}


def logistic_path(
    columns: Columns, labels: Tensor, weights: Tensor, grid: Sequence[float]
) -> Iterator[tuple[float, Tensor, bool]]:
    """C, solution and whether it converged, for each C, each starting from the one before."""
    values = columns.values
    truth, weights = labels.to(values), (weights / weights.sum()).to(values)  # weights sum to 1
    solution = values.new_zeros(values.shape[1])
    share = float((weights * truth).sum())
    solution[-1] = torch.logit(torch.tensor(share))
    for c in grid:
        penalty = torch.full_like(solution, 1.0 / (c * len(values)))
        penalty[-1] = 0.0
        solution, converged = _minimise(columns, truth, weights, penalty, solution)
        yield c, solution, converged


def _minimise(columns: Columns, truth: Tensor, weights: Tensor, penalty: Tensor, start: Tensor) -> tuple[Tensor, bool]:
    """The optimum of the penalised mean log loss, and whether it was reached."""
    exact = columns.exact_curvature
    for _ in range(MAX_STEPS // 40 if exact else 1):
        start, converged = _descend(columns, truth, weights, penalty, start, 40 if exact else MAX_STEPS)
        if converged:
            return start, True
    return start, False


def _descend(
    columns: Columns, truth: Tensor, weights: Tensor, penalty: Tensor, start: Tensor, steps: int
) -> tuple[Tensor, bool]:
    """Some steps of L-BFGS in coordinates where the Hessian at `start` is about the identity."""
    values = columns.values
    chance = torch.sigmoid(values @ start)
    factor = _factor(columns.curvature(weights * chance * (1 - chance)), penalty)
    point = (factor.T @ start).requires_grad_()

    def back(coordinates: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(factor.T, coordinates.detach()[:, None], upper=True)[:, 0]

    def closure() -> Tensor:
        with torch.no_grad():
            solution = back(point)
            logits = values @ solution
            gradient = values.T @ (weights * (torch.sigmoid(logits) - truth)) + penalty * solution
            point.grad = torch.linalg.solve_triangular(factor, gradient[:, None], upper=False)[:, 0]
            # the line search compares nearly equal losses, so the sum is float64
            wide = logits.double()
            loss = (weights.double() * (torch.nn.functional.softplus(wide) - truth.double() * wide)).sum()
            return loss + 0.5 * (penalty.double() * solution.double() ** 2).sum()

    search = torch.optim.LBFGS(
        [point],
        max_iter=steps,
        max_eval=2 * steps,
        tolerance_grad=1e-7,
        # below this the loss only jitters; the Hessian is about 1, so the gradient is then below its square root
        tolerance_change=1e-12 if values.dtype == torch.float64 else 1e-9,
        history_size=20,
        line_search_fn="strong_wolfe",
    )
    search.step(closure)
    return back(point), search.state[point]["n_iter"] < steps


def _factor(hessian: Tensor, penalty: Tensor) -> Tensor:
    """The Cholesky factor of an expected Hessian; what rounding makes indefinite is lifted until it is not."""
    lift = torch.finfo(hessian.dtype).eps * 10
    while True:
        matrix = hessian.clone()
        matrix.diagonal().add_(penalty + lift * float(hessian.diagonal().mean()))
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not int(failed):
            return factor
        lift *= 10


def ridge_path(columns: Columns, scores: Tensor, grid: Sequence[float]) -> Iterator[tuple[float, Tensor]]:
    """C (the inverse of ridge's alpha) and the least-squares solution, for each C. The bias is not penalised."""
    values = columns.values
    moments = values.T @ scores.to(values) / len(values)  # (columns + 1,)
    for c in grid:
        penalty = torch.full_like(moments, 1.0 / (c * len(values)))
        penalty[-1] = 0.0
        factor = _factor(columns.gram, penalty)
        yield c, torch.cholesky_solve(moments[:, None], factor)[:, 0]


def platt(values: Tensor, labels: Tensor, weights: Tensor) -> tuple[float, float]:
    """Slope and offset that turn values into log-odds of the label: a logistic regression on one column."""
    columns = Columns.of(values.detach().cpu().double()[:, None])
    (_, solution, _) = next(logistic_path(columns, labels, weights, (1e6,)))
    weight, bias = columns.fold(solution[None, :-1], solution[-1:])
    return float(weight), float(bias)
