"""Small linear algebra that the decompositions share: bases, signs, triangles, weights to start from."""

import torch
from torch import Tensor


def orthonormal_columns(count: int, rows: int, columns: int) -> Tensor:
    """Random matrices with orthonormal columns, or orthonormal rows where there are more columns.

    Shapes: returns (count, rows, columns), drawn from the global generator as torch's own
    initialisers are.

    Example:
        >>> basis = orthonormal_columns(2, 5, 3)
        >>> torch.allclose(basis.mT @ basis, torch.eye(3).expand(2, 3, 3), atol=1e-6)
        True
    """
    return torch.stack([torch.nn.init.orthogonal_(torch.empty(rows, columns)) for _ in range(count)])


def unit_frobenius(count: int, rows: int, columns: int) -> Tensor:
    """Random matrices of Frobenius norm one that are orthogonal to each other as vectors.

    This is what torch's orthogonal initialiser gives for a tensor of three axes, and how the
    published layers start; one matrix alone has no orthonormal columns. More matrices than entries
    of one cannot be orthogonal, and then have smaller norms.

    Shapes: returns (count, rows, columns).
    """
    return torch.nn.init.orthogonal_(torch.empty(count, rows, columns))


def tall_qr(matrix: Tensor, *, block: int = 65_536) -> tuple[Tensor, Tensor]:
    """Reduced QR of a tall matrix, by blocks of rows, so that the work fits the cache.

    Shapes: matrix (... n p); returns (... n k) with orthonormal columns and (... k p), k = min(n, p).
    """
    n, p = matrix.shape[-2:]
    if n <= max(block, 2 * p):
        basis, triangle = torch.linalg.qr(matrix)
        return basis, triangle
    pieces = [torch.linalg.qr(piece) for piece in matrix.split(max(block, 2 * p), dim=-2)]
    tops, triangle = torch.linalg.qr(torch.cat([piece.R for piece in pieces], dim=-2))
    heights = [piece.R.shape[-2] for piece in pieces]
    basis = torch.cat([p.Q @ top for p, top in zip(pieces, tops.split(heights, dim=-2), strict=True)], dim=-2)
    return basis, triangle


def paired_signs(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Flip pairs of columns so that the largest entry of each left column is positive.

    A singular pair is free up to a common sign; this makes it unique.

    Shapes: left (... n s), right (... m s).
    """
    largest = left.gather(-2, left.abs().argmax(-2, keepdim=True))
    sign = torch.where(largest < 0, -1.0, 1.0).to(left.dtype)
    return left * sign, right * sign


def inverse_or_zero(values: Tensor) -> Tensor:
    """One over each value, and zero for values that are zero up to rounding of the largest."""
    floor = values.amax(-1, keepdim=True) * torch.finfo(values.dtype).eps * values.shape[-1]
    return torch.where(values > floor, 1 / values.clamp_min(torch.finfo(values.dtype).tiny), 0)
