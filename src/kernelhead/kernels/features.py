"""Feature maps as plain functions: a row of a matrix in, its features out."""

from functools import lru_cache
from itertools import combinations_with_replacement
from math import factorial, prod, sqrt

import torch
from torch import Tensor

SMALLEST_NORM = 1e-12


def unit_rows(points: Tensor) -> Tensor:
    r"""$z / \max(|z|, 10^{-12})$ for every row; norms are taken in float32 or better.

    Shapes: points (... n d); returns the same.

    Example:
        >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    wide = torch.promote_types(points.dtype, torch.float32)
    norm = torch.linalg.vector_norm(points, dim=-1, keepdim=True, dtype=wide)
    return (points / norm.clamp_min(SMALLEST_NORM)).to(points.dtype)


def draw_frequencies(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Standard normal directions in orthogonal blocks with norms of independent normal vectors.

    Each row alone is standard normal, so features stay unbiased; orthogonality within a block of
    `width` rows lowers their variance.

    Shapes: returns (count, width) in float64.

    Args:
        generator: what they are drawn from.
    """
    blocks = []
    for _ in range(-(-count // width)):
        basis, triangle = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
        blocks.append((basis * torch.sign(torch.diagonal(triangle))).mT)
    directions = torch.cat(blocks)[:count]
    norms = torch.randn(count, width, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
    return directions * norms


def positive_features(points: Tensor, frequencies: Tensor) -> Tensor:
    r"""$\exp(w_i^\top z - |z|^2/2)/\sqrt{m}$ with $z = x\,d^{-1/4}$: unbiased for $\exp(q^\top k/\sqrt d)$.

    Shapes: points (... n d), frequencies (m, d); returns (... n m).
    """
    wide = torch.promote_types(points.dtype, torch.float32)
    scaled = points.to(wide) * points.shape[-1] ** -0.25
    exponent = scaled @ frequencies.to(scaled).mT - scaled.square().sum(-1, keepdim=True) / 2
    return (exponent.exp() / sqrt(frequencies.shape[0])).to(points.dtype)


def polynomial_features(points: Tensor, degree: int, offset: float) -> Tensor:
    r"""All monomials up to a degree, weighted so that inner products give $(q^\top k + c)^g$.

    Shapes: points (... n d); returns (... n p) with p = binom(d + degree, degree).

    Args:
        offset: c; above 0 it lets the lower degrees in.
    """
    columns, weights = _monomials(points.shape[-1] + 1, degree)
    constant = points.new_full((*points.shape[:-1], 1), sqrt(offset))
    extended = torch.cat([points, constant], dim=-1)
    weight = torch.tensor(weights, dtype=points.dtype, device=points.device)
    chosen = torch.tensor(columns, device=points.device)  # (p, degree)
    return extended[..., chosen].prod(-1) * weight


@lru_cache
def _monomials(width: int, degree: int) -> tuple[list[tuple[int, ...]], list[float]]:
    """The exponent sets of total degree `degree` and the roots of their multinomial coefficients."""
    columns = list(combinations_with_replacement(range(width), degree))
    counts = ([chosen.count(column) for column in set(chosen)] for chosen in columns)
    weights = [sqrt(factorial(degree) / prod(map(factorial, count))) for count in counts]
    return columns, weights
