"""Attention without softmax as a layer: the polynomial network that theory analyses."""

import torch
from torch import Tensor, nn

from kernelhead.nn.base import AbstractKernelAttention, Attended, check_heads
from kernelhead.nn.heads import merge_heads
from kernelhead.nn.softmax import project, without_padding
from kernelhead.ops import polynomial_attention
from kernelhead.pattern import Factored
from kernelhead.shapes import zeroed


class PolynomialAttention(AbstractKernelAttention):
    r"""Self-attention $\sum_h W_O^h \sum_j \langle W_Q^h x_i, W_K^h x_j \rangle W_V^h x_j$ without softmax.

    A form of degree three; L of them one after another are a polynomial of degree $3^L$, whose rank between
    two sides of its inputs `inspection.separation_rank` computes exactly. It has no biases, no scale and no
    causal form, and is made to be analysed: outputs grow as the cube of their inputs, so that a deep stack
    needs a norm between its layers to be trained.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.

    Raises:
        BadInput: the heads do not divide the width.

    Example:
        >>> layer, x = PolynomialAttention(8, heads=2), torch.randn(1, 3, 8)
        >>> torch.allclose(layer(2 * x), 8 * layer(x))
        True
    """

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        check_heads("PolynomialAttention", width, heads)
        self.width, self.heads = width, heads
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))

    def extra_repr(self) -> str:
        """What the projections do not show."""
        return f"heads={self.heads}"

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Sums of inner products times values in every head."""
        query, key, value, real = project(self, x, mask, context, context_mask)
        mixed = polynomial_attention(query, key, value, mask=real)
        pattern = None
        if keep == "patterns":
            ones = torch.ones(query.shape[-1], dtype=query.dtype, device=query.device)
            pattern = without_padding(Factored(query, ones, zeroed(key, real)), mask)
        return Attended(self.out(merge_heads(mixed)), pattern=pattern)
