"""Mixing of neighbours in plain PyTorch."""

from torch import Tensor
from torch.nn import functional as F


def local_mix(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, causal: bool) -> Tensor:
    """Sums over taps of a weight times the point that far away, (b, n, c), in the precision of x."""
    taps, width = weight.shape
    before = (taps - 1 if causal else taps // 2) * dilation
    padded = F.pad(x.mT, (before, (taps - 1) * dilation - before))
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    return F.conv1d(padded, weight.mT.unsqueeze(1), bias, dilation=dilation, groups=width).mT
