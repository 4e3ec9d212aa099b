"""Low rank plus sparse: principal component pursuit by alternating directions."""

from dataclasses import dataclass, fields
from math import inf, sqrt

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.shapes import check_axes, check_size


@dataclass(frozen=True, eq=False)
class RobustPCA:
    """A matrix as a low-rank part plus a sparse part, and how far the iteration got.

    Attributes:
        low: the low-rank part L, (... n m).
        sparse: the sparse part S, (... n m); entries that were not hit are zero, not small.
        rank: of the low-rank part, (...), whole numbers.
        residual: |M - L - S| over |M|, (...).
        iterations: that were made, (...).
        converged: whether both residuals met the tolerance, (...).
    """

    low: Tensor
    sparse: Tensor
    rank: Tensor
    residual: Tensor
    iterations: Tensor
    converged: Tensor


def rpca(
    matrix: Tensor,
    *,
    sparsity: float | None = None,
    mu: float | None = None,
    tolerance: float = 1e-7,
    most: int = 1000,
) -> RobustPCA:
    r"""Principal component pursuit: the least $|L|_* + \lambda |S|_1$ among all $L + S = M$.

    Alternating directions from S = Y = 0, with singular values and entries shrunk towards zero:

    $$ L = D_{1/\mu}(M - S + Y/\mu), \quad S = \mathrm{shrink}_{\lambda/\mu}(M - L + Y/\mu), \quad
    Y \leftarrow Y + \mu (M - L - S) $$

    It stops when $|M - L - S| \le t\,|M|$, the primal residual, and $\mu\,|S - S_\text{before}| \le t\,|Y|$,
    the dual one, in Frobenius norms. A round is one SVD, O(n m min(n, m)). Matrices of a batch are
    taken one by one, in float64. Gradients do not flow through.

    Shapes: matrix (... n m).

    Args:
        sparsity: lambda, the price of the sparse part; 1 / sqrt(max(n, m)) by default.
        mu: the step; n m / (4 |M|_1) by default. It changes the speed, not the solution.
        tolerance: t, for both residuals.
        most: rounds at most; `converged` says whether they were enough.

    Raises:
        ShapeError: the input is no matrix.
        BadInput: an entry is not a finite real number, there is none, or an option is not positive.

    Example:
        >>> hit = torch.ones(20, 20)
        >>> hit[3, 4] = 9.0
        >>> parts = rpca(hit)
        >>> int(parts.rank), parts.sparse.nonzero().tolist(), bool(parts.converged)
        (1, [[3, 4]], True)
    """
    sizes = check_axes("rpca", matrix=(matrix, "... n m"))
    shape = tuple(matrix.shape)
    if matrix.numel() == 0:
        raise BadInput(f"rpca: the matrix {shape} has no entries")
    if matrix.is_complex():
        raise BadInput(f"rpca: the matrix {shape} is complex, expected real numbers")
    if not bool(torch.isfinite(matrix).all()):
        raise BadInput(f"rpca: the matrix {shape} holds NaN or infinity")
    check_size("rpca", "most", most)
    for name, option in {"sparsity": sparsity, "mu": mu, "tolerance": tolerance}.items():
        if option is not None and not 0 < option < inf:
            raise BadInput(f"rpca: {name} is {option!r}, expected a finite number above 0")
    price = 1 / sqrt(max(sizes["n"], sizes["m"])) if sparsity is None else sparsity
    flat = matrix.detach().double().reshape(-1, *shape[-2:])
    found = [_pursuit(one, price, mu, tolerance, most) for one in flat]
    low, sparse, rank, residual, iterations, converged = (
        torch.stack([getattr(one, field.name) for one in found]) for field in fields(RobustPCA)
    )
    precision = matrix.dtype if matrix.is_floating_point() else torch.float64
    batch = shape[:-2]
    return RobustPCA(
        low.reshape(shape).to(precision),
        sparse.reshape(shape).to(precision),
        *(each.reshape(batch) for each in (rank, residual, iterations, converged)),
    )


def _pursuit(matrix: Tensor, price: float, mu: float | None, tolerance: float, most: int) -> RobustPCA:
    """One matrix (n m) in float64."""
    # The problem is the same for every unit of the entries, and so is the rounding with this one.
    unit = matrix.abs().max()
    matrix = matrix / torch.where(unit > 0, unit, 1)
    size = torch.linalg.matrix_norm(matrix)
    tiny = torch.finfo(matrix.dtype).tiny
    step = 1 / (4 * matrix.abs().mean().clamp_min(tiny)) if mu is None else mu * unit
    sparse, dual = torch.zeros_like(matrix), torch.zeros_like(matrix)  # dual is Y / mu
    rounds, converged = 0, torch.tensor(False)
    while rounds < most and not bool(converged):
        rounds += 1
        low, rank = _shrunk_values(matrix - sparse + dual, 1 / step)
        before, sparse = sparse, _shrunk(matrix - low + dual, price / step)
        gap = matrix - low - sparse
        dual = dual + gap
        primal, change = torch.linalg.matrix_norm(gap), torch.linalg.matrix_norm(sparse - before)
        converged = (primal <= tolerance * size) & (change <= tolerance * torch.linalg.matrix_norm(dual))
    iterations = torch.full_like(rank, rounds)
    return RobustPCA(low * unit, sparse * unit, rank, primal / size.clamp_min(tiny), iterations, converged)


def _shrunk(entries: Tensor, threshold: Tensor) -> Tensor:
    """Entries moved towards zero by a threshold."""
    return entries.sign() * (entries.abs() - threshold).clamp_min(0)


def _shrunk_values(matrix: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix whose singular values were moved towards zero, and how many are left."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = (values - threshold).clamp_min(0)
    return (left * values) @ right, (values > 0).sum()
