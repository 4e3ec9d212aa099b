"""A feed-forward with its norm and residual in plain PyTorch."""

from torch import Tensor
from torch.nn import functional as F

from kernelhead.ops.eager.thinning import thinned_rows


def feed_forward(
    x: Tensor,
    norm: tuple[Tensor, Tensor],
    enter: tuple[Tensor, Tensor],
    leave: tuple[Tensor, Tensor],
    word: Tensor | None,
    dropout: float,
    epsilon: float,
) -> Tensor:
    """Points plus what two layers with a GELU between them make of their norm, in the precision of x.

    Shapes: x (..., c); norm (c,) twice, enter (i, c) and (i,), leave (c, i) and (c,); word (2,), int32, where
    anything is dropped.
    """
    middle = F.gelu(F.linear(F.layer_norm(x, x.shape[-1:], *norm, epsilon), *enter))
    if word is not None:
        middle = thinned_rows(middle, dropout, word[0])
    made = F.linear(middle, *leave)
    if word is not None:
        made = thinned_rows(made, dropout, word[1])
    return x + made
