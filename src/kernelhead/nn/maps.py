"""Linear layers of the same points, by one kernel where there is one."""

from torch import Tensor, nn

from kernelhead.nn.hooks import is_plain
from kernelhead.ops.maps import linear_maps


def mapped(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """What linear layers make of the same points, together unless someone changed or watches one of them.

    Shapes: x (..., c); returns (..., e) for each layer.

    Args:
        x: points.
        layers: those that are mapped by.

    Example:
        >>> import torch
        >>> [made.shape for made in mapped(torch.zeros(3, 4), nn.Linear(4, 2), nn.Linear(4, 5))]
        [torch.Size([3, 2]), torch.Size([3, 5])]
    """
    if x.is_cuda and is_plain(*layers):
        return linear_maps(x, [(layer.weight, layer.bias) for layer in layers])
    return tuple(layer(x) for layer in layers)
