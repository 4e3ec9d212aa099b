"""Softmax attention as a module, and how a module with four projections meets its two sides."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn.base import AbstractKernelAttention, Attended, check_heads
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.maps import mapped
from kernelhead.ops.softmax import check_dropout, softmax_attention, softmax_pattern
from kernelhead.pattern import Dense, Factored, Pattern


@dataclass(frozen=True, eq=False)
class SoftmaxState:
    """Keys and values of the points so far; it grows by one of each a step.

    Shapes: key and value (b, h, m, d).
    """

    key: Tensor
    value: Tensor


class AbstractSoftmaxAttention(AbstractKernelAttention):
    """Base of softmax attentions: write `attend`, get `start` and `step`.

    Without queries keys attend to keys.
    """

    query: nn.Linear | None

    def __init__(self, width: int, heads: int, causal: bool, dropout: float, *, queries: bool) -> None:
        super().__init__()
        check_heads(type(self).__name__, width, heads)
        check_dropout(type(self).__name__, dropout)
        self.width, self.heads, self.causal, self.dropout = width, heads, causal, dropout
        self.query = nn.Linear(width, width) if queries else None
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def _attend_sides(self, sides: "Sides", mask: Tensor | None, keep: str) -> Attended:
        """What `attend` gives once points are projected."""
        query, key, value, real = sides
        dropout = self.dropout if self.training else 0.0
        mixed = softmax_attention(query, key, value, mask=real, causal=self.causal, dropout=dropout)
        pattern = None
        if keep == "patterns":
            entries = softmax_pattern(query, key, mask=real, causal=self.causal)
            pattern = without_padding(Dense(entries), mask)
        return Attended(mapped(merge_heads(mixed), self.out)[0], pattern=pattern)

    def start(self, batch: int) -> SoftmaxState:
        """The state of a causal layer before the first point of `batch` sequences.

        Raises:
            BadInput: the layer is not causal.
        """
        self._check_causal()
        empty = self.key.weight.new_zeros(batch, self.heads, 0, self.width // self.heads)
        return SoftmaxState(empty, empty)

    def step(self, x: Tensor, state: SoftmaxState) -> tuple[Tensor, SoftmaxState]:
        """One more point for each sequence, at a cost that grows as m; equals the parallel form.

        Shapes: x (b, c); returns (b, c) and the new state.

        Raises:
            BadInput: the layer is not causal, or `x` does not fit it or the state.

        Example:
            >>> layer = SoftmaxAttention(8, heads=2, causal=True)
            >>> out, state = layer.step(torch.zeros(3, 8), layer.start(3))
            >>> out.shape, state.key.shape
            (torch.Size([3, 8]), torch.Size([3, 2, 1, 4]))
        """
        self._check_step(x, state.key.shape[0])
        query, key, value, _ = project(self, x[:, None], None, None, None)
        # The empty state may have another precision than autocast gives the first point.
        key = torch.cat([state.key.to(key.dtype), key], dim=-2)
        value = torch.cat([state.value.to(value.dtype), value], dim=-2)
        mixed = softmax_attention(query, key, value, dropout=self.dropout if self.training else 0.0)
        return self.out(merge_heads(mixed))[:, 0], SoftmaxState(key, value)


class SoftmaxAttention(AbstractSoftmaxAttention):
    """Multi-head softmax attention, from `x` to itself or to a context.

    Time grows as n m. A recorded pattern is the one before dropout.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        causal: whether a point sees itself and those before it only; rules out a context.
        dropout: probability with which an entry of the pattern is dropped in training.

    Raises:
        BadInput: the heads do not divide the width, or `dropout` is not in [0, 1).

    Example:
        >>> SoftmaxAttention(8, heads=2)(torch.zeros(1, 3, 8), context=torch.zeros(1, 5, 8)).shape
        torch.Size([1, 3, 8])
    """

    query: nn.Linear

    def __init__(self, width: int, *, heads: int, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__(width, heads, causal, dropout, queries=True)

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
        refuse_causal_context(self, self.causal, context)
        return self._attend_sides(project(self, x, mask, context, context_mask), mask, keep)


class Projections(Protocol):
    """A module with projections for keys and values, and for queries unless keys take their place."""

    heads: int
    key: nn.Linear
    value: nn.Linear

    @property
    def query(self) -> nn.Linear | None:
        """The projection for queries."""


class Sides(NamedTuple):
    """What a module attends with.

    Shapes: query (b, h, n, d), key and value (b, h, m, d), real (b, 1, m), True where a key is real.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    real: Tensor | None


def project(
    layer: Projections, x: Tensor, mask: Tensor | None, context: Tensor | None, context_mask: Tensor | None
) -> Sides:
    """Queries from `x`, keys and values from the context or from `x` too, split into heads.

    Example:
        >>> import torch
        >>> project(SoftmaxAttention(8, heads=2), torch.zeros(1, 3, 8), None, None, None).query.shape
        torch.Size([1, 2, 3, 4])
    """
    source, real = (x, mask) if context is None else (context, context_mask)
    if layer.query is not None and context is None:
        made = mapped(x, layer.query, layer.key, layer.value)
    else:
        asked = () if layer.query is None else mapped(x, layer.query)
        made = *asked, *mapped(source, layer.key, layer.value)
    sides = [split_heads(each, layer.heads) for each in made]
    return Sides(sides[0], sides[-2], sides[-1], None if real is None else real.unsqueeze(-2))


def without_padding(pattern: Pattern, mask: Tensor | None) -> Pattern:
    """A pattern (b, h, n, m) with zeros in the rows of padded points.

    Example:
        >>> import torch
        >>> without_padding(Dense(torch.ones(1, 1, 2, 1)), torch.tensor([[True, False]])).matrix().flatten()
        tensor([1., 0.])
    """
    if mask is None:
        return pattern
    padded = ~mask[:, None, :, None]
    if isinstance(pattern, Dense):
        return Dense(pattern.entries.masked_fill(padded, 0))
    return Factored(pattern.left.masked_fill(padded, 0), pattern.values, pattern.right)


def refuse_causal_context(layer: nn.Module, causal: bool, context: Tensor | None) -> None:
    """Refuse a context in a causal layer: points of two sequences have no common order.

    Raises:
        BadInput: the layer is causal and there is a context.

    Example:
        >>> refuse_causal_context(SoftmaxAttention(8, heads=2), False, None)
    """
    if causal and context is not None:
        raise BadInput(
            f"{type(layer).__name__}: is causal, and so takes no `context`, got {tuple(context.shape)}"
        )
