"""Kernels of similarity between two points, and the one dict of their names."""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import ClassVar

import torch
from torch import Tensor

from kernelhead.errors import BadInput, unknown
from kernelhead.kernels.base import AbstractKernel
from kernelhead.kernels.features import (
    SMALLEST_NORM,
    draw_frequencies,
    polynomial_features,
    positive_features,
    unit_rows,
)
from kernelhead.rng import generator
from kernelhead.shapes import check_size


@dataclass(frozen=True, eq=False)
class Identity(AbstractKernel):
    """The plain inner product.

    Example:
        >>> q = torch.tensor([[1.0, 2.0]])
        >>> Identity().pattern(q, q).matrix()
        tensor([[5.]])
    """

    formula: ClassVar[str] = r"q^\top k"

    def features(self, points: Tensor) -> Tensor:
        """The points."""
        return points

    def entries(self, left: Tensor, right: Tensor) -> Tensor:
        """Inner products."""
        return left @ right.mT


@dataclass(frozen=True, eq=False)
class Cosine(AbstractKernel):
    """The cosine of the angle between two points; a zero point is orthogonal to all. Used in the paper.

    Example:
        >>> q = torch.tensor([[3.0, 4.0], [4.0, -3.0]])
        >>> Cosine().pattern(q, q).matrix().round(decimals=4)
        tensor([[1., 0.],
                [0., 1.]])
    """

    formula: ClassVar[str] = r"q^\top k / (|q|\,|k|)"

    def features(self, points: Tensor) -> Tensor:
        """Rows on the unit sphere."""
        return unit_rows(points)

    def entries(self, left: Tensor, right: Tensor) -> Tensor:
        """Cosines."""
        left_norms, right_norms = (side.norm(dim=-1).clamp_min(SMALLEST_NORM) for side in (left, right))
        return left @ right.mT / left_norms.unsqueeze(-1) / right_norms.unsqueeze(-2)


@dataclass(frozen=True, eq=False)
class Relu(AbstractKernel):
    """The inner product of positive parts."""

    formula: ClassVar[str] = r"\max(q, 0)^\top \max(k, 0)"

    def features(self, points: Tensor) -> Tensor:
        """Positive parts."""
        return points.relu()

    def entries(self, left: Tensor, right: Tensor) -> Tensor:
        """Inner products of positive parts."""
        return left.clamp_min(0) @ right.clamp_min(0).mT


@dataclass(frozen=True, eq=False)
class Elu(AbstractKernel):
    """The inner product of elu + 1, the map of linear attention; always positive."""

    formula: ClassVar[str] = r"(\mathrm{elu}(q) + 1)^\top (\mathrm{elu}(k) + 1)"

    def features(self, points: Tensor) -> Tensor:
        """One above the exponential linear unit, exact where it is tiny."""
        return torch.where(points > 0, points + 1, points.clamp_max(0).exp())

    def entries(self, left: Tensor, right: Tensor) -> Tensor:
        """Inner products of elu + 1."""
        return (torch.nn.functional.elu(left) + 1) @ (torch.nn.functional.elu(right) + 1).mT


@dataclass(frozen=True, eq=False)
class Polynomial(AbstractKernel):
    """A power of the shifted inner product, with its explicit monomials.

    Args:
        degree: the power, 1 or more; features grow as binom(d + degree, degree).
        offset: what is added to the inner product, 0 or more.

    Example:
        >>> Polynomial(degree=2, offset=1.0).feature_width(3)
        10
    """

    degree: int = 2
    offset: float = 1.0

    formula: ClassVar[str] = r"(q^\top k + c)^g"
    keeps_width: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_size("Polynomial", "degree", self.degree)
        if not self.offset >= 0:
            raise BadInput(f"Polynomial: offset is {self.offset!r}, expected 0 or more")

    def features(self, points: Tensor) -> Tensor:
        """Weighted monomials."""
        return polynomial_features(points, self.degree, self.offset)

    def feature_width(self, width: int) -> int:
        """The number of monomials in width + 1 letters."""
        return comb(width + self.degree, self.degree)

    def entries(self, left: Tensor, right: Tensor) -> Tensor:
        """Powers of shifted inner products."""
        return (left @ right.mT + self.offset) ** self.degree


@dataclass(frozen=True, eq=False)
class Exponential(AbstractKernel):
    """The kernel inside softmax attention, through positive random features.

    Args:
        frequencies: (m, d), standard normal rows; `draw_frequencies` makes orthogonal ones. The
            error of an entry falls as the square root of m.
    """

    frequencies: Tensor

    formula: ClassVar[str] = r"\exp(q^\top k / \sqrt{d})"
    keeps_width: ClassVar[bool] = False

    def features(self, points: Tensor) -> Tensor:
        """Positive random features."""
        self.feature_width(points.shape[-1])
        return positive_features(points, self.frequencies)

    def feature_width(self, width: int) -> int:
        """The number of frequencies.

        Raises:
            BadInput: the frequencies are for points of another width.
        """
        if width != self.frequencies.shape[-1]:
            raise BadInput(
                f"Exponential: frequencies are {self.frequencies.shape[-1]} wide, but points are {width}"
            )
        return self.frequencies.shape[0]

    def entries(self, left: Tensor, right: Tensor) -> Tensor:
        """Exponentials of scaled inner products."""
        return (left @ right.mT * left.shape[-1] ** -0.5).exp()


KERNELS: dict[str, Callable[[int, int], AbstractKernel]] = {
    "identity": lambda width, seed: Identity(),
    "cosine": lambda width, seed: Cosine(),
    "relu": lambda width, seed: Relu(),
    "elu": lambda width, seed: Elu(),
    "polynomial": lambda width, seed: Polynomial(),
    "exponential": lambda width, seed: Exponential(
        draw_frequencies(2 * width, width, generator(seed)).float()
    ),
}


def named_kernel(kernel: str | AbstractKernel, *, width: int, seed: int = 0) -> AbstractKernel:
    """A kernel by its name, or the object itself.

    Args:
        kernel: one of the names in `KERNELS`, or a kernel.
        width: features of a point, for kernels that draw frequencies.
        seed: of those frequencies.

    Raises:
        UnknownName: no kernel has that name.

    Example:
        >>> named_kernel("cosine", width=4).formula
        'q^\\\\top k / (|q|\\\\,|k|)'
    """
    if isinstance(kernel, AbstractKernel):
        return kernel
    if kernel not in KERNELS:
        raise unknown("named_kernel", "feature map", kernel, KERNELS)
    return KERNELS[kernel](width, seed)
