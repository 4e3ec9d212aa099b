"""Linear maps of the same points for autograd: a plain function in eager mode, a custom op where traced."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelhead.ops.backends import MOST_MAPS
from kernelhead.ops.eager import maps as eager
from kernelhead.ops.triton import maps as kernels
from kernelhead.ops.triton.parts import is_differentiated

Made = tuple[Tensor, Tensor, Tensor]


def linear_maps(x: Tensor, maps: kernels.Maps) -> tuple[Tensor, ...]:
    """Maps of points that are in the precision of products already."""
    flat = [part.contiguous() for each in maps for part in each]
    given = x.contiguous(), *flat, *[None] * (2 * (MOST_MAPS - len(maps)))
    made: Made = traced_forward(*given) if torch.compiler.is_compiling() else _Maps.apply(*given)
    return made[: len(maps)]


def _pairs(parts: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
    """Weights with their biases, as many as there are."""
    return [(weight, bias) for weight, bias in zip(parts[::2], parts[1::2], strict=True)
            if weight is not None and bias is not None]  # fmt: skip


def _forward(x: Tensor, *parts: Tensor | None) -> Made:
    made = kernels.forward(x, _pairs(parts))
    made += [x.new_empty(0) for _ in range(MOST_MAPS - len(made))]
    return made[0], made[1], made[2]


@torch.library.custom_op("kernelhead::linear_maps", mutates_args=())
def traced_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    weight_2: Tensor | None,
    bias_2: Tensor | None,
    weight_3: Tensor | None,
    bias_3: Tensor | None,
) -> Made:
    """Up to three maps as an op that torch.compile and torch.export keep whole; others are empty."""
    return _forward(x, weight, bias, weight_2, bias_2, weight_3, bias_3)


@traced_forward.register_fake
def _(x: Tensor, *parts: Tensor | None) -> Made:
    sizes = [None if weight is None else weight.shape[0] for weight in parts[::2]]
    one, two, three = (x.new_empty(0 if size is None else (*x.shape[:-1], size)) for size in sizes)
    return one, two, three


def _gradients(
    x: Tensor,
    weight: Tensor,
    weight_2: Tensor | None,
    weight_3: Tensor | None,
    grad: Tensor,
    grad_2: Tensor | None,
    grad_3: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradients of the points, and of weights and biases in one piece."""
    weights = [each for each in (weight, weight_2, weight_3) if each is not None]
    grads = [each.contiguous() for each in (grad, grad_2, grad_3) if each is not None]
    return kernels.backward(x, weights, grads)


traced_backward = torch.library.custom_op("kernelhead::linear_maps_backward", _gradients, mutates_args=())


@traced_backward.register_fake
def _(x: Tensor, weight: Tensor, *others: Tensor | None) -> tuple[Tensor, Tensor]:
    e, c = weight.shape
    maps = 1 + sum(each is not None for each in others[:2])
    return torch.empty_like(x), x.new_empty((maps, e * c + e), dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, run: Any, grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    x, *parts = ctx.saved_tensors
    weights = parts[::2]
    shown = [grad if weight is not None else None for weight, grad in zip(weights, grads, strict=True)]
    pull, sums = run(x, *weights, *shown)
    made = [part for each in kernels.gradients(sums, x.shape[-1]) for part in each]
    held = [each for each in parts if each is not None]
    small = [each.to(part.dtype) for each, part in zip(made, held, strict=True)]
    return pull, *small, *[None] * (len(parts) - len(held))


traced_forward.register_autograd(
    lambda ctx, *grads: _backward(ctx, traced_backward, grads), setup_context=_keep
)


class _Maps(torch.autograd.Function):
    """The same without the dispatcher in between; a gradient to differentiate is made without kernels."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Made:
        _keep(ctx, inputs, None)
        return _forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if any(map(is_differentiated, grads)):
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                return _differentiable_gradients(ctx, grads, again)
        return _backward(ctx, _gradients, grads)


def _differentiable_gradients(ctx: Any, grads: Sequence[Tensor], again: bool) -> tuple[Tensor | None, ...]:
    # Each its own: a tensor that is here twice, or comes from another one here, would be counted twice.
    given: list[Any] = [None if each is None else each.view_as(each) for each in ctx.saved_tensors]
    maps, kind, wanted = _pairs(given[1:]), given[0].dtype, ctx.needs_input_grad
    made = eager.linear_maps(given[0], [(weight.to(kind), bias.to(kind)) for weight, bias in maps])
    held = [each for each, needed in zip(given, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(made, held, grads[: len(maps)], create_graph=again))
    return tuple(next(found) if needed else None for needed in wanted)
