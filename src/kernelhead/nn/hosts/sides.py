"""What one call of an attention's core got: its two sides, its values and what it may see."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.pattern import Dense
from kernelhead.shapes import check_axes, zeroed


@dataclass(frozen=True, eq=False)
class Sides:
    """What one call of an attention's core got, after rotary positions and norms of queries and keys.

    Shapes: query (b, h, n, d); key (b, h, m, d) and value (b, h, m, e), heads of grouped keys repeated;
    mask (b, m), True where a key is real; bias broadcasts to (b, h, n, m).

    Args:
        causal: whether a query sees the keys up to its own only; the last query sees the last key.
        scale: of the inner products.
        bias: added to the logits, -inf where nothing is to be seen; None where `mask` and `causal`
            say it all.

    Raises:
        ShapeError: axes that must agree do not.

    Example:
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> Sides(x, x, x, None, True, 0.5).pattern().matrix()[0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        axes = {
            "query": (self.query, "b h n d"),
            "key": (self.key, "b h m d"),
            "value": (self.value, "b h m e"),
        }
        check_axes("Sides", **axes, **({} if self.mask is None else {"mask": (self.mask, "b m")}))

    def pattern(self) -> Dense:
        """The softmax pattern (b, h, n, m) in float32 or better.

        Zero at padded keys, and in the row of a query that sees nothing.
        """
        with torch.autocast(self.query.device.type, enabled=False):
            scores = _wide(self.query) * self.scale @ _wide(self._real(self.key)).mT
            seen = scores.new_ones(scores.shape[-2:], dtype=torch.bool)
            if self.causal:
                seen = seen.tril(scores.shape[-1] - scores.shape[-2])
            if self.mask is not None:
                seen = seen & self.mask[:, None, None]
            if self.bias is not None:
                finite = self.bias > lowest(self.bias)
                scores, seen = scores + _wide(self.bias).masked_fill(~finite, 0), seen & finite
            # A row of nothing but the smallest number has a softmax, which is then dropped.
            logits = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
            return Dense(logits.softmax(-1).masked_fill(~seen, 0))

    def output(self) -> Tensor:
        """What the core gives, (b, h, n, e), in float32 or better and before any dropout."""
        with torch.autocast(self.query.device.type, enabled=False):
            return self.pattern().apply(_wide(self._real(self.value)))

    def _real(self, points: Tensor) -> Tensor:
        """Keys or values with zeros where they are padded: 0 times NaN would be NaN."""
        return zeroed(points, None if self.mask is None else self.mask[:, None])


def _wide(tensor: Tensor) -> Tensor:
    """The same numbers in float32 or better."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def lowest(logits: Tensor) -> float:
    """At and below this a number added to logits means masked: -inf, or the smallest there is.

    Example:
        >>> lowest(torch.zeros(1)) < -1e38
        True
    """
    return torch.finfo(logits.dtype).min / 2
