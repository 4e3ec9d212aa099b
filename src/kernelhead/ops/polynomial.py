"""Attention without softmax as a function: check the axes once, then compute."""

from torch import Tensor

from kernelhead.ops.eager import polynomial as eager
from kernelhead.ops.softmax import check_sides


def polynomial_attention(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r"""Attention $\sum_j \langle q_i, k_j \rangle v_j$, without softmax and without a scale.

    This is what theory puts in the place of softmax attention. The pattern $Q K^\top$ is made only where that
    takes less than $K^\top V$ does: time and memory grow as n + m.

    Shapes: query (... n d), key (... m d), value (... m e), mask (... m), True where real; batch axes
    broadcast; returns (... n e).

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no key.

    Example:
        >>> import torch
        >>> polynomial_attention(torch.tensor([[2.0]]), torch.tensor([[1.0], [3.0]]), torch.ones(2, 1))
        tensor([[8.]])
    """
    check_sides("polynomial_attention", query, key, value, mask=mask)
    return eager.polynomial_attention(query, key, value, mask)
