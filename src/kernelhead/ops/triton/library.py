"""The kernels for autograd: a plain function in eager mode, a custom op of torch where it is traced."""

from typing import Any

import torch
from torch import Tensor

from kernelhead.ops.triton import landmarks, primal
from kernelhead.ops.triton.parts import empty_output


def primal_core(
    query: Tensor,
    key: Tensor | None,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    moments: bool,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and, if asked for, sums over real points of both squared scores.

    Shapes: query, key (b, h, n, d), or query (b, n, 2, h, d) with both and no key; left and right
    (h, d, s) or (b, h, d, s); join (d, 2s) and bias (d,), or (h, d, 2s) and (h, 1, d); mask (b, n);
    returns (b, h, n, d) and two (b, h, s), or two (0,). If causal, queries and keys are replaced by
    their running means.
    """
    given = query, key, left, right, join, bias, mask, moments, causal
    # The custom op costs a tenth of a millisecond a call, and is needed only for tracing.
    made: tuple[Tensor, Tensor, Tensor]
    made = traced_core(*given) if torch.compiler.is_compiling() else _Core.apply(*given)
    return made


@torch.library.custom_op("kernelhead::primal_core", mutates_args=())
def traced_core(
    query: Tensor,
    key: Tensor | None,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    moments: bool,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`primal_core` as an op that torch.compile and torch.export keep whole."""
    return primal.forward(*_sides(query, key), left, right, join, bias, mask, moments, causal)


@traced_core.register_fake
def _(
    query: Tensor,
    key: Tensor | None,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    moments: bool,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    side, _ = _sides(query, key)
    shape = (*side.shape[:2], left.shape[-1]) if moments else (0,)
    sums = [side.new_empty(shape, dtype=torch.float32) for _ in range(2)]
    return empty_output(side, join.shape[-2]), sums[0], sums[1]


@torch.library.custom_op("kernelhead::primal_core_backward", mutates_args=())
def traced_backward(
    query: Tensor,
    key: Tensor | None,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    grad_out: Tensor,
    left_pull: Tensor,
    right_pull: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the six tensors that `primal_core` takes first; none for a key that is packed."""
    return _backward(query, key, left, right, join, bias, mask, grad_out, left_pull, right_pull, causal)


@traced_backward.register_fake
def _(
    query: Tensor,
    key: Tensor | None,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    grad_out: Tensor,
    left_pull: Tensor,
    right_pull: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    both, sides = _empty_gradients(query, key)
    first, second = sides if both is None else (both, both.new_empty(0))
    small = [
        torch.empty(each.shape, dtype=query.dtype, device=query.device) for each in (left, right, join, bias)
    ]
    return first, second, small[0], small[1], small[2], small[3]


def _backward(
    query: Tensor, key: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    both, sides = _empty_gradients(query, key)
    left, right, join, bias, mask, grad_out, left_pull, right_pull, causal = others
    points = _sides(query, key)
    made = primal.backward(
        *points, left, right, join, bias, mask, grad_out, left_pull, right_pull, causal, into=sides
    )
    first, second = (made[0], made[1]) if both is None else (both, both.new_empty(0))
    return first, second, made[2], made[3], made[4], made[5]


def _sides(query: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor]:
    """Query and key as (b, h, n, d)."""
    if key is not None:
        return query, key
    return query[:, :, 0].transpose(1, 2), query[:, :, 1].transpose(1, 2)


def _empty_gradients(query: Tensor, key: Tensor | None) -> tuple[Tensor | None, tuple[Tensor, Tensor]]:
    """Room for the gradients of query and key: one tensor with both as views of it, or two."""
    if key is not None:
        return None, (empty_output(query), empty_output(key))
    both = query.new_empty(query.shape)
    return both, _sides(both, None)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.moments, ctx.causal = inputs
    ctx.save_for_backward(*tensors)


def _pulls(ctx: Any, grad_left: Tensor, grad_right: Tensor) -> tuple[Tensor, Tensor]:
    """What the moments' gradients pull with; nothing where no moments were asked for."""
    if ctx.moments:
        return 2 * grad_left, 2 * grad_right
    query, key, left = ctx.saved_tensors[:3]
    side, _ = _sides(query, key)
    none = side.new_zeros((*side.shape[:2], left.shape[-1]), dtype=torch.float32)
    return none, none


def _gradients(ctx: Any, run: Any, grads: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    query, key, *others = ctx.saved_tensors
    made = run(query, key, *others, grads[0], *_pulls(ctx, *grads[1:]), ctx.causal)
    return made[0], None if key is None else made[1], *made[2:], None, None, None


# Tracing differentiates the op with fake tensors: there its backward must be an op as well.
traced_core.register_autograd(
    lambda ctx, *grads: _gradients(ctx, traced_backward, grads), setup_context=_keep
)


class _Core(torch.autograd.Function):
    """The same without the dispatcher in between."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, left, right, join, bias, mask, moments, causal = inputs
        _keep(ctx, inputs, ())
        return primal.forward(*_sides(query, key), left, right, join, bias, mask, moments, causal)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, _backward, grads)


def landmark_core(
    points: Tensor, places: Tensor, left: Tensor, right: Tensor, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Weights of both sides from the points at some places.

    Shapes: points (b, n, c), places (l,) or (b, l), left and right (h, l, s); returns two (b, h, c/h, s).
    """
    made: tuple[Tensor, Tensor]
    given = points, places, left, right, kind
    made = traced_landmarks(*given) if torch.compiler.is_compiling() else _Landmarks.apply(*given)
    return made


@torch.library.custom_op("kernelhead::landmark_core", mutates_args=())
def traced_landmarks(
    points: Tensor, places: Tensor, left: Tensor, right: Tensor, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`landmark_core` as an op that torch.compile and torch.export keep whole."""
    return landmarks.forward(points, places, left, right, kind)


@traced_landmarks.register_fake
def _(
    points: Tensor, places: Tensor, left: Tensor, right: Tensor, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    shape = (points.shape[0], left.shape[0], points.shape[2] // left.shape[0], left.shape[2])
    return points.new_empty(shape, dtype=kind), points.new_empty(shape, dtype=kind)


@torch.library.custom_op("kernelhead::landmark_core_backward", mutates_args=())
def traced_landmarks_backward(
    points: Tensor, places: Tensor, left: Tensor, right: Tensor, grad_left: Tensor, grad_right: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of points, left and right."""
    return landmarks.backward(points, places, left, right, grad_left, grad_right)


@traced_landmarks_backward.register_fake
def _(
    points: Tensor, places: Tensor, left: Tensor, right: Tensor, grad_left: Tensor, grad_right: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    made = [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (points, left, right)]
    return made[0], made[1], made[2]


def _keep_landmarks(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:-1])


def _landmark_gradients(ctx: Any, run: Any, grads: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    d_points, d_left, d_right = run(*ctx.saved_tensors, *grads)
    return d_points, None, d_left, d_right, None


traced_landmarks.register_autograd(
    lambda ctx, *grads: _landmark_gradients(ctx, traced_landmarks_backward, grads),
    setup_context=_keep_landmarks,
)


class _Landmarks(torch.autograd.Function):
    """The same without the dispatcher in between."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        _keep_landmarks(ctx, inputs, ())
        return landmarks.forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _landmark_gradients(ctx, landmarks.backward, grads)
