"""Mixing of neighbours as a layer, for what lies close by; attention is for what does not."""

from math import sqrt

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn.maps import mapped
from kernelhead.ops.local import local_mix
from kernelhead.shapes import check_axes, check_mask, check_size, zeroed


class LocalMixing(nn.Module):
    """Every point mixed with its neighbours, feature by feature, times a gate of its own; linear in n.

    Shapes: x (b, n, c), mask (b, n), True where real; returns (b, n, c), zero at padded points.

    Args:
        width: features of a point, c.
        taps: neighbours that a point sees, itself included.
        dilation: how far apart they are.
        causal: whether a point sees itself and those before it only.

    Raises:
        BadInput: a size is not a positive whole number.

    Example:
        >>> LocalMixing(8, taps=5)(torch.zeros(2, 9, 8)).shape
        torch.Size([2, 9, 8])
    """

    def __init__(self, width: int, *, taps: int, dilation: int = 1, causal: bool = False) -> None:
        super().__init__()
        who = "LocalMixing"
        self.width, self.taps = check_size(who, "width", width), check_size(who, "taps", taps)
        self.dilation, self.causal = check_size(who, "dilation", dilation), causal
        self.inward, self.outward = nn.Linear(width, 2 * width), nn.Linear(width, width)
        bound = 1 / sqrt(taps)
        self.weight = nn.Parameter(torch.empty(taps, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(width))

    def extra_repr(self) -> str:
        """The options that parameters do not show."""
        return f"taps={self.taps}, dilation={self.dilation}, causal={self.causal}"

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Project, mix, gate, project."""
        check_axes("LocalMixing", x=(x, "b n c"))
        if x.shape[-1] != self.width:
            raise BadInput(f"LocalMixing: `x` has {x.shape[-1]} features, expected {self.width}")
        check_mask("LocalMixing", mask, x)
        points, gate = mapped(zeroed(x, mask), self.inward)[0].chunk(2, dim=-1)
        # A padded point's projection is its bias: neighbours must not see it.
        points = zeroed(points, mask)
        mixed = local_mix(points, self.weight, self.bias, dilation=self.dilation, causal=self.causal)
        return zeroed(mapped(mixed * nn.functional.silu(gate), self.outward)[0], mask)
