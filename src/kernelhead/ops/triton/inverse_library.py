"""The iterated inverse for autograd and tracing."""

from typing import Any

import torch
from torch import Tensor

from kernelhead.ops.eager import linear as eager
from kernelhead.ops.triton import inverse
from kernelhead.ops.triton.parts import is_differentiated


def iterated_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """`eager.iterated_inverse` with all steps in one kernel.

    Shapes: matrix (... s s) in float32, s up to 64; returns (... s s).
    """
    keep = torch.is_grad_enabled() and matrix.requires_grad
    matrix = matrix.contiguous()
    given = matrix, matrix.sum(-2).amax(-1), iterations, keep
    if torch.compiler.is_compiling():
        return traced_forward(*given)[0]
    made: Tensor = _Inverse.apply(*given)
    return made


@torch.library.custom_op("kernelhead::iterated_inverse", mutates_args=())
def traced_forward(matrix: Tensor, largest: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor]:
    """`iterated_inverse` and what it keeps as an op that torch.compile and torch.export keep whole."""
    return inverse.forward(matrix, largest, iterations, keep)


@traced_forward.register_fake
def _(matrix: Tensor, largest: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(matrix), inverse.room(matrix, iterations, keep)


def _gradients(matrix: Tensor, largest: Tensor, kept: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the matrix and of its largest sum."""
    return inverse.backward(matrix, largest, kept, grad.contiguous())


traced_backward = torch.library.custom_op(
    "kernelhead::iterated_inverse_backward", _gradients, mutates_args=()
)


@traced_backward.register_fake
def _(matrix: Tensor, largest: Tensor, kept: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(matrix), torch.empty_like(largest)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.iterations = inputs[2]


def _backward(ctx: Any, run: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *run(*ctx.saved_tensors, grad), None, None


traced_forward.register_autograd(
    lambda ctx, grad, _: _backward(ctx, traced_backward, grad), setup_context=_keep
)


class _Inverse(torch.autograd.Function):
    """`iterated_inverse` without the dispatcher in between; more than a gradient is made without kernels."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        made = inverse.forward(*inputs)
        _keep(ctx, inputs, made)
        return made[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if not is_differentiated(grads[0]):
            return _backward(ctx, _gradients, grads[0])
        matrix = ctx.saved_tensors[0]
        with torch.enable_grad():
            output = eager.iterated_inverse(matrix, ctx.iterations)
            # All of it, by way of the largest sum too, which is then asked for nothing.
            (whole,) = torch.autograd.grad(output, matrix, grads[0], create_graph=True)
        return whole, None, None, None
