"""The update for autograd: a plain function in eager mode, a custom op of torch where it is traced."""

from typing import Any

import torch
from torch import Tensor

from kernelhead.ops.triton import rpc

Previous = tuple[Tensor, Tensor] | None


def update(
    key: Tensor, previous: Previous, bound: Tensor, preprint: bool, last: bool
) -> tuple[Tensor, Tensor]:
    """The next state and the keys that attend; see the eager writing.

    Shapes: key and both of previous (b, h, n, d), bound (b, h, 1 or n, 1) in float32; returns two
    (b, h, n, d).
    """
    state, low = previous or (None, None)
    if torch.compiler.is_compiling():
        made, keys, _ = traced_update(key, state, low, bound, preprint, last)
        return made if rpc.is_apart(key, previous is None, preprint, last) else keys, keys
    new, keys = _Update.apply(key, state, low, bound, preprint, last)
    return keys if new is None else new, keys


@torch.library.custom_op("kernelhead::rpc_update", mutates_args=())
def traced_update(
    key: Tensor, state: Tensor | None, low: Tensor | None, bound: Tensor, preprint: bool, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """State, or nothing where it is the keys; keys; sides of clipping; kept whole by torch.compile."""
    made, keys, side = rpc.forward(key, _pair(state, low), bound, preprint, last, True)
    return key.new_empty(0, dtype=torch.float32) if made is None else made, keys, side


@traced_update.register_fake
def _(
    key: Tensor, state: Tensor | None, low: Tensor | None, bound: Tensor, preprint: bool, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    apart = rpc.is_apart(key, state is None, preprint, last)
    made = rpc.room(key, torch.float32) if apart else key.new_empty(0, dtype=torch.float32)
    return made, rpc.room(key, key.dtype), rpc.room(key, torch.int8)


@torch.library.custom_op("kernelhead::rpc_update_backward", mutates_args=())
def traced_backward(
    side: Tensor,
    grad_state: Tensor | None,
    grad_keys: Tensor | None,
    kind: torch.dtype,
    state_kind: torch.dtype | None,
    points: int,
    preprint: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of key, state, low-rank part and bound; nothing for those that a first update has not."""
    key, previous, bound = rpc.backward(side, grad_state, grad_keys, (kind, state_kind), points, preprint)
    state, low = previous or (key.new_empty(0), key.new_empty(0))
    return key, state, low, bound


@traced_backward.register_fake
def _(
    side: Tensor,
    grad_state: Tensor | None,
    grad_keys: Tensor | None,
    kind: torch.dtype,
    state_kind: torch.dtype | None,
    points: int,
    preprint: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    key, bound = rpc.room(side, kind), side.new_empty((*side.shape[:2], points, 1), dtype=torch.float32)
    if state_kind is None:
        return key, key.new_empty(0), key.new_empty(0), bound
    return key, rpc.room(side, state_kind), rpc.room(side, kind), bound


def _pair(state: Tensor | None, low: Tensor | None) -> Previous:
    return None if state is None or low is None else (state, low)


def _note(ctx: Any, inputs: tuple[Any, ...], side: Tensor) -> None:
    key, state, _, bound, ctx.preprint, _ = inputs
    ctx.kinds, ctx.points = (key.dtype, None if state is None else state.dtype), bound.shape[2]
    ctx.save_for_backward(side)
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, run: Any, grad_state: Tensor | None, grad_keys: Tensor | None
) -> tuple[Tensor | None, ...]:
    if grad_state is None and grad_keys is None:
        return (None,) * 6
    key, state, low, bound = run(
        ctx.saved_tensors[0], grad_state, grad_keys, *ctx.kinds, ctx.points, ctx.preprint
    )
    first = ctx.kinds[1] is None
    return key, None if first else state, None if first else low, bound, None, None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    key, state, _, _, preprint, last = inputs
    _note(ctx, inputs, output[2])
    ctx.apart = rpc.is_apart(key, state is None, preprint, last)


# Tracing differentiates the op with fake tensors: there its backward must be an op as well.
traced_update.register_autograd(
    lambda ctx, state, keys, _: _gradients(ctx, traced_backward, state if ctx.apart else None, keys),
    setup_context=_keep,
)


class _Update(torch.autograd.Function):
    """The same without the dispatcher in between."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, Tensor]:
        key, state, low, bound, preprint, last = inputs
        keep = any(ctx.needs_input_grad)
        made, keys, side = rpc.forward(key, _pair(state, low), bound, preprint, last, keep)
        _note(ctx, inputs, side)
        return made, keys

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, _backward, *grads)


def _backward(side: Tensor, grad_state: Tensor | None, grad_keys: Tensor | None, *rest: Any) -> Any:
    kind, state_kind, points, preprint = rest
    key, previous, bound = rpc.backward(side, grad_state, grad_keys, (kind, state_kind), points, preprint)
    return key, *(previous or (None, None)), bound
