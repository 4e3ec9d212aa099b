"""Softmax attention whose values are corrected as the kernel-PCA reading of attention asks."""

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, unknown
from kernelhead.nn.base import AbstractKernelAttention, Attended, check_heads
from kernelhead.nn.heads import merge_heads
from kernelhead.nn.softmax import project, without_padding
from kernelhead.ops import scaled_values, values_less_matrix, values_less_pattern
from kernelhead.ops.softmax import check_dropout, softmax_attention, softmax_pattern
from kernelhead.pattern import Dense
from kernelhead.shapes import check_size

MODES = ("exact", "scalar", "matrix")


class ScaledAttention(AbstractKernelAttention):
    r"""Softmax attention of values $(I - S) V$, from `x` to itself or to a context.

    - "exact": $S_{jj'} = g(k_{j'}) / (n\,g(k_j))$ with $g(k) = \sum_j e^{k^\top k_j / \sqrt d}$, of rank
      one and without parameters.
    - "scalar": a learned number times $\mathrm{softmax}(K K^\top / \sqrt d)$, at first zero.
    - "matrix": a learned S for every head, (h, N, N), at first zero; of n points it takes the first rows
      and columns.

    The last two are released and start as plain softmax attention; neither can become the first. Time
    grows as n m + m^2. S acts on keys and values only, so that a context is attended as in softmax
    attention. A recorded pattern is the whole of what is applied to V, before dropout; its rows need
    not sum to one. There is no causal form: S mixes the values of all points.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        mode: "exact", "scalar" or "matrix".
        longest: most points N that a learned matrix serves.
        causal: refused; here so that a causal model says so.
        dropout: probability with which an entry of the softmax pattern is dropped in training.

    Raises:
        BadInput: the heads do not divide the width, `dropout` is not in [0, 1), `longest` does not go with
            the mode, the layer is to be causal, or there are more points than `longest`.
        UnknownName: no such mode.

    Example:
        >>> ScaledAttention(8, heads=2, mode="matrix", longest=5)(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        mode: str = "exact",
        longest: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        who = "ScaledAttention"
        check_heads(who, width, heads)
        check_dropout(who, dropout)
        if mode not in MODES:
            raise unknown(who, "mode", mode, MODES)
        if causal:
            raise BadInput(f"{who}: cannot be causal, for it mixes the values of all points")
        if (longest is None) == (mode == "matrix"):
            raise BadInput(f'{who}: longest is {longest} in mode "{mode}"; only "matrix" needs and takes one')
        self.width, self.heads, self.mode, self.dropout = width, heads, mode, dropout
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        if longest is not None:
            check_size(who, "longest", longest)
            self.matrix = nn.Parameter(torch.zeros(heads, longest, longest))
        elif mode == "scalar":
            self.weight = nn.Parameter(torch.zeros(()))

    def extra_repr(self) -> str:
        """What the projections do not show."""
        return f"heads={self.heads}, mode={self.mode}"

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Softmax attention of corrected values in every head."""
        query, key, value, real = project(self, x, mask, context, context_mask)
        dropout = self.dropout if self.training else 0.0
        mixed = softmax_attention(query, key, self.scaled(key, value, real), mask=real, dropout=dropout)
        pattern = None
        if keep == "patterns":
            m = key.shape[-2]
            units = torch.eye(m, dtype=value.dtype, device=value.device).expand(*key.shape[:2], m, m)
            entries = softmax_pattern(query, key, mask=real) @ self.scaled(key, units, real)
            pattern = without_padding(Dense(entries), mask)
        return Attended(self.out(merge_heads(mixed)), pattern=pattern)

    def scaled(self, key: Tensor, value: Tensor, real: Tensor | None) -> Tensor:
        """Values (b, h, m, e) less what S makes of them."""
        if self.mode == "exact":
            return scaled_values(key, value, mask=real)
        if self.mode == "scalar":
            return values_less_pattern(key, value, self.weight, mask=real)
        m, longest = value.shape[-2], self.matrix.shape[-1]
        if m > longest:
            raise BadInput(f"ScaledAttention: {m} points, but its matrix was made for {longest} at most")
        return values_less_matrix(value, self.matrix[:, :m, :m], mask=real)
