"""The update for autograd: a plain function in eager mode, a custom op of torch where it is traced."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelhead.ops.eager.rpc import scale_of
from kernelhead.ops.pursuit import Pursuit
from kernelhead.ops.triton import rpc


class Past(NamedTuple):
    """The state that an update starts from, as a place for its gradient and as what it is made from.

    Shapes: state (b, h, n, d), whose entries nobody reads; written (b, h, n, d), a state that was kept,
    None for the first; lows, each (b, h, n, d), that lead from there to this one.
    """

    state: Tensor
    written: Tensor | None = None
    lows: tuple[Tensor, ...] = ()


Previous = tuple[Past, Tensor] | None


def update(key: Tensor, previous: Previous, bound: Tensor, preprint: bool, last: bool) -> tuple[Past, Tensor]:
    """The past with one more update and the keys that attend; see the eager writing.

    Shapes: key (b, h, n, d), bound (b, h, 1 or n, 1) in float32; returns keys (b, h, n, d).
    """
    past, low = (None, None) if previous is None else previous
    state = None if past is None else past.state
    if torch.compiler.is_compiling():
        made, keys, _ = traced_update(key, state, low, bound, preprint, last)
        return Past(made if is_apart(key, past is None, preprint, last) else keys), keys
    written = None if past is None else past.written
    lows = () if past is None or low is None else (*past.lows, low)
    new, keys = _Update.apply(key, state, low, bound, preprint, last, (written, lows))
    if not preprint:
        # The keys are the state; those of the first update are as soon made from the key.
        return Past(keys, None if past is None else keys.detach()), keys
    if len(lows) == rpc.MOST:
        return Past(new, None if new is None else new.detach()), keys
    return Past(new, written, lows), keys


def opened(key: Tensor, pursuit: Pursuit) -> tuple[Tensor, tuple[Past, Tensor]] | None:
    """Tau and the first update by one kernel, or None where they are better made apart.

    It gives no gradients and takes no mask; tau must be that of the sequence.
    """
    wanted = torch.is_grad_enabled() and key.requires_grad
    if wanted or torch.compiler.is_compiling() or not rpc.fits_opening(key):
        return None
    times_mu = pursuit.threshold == "times_mu"
    bound, keys = rpc.opening(key, scale_of(pursuit, key.shape[1]), times_mu, pursuit.guard)
    if pursuit.sign == "preprint":
        return bound, (Past(key.new_empty((), dtype=torch.float32).expand(key.shape)), keys)
    return bound, (Past(keys), keys)


def is_apart(key: Tensor, first: bool, preprint: bool, last: bool) -> bool:
    """Whether a traced update makes a state beside the keys that attend."""
    return preprint and not last and not (first and key.dtype == torch.float32)


@torch.library.custom_op("kernelhead::rpc_update", mutates_args=())
def traced_update(
    key: Tensor, state: Tensor | None, low: Tensor | None, bound: Tensor, preprint: bool, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """State, or nothing where it is the keys; keys; sides of clipping; kept whole by torch.compile."""
    apart, lows = is_apart(key, state is None, preprint, last), [] if low is None else [low]
    made, keys, side = rpc.forward(key, state, lows, bound, preprint=preprint, apart=apart, keep=True)
    return key.new_empty(0, dtype=torch.float32) if made is None else made, keys, side


@traced_update.register_fake
def _(
    key: Tensor, state: Tensor | None, low: Tensor | None, bound: Tensor, preprint: bool, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    apart = is_apart(key, state is None, preprint, last)
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


def _note(ctx: Any, inputs: tuple[Any, ...], side: Tensor) -> None:
    key, state, _, bound, ctx.preprint, *_ = inputs
    ctx.kinds, ctx.points = (key.dtype, None if state is None else state.dtype), bound.shape[2]
    ctx.given = len(inputs)
    ctx.save_for_backward(side)
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, run: Any, grad_state: Tensor | None, grad_keys: Tensor | None
) -> tuple[Tensor | None, ...]:
    if grad_state is None and grad_keys is None:
        return (None,) * ctx.given
    key, state, low, bound = run(
        ctx.saved_tensors[0], grad_state, grad_keys, *ctx.kinds, ctx.points, ctx.preprint
    )
    first = ctx.kinds[1] is None
    return key, None if first else state, None if first else low, bound, *(None,) * (ctx.given - 4)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    key, state, _, _, preprint, last = inputs
    _note(ctx, inputs, output[2])
    ctx.apart = is_apart(key, state is None, preprint, last)


# Tracing differentiates the op with fake tensors: there its backward must be an op as well.
traced_update.register_autograd(
    lambda ctx, state, keys, _: _gradients(ctx, traced_backward, state if ctx.apart else None, keys),
    setup_context=_keep,
)


class _Update(torch.autograd.Function):
    """The same without the dispatcher in between, and with no state written while it can be recomputed."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, Tensor]:
        key, _, _, bound, preprint, last, (written, lows) = inputs
        apart = preprint and not last
        made, keys, side = rpc.forward(
            key,
            written,
            lows,
            bound,
            preprint=preprint,
            apart=apart and len(lows) == rpc.MOST,
            keep=any(ctx.needs_input_grad),
        )
        _note(ctx, inputs, side)
        if apart and made is None:
            # A gradient needs a place of the right shape to go to, but no entries.
            made = key.new_empty((), dtype=torch.float32).expand(key.shape)
        return made, keys

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, _backward, *grads)


def _backward(side: Tensor, grad_state: Tensor | None, grad_keys: Tensor | None, *rest: Any) -> Any:
    kind, state_kind, points, preprint = rest
    key, previous, bound = rpc.backward(side, grad_state, grad_keys, (kind, state_kind), points, preprint)
    return key, *(previous or (None, None)), bound
