"""Linear maps of the same points in plain PyTorch."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F


def linear_maps(x: Tensor, maps: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    """What each weight and bias makes of the points.

    Shapes: x (..., c); weights (e, c) and biases (e,); returns (..., e) each.
    """
    return tuple(F.linear(x, *each) for each in maps)
