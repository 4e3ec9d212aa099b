"""A feed-forward with its norm and residual for autograd and tracing."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelhead.ops.triton import feedforward


def feed_forward(
    x: Tensor,
    norm: tuple[Tensor, Tensor],
    enter: tuple[Tensor, Tensor],
    leave: tuple[Tensor, Tensor],
    word: Tensor | None,
    dropout: float,
    epsilon: float,
    kind: torch.dtype,
) -> Tensor:
    """Points plus what two layers make of their norm, with products in a precision and sums in float32."""
    given = x.contiguous(), *norm, *enter, *leave, word, dropout, epsilon, kind
    made: Tensor = traced_forward(*given) if torch.compiler.is_compiling() else _FeedForward.apply(*given)
    return made


@torch.library.custom_op("kernelhead::feed_forward", mutates_args=())
def traced_forward(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    enter: Tensor,
    enter_bias: Tensor,
    leave: Tensor,
    leave_bias: Tensor,
    word: Tensor | None,
    dropout: float,
    epsilon: float,
    kind: torch.dtype,
) -> Tensor:
    """`feed_forward` as an op that torch.compile and torch.export keep whole."""
    return feedforward.forward(
        x, (scale, shift), (enter, enter_bias), (leave, leave_bias), word, dropout, epsilon, kind
    )


@traced_forward.register_fake
def _(x: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(x)


def _gradients(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    enter: Tensor,
    enter_bias: Tensor,
    leave: Tensor,
    word: Tensor | None,
    grad: Tensor,
    dropout: float,
    epsilon: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Gradients of the points, and the sums that those of all weights are made of."""
    return feedforward.backward(
        x, (scale, shift), (enter, enter_bias), leave, word, grad.contiguous(), dropout, epsilon, kind
    )


traced_backward = torch.library.custom_op("kernelhead::feed_forward_backward", _gradients, mutates_args=())


@traced_backward.register_fake
def _(x: Tensor, scale: Tensor, shift: Tensor, enter: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    width = 2 * enter.numel() + sum(enter.shape) + enter.shape[1]
    return torch.empty_like(x), x.new_empty(width, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *weights, bias, word, ctx.dropout, ctx.epsilon, ctx.kind = inputs
    ctx.last = bias.dtype
    ctx.save_for_backward(*weights, word)


def _backward(ctx: Any, run: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, scale, shift, enter, enter_bias, leave, word = ctx.saved_tensors
    others = word, grad, ctx.dropout, ctx.epsilon, ctx.kind
    points, sums = run(x, scale, shift, enter, enter_bias, leave, *others)
    made = feedforward.gradients(sums, (scale, shift), enter, ctx.kind)
    kinds = scale.dtype, shift.dtype, enter.dtype, enter_bias.dtype, leave.dtype, ctx.last
    small = (each.to(kind) for each, kind in zip(made, kinds, strict=True))
    return points, *small, None, None, None, None


traced_forward.register_autograd(lambda ctx, grad: _backward(ctx, traced_backward, grad), setup_context=_keep)


class _FeedForward(torch.autograd.Function):
    """`feed_forward` without the dispatcher in between."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, scale, shift, enter, enter_bias, leave, leave_bias, *others = inputs
        made = feedforward.forward(x, (scale, shift), (enter, enter_bias), (leave, leave_bias), *others)
        _keep(ctx, inputs, made)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, _gradients, grads[0])
