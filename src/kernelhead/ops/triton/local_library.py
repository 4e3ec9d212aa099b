"""Mixing of neighbours for autograd and tracing."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelhead.ops.triton import local


def local_mix(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, causal: bool) -> Tensor:
    """Sums over taps of a weight times the point that far away, (b, n, c); all sums in float32."""
    own = len(weight) - 1 if causal else len(weight) // 2
    given = x, weight.contiguous(), bias, dilation, own
    made: Tensor = traced_mix(*given) if torch.compiler.is_compiling() else _Mix.apply(*given)
    return made


@torch.library.custom_op("kernelhead::local_mix", mutates_args=())
def traced_mix(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, own: int) -> Tensor:
    """`local_mix` as an op that torch.compile and torch.export keep whole."""
    return local.mix(x, weight, bias, dilation, own, False)


@traced_mix.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, own: int) -> Tensor:
    return x.new_empty(x.shape)


def _gradients(
    x: Tensor, weight: Tensor, grad: Tensor, dilation: int, own: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of points, weights and bias; the last in the type of the weights."""
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    sums = local.weigh(x, grad, len(weight), dilation, own).to(weight.dtype)
    return local.mix(grad, weight, None, dilation, own, True), sums[:-1].contiguous(), sums[-1].clone()


traced_backward = torch.library.custom_op("kernelhead::local_mix_backward", _gradients, mutates_args=())


@traced_backward.register_fake
def _(x: Tensor, weight: Tensor, grad: Tensor, dilation: int, own: int) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight), weight.new_empty(weight.shape[1:])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.dilation, ctx.own = inputs
    ctx.kind = bias.dtype
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, run: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    points, weights, shift = run(*ctx.saved_tensors, grad, ctx.dilation, ctx.own)
    return points, weights, shift.to(ctx.kind), None, None


traced_mix.register_autograd(lambda ctx, grad: _backward(ctx, traced_backward, grad), setup_context=_keep)


class _Mix(torch.autograd.Function):
    """`local_mix` without the dispatcher in between."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, weight, bias, dilation, own = inputs
        made = local.mix(x, weight, bias, dilation, own, False)
        _keep(ctx, inputs, made)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, _gradients, grads[0])
