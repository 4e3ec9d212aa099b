"""Principal Attention Pursuit in plain PyTorch, in the recurrence that needs one state tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelhead.ops.eager.softmax import softmax_attention, softmax_pattern, wide
from kernelhead.ops.pursuit import Pursuit
from kernelhead.shapes import zeroed

#: The state and the low-rank part that an update starts from; None at the first one.
Previous = tuple[Tensor, Tensor] | None
#: From key, previous, bound, whether the sign is the preprint's and whether no update follows, to the
#: next state, of no use if none follows, and the keys that attend. What a state holds is the update's own.
Update = Callable[[Tensor, Any, Tensor, bool, bool], tuple[Any, Tensor]]
#: From key and pursuit to tau and what the first update makes.
Opened = Callable[[Tensor, Pursuit], tuple[Tensor, tuple[Any, Tensor]] | None]


@dataclass(frozen=True, eq=False)
class RPCState:
    """What decoding keeps of the points so far.

    Shapes: keys, for every iteration, and value (b, h, m, d); total (b, h), sums of |k|; seen (b,), how
    many points were real; mask (b, m), or None while all were.
    """

    keys: tuple[Tensor, ...]
    value: Tensor
    total: Tensor
    seen: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class PursuitTrace:
    """What the iterations did, means over the real points of every head.

    Attributes:
        nonzero: share of entries in the sparse part.
        size: mean magnitude of the keys that attend.
        diagonal: mean weight that a point gives itself; 1 where attention is the identity.
        residual: norm of keys minus both parts, over the norm of the keys.

    Shapes: all (t, b, h), one row an iteration.
    """

    nonzero: Tensor
    size: Tensor
    diagonal: Tensor
    residual: Tensor


def update(
    key: Tensor, previous: Previous, bound: Tensor, preprint: bool, last: bool
) -> tuple[Tensor, Tensor]:
    """`definition`, of which one byte an entry is kept for backward."""
    # A tracer decides by itself what to keep.
    if torch.compiler.is_compiling():
        return definition(key, previous, bound, preprint)
    state, keys = _Update.apply(key, *(previous or (None, None)), bound, preprint, last)
    return keys if state is None else state, keys


def definition(key: Tensor, previous: Previous, bound: Tensor, preprint: bool) -> tuple[Tensor, Tensor]:
    """The next state P' = L + clip(K + P - 2 L), first clip(K), and the keys that attend.

    For the journal's sign both are the same; for the preprint's the keys are P' - 2 (P - L), a difference
    that amplifies rounding, so the state is kept in float32 or better.
    """
    state = keys = _offset(key, previous).clamp(-bound, bound)
    if previous is not None:
        state = keys = state + previous[1]
        if preprint:
            keys = state - 2 * (previous[0] - previous[1])
    keys = keys.to(key.dtype)
    return state if preprint else keys, keys


def _offset(key: Tensor, previous: Previous) -> Tensor:
    """What is clipped."""
    return wide(key) if previous is None else wide(key) + previous[0] - 2 * wide(previous[1])


class _Update(torch.autograd.Function):
    """`definition` that keeps the side on which each entry was clipped, and no entry itself."""

    @staticmethod
    def forward(
        ctx: Any,
        key: Tensor,
        state: Tensor | None,
        low: Tensor | None,
        bound: Tensor,
        preprint: bool,
        last: bool,
    ) -> tuple[Tensor | None, Tensor]:
        previous = None if state is None or low is None else (state, low)
        made, keys = definition(key, previous, bound, preprint)
        apart = made is not keys and not last
        if any(ctx.needs_input_grad):
            offset = _offset(key, previous)
            ctx.save_for_backward((offset > bound).to(torch.int8) - (offset < -bound).to(torch.int8))
        ctx.preprint, ctx.bound = preprint, bound.shape
        ctx.kinds = key.dtype, None if previous is None else previous[0].dtype
        ctx.set_materialize_grads(False)
        return made if apart else None, keys

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (side,) = ctx.saved_tensors
        of_state, of_keys = (None if grad is None else wide(grad) for grad in grads)
        parts = [grad for grad in (of_state, of_keys) if grad is not None]
        if not parts:
            return (None,) * 6
        whole = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        inner = whole.masked_fill(side != 0, 0)
        bound = (whole * side).sum_to_size(ctx.bound)
        state, low = inner, whole - 2 * inner
        if ctx.preprint and of_keys is not None:
            state, low = state - 2 * of_keys, low + 2 * of_keys
        key, kind = inner.to(ctx.kinds[0]), ctx.kinds[1]
        if kind is None:
            return key, None, None, bound, None, None
        return key, state.to(kind), low.to(key.dtype), bound, None, None


def bounds(key: Tensor, mask: Tensor | None, pursuit: Pursuit) -> Tensor:
    """Tau of every head (b, h, 1, 1), or of every point (b, h, n, 1); keys are zero at padded points."""
    if pursuit.scope == "prefix":
        return bound_of(magnitudes(key).cumsum(-1), _so_far(key, mask), key, pursuit)
    count = key.shape[-2] if mask is None else mask.sum(-1)[:, None, None]
    return bound_of(magnitudes(key, whole=True), count, key, pursuit)


def bound_of(total: Tensor, count: Tensor | int, key: Tensor, pursuit: Pursuit) -> Tensor:
    """Tau (b, h, n, 1) from sums of |k| (b, h, n) over as many points as `count`, (b, 1, n), says."""
    if isinstance(count, int):
        mean = total / (count * key.shape[-1])
    else:
        # Where no point is real yet none attends: any mean serves but zero, which tau divides by.
        mean = (total / (count.clamp_min(1) * key.shape[-1])).masked_fill(count == 0, 1)
    if pursuit.guard:
        mean = mean.clamp_min(pursuit.guard)
    scale = scale_of(pursuit, key.shape[1])
    return (scale / mean if pursuit.threshold == "times_mu" else scale * mean).unsqueeze(-1)


def scale_of(pursuit: Pursuit, heads: int) -> float:
    """What tau is times the mean of |k|, or over it."""
    count = heads if pursuit.width == "embed" else 1
    over = pursuit.threshold == "over_mu"
    return 4 * pursuit.strength / count if over else pursuit.strength * count / 4


def magnitudes(key: Tensor, *, whole: bool = False) -> Tensor:
    """Sums of |k| of every point, (b, h, n), or of all points, (b, h, 1), in float32 or better."""
    dim = (-2, -1) if whole else (-1,)
    # A tracer decides by itself what to keep.
    sums = _summed(key, dim) if torch.compiler.is_compiling() else _Magnitudes.apply(key, dim)
    return sums.squeeze(-1)


def _summed(key: Tensor, dim: tuple[int, ...]) -> Tensor:
    kind = torch.promote_types(key.dtype, torch.float32)
    # Features first: a norm adds up one by one, a sum in pairs, which errs less where points are many.
    sums = torch.linalg.vector_norm(key, 1, dim=-1, keepdim=True, dtype=kind)
    return sums if dim == (-1,) else sums.sum(-2, keepdim=True)


class _Magnitudes(torch.autograd.Function):
    """Sums of |k| whose backward pass makes no float32 copy of the keys."""

    @staticmethod
    def forward(ctx: Any, key: Tensor, dim: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(key)
        return _summed(key, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (key,) = ctx.saved_tensors
        return key.sgn() * grads[0].to(key.dtype), None


def rpc_attention(
    key: Tensor,
    value: Tensor,
    query: Tensor | None,
    pursuit: Pursuit,
    *,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    update: Update = update,
    opened: Opened | None = None,
) -> Tensor:
    """Output (b, h, n, d), zero at padded points, whatever stands there.

    Args:
        update: one step of the pursuit.
        opened: tau and the first step at once, or None where it does not make them.
    """
    real = None if mask is None else mask[:, None]
    key, value = zeroed(key, real), zeroed(value, real)
    query = None if query is None else zeroed(query, real)
    seen = None if mask is None else _seen(mask, key.shape[-2] if causal else None)

    def attend(at: int, keys: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            keys if query is None else query,
            keys,
            value,
            attn_mask=seen,
            is_causal=causal and seen is None,
            dropout_p=dropout if at == pursuit.iterations - 1 else 0.0,
        )

    begun = None
    if opened is not None and mask is None and pursuit.scope == "sequence":
        begun = opened(key, pursuit)
    bound, first = begun or (bounds(key, mask, pursuit), None)
    return zeroed(pursue(key, bound, pursuit, attend, update, first), real)


def rpc_pattern(
    key: Tensor,
    value: Tensor,
    query: Tensor | None,
    pursuit: Pursuit,
    *,
    mask: Tensor | None,
    causal: bool,
    update: Update = update,
) -> Tensor:
    """The pattern of the last iteration (b, h, n, n): as `rpc_attention`, but written out at the end."""
    real = None if mask is None else mask[:, None]
    key, value = zeroed(key, real), zeroed(value, real)

    def attend(at: int, keys: Tensor) -> Tensor:
        left = keys if query is None else query
        if at == pursuit.iterations - 1:
            return softmax_pattern(left, keys, mask=real, causal=causal)
        return zeroed(softmax_attention(left, keys, value, mask=real, causal=causal), real)

    return pursue(key, bounds(key, mask, pursuit), pursuit, attend, update)


def pursue(
    key: Tensor,
    bound: Tensor,
    pursuit: Pursuit,
    attend: Callable[[int, Tensor], Tensor],
    update: Update,
    first: tuple[Any, Tensor] | None = None,
) -> Tensor:
    """The last low-rank part, where `attend` makes one from the number of an iteration and its keys.

    Args:
        first: what the first update makes, if that is there already.
    """
    previous: Any = None
    for at in range(pursuit.iterations):
        last = at == pursuit.iterations - 1
        if at == 0 and first is not None:
            state, keys = first
        else:
            state, keys = update(key, previous, bound, pursuit.sign == "preprint", last)
        low = attend(at, keys)
        previous = state, low
    return low


def rpc_step(
    key: Tensor,
    value: Tensor,
    state: RPCState,
    query: Tensor | None,
    pursuit: Pursuit,
    *,
    mask: Tensor | None,
    update: Update = update,
) -> tuple[Tensor, RPCState]:
    """Output for the new points (b, h, n, d) and the state with them."""
    real = None if mask is None else mask[:, None]
    key, value = zeroed(key, real), zeroed(value, real)
    query = None if query is None else zeroed(query, real)
    total = state.total.unsqueeze(-1) + magnitudes(key).cumsum(-1)
    count = state.seen[:, None, None] + _so_far(key, mask)
    value = torch.cat([state.value, value], dim=-2)
    mask = _joined(state, mask, key)
    n, m = key.shape[-2], value.shape[-2]
    seen = None if mask is None else _seen(mask, n)
    if seen is None and 1 < n < m:
        seen = torch.ones(n, m, dtype=torch.bool, device=key.device).tril(m - n)
    kept = []

    def attend(at: int, keys: Tensor) -> Tensor:
        kept.append(torch.cat([state.keys[at], keys], dim=-2))
        first = keys if query is None else query
        causal = seen is None and n > 1
        return F.scaled_dot_product_attention(first, kept[at], value, attn_mask=seen, is_causal=causal)

    low = pursue(key, bound_of(total, count, key, pursuit), pursuit, attend, update)
    grown = RPCState(tuple(kept), value, total[..., -1], count[:, 0, -1], mask)
    return zeroed(low, real), grown


def rpc_trace(
    key: Tensor,
    value: Tensor,
    query: Tensor | None,
    pursuit: Pursuit,
    *,
    mask: Tensor | None,
    causal: bool,
) -> PursuitTrace:
    """The same iterations with patterns and sparse parts written out, of which numbers are read."""
    real = None if mask is None else mask[:, None]
    key, value = wide(zeroed(key, real)), wide(zeroed(value, real))
    query = None if query is None else wide(zeroed(query, real))
    points = _so_far(key, mask)[..., -1].clamp_min(1)  # (b, 1) or (1, 1)
    entries = points * key.shape[-1]
    bound = bounds(key, mask, pursuit)
    length = key.norm(dim=(-2, -1)).clamp_min(torch.finfo(key.dtype).tiny)
    dual = low = torch.zeros_like(key)
    rows = []
    for _ in range(pursuit.iterations):
        offset = key - low + dual
        sparse = offset - offset.clamp(-bound, bound)
        keys = key - sparse - dual if pursuit.sign == "preprint" else key - sparse + dual
        pattern = softmax_pattern(keys if query is None else query, keys, mask=real, causal=causal)
        low = zeroed(pattern @ value, real)
        residual = key - low - sparse
        dual = dual + residual
        diagonal = zeroed(pattern.diagonal(dim1=-2, dim2=-1).unsqueeze(-1), real)
        rows.append(
            torch.stack(
                [
                    (sparse != 0).sum((-2, -1), dtype=key.dtype) / entries,
                    keys.abs().sum((-2, -1)) / entries,
                    diagonal.sum((-2, -1)) / points,
                    residual.norm(dim=(-2, -1)) / length,
                ]
            )
        )
    return PursuitTrace(*torch.stack(rows, dim=1).unbind(0))


def _so_far(key: Tensor, mask: Tensor | None) -> Tensor:
    """How many real points there are up to each, (b, 1, n) or (1, 1, n)."""
    if mask is None:
        return torch.arange(1, key.shape[-2] + 1, device=key.device)[None, None]
    return mask[:, None].cumsum(-1)


def _seen(mask: Tensor, last: int | None) -> Tensor:
    """Which keys a query may look at, (b, 1, 1, m), or (b, 1, n, m) for the last n points if causal.

    One that sees none looks at all: its output is dropped, but must be finite.
    """
    seen = mask[:, None, None]
    if last is not None:
        m = mask.shape[-1]
        seen = seen & seen.new_ones(last, m).tril(m - last)
    return seen | ~seen.any(-1, keepdim=True)


def _joined(state: RPCState, mask: Tensor | None, key: Tensor) -> Tensor | None:
    """The mask of the points so far and the new ones, or None where all are real."""
    if state.mask is None and mask is None:
        return None
    parts = (state.mask, state.value), (mask, key)
    full = [
        one if one is not None else points.new_ones(points.shape[0], points.shape[2], dtype=torch.bool)
        for one, points in parts
    ]
    return torch.cat(full, dim=-1)
