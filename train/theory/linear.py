"""The exact checker for linear members: a (1, delta)-approximate checker, by convex geometry.

For scores f(x) = W x + b, label c wins at x + z where (w_c - w_j) z >= (f_j - f_c)(x) for every other j: these z are an
intersection of half-spaces. Whether the ball B_p(delta) meets it is decided by the shortest such z, which a linear
programme finds for l_inf and a non-negative least-squares problem for l_2 (Lawson and Hanson's least-distance
programming).

Ties count for the adversary: "ties broken arbitrarily" leaves the choice open, and Lemma surrogate needs this one.
The ball is the paper's, without the limits [0,1] of pixels.
"""

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linprog, nnls
from torch import Tensor

from robustinfer.errors import TrainingError

from .checkers import Checked, Scores

__all__ = ["LinearChecker", "linear_form", "shortest_change"]

_Array = npt.NDArray[np.float64]
_ROUNDING = 1e-9  # relative; decisions closer than this to the boundary count for the adversary


class LinearChecker:
    """An exact checker (c = 1) for members whose scores are affine in the pixels; others are refused."""

    c = 1.0

    def __init__(self, norm: str, delta: float) -> None:
        self.norm, self.delta = norm, delta

    def check(self, member: Scores, image: Tensor, labels: Tensor) -> Checked:
        """One search per example: h leaves y iff a class beats it, and the best z against one class is closed-form."""
        matrix, bias = linear_form(member, image)
        pixels, truth = _rows(image), labels.cpu().numpy()
        scores = pixels @ matrix.T + bias
        vulnerable = np.zeros(len(pixels), dtype=bool)
        perturbation = np.zeros_like(pixels)
        for row, label in enumerate(truth):
            direction = matrix - matrix[label]
            reach = self.delta * _dual_norm(direction, self.norm)
            gap = scores[row] - scores[row, label] + reach
            gap[label] = -np.inf
            best = int(gap.argmax())
            if gap[best] >= -_ROUNDING * (1.0 + reach[best]):
                vulnerable[row] = True
                perturbation[row] = self.delta * _steepest(direction[best], self.norm)
        return Checked(
            torch.from_numpy(vulnerable).to(image.device),
            torch.from_numpy(perturbation).to(image).view_as(image),
        )

    def reached(self, member: Scores, image: Tensor, labels: Tensor) -> Tensor:
        """Every label of every example, exactly."""
        matrix, bias = linear_form(member, image)
        pixels = _rows(image)
        limit = self.delta * (1.0 + _ROUNDING) + _ROUNDING
        reached = [
            [shortest_change(matrix, matrix @ row + bias, label, self.norm) <= limit for label in range(len(matrix))]
            for row in pixels
        ]
        return torch.tensor(reached, dtype=torch.bool, device=image.device)


def linear_form(member: Scores, image: Tensor) -> tuple[_Array, _Array]:
    """W and b of a member with scores W x + b, in double precision; a member that is not affine is refused.

    They are read off its values at the origin and at the unit vectors, and tried on the images themselves.
    """
    size = image[0].numel()
    basis = torch.cat([torch.zeros(1, size), torch.eye(size)]).to(image).view(-1, *image.shape[1:])
    with torch.no_grad():
        values = member(basis).double().cpu().numpy()
        found = member(image).double().cpu().numpy()
    matrix, bias = (values[1:] - values[0]).T, values[0]
    expected = _rows(image) @ matrix.T + bias
    if not np.allclose(found, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(values).max()))):
        raise TrainingError("The exact checker takes members whose scores are linear in the pixels; this one is not.")
    return matrix, bias


def shortest_change(matrix: _Array, scores: _Array, label: int, norm: str) -> float:
    """The norm of the shortest z with which `label` wins or ties everywhere; infinite if there is none."""
    others = np.arange(len(matrix)) != label
    directions, needed = (matrix[label] - matrix)[others], (scores - scores[label])[others]
    if (needed <= 0).all():
        return 0.0
    return _shortest_linf(directions, needed) if norm == "linf" else _shortest_l2(directions, needed)


def _shortest_l2(directions: _Array, needed: _Array) -> float:
    """min |z|_2 with G z >= h. For the u >= 0 that brings [G^T; h^T] u closest to e_(d+1), with the residual r,

    z is -(r_1 ... r_d) / r_(d+1); a residual of 0 says that the constraints contradict each other.
    """
    target = np.zeros(directions.shape[1] + 1)
    target[-1] = 1.0
    matrix = np.vstack([directions.T, needed])
    solution, _ = nnls(matrix, target)
    residual = matrix @ solution - target
    if np.linalg.norm(residual) < _ROUNDING:
        return float("inf")
    return float(np.linalg.norm(residual[:-1] / residual[-1]))


def _shortest_linf(directions: _Array, needed: _Array) -> float:
    """min t with |z_i| <= t and G z >= h; z is split into its positive and negative part below t."""
    rows, size = directions.shape
    above = np.hstack([-directions, np.zeros((rows, 1))])
    upper = np.hstack([np.eye(size), -np.ones((size, 1))])
    lower = np.hstack([-np.eye(size), -np.ones((size, 1))])
    cost = np.zeros(size + 1)
    cost[-1] = 1.0
    found = linprog(
        cost,
        A_ub=np.vstack([above, upper, lower]),
        b_ub=np.concatenate([-needed, np.zeros(2 * size)]),
        bounds=[(None, None)] * size + [(0, None)],
    )
    return float(found.fun) if found.fun is not None else float("inf")  # infeasible


def _dual_norm(directions: _Array, norm: str) -> _Array:
    """max of w z over the unit ball: the l_1 norm for l_inf, the l_2 norm for l_2."""
    length: _Array = np.abs(directions).sum(axis=1) if norm == "linf" else np.linalg.norm(directions, axis=1)
    return length


def _steepest(direction: _Array, norm: str) -> _Array:
    """The z of the unit ball that attains the dual norm."""
    if norm == "linf":
        return np.asarray(np.sign(direction), dtype=np.float64)
    length = np.linalg.norm(direction)
    return direction / length if length > 0 else direction


def _rows(image: Tensor) -> _Array:
    rows: _Array = image.detach().double().flatten(1).cpu().numpy()
    return rows
