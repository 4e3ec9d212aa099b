"""Updates of Principal Attention Pursuit as one kernel forward and one backward.

Rows are independent. The state after t updates is a function of the key and the low-rank parts so far,
all of which stay in memory anyway: the forward recomputes it from up to four of them, in float32, where
to write a state and read it again would move more bytes. It writes the keys that attend and, for a
backward pass, a byte for the side on which an entry was clipped in the last update; of all that the
backward reads only this byte. The gradient of tau is summed over features in the kernel and over points
outside, in a fixed order, so two runs give the same bits.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[Tensor, Tensor]
#: Low-rank parts that one call of the kernel takes.
MOST = 4
#: Entries of a head that one program sums up, and the fewest heads that keep a chip busy that way.
LONGEST, FEWEST = 2**18, 64


@triton.jit
def _at(pointer, batch, head, start, stride_b, stride_h, stride_n, rows, features):
    """Where a tile of points lies; the far part of the address is one number."""
    far = batch * stride_b + head * stride_h + start * stride_n
    return pointer + far + (rows[:, None] * stride_n + features[None, :])


@triton.jit
def _clip(offset, limit):
    """Into the bounds, where NaN stays NaN."""
    raised = tl.maximum(offset, -limit, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(raised, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _tile_of(program, tiles, heads, BLOCK_N: tl.constexpr):
    """First point, head and batch row of a program; divisions of short numbers are the faster ones."""
    start, head, batch = program % tiles * BLOCK_N, program // tiles % heads, program // tiles // heads
    return start.to(tl.int64), head.to(tl.int64), batch.to(tl.int64)


@triton.jit
def _open(
    key, keys, bound,
    key_b, key_h, key_n, out_b, out_h, out_n, heads, n, d, tiles, scale, guard,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TIMES_MU: tl.constexpr,
):  # fmt: skip
    """Tau of a head and its first update: all of it is summed, and read again from the end."""
    program = tl.program_id(0)
    head, batch = (program % heads).to(tl.int64), (program // heads).to(tl.int64)
    rows, features = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for tile in range(tiles):
        start = tile * BLOCK_N
        inside = (rows < n - start)[:, None] & (features < d)[None, :]
        place = _at(key, batch, head, start, key_b, key_h, key_n, rows, features)
        total += tl.abs(tl.load(place, mask=inside, other=0.0).to(tl.float32))
    # Later iterations amplify what tau loses: it is rounded once.
    mean = tl.sum(total.to(tl.float64)) / (n * d)
    mean = tl.maximum(mean, guard, propagate_nan=tl.PropagateNan.ALL)
    limit = (scale / mean if TIMES_MU else scale * mean).to(tl.float32)
    tl.store(bound + program, limit)
    for tile in range(tiles):
        start = (tiles - 1 - tile) * BLOCK_N
        inside = (rows < n - start)[:, None] & (features < d)[None, :]
        place = _at(key, batch, head, start, key_b, key_h, key_n, rows, features)
        k = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        place = _at(keys, batch, head, start, out_b, out_h, out_n, rows, features)
        tl.store(place, _clip(k, limit).to(keys.dtype.element_ty), mask=inside)


@triton.jit
def _forward(
    key, state, low_1, low_2, low_3, low_4, bound, made, keys, side,
    key_b, key_h, key_n, state_b, state_h, state_n, low_b, low_h, low_n, bound_b, bound_h, bound_n,
    out_b, out_h, out_n,
    heads, n, d, tiles,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    LOWS: tl.constexpr, STATE: tl.constexpr, PREPRINT: tl.constexpr, APART: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    # From the end: what the kernel before wrote last may still be in the cache.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    start, head, batch = _tile_of(program, tiles, heads, BLOCK_N)
    rows, features = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    exists = rows < n - start
    inside = exists[:, None] & (features < d)[None, :]
    place = _at(key, batch, head, start, key_b, key_h, key_n, rows, features)
    k = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    place = bound + batch * bound_b + head * bound_h + (start + rows) * bound_n
    limit = tl.load(place, mask=exists, other=0.0)[:, None]
    if STATE:
        place = _at(state, batch, head, start, state_b, state_h, state_n, rows, features)
        p = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    else:
        p = _clip(k, limit)
    # The loads stand together, so that all are under way at once.
    if LOWS > 0:
        place = _at(low_1, batch, head, start, low_b, low_h, low_n, rows, features)
        l = tl.load(place, mask=inside, other=0.0).to(tl.float32)  # noqa: E741
    if LOWS > 1:
        place = _at(low_2, batch, head, start, low_b, low_h, low_n, rows, features)
        second = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if LOWS > 2:
        place = _at(low_3, batch, head, start, low_b, low_h, low_n, rows, features)
        third = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if LOWS > 3:
        place = _at(low_4, batch, head, start, low_b, low_h, low_n, rows, features)
        fourth = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if LOWS > 1:
        p = l + _clip(k + p - 2 * l, limit)
        l = second  # noqa: E741
    if LOWS > 2:
        p = l + _clip(k + p - 2 * l, limit)
        l = third  # noqa: E741
    if LOWS > 3:
        p = l + _clip(k + p - 2 * l, limit)
        l = fourth  # noqa: E741
    offset, new = k, p
    if LOWS > 0:
        offset = k + p - 2 * l
        new = l + _clip(offset, limit)
    hat = new
    if LOWS > 0 and PREPRINT:
        hat = new - 2 * (p - l)
    place = _at(keys, batch, head, start, out_b, out_h, out_n, rows, features)
    tl.store(place, hat.to(keys.dtype.element_ty), mask=inside)
    if APART:
        place = _at(made, batch, head, start, out_b, out_h, out_n, rows, features)
        tl.store(place, new, mask=inside)
    if SIDE:
        over = (offset > limit).to(tl.int8) - (offset < -limit).to(tl.int8)
        tl.store(_at(side, batch, head, start, out_b, out_h, out_n, rows, features), over, mask=inside)


@triton.jit
def _backward(
    side, grad_state, grad_keys, d_key, d_state, d_low, d_bound,
    side_b, side_h, side_n, state_b, state_h, state_n, keys_b, keys_h, keys_n, out_b, out_h, out_n,
    heads, n, d, tiles,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    FIRST: tl.constexpr, PREPRINT: tl.constexpr, OF_STATE: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    start, head, batch = _tile_of(tl.program_id(0), tiles, heads, BLOCK_N)
    rows, features = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    exists = rows < n - start
    inside = exists[:, None] & (features < d)[None, :]
    over = tl.load(
        _at(side, batch, head, start, side_b, side_h, side_n, rows, features), mask=inside, other=0
    )
    whole = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    pulled = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    if OF_KEYS:
        place = _at(grad_keys, batch, head, start, keys_b, keys_h, keys_n, rows, features)
        whole = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        if PREPRINT:
            pulled = 2 * whole
    if OF_STATE:
        place = _at(grad_state, batch, head, start, state_b, state_h, state_n, rows, features)
        whole += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    inner = tl.where(over == 0, whole, 0.0)
    edge = tl.sum(whole * over.to(tl.float32), axis=1)
    tl.store(d_bound + (batch * heads + head) * n + start + rows, edge, mask=exists)
    place = _at(d_key, batch, head, start, out_b, out_h, out_n, rows, features)
    tl.store(place, inner.to(d_key.dtype.element_ty), mask=inside)
    if not FIRST:
        place = _at(d_state, batch, head, start, out_b, out_h, out_n, rows, features)
        tl.store(place, (inner - pulled).to(d_state.dtype.element_ty), mask=inside)
        place = _at(d_low, batch, head, start, out_b, out_h, out_n, rows, features)
        tl.store(place, (whole - 2 * inner + pulled).to(d_low.dtype.element_ty), mask=inside)


def fits_opening(key: Tensor) -> bool:
    """Whether heads are many and short enough for `opening`."""
    return key.shape[2] * key.shape[3] <= LONGEST and key.shape[0] * key.shape[1] >= FEWEST


def opening(key: Tensor, scale: float, times_mu: bool, guard: float) -> tuple[Tensor, Tensor]:
    """Tau of every head, (b, h, 1, 1) in float32, and the keys of the first update; without gradients.

    Args:
        key: (b, h, n, d).
        scale: tau is this over the mean of |k|, or times it.
        times_mu: whether it is over the mean.
        guard: least mean.
    """
    batch, heads, n, d = key.shape
    key = _rows(key)
    keys, bound = room(key, key.dtype), key.new_empty((batch, heads, 1, 1), dtype=torch.float32)
    tile = _tile(n, d, entries=4096)
    _open[(heads * batch,)](
        key, keys, bound, *key.stride()[:3], *keys.stride()[:3],
        heads, n, d, triton.cdiv(n, tile), scale, guard,
        BLOCK_N=tile, BLOCK_D=triton.next_power_of_2(d), TIMES_MU=times_mu, num_warps=16,
    )  # fmt: skip
    return bound, keys


def forward(
    key: Tensor,
    state: Tensor | None,
    lows: Sequence[Tensor],
    bound: Tensor,
    *,
    preprint: bool,
    apart: bool,
    keep: bool,
    tile: int | None = None,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The next state in float32, None unless `apart`; the keys; the clipped sides, if to be kept.

    Shapes: key, state and each of up to four lows (b, h, n, d), bound (b, h, 1 or n, 1) in float32.

    Args:
        state: before the first of `lows`; None for the one that the first update makes.
        lows: low-rank parts since then, of which each but the last leads to the next state; none for
            the first update itself.
    """
    batch, heads, n, d = key.shape
    lows = _alike(lows)
    given = [*lows, *([key] * (MOST - len(lows)))]
    key, state = _rows(key), None if state is None else _rows(state)
    keys = room(key, key.dtype)
    made = room(key, torch.float32) if apart else None
    side = room(key, torch.int8) if keep else key.new_empty(0, dtype=torch.int8)
    tile, width = tile or _tile(n, d), triton.next_power_of_2(d)
    tiles = triton.cdiv(n, tile)
    _forward[(tiles * heads * batch,)](
        key, state, *given, bound, made, keys, side,
        *key.stride()[:3], *_strides(state), *given[0].stride()[:3],
        *bound.stride()[:2], bound.stride(2) if bound.shape[2] == n else 0, *keys.stride()[:3],
        heads, n, d, tiles,
        BLOCK_N=tile, BLOCK_D=width,
        LOWS=len(lows), STATE=state is not None, PREPRINT=preprint, APART=apart, SIDE=keep,
        num_warps=8 if len(lows) > 1 else 4,
    )  # fmt: skip
    return made, keys, side


def backward(
    side: Tensor,
    grad_state: Tensor | None,
    grad_keys: Tensor | None,
    kinds: tuple[torch.dtype, torch.dtype | None],
    points: int,
    preprint: bool,
    tile: int | None = None,
) -> tuple[Tensor, Pair | None, Tensor]:
    """Gradients of the key, of both of previous and of the bound.

    Args:
        side: as `forward` made it, (b, h, n, d).
        kinds: dtypes of key and state, None for a first update.
        points: how many bounds a head has, 1 or n.
    """
    batch, heads, n, d = side.shape
    kind, first = kinds[0], kinds[1] is None
    d_key = room(side, kind)
    previous = None if kinds[1] is None else (room(side, kinds[1]), room(side, kind))
    d_bound = side.new_empty((batch, heads, n, 1), dtype=torch.float32)
    given = [None if grad is None else _rows(grad) for grad in (grad_state, grad_keys)]
    tile, width = tile or _tile(n, d), triton.next_power_of_2(d)
    tiles = triton.cdiv(n, tile)
    _backward[(tiles * heads * batch,)](
        side, *given, d_key, *(previous or (None, None)), d_bound,
        *side.stride()[:3], *(stride for grad in given for stride in _strides(grad)), *d_key.stride()[:3],
        heads, n, d, tiles,
        BLOCK_N=tile, BLOCK_D=width, FIRST=first, PREPRINT=preprint,
        OF_STATE=grad_state is not None, OF_KEYS=grad_keys is not None,
    )  # fmt: skip
    return d_key, previous, d_bound.sum(2, keepdim=True) if points == 1 else d_bound


def room(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for an output: laid out as `like` where that is dense, else with heads inside points."""
    if like.is_contiguous():
        return torch.empty_like(like, dtype=dtype)
    batch, heads, n, d = like.shape
    return like.new_empty((batch, n, heads, d), dtype=dtype).transpose(1, 2)


def _rows(points: Tensor) -> Tensor:
    return points if points.stride(-1) == 1 else points.contiguous()


def _alike(lows: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same with dense features and all of one layout, as attention makes them."""
    if all(low.stride(-1) == 1 and low.stride() == lows[0].stride() for low in lows):
        return lows
    return [low.contiguous() for low in lows]


def _strides(points: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if points is None else points.stride()[:3]


def _tile(n: int, d: int, entries: int = 2048) -> int:
    """Points of a tile: about so many entries, and no more than there are."""
    return max(1, min(entries // triton.next_power_of_2(d), triton.next_power_of_2(n)))
