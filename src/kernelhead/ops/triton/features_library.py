"""Attention through features for autograd: a plain function in eager mode, a custom op where it is traced."""

from typing import Any

import torch
from torch import Tensor

from kernelhead.ops.eager import short
from kernelhead.ops.triton import features
from kernelhead.ops.triton.parts import empty_output, is_differentiated

Made = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def linear_attention(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """`short.linear_attention` with features that never leave the chip."""
    return _attention(query, key, value, None, mask)


def performer_attention(
    query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor, *, mask: Tensor | None = None
) -> Tensor:
    """`short.performer_attention` with features that never leave the chip."""
    return _attention(query, key, value, frequencies.float().contiguous(), mask)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor | None, mask: Tensor | None
) -> Tensor:
    given = query, key, value, frequencies, mask
    made: Tensor
    made = traced_forward(*given)[0] if torch.compiler.is_compiling() else _Attention.apply(*given)
    return made


@torch.library.custom_op("kernelhead::feature_attention", mutates_args=())
def traced_forward(
    query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor | None, mask: Tensor | None
) -> Made:
    """Output and the sums over keys, as an op that torch.compile and torch.export keep whole."""
    return features.forward(query, key, value, frequencies, mask)


@traced_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor | None, mask: Tensor | None) -> Made:
    return empty_output(query, value.shape[-1]), *features.empty_sums(key, value, frequencies)


@torch.library.custom_op("kernelhead::feature_attention_backward", mutates_args=())
def traced_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    frequencies: Tensor | None,
    mask: Tensor | None,
    sums: Tensor,
    totals: Tensor,
    peaks: Tensor,
    centres: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    return features.backward(query, key, value, frequencies, mask, sums, totals, peaks, centres, grad)


@traced_backward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return empty_output(query), empty_output(key), empty_output(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Made) -> None:
    ctx.save_for_backward(*inputs, *output[1:])


def _gradients(ctx: Any, run: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *run(*ctx.saved_tensors, grad), None, None


# Tracing differentiates the op with fake tensors: there its backward must be an op as well.
traced_forward.register_autograd(
    lambda ctx, *grads: _gradients(ctx, traced_backward, grads[0]), setup_context=_keep
)


class _Attention(torch.autograd.Function):
    """The same without the dispatcher in between; a gradient to differentiate is made without kernels."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        made = features.forward(*inputs)
        _keep(ctx, inputs, made)
        return made[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if is_differentiated(grads[0]):
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                return _differentiable_gradients(ctx, grads[0], again)
        return _gradients(ctx, features.backward, grads[0])


def _differentiable_gradients(ctx: Any, grad: Tensor, again: bool) -> tuple[Tensor | None, ...]:
    # Each its own: a side that is here twice would be counted twice.
    query, key, value = (side.view_as(side) for side in ctx.saved_tensors[:3])
    frequencies, mask = ctx.saved_tensors[3:5]
    if frequencies is None:
        output = short.linear_attention(query, key, value, mask=mask)
    else:
        output = short.performer_attention(query, key, value, frequencies, mask=mask)
    wanted = ctx.needs_input_grad[:3]
    sides = [side for side, needed in zip((query, key, value), wanted, strict=True) if needed]
    made = iter(torch.autograd.grad(output, sides, grad, create_graph=again))
    return *(next(made) if needed else None for needed in wanted), None, None
