"""The noun: a kernel matrix with a left and a right side, held dense or as factors."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.shapes import check_axes


@dataclass(frozen=True, eq=False)
class Dense:
    """A pattern that holds its entries.

    Shapes: entries (... n m), left points by right points.

    Example:
        >>> Dense(torch.eye(3)).singular_values()
        tensor([1., 1., 1.])
    """

    entries: Tensor

    def __post_init__(self) -> None:
        check_axes("Dense", entries=(self.entries, "... n m"))

    @property
    def shape(self) -> torch.Size:
        """(... n m)."""
        return self.entries.shape

    def matrix(self) -> Tensor:
        """The entries, (... n m)."""
        return self.entries

    def apply(self, values: Tensor) -> Tensor:
        """The pattern times values (... m d), giving (... n d)."""
        check_axes("Dense.apply", entries=(self.entries, "... n m"), values=(values, "... m d"))
        return self.entries @ values

    def transpose(self) -> "Dense":
        """The same pattern with its sides swapped."""
        return Dense(self.entries.mT)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums (... n) and column sums (... m)."""
        return self.entries.sum(-1), self.entries.sum(-2)

    def singular_values(self) -> Tensor:
        """All singular values, largest first, (... min(n, m)); costs O(n m min(n, m))."""
        return torch.linalg.svdvals(_full(self.entries))


@dataclass(frozen=True, eq=False)
class Factored:
    r"""A pattern held as factors: $L \,\mathrm{diag}(v)\, R^\top$, never multiplied out unless asked.

    The columns need not be orthonormal and the values need not be sorted.

    Shapes: left (... n p), values (... p), right (... m p).

    Example:
        >>> thin = Factored(torch.ones(4, 1), torch.tensor([0.25]), torch.ones(3, 1))
        >>> thin.matrix().shape, thin.marginals()[0]
        (torch.Size([4, 3]), tensor([0.7500, 0.7500, 0.7500, 0.7500]))
    """

    left: Tensor
    values: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        axes = {
            "left": (self.left, "... n p"),
            "values": (self.values, "... p"),
            "right": (self.right, "... m p"),
        }
        check_axes("Factored", **axes)

    @property
    def shape(self) -> torch.Size:
        """(... n m)."""
        batch = torch.broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2], self.values.shape[:-1])
        return torch.Size([*batch, self.left.shape[-2], self.right.shape[-2]])

    def matrix(self) -> Tensor:
        """The entries, (... n m); costs O(n m p) and holds them all."""
        return (self.left * self.values.unsqueeze(-2)) @ self.right.mT

    def apply(self, values: Tensor) -> Tensor:
        """The pattern times values (... m d), giving (... n d) at O((n + m) p d)."""
        check_axes("Factored.apply", right=(self.right, "... m p"), values=(values, "... m d"))
        return (self.left * self.values.unsqueeze(-2)) @ (self.right.mT @ values)

    def transpose(self) -> "Factored":
        """The same pattern with its sides swapped."""
        return Factored(self.right, self.values, self.left)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums (... n) and column sums (... m)."""
        left, right = self.left * self.values.unsqueeze(-2), self.right
        rows = (left @ right.sum(-2).unsqueeze(-1)).squeeze(-1)
        columns = (right @ left.sum(-2).unsqueeze(-1)).squeeze(-1)
        return rows, columns

    def singular_values(self) -> Tensor:
        """The singular values, largest first, (... min(n, m, p)); costs O((n + m) p^2)."""
        left = torch.linalg.qr(_full(self.left), mode="r").R
        right = torch.linalg.qr(_full(self.right), mode="r").R
        return torch.linalg.svdvals((left * _full(self.values).unsqueeze(-2)) @ right.mT)


Pattern: TypeAlias = Dense | Factored


def _full(tensor: Tensor) -> Tensor:
    """LAPACK needs float32 or float64; half precisions are widened."""
    if not torch.isfinite(tensor).all():
        raise BadInput(f"singular_values: the pattern {tuple(tensor.shape)} holds NaN or infinity")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
