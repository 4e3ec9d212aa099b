"""The scans for autograd and tracing, and the ops of causal attention that are built on them."""

from typing import Any

import torch
from torch import Tensor

from kernelhead.kernels import AbstractKernel
from kernelhead.ops.eager.linear import elu_features
from kernelhead.ops.eager.primal import points_so_far, prefix_growth
from kernelhead.ops.eager.softmax import wide
from kernelhead.ops.triton import prefix
from kernelhead.ops.triton.parts import empty_output
from kernelhead.shapes import zeroed


def prefix_products(features: Tensor, rows: Tensor, values: Tensor, reverse: bool = False) -> Tensor:
    """Row t is features_t times the sum over u up to t, or from t on in reverse, of rows_u' values_u.

    The gradients are three more of these products, so nothing but the inputs is kept for them.

    Shapes: features, rows (b, h, n, p), values (b, h, n, e) of one type, p and e up to 128; returns
    (b, h, n, e).
    """
    run = traced_products if torch.compiler.is_compiling() else _Products.apply
    made: Tensor = run(features, rows, values, reverse)
    return made


def running_means(points: Tensor, mask: Tensor | None) -> Tensor:
    """Means of the real points up to each point, summed in float32.

    Shapes: points (b, h, n, d), mask (b, 1, n); returns (b, h, n, d).
    """
    flat = None if mask is None else mask[:, 0]
    counts = None if flat is None else flat.cumsum(-1, dtype=torch.int32).clamp_min(1)
    run = traced_means if torch.compiler.is_compiling() else _Means.apply
    made: Tensor = run(points, flat, counts, False)
    return made


def prefix_scores(
    query: Tensor,
    key: Tensor,
    rows: Tensor,
    left: Tensor,
    right: Tensor,
    kernel: AbstractKernel,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Left and right scores (b, h, n, s) with weights that are built from the rows up to each point."""
    seen = points_so_far(rows, mask)
    growth = prefix_growth(seen, left.shape[-2]).to(query.dtype).unsqueeze(-1)
    query, key = zeroed(query, mask), zeroed(key, mask)
    rows = zeroed(kernel.landmark_features(rows).to(query.dtype), mask)
    sides = (kernel.left_features(query), left), (kernel.right_features(key), right)
    made = [
        zeroed(prefix_products(features, rows, _slotted(weight, seen, rows)) * growth, mask)
        for features, weight in sides
    ]
    return made[0], made[1]


def linear_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Causal linear attention with the map elu + 1, (b, h, n, e); all sums in float32."""
    left, right = elu_features(wide(query)), zeroed(elu_features(wide(zeroed(key, mask))), mask)
    sums = prefix_products(left, right, wide(zeroed(value, mask)))
    total = (left * running_means(right, mask)).sum(-1) * points_so_far(key, mask)
    return (sums / total.masked_fill(total == 0, 1).unsqueeze(-1)).to(value.dtype)


def _slotted(weight: Tensor, seen: Tensor, rows: Tensor) -> Tensor:
    """The row of weight (h, l, s) that each point's slot names, as (b, h, n, s)."""
    (batch, heads, n, _), landmarks = rows.shape, weight.shape[-2]
    if seen.dim() == 1:
        # Slots go round: a repeated weight has a gradient that is a plain sum.
        around = weight.repeat(1, -(-n // landmarks), 1)[:, :n]
        return around.expand(batch, -1, -1, -1)
    slot = (seen - 1).clamp_min(0) % landmarks  # (b, 1, n)
    return weight[torch.arange(heads, device=weight.device)[:, None], slot]


@torch.library.custom_op("kernelhead::prefix_products", mutates_args=())
def traced_products(features: Tensor, rows: Tensor, values: Tensor, reverse: bool) -> Tensor:
    """`prefix_products` as an op that torch.compile and torch.export keep whole."""
    return prefix.prefix_products(features, rows, values, reverse)


@traced_products.register_fake
def _(features: Tensor, rows: Tensor, values: Tensor, reverse: bool) -> Tensor:
    return empty_output(features, values.shape[-1])


@torch.library.custom_op("kernelhead::running_means", mutates_args=())
def traced_means(points: Tensor, mask: Tensor | None, counts: Tensor | None, reverse: bool) -> Tensor:
    """`running_means`, or its adjoint, as an op that torch.compile and torch.export keep whole."""
    return prefix.running_means(points, mask, counts, reverse)


@traced_means.register_fake
def _(points: Tensor, mask: Tensor | None, counts: Tensor | None, reverse: bool) -> Tensor:
    return empty_output(points)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.reverse = inputs
    ctx.save_for_backward(*tensors)


def _product_gradients(ctx: Any, run: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    features, rows, values = ctx.saved_tensors
    calls = (
        (grad, values, rows, ctx.reverse),
        (values, grad, features, not ctx.reverse),
        (rows, features, grad, not ctx.reverse),
    )
    wanted = zip(ctx.needs_input_grad, calls, strict=False)
    return *(run(*call) if needed else None for needed, call in wanted), None


def _keep_counts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, mask, counts, ctx.reverse = inputs
    ctx.save_for_backward(mask, counts)


def _mean_gradients(ctx: Any, run: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    mask, counts = ctx.saved_tensors
    return run(grad, mask, counts, not ctx.reverse), None, None, None


# Tracing differentiates an op with fake tensors: its gradients must be ops as well, here the same ones.
traced_products.register_autograd(
    lambda ctx, grad: _product_gradients(ctx, traced_products, grad), setup_context=_keep
)
traced_means.register_autograd(
    lambda ctx, grad: _mean_gradients(ctx, traced_means, grad), setup_context=_keep_counts
)


class _Products(torch.autograd.Function):
    """`prefix_products` without the dispatcher in between."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        made = prefix.prefix_products(*inputs)
        _keep(ctx, inputs, made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _product_gradients(ctx, _Products.apply, grads[0])


class _Means(torch.autograd.Function):
    """`running_means` without the dispatcher in between."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        made = prefix.running_means(*inputs)
        _keep_counts(ctx, inputs, made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _mean_gradients(ctx, _Means.apply, grads[0])
