"""Values of Scaled Attention as functions: check the axes once, then compute."""

from torch import Tensor

from kernelhead.ops.eager import scaled as eager
from kernelhead.ops.softmax import check_sides
from kernelhead.shapes import check_axes


def scaled_values(key: Tensor, value: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r"""Values $v_j - \frac{1}{n\,g(k_j)} \sum_{j'} g(k_{j'}) v_{j'}$ as the kernel-PCA reading has them.

    Here $g(k) = \sum_j e^{k^\top k_j / \sqrt d}$. This is $(I - S) V$ with S of rank one and $S^2 = S$.
    It costs O(n d) beyond the sums g, which take O(n^2 d) time and O(n) memory.

    Shapes: key (... n d), value (... n e), mask (... n), True where real; batch axes broadcast; returns
    (... n e), zero at padded points, which count nowhere.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no point.

    Example:
        >>> import torch
        >>> scaled_values(torch.zeros(3, 4), torch.tensor([[1.0], [2.0], [6.0]])).flatten()
        tensor([-2., -1.,  3.])
    """
    check_sides("scaled_values", key, key, value, mask=mask)
    return eager.scaled_values(key, value, mask)


def values_less_pattern(key: Tensor, value: Tensor, weight: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r"""Values $(I - w\,\mathrm{softmax}(K K^\top / \sqrt d)) V$ with a learned number w.

    Shapes: key (... n d), value (... n e), weight () or what broadcasts to values, mask (... n); returns
    (... n e), zero at padded points.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no point.

    Example:
        >>> import torch
        >>> values_less_pattern(torch.zeros(2, 4), torch.tensor([[1.0], [3.0]]), torch.tensor(0.5)).flatten()
        tensor([0., 2.])
    """
    check_sides("values_less_pattern", key, key, value, mask=mask)
    return eager.values_less_pattern(key, value, weight, mask)


def values_less_matrix(value: Tensor, matrix: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Values (I - S) V with a learned matrix S, which fixes the number of points.

    Shapes: value (... n e), matrix (... n n), such as (h, n, n); mask (... n); returns (... n e), zero at
    padded points.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no point.

    Example:
        >>> import torch
        >>> values_less_matrix(torch.tensor([[1.0], [3.0]]), torch.eye(2)).flatten()
        tensor([0., 0.])
    """
    check_axes("values_less_matrix", value=(value, "... n e"), matrix=(matrix, "... n n"))
    check_sides("values_less_matrix", value, value, value, mask=mask)
    return eager.values_less_matrix(value, matrix, mask)
