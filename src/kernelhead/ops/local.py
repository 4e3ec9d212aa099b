"""Mixing of neighbours as a function: check the axes once, then compute."""

from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.ops.backends import local_backend
from kernelhead.ops.eager import local as eager
from kernelhead.shapes import check_axes, check_size


def local_mix(x: Tensor, weight: Tensor, bias: Tensor, *, dilation: int = 1, causal: bool = False) -> Tensor:
    r"""Each point becomes $b + \sum_j w_j \odot x_{t + (j - m) r}$, a weighted sum of its neighbours.

    This is a depthwise convolution with k taps at distance r, on points as rows. Points beyond the ends
    are zero. Tap m meets the point itself: the middle one, or the last if causal. Time grows as n k.

    Shapes: x (b, n, c), weight (k, c), bias (c,); returns (b, n, c).

    Args:
        x: points; zero where padded, or padding is mixed in.
        weight: of every tap and feature.
        bias: added to every point.
        dilation: distance of taps, r.
        causal: whether a point sees itself and those before it only.

    Raises:
        ShapeError: two axes disagree.
        BadInput: `dilation` is not a positive whole number, there is no tap, or points are whole numbers.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]])
        >>> local_mix(x, torch.ones(3, 1), torch.zeros(1)).flatten()
        tensor([3., 6., 9., 7.])
        >>> local_mix(x, torch.ones(3, 1), torch.zeros(1), causal=True).flatten()
        tensor([1., 3., 6., 9.])
    """
    check_axes("local_mix", x=(x, "b n c"), weight=(weight, "k c"), bias=(bias, "c"))
    check_size("local_mix", "dilation", dilation)
    check_size("local_mix", "taps", len(weight))
    if not x.is_floating_point():
        raise BadInput(f"local_mix: `x` is {x.dtype}, expected floating-point numbers")
    dilation = min(dilation, max(x.shape[1], 1))  # from further away there is nothing to come
    if local_backend(x, weight) == "triton":
        from kernelhead.ops.triton import local_library as library

        return library.local_mix(x, weight, bias, dilation, causal)
    if x.numel() == 0:  # which a convolution does not take
        return (x * weight.sum(0) + bias).to(x.dtype)
    return eager.local_mix(x, weight, bias, dilation, causal)
