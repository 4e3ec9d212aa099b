"""The iterated inverse for autograd and tracing."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelhead.ops.triton import inverse


def iterated_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """`eager.iterated_inverse` with all steps in one kernel; it has one gradient and no second.

    Shapes: matrix (... s s) in float32, s up to 64; returns (... s s).
    """
    keep = torch.is_grad_enabled() and matrix.requires_grad
    given = matrix.contiguous(), matrix.sum(-2).amax(-1), iterations, keep
    if torch.compiler.is_compiling():
        return traced_forward(*given)[0]
    made: Tensor = _Inverse.apply(*given)
    return made


@torch.library.custom_op("kernelhead::iterated_inverse", mutates_args=())
def traced_forward(matrix: Tensor, largest: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor]:
    """`iterated_inverse` and its states as an op that torch.compile and torch.export keep whole."""
    return inverse.forward(matrix, largest, iterations, keep)


@traced_forward.register_fake
def _(matrix: Tensor, largest: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(matrix), matrix.new_empty((iterations if keep else 0, *matrix.shape))


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


def _backward(ctx: Any, run: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *run(*ctx.saved_tensors, grad), None, None


traced_forward.register_autograd(
    lambda ctx, grad, _: _backward(ctx, traced_backward, grad), setup_context=_keep
)


class _Inverse(torch.autograd.Function):
    """`iterated_inverse` without the dispatcher in between."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        made = inverse.forward(*inputs)
        _keep(ctx, inputs, made)
        return made[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, _gradients, grads[0])
