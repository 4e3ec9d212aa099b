"""Linear maps of the same points as a function: check the axes once, then compute."""

from collections.abc import Sequence

from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.ops.backends import maps_backend, products_of
from kernelhead.ops.eager import maps as eager
from kernelhead.shapes import check_axes


def linear_maps(x: Tensor, maps: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    r"""Several linear maps of the same points, $W_i x + b_i$, such as queries, keys and values.

    On a CUDA device in half precision, by autocast or of the weights, up to three of them are one kernel, and
    one for the gradients, which reads points and gradients once for the points, the weights and the biases:
    see `ops.backends.maps_backend`.

    Shapes: x (..., c); weights (e, c) and biases (e,), e a map's own; returns (..., e) for each map.

    Args:
        x: points.
        maps: weight and bias of each.

    Raises:
        BadInput: these are no pairs, such as one pair without a list around it.
        ShapeError: two axes disagree.

    Example:
        >>> import torch
        >>> double, one = (2 * torch.eye(2), torch.zeros(2)), (torch.zeros(1, 2), torch.ones(1))
        >>> [made.tolist() for made in linear_maps(torch.tensor([1.0, 3.0]), [double, one])]
        [[2.0, 6.0], [1.0]]
    """
    if not maps or isinstance(maps[0], Tensor):
        raise BadInput(
            "linear_maps: `maps` is no list of pairs of weight and bias, "
            f"got {'none' if not maps else 'a tensor first'}"
        )
    for weight, bias in maps:
        check_axes("linear_maps", x=(x, "... c"), weight=(weight, "e c"), bias=(bias, "e"))
    if maps_backend(x, maps) == "triton":
        from kernelhead.ops.triton import maps_library as library

        return library.linear_maps(x.to(products_of(maps[0][0])), maps)
    return eager.linear_maps(x, maps)
