"""Correlations of the points that attend, and tests whether two of them are independent given others."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import atanh, erfc, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernelhead.errors import BadInput, Degenerate
from kernelhead.pattern import Dense, Pattern
from kernelhead.shapes import check_axes, check_size

SHORTEST = 1e-8  # length of a row below which it has no direction
WORST = 1e10  # condition number from which on an inverse in float64 means nothing


def attention_correlation(pattern: Pattern | Tensor, values: Tensor | None = None) -> Tensor:
    r"""Correlations of the outputs of attention, $S_{ij} / \sqrt{S_{ii} S_{jj}}$ with $S = A C A^\top$.

    Attention gives $Z = A V$. Where coordinates of the values are independent draws, points of Z covary as
    $A C_V A^\top$; without values $C_V$ is the identity, and a correlation is the cosine of two rows of A.

    Shapes: pattern (... n m), values (... m d); returns (... n n), float64.

    Args:
        pattern: of any attention; rows need not sum to one, their length has no influence.
        values: that it is applied to, whose covariance over coordinates is then C.

    Raises:
        BadInput: an entry is not finite, or values have fewer than two coordinates.
        Degenerate: a row vanishes.
        ShapeError: pattern and values do not go together.

    Example:
        >>> attention_correlation(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
        tensor([[1.0000, 0.6000],
                [0.6000, 1.0000]], dtype=torch.float64)
    """
    who = "attention_correlation"
    entries = entries_of(who, pattern)
    if values is not None:
        check_axes(who, pattern=(entries, "... n m"), values=(values, "... m d"))
        if values.shape[-1] < 2 or not torch.isfinite(values).all():
            raise BadInput(
                f"{who}: `values` {tuple(values.shape)} need two finite coordinates or more for a covariance"
            )
        centred = values.to(entries.device, torch.float64)
        entries = entries @ (centred - centred.mean(-1, keepdim=True))
    length = entries.norm(dim=-1, keepdim=True)
    if (length < SHORTEST).any():
        place = int((length < SHORTEST).flatten().nonzero()[0]) % entries.shape[-2]
        raise Degenerate(
            f"{who}: row {place} of the pattern {tuple(entries.shape)} has length "
            f"{float(length.flatten().min()):.1e}, so that it correlates with nothing"
        )
    rows = entries / length
    made = rows @ rows.mT
    made.diagonal(dim1=-2, dim2=-1).fill_(1)
    return made


def entries_of(who: str, pattern: Pattern | Tensor) -> Tensor:
    """The entries of a pattern in float64.

    Raises:
        BadInput: one is not finite.
        ShapeError: it has fewer than two axes.
    """
    entries = (Dense(pattern) if isinstance(pattern, Tensor) else pattern).matrix().detach().double()
    if not torch.isfinite(entries).all():
        raise BadInput(f"{who}: the pattern {tuple(entries.shape)} holds NaN or infinity")
    return entries


@dataclass(frozen=True, eq=False)
class PartialCorrelations:
    r"""Tests of independence from a matrix of correlations, by Fisher's z.

    With P the inverse of the correlations of i, j and the k points given,
    $\rho = -P_{ij} / \sqrt{P_{ii} P_{jj}}$ and
    $p = \mathrm{erfc}(\sqrt{(n - k - 3) / 2} \, |\mathrm{artanh} \rho|)$; where $|\rho| = 1$, p = 0.

    Shapes: correlation (p p).

    Args:
        correlation: symmetric, ones on the diagonal.
        samples: n; of attention a choice, such as the width of the layer, and no count of anything observed.
        ridge: added to the diagonal, after which correlations are off-diagonal / (1 + ridge).
        nodes: what the points are called in a complaint; their numbers by default.

    Raises:
        BadInput: it is no such matrix, n is below 4, or the ridge below 0.
        Degenerate: it is nearly singular.

    Example:
        >>> chain = torch.tensor([[1.0, 0.5, 0.25], [0.5, 1.0, 0.5], [0.25, 0.5, 1.0]])
        >>> tests = PartialCorrelations(chain, samples=100)
        >>> round(tests.partial(0, 2, [1]), 6), round(tests.p_value(0, 2), 4), tests.p_value(0, 2, [1])
        (0.0, 0.0119, 1.0)
    """

    correlation: Tensor
    samples: int
    ridge: float = 0.0
    nodes: Sequence[int] = ()

    def __post_init__(self) -> None:
        who = "PartialCorrelations"
        check_size(who, "samples", self.samples, least=4)
        if not 0 <= self.ridge < np.inf:
            raise BadInput(f"{who}: ridge is {self.ridge}, expected 0 or more")
        given = self.correlation.detach().double()
        check_axes(who, correlation=(given, "p p"))
        if not torch.allclose(given, given.mT, atol=1e-6) or not torch.allclose(
            given.diagonal(), given.new_ones(len(given)), atol=1e-6
        ):
            raise BadInput(
                f"{who}: the matrix {tuple(given.shape)} is not finite, symmetric and one on its diagonal"
            )
        if self.condition > WORST:
            # As shown, so that of pairs alike to these digits the first is named on every machine.
            apart = given.abs().triu(1).round(decimals=6)
            i, j = divmod(int(apart.argmax()), len(given))
            nodes = self.nodes or range(len(given))
            raise Degenerate(
                f"{who}: correlations have condition number {self.condition:.1e}, that of points {nodes[i]} "
                f"and {nodes[j]} is {float(given[i, j]):.6f}; leave one out or give a ridge, such as 0.001"
            )

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """The correlations after the ridge, (p, p)."""
        made: NDArray[np.float64] = self.correlation.detach().double().cpu().numpy() / (1 + self.ridge)
        np.fill_diagonal(made, 1.0)
        return made

    @cached_property
    def condition(self) -> float:
        """Condition number of the correlations after the ridge."""
        return condition_of(self.matrix)

    def partial(self, i: int, j: int, given: Sequence[int] = ()) -> float:
        """The correlation of i and j given others, between -1 and 1.

        Raises:
            BadInput: these are not different points.
        """
        chosen = [i, j, *given]
        if len({*chosen}) < len(chosen) or not all(0 <= each < len(self.matrix) for each in chosen):
            raise BadInput(
                f"PartialCorrelations: {chosen} are not different ones of {len(self.matrix)} points"
            )
        if not given:
            found = float(self.matrix[i, j])
        elif len(given) == 1:
            ij, iz, jz = (float(self.matrix[pair]) for pair in ((i, j), (i, given[0]), (j, given[0])))
            rest = (1 - iz * iz) * (1 - jz * jz)
            found = (ij - iz * jz) / sqrt(rest) if rest > 0 else 1.0
        else:
            inverse = np.linalg.inv(self.matrix[np.ix_(chosen, chosen)])
            found = float(-inverse[0, 1] / np.sqrt(abs(inverse[0, 0] * inverse[1, 1])))
        return min(1.0, max(-1.0, found))

    def p_value(self, i: int, j: int, given: Sequence[int] = ()) -> float:
        """How likely so large a correlation of i and j given others is if they are independent.

        Raises:
            BadInput: these are not different points, or too many for n.
        """
        left = self.samples - len(given) - 3
        if left <= 0:
            raise BadInput(
                f"PartialCorrelations: {len(given)} points given are too many for n = {self.samples}, "
                f"expected at most {self.samples - 4}"
            )
        found = abs(self.partial(i, j, given))
        return 0.0 if found >= 1 else erfc(sqrt(left / 2) * atanh(found))


def condition_of(matrix: NDArray[np.float64]) -> float:
    """The condition number of a symmetric matrix, infinite where it is singular or not finite."""
    if not np.isfinite(matrix).all():
        return float("inf")
    values = np.abs(np.linalg.eigvalsh(matrix))
    return float(values.max() / values.min()) if values.min() > 0 else float("inf")
