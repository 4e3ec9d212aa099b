"""A feed-forward with its norm and residual as a function: check the axes once, then compute."""

import torch
from torch import Tensor

from kernelhead.ops.backends import feed_forward_backend, products_of
from kernelhead.ops.eager import feedforward as eager
from kernelhead.ops.eager.thinning import RANGE
from kernelhead.ops.softmax import check_dropout
from kernelhead.shapes import check_axes


def feed_forward(
    x: Tensor,
    norm: tuple[Tensor, Tensor],
    enter: tuple[Tensor, Tensor],
    leave: tuple[Tensor, Tensor],
    *,
    dropout: float = 0.0,
    epsilon: float = 1e-5,
) -> Tensor:
    r"""Points plus two layers of their norm, $x + W_2\, g(W_1 \mathrm{norm}(x) + b_1) + b_2$, g being GELU.

    On a CUDA device in half precision, by autocast or of its weights, all of it is one kernel, and one for
    the gradients, that keeps the points alone. Dropout draws two numbers from the global generator and hashes
    them with the place of every entry.

    Shapes: x (..., c); norm (c,) and (c,), enter (i, c) and (i,), leave (c, i) and (c,); returns (..., c).

    Args:
        x: points.
        norm: scale and shift of the layer norm.
        enter: weight and bias of the first layer.
        leave: weight and bias of the second.
        dropout: probability with which an entry of the middle, and one of what is added, is dropped.
        epsilon: of the norm.

    Raises:
        ShapeError: two axes disagree.
        BadInput: `dropout` is not in [0, 1).

    Example:
        >>> x, one, none = torch.tensor([[1.0, 3.0]]), torch.ones(2), torch.zeros(2)
        >>> feed_forward(x, (one, none), (torch.eye(2), none), (torch.eye(2), none)).round(decimals=3)
        tensor([[0.8410, 3.8410]])
    """
    who = "feed_forward"
    check_axes(
        who, x=(x, "... c"), scale=(norm[0], "c"), shift=(norm[1], "c"), enter=(enter[0], "i c"),
        enter_bias=(enter[1], "i"), leave=(leave[0], "c i"), leave_bias=(leave[1], "c"),
    )  # fmt: skip
    check_dropout(who, dropout)
    word = torch.randint(RANGE - 1, (2,), dtype=torch.int32, device=x.device) if dropout else None
    if feed_forward_backend(x, enter[0]) == "triton":
        from kernelhead.ops.triton import feedforward_library as library

        return library.feed_forward(x, norm, enter, leave, word, dropout, epsilon, products_of(enter[0]))
    return eager.feed_forward(x, norm, enter, leave, word, dropout, epsilon)
