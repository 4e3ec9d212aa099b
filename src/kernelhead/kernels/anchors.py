"""Affinity to anchors: the rectangular block of a kernel, whose rows describe points by a few others."""

from torch import Tensor

from kernelhead.kernels.base import AbstractKernel
from kernelhead.kernels.similarity import named_kernel
from kernelhead.shapes import check_axes


def anchor_affinity(points: Tensor, anchors: Tensor, *, kernel: str | AbstractKernel = "cosine") -> Tensor:
    r"""The empirical kernel map on anchors, $a_i = [k(x_i, z_1), \dots, k(x_i, z_l)]$.

    It is the block $K_{nl}$ that Nystrom's method uses: $K_{nl} K_{ll}^{+} K_{ln}$ is the kernel itself where
    the anchors span the features. The order of the anchors is the order of the columns.

    Shapes: points (... n d), anchors (... l d); returns (... n l).

    Args:
        points: to be described.
        anchors: by which.
        kernel: a name or a kernel; see `named_kernel`.

    Raises:
        ShapeError: points and anchors are of different widths.
        UnknownName: no kernel has that name.

    Example:
        >>> import torch
        >>> points = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
        >>> anchor_affinity(points, points[:1]).flatten()
        tensor([1.0000, 0.8000])
    """
    sizes = check_axes("anchor_affinity", points=(points, "... n d"), anchors=(anchors, "... l d"))
    return named_kernel(kernel, width=sizes["d"]).entries(points, anchors)
