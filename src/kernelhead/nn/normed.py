"""Softmax attention that norms its own input: queries only, or queries, keys and values."""

import torch
from torch import Tensor, nn

from kernelhead.errors import unknown
from kernelhead.nn.base import AbstractKernelAttention, Attended, check_heads
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.softmax import without_padding
from kernelhead.ops.rows import own_attention, own_pattern
from kernelhead.ops.softmax import check_dropout, softmax_attention, softmax_pattern
from kernelhead.pattern import Dense

NORMS = ("all", "query", "none")
SCALES = ("head", "input")
SIGHTS = ("all", "self")


class SideNorm(nn.Module):
    """A layer norm of what becomes queries, of all sides of an attention, or of none.

    Args:
        width: features of a point.
        sides: "all", "query" or "none".
        epsilon: added to the variance.

    Raises:
        UnknownName: no such sides.

    Example:
        >>> queries, others = SideNorm(2, "query")(torch.tensor([[1.0, 3.0]]))
        >>> queries.round(), others
        (tensor([[-1.,  1.]], grad_fn=<RoundBackward0>), tensor([[1., 3.]]))
    """

    def __init__(self, width: int, sides: str, *, epsilon: float = 1e-5) -> None:
        super().__init__()
        if sides not in NORMS:
            raise unknown("SideNorm", "norm", sides, NORMS)
        self.sides = sides
        self.norm = None if sides == "none" else nn.LayerNorm(width, eps=epsilon)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Points (... c) as they become queries, and as they become anything else."""
        normed: Tensor = x if self.norm is None else self.norm(x)
        return normed, normed if self.sides == "all" else x

    def source(self, x: Tensor) -> Tensor:
        """Points (... c) as they become anything but queries."""
        return self.norm(x) if self.norm is not None and self.sides == "all" else x


class NormedAttention(AbstractKernelAttention):
    r"""Multi-head softmax attention with its norm inside; with a context a point sees that and itself.

    Time grows as n m. Under sight "self" the pattern is the identity and each point keeps its own value: the
    same network with nothing to see, to compare with. A recorded pattern is the one before dropout; with a
    context it is (b, h, n, m+1), the last column each point itself.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        norm: of "all" sides, of the "query" only as in released table models, or "none".
        scale: of inner products, by the width of a "head", $1 / \sqrt d$, or of the "input", $1 / \sqrt c$.
        sight: "all" points, or "self".
        dropout: probability with which an entry of the pattern is dropped in training.
        epsilon: of the norm.

    Raises:
        BadInput: the heads do not divide the width, or `dropout` is not in [0, 1).
        UnknownName: no such norm, scale or sight.

    Example:
        >>> NormedAttention(8, heads=2)(torch.zeros(1, 3, 8), context=torch.zeros(1, 5, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        norm: str = "all",
        scale: str = "head",
        sight: str = "all",
        dropout: float = 0.0,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        who = "NormedAttention"
        head = check_heads(who, width, heads)
        check_dropout(who, dropout)
        for what, name, known in (("scale", scale, SCALES), ("sight", sight, SIGHTS)):
            if name not in known:
                raise unknown(who, what, name, known)
        self.width, self.heads, self.sight, self.dropout = width, heads, sight, dropout
        self.scale = (head if scale == "head" else width) ** -0.5
        self.norm = SideNorm(width, norm, epsilon=epsilon)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def extra_repr(self) -> str:
        """The options that parameters do not show."""
        return f"heads={self.heads}, norm={self.norm.sides}, scale={self.scale:g}, sight={self.sight}"

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Softmax attention in every head."""
        queries, source = self.norm(x)
        value = self._split(self.value, source)
        seen = value if context is None else self._split(self.value, self.norm.source(context))
        if self.sight == "self":
            mixed = value * nn.functional.dropout(
                torch.ones_like(value[..., :1]), self.dropout, self.training
            )
            pattern = _identity(value, None if context is None else seen) if keep == "patterns" else None
            return self._attended(mixed, pattern, mask)
        query, key = self._split(self.query, queries), self._split(self.key, source)
        dropout, entries = self.dropout if self.training else 0.0, None
        real = None if mask is None else mask[:, None]
        if context is None:
            mixed = softmax_attention(query, key, value, mask=real, dropout=dropout, scale=self.scale)
            if keep == "patterns":
                entries = softmax_pattern(query, key, mask=real, scale=self.scale)
            return self._attended(mixed, entries, mask)
        real = None if context_mask is None else context_mask[:, None]
        other = self._split(self.key, self.norm.source(context))
        mixed = own_attention(query, other, seen, key, value, mask=real, dropout=dropout, scale=self.scale)
        if keep == "patterns":
            entries = own_pattern(query, other, key, mask=real, scale=self.scale)
        return self._attended(mixed, entries, mask)

    def _split(self, projection: nn.Linear, points: Tensor) -> Tensor:
        return split_heads(projection(points), self.heads)

    def _attended(self, mixed: Tensor, entries: Tensor | None, mask: Tensor | None) -> Attended:
        pattern = None if entries is None else without_padding(Dense(entries), mask)
        return Attended(self.out(merge_heads(mixed)), pattern=pattern)


def _identity(value: Tensor, other: Tensor | None) -> Tensor:
    """The pattern in which each point sees itself: (b, h, n, n), or (b, h, n, m+1) beside a context."""
    if other is not None:
        entries = value.new_zeros(*value.shape[:-1], other.shape[-2] + 1)
        entries[..., -1] = 1
        return entries
    count = value.shape[-2]
    return torch.eye(count, dtype=value.dtype, device=value.device).expand(*value.shape[:-2], count, count)
