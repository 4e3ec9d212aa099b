"""Softmax attention whose heads have a width of their own, for points of few features."""

from torch import Tensor, nn

from kernelhead.nn.base import AbstractKernelAttention, Attended
from kernelhead.nn.heads import merge_heads
from kernelhead.nn.softmax import project, without_padding
from kernelhead.ops.softmax import check_dropout, softmax_attention, softmax_pattern
from kernelhead.pattern import Dense
from kernelhead.shapes import check_size


class WideAttention(AbstractKernelAttention):
    """Multi-head softmax attention with heads of any width, such as 10 of 16 for points of 2 features.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h.
        head_width: features of a head, d.
        dropout: probability with which an entry of the pattern is dropped in training.

    Raises:
        BadInput: a size is not a positive whole number, or `dropout` is not in [0, 1).

    Example:
        >>> import torch
        >>> WideAttention(2, heads=10, head_width=16)(torch.zeros(1, 5, 2)).shape
        torch.Size([1, 5, 2])
    """

    def __init__(self, width: int, *, heads: int, head_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        who = "WideAttention"
        for name, size in (("width", width), ("heads", heads), ("head_width", head_width)):
            check_size(who, name, size)
        check_dropout(who, dropout)
        self.width, self.heads, self.dropout = width, heads, dropout
        self.query, self.key, self.value = (nn.Linear(width, heads * head_width) for _ in range(3))
        self.out = nn.Linear(heads * head_width, width)

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
        query, key, value, real = project(self, x, mask, context, context_mask)
        dropout = self.dropout if self.training else 0.0
        mixed = softmax_attention(query, key, value, mask=real, dropout=dropout)
        pattern = None
        if keep == "patterns":
            pattern = without_padding(Dense(softmax_pattern(query, key, mask=real)), mask)
        return Attended(self.out(merge_heads(mixed)), pattern=pattern)
