"""Principal component pursuit in loops, with the sign of its multiplier as an argument."""

import math

import torch
from torch import Tensor

from tests.oracles.kernels import exact


def pursuit(
    matrix: Tensor, *, iterations: int, price: float | None = None, mu: float | None = None, sign: float = 1.0
) -> tuple[Tensor, Tensor]:
    """L and S after so many rounds from S = Y = 0, spec 1.7:

    L = D_{1/mu}(M - S + Y/mu), S = shrink_{price/mu}(M - L + Y/mu), Y = Y + mu (M - L - S), with
    mu = n m / (4 |M|_1) and price = 1 / sqrt(max(n, m)). With `sign` -1 the first two have -Y/mu,
    a known misprint that does not recover anything.
    """
    matrix = exact(matrix)
    n, m = matrix.shape
    price = 1 / math.sqrt(max(n, m)) if price is None else price
    mu = n * m / (4 * sum(abs(x) for x in matrix.flatten().tolist())) if mu is None else mu
    low, sparse, dual = (torch.zeros(n, m, dtype=torch.float64) for _ in range(3))
    for _ in range(iterations):
        low = shrunk_values(matrix - sparse + sign * dual / mu, 1 / mu)
        sparse = shrunk(matrix - low + sign * dual / mu, price / mu)
        dual = dual + mu * (matrix - low - sparse)
    return low, sparse


def objective(low: Tensor, sparse: Tensor, price: float) -> float:
    """|L|_* + price |S|_1."""
    values = torch.linalg.svdvals(exact(low)).tolist()
    return sum(values) + price * sum(abs(x) for x in exact(sparse).flatten().tolist())


def shrunk(entries: Tensor, threshold: float) -> Tensor:
    """sign(x) max(|x| - threshold, 0) of every entry."""
    rows = [[math.copysign(max(abs(x) - threshold, 0.0), x) for x in row] for row in entries.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def shrunk_values(matrix: Tensor, threshold: float) -> Tensor:
    """U diag(max(sigma - threshold, 0)) V', one component at a time."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    total = torch.zeros_like(matrix)
    for component, value in enumerate(values.tolist()):
        total += max(value - threshold, 0.0) * torch.outer(left[:, component], right[component])
    return total
