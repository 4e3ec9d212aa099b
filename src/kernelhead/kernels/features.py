"""Feature maps as plain functions: a row of a matrix in, its features out."""

from functools import lru_cache
from itertools import combinations_with_replacement
from math import factorial, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from kernelhead.shapes import check_axes

SMALLEST_NORM = 1e-12


def unit_rows(points: Tensor) -> Tensor:
    r"""$z / \max(|z|, 10^{-12})$ for every row; norms are taken in float32 or better.

    Shapes: points (... n d); returns the same.

    Example:
        >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    if not by_hand(points):
        return (points * _inverse_norms(points)).to(points.dtype)
    unit: Tensor = _UnitRows.apply(points)[0]
    return unit


def gram(features: Tensor) -> Tensor:
    r"""Inner products of all features over the points, $\Phi^\top \Phi$.

    Shapes: features (... n p); returns (... p p).

    Example:
        >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        tensor([[1., 2.],
                [2., 5.]])
    """
    check_axes("gram", features=(features, "... n p"))
    if not by_hand(features):
        return features.mT @ features
    made: Tensor = _Gram.apply(features)
    return made


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


def by_hand(points: Tensor) -> bool:
    """Whether a gradient is wanted that is worth writing out: compilers and transforms make their own.

    Example:
        >>> by_hand(torch.zeros(2)), by_hand(torch.zeros(2, requires_grad=True))
        (False, True)
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return False
    wanted = torch.is_grad_enabled() and points.requires_grad
    return wanted and not torch._C._functorch.is_functorch_wrapped_tensor(points)


def _inverse_norms(points: Tensor) -> Tensor:
    """One over the norm of every row, (... n 1)."""
    wide = torch.promote_types(points.dtype, torch.float32)
    norm = torch.linalg.vector_norm(points, dim=-1, keepdim=True, dtype=wide)
    return norm.clamp_min(SMALLEST_NORM).reciprocal()


class _UnitRows(torch.autograd.Function):
    """Unit rows, side by side in memory, and their inverse norms; the gradient reads the rows once.

    With $y = z / |z|$ it is $(g - y y^\\top g) / |z|$. The inverse norms are an output, so that a gradient of
    the gradient finds its way.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor) -> tuple[Tensor, Tensor]:
        inverse = _inverse_norms(points)
        unit = torch.empty(points.shape, dtype=points.dtype, device=points.device)
        if unit.dtype == inverse.dtype:
            torch.mul(points, inverse, out=unit)
        else:
            unit.copy_(points * inverse)
        ctx.save_for_backward(unit, inverse)
        ctx.set_materialize_grads(False)
        return unit, inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        unit, inverse = ctx.saved_tensors
        above, bent = grads
        # A row of next to no norm is multiplied by a number.
        long = inverse < (1 - 1e-6) / SMALLEST_NORM
        total = None
        if above is not None:
            along = (unit * above).sum(-1, keepdim=True, dtype=inverse.dtype) * long
            total = torch.addcmul(above, unit, along.to(unit.dtype), value=-1) * inverse
        if bent is not None:
            pulled = unit * (-bent * inverse.square() * long)
            total = pulled if total is None else total + pulled
        return None if total is None else total.to(unit.dtype)


class _Gram(torch.autograd.Function):
    """The gradient takes one product of all points, not one for each side."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        ctx.save_for_backward(features)
        return features.mT @ features

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        return features @ (grads[0] + grads[0].mT)
