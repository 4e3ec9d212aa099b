"""Attention on a table: between its rows, and between the columns of each row."""

from torch import Tensor, nn

from kernelhead.errors import unknown
from kernelhead.nn.base import AbstractKernelAttention
from kernelhead.nn.inducing import InducingAttention, PooledPrimalAttention
from kernelhead.nn.normed import NormedAttention
from kernelhead.shapes import check_axes, check_size

ROW_ATTENTIONS = ("softmax", "self", "primal", "inducing")


class DatapointAttention(nn.Module):
    r"""Attention between the rows of a table, each row one point of all its columns' features.

    | attention | what a row sees | time |
    |---|---|---|
    | "softmax" | every row | r^2 |
    | "self" | itself: the same parameters, to compare with | r |
    | "primal" | landmarks, means over all rows, through `PooledPrimalAttention` | r |
    | "inducing" | a summary of all rows, through `InducingAttention` | r |

    Moving rows moves outputs in all four. A row that the mask leaves out has no influence. With a
    context rows see the rows of the context, softmax also each itself, and not each other.

    Shapes: table (b, r, a, e), mask (b, r), True where a row exists; context (b, m, a, e), context_mask
    (b, m); returns (b, r, a, e), zero at rows that do not exist.

    Args:
        columns: of the table, a.
        width: features of an entry, e.
        heads: must divide a e.
        attention: "softmax", "self", "primal" or "inducing".
        norm: of "all" sides, of the "query" only as released, or "none".
        scale: of inner products under softmax, by the "input" width a e as released, or by the "head".
        rank: of "primal".
        inducing: learned points of "primal" and "inducing".
        dropout: of entries of the pattern, in training; "primal" has none.
        epsilon: of the norm.

    Raises:
        BadInput: the heads do not divide the width of a row, or a number is out of range.
        UnknownName: no such attention, norm or scale.

    Example:
        >>> import torch
        >>> layer = DatapointAttention(3, 8, heads=4, attention="inducing")
        >>> layer(torch.zeros(1, 10, 3, 8)).shape
        torch.Size([1, 10, 3, 8])
    """

    def __init__(
        self,
        columns: int,
        width: int,
        *,
        heads: int,
        attention: str = "softmax",
        norm: str = "all",
        scale: str = "input",
        rank: int = 16,
        inducing: int = 32,
        dropout: float = 0.0,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        who = "DatapointAttention"
        row = check_size(who, "columns", columns) * check_size(who, "width", width)
        self.attention: AbstractKernelAttention
        match attention:
            case "softmax" | "self":
                sight = "self" if attention == "self" else "all"
                self.attention = NormedAttention(
                    row, heads=heads, norm=norm, scale=scale, sight=sight, dropout=dropout, epsilon=epsilon
                )
            case "primal":
                self.attention = PooledPrimalAttention(
                    row, heads=heads, rank=rank, landmarks=inducing, norm=norm, epsilon=epsilon
                )
            case "inducing":
                self.attention = InducingAttention(
                    row, heads=heads, inducing=inducing, norm=norm, dropout=dropout, epsilon=epsilon
                )
            case _:
                raise unknown(who, "attention", attention, ROW_ATTENTIONS)

    def forward(
        self,
        table: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend from every row to all rows, or to those of the context."""
        check_axes("DatapointAttention", table=(table, "b r a e"))
        rows = None if context is None else context.flatten(-2)
        made: Tensor = self.attention(table.flatten(-2), mask=mask, context=rows, context_mask=context_mask)
        return made.view_as(table)


class AttributeAttention(nn.Module):
    """Softmax attention between the columns of each row; no row sees another.

    Time grows as r a^2.

    Shapes: table (b, r, a, e); returns the same.

    Args:
        width: features of an entry, e.
        heads: must divide `width`.
        norm: of "all" sides, of the "query" only as released, or "none".
        scale: of inner products, by the "input" width e as released, or by the "head".
        dropout: of entries of the pattern, in training.
        epsilon: of the norm.

    Raises:
        BadInput: the heads do not divide the width, or a number is out of range.
        UnknownName: no such norm or scale.

    Example:
        >>> import torch
        >>> AttributeAttention(8, heads=4)(torch.zeros(1, 10, 3, 8)).shape
        torch.Size([1, 10, 3, 8])
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        norm: str = "all",
        scale: str = "input",
        dropout: float = 0.0,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention = NormedAttention(
            width, heads=heads, norm=norm, scale=scale, dropout=dropout, epsilon=epsilon
        )

    def forward(self, table: Tensor) -> Tensor:
        """Attend from every column to all columns of the same row."""
        check_axes("AttributeAttention", table=(table, "b r a e"))
        made: Tensor = self.attention(table.flatten(0, 1))
        return made.view_as(table)
