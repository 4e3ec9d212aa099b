"""The kernels as custom ops of torch: with shapes for tracing and gradients, so that compiling works."""

from typing import Any

import torch
from torch import Tensor

from kernelhead.ops.triton import primal


@torch.library.custom_op("kernelhead::primal_core", mutates_args=())
def primal_core(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    moments: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and, if asked for, sums over real points of both squared scores.

    Shapes: query, key (b, h, n, d), left and right (h, d, s) or (b, h, d, s), join (d, 2s) or (h, d, 2s),
    bias (d,) or (h, 1, d), mask (b, n); returns (b, h, n, d) and two (b, h, s), or two (0,).
    """
    return primal.forward(query, key, left, right, join, bias, mask, moments)


@primal_core.register_fake
def _(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    moments: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*query.shape[:2], left.shape[-1]) if moments else (0,)
    sums = [query.new_empty(shape, dtype=torch.float32) for _ in range(2)]
    return primal.empty_output(query), sums[0], sums[1]


@torch.library.custom_op("kernelhead::primal_core_backward", mutates_args=())
def primal_core_backward(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    grad_out: Tensor,
    left_pull: Tensor,
    right_pull: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the six tensors that `primal_core` takes first."""
    made = primal.backward(query, key, left, right, join, bias, mask, grad_out, left_pull, right_pull)
    return made[0], made[1], made[2], made[3], made[4], made[5]


@primal_core_backward.register_fake
def _(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    grad_out: Tensor,
    left_pull: Tensor,
    right_pull: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    small = [
        torch.empty(each.shape, dtype=query.dtype, device=query.device) for each in (left, right, join, bias)
    ]
    return primal.empty_output(query), primal.empty_output(key), small[0], small[1], small[2], small[3]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.moments = inputs
    ctx.save_for_backward(*tensors)


def _gradients(
    ctx: Any, grad_out: Tensor, grad_left: Tensor, grad_right: Tensor
) -> tuple[Tensor | None, ...]:
    query, key, left, right, join, bias, mask = ctx.saved_tensors
    if ctx.moments:
        pulls = 2 * grad_left, 2 * grad_right
    else:
        none = query.new_zeros((*query.shape[:2], left.shape[-1]), dtype=torch.float32)
        pulls = none, none
    made = primal_core_backward(query, key, left, right, join, bias, mask, grad_out, *pulls)
    return *made, None, None


primal_core.register_autograd(_gradients, setup_context=_keep)
