"""One update of Principal Attention Pursuit as one kernel forward and one backward.

Rows are independent. The forward reads key, state and low-rank part once, writes the next state and
the keys that attend, and a byte for the side on which an entry was clipped; of all that the backward
reads only this byte. The gradient of tau is summed over features in the kernel and over points outside,
in a fixed order, so two runs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[Tensor, Tensor]


@triton.jit
def _at(pointer, batch, head, start, stride_b, stride_h, stride_n, rows, features):
    """Where a tile of points lies; the far part of the address is one number."""
    far = batch * stride_b + head * stride_h + start * stride_n
    return pointer + far + (rows[:, None] * stride_n + features[None, :])


@triton.jit
def _forward(
    key, state, low, bound, made, keys, side,
    key_b, key_h, key_n, state_b, state_h, state_n, low_b, low_h, low_n, bound_b, bound_h, bound_n,
    out_b, out_h, out_n,
    heads, n, d, tiles,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    FIRST: tl.constexpr, PREPRINT: tl.constexpr, APART: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    start, head, batch = program % tiles * BLOCK_N, program // tiles % heads, program // (tiles * heads)
    rows, features = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    exists = rows < n - start
    inside = exists[:, None] & (features < d)[None, :]
    place = _at(key, batch, head, start, key_b, key_h, key_n, rows, features)
    offset = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    place = bound + batch * bound_b + head * bound_h + (start + rows) * bound_n
    limit = tl.load(place, mask=exists, other=0.0)[:, None]
    if not FIRST:
        place = _at(state, batch, head, start, state_b, state_h, state_n, rows, features)
        p = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        place = _at(low, batch, head, start, low_b, low_h, low_n, rows, features)
        l = tl.load(place, mask=inside, other=0.0).to(tl.float32)  # noqa: E741
        offset = offset + p - 2 * l
    above, below = offset > limit, offset < -limit
    # Unlike a minimum of a maximum this keeps NaN.
    new = tl.where(above, limit, tl.where(below, -limit, offset))
    hat = new
    if not FIRST:
        new += l
        hat = new
        if PREPRINT:
            hat = new - 2 * (p - l)
    place = _at(keys, batch, head, start, out_b, out_h, out_n, rows, features)
    tl.store(place, hat.to(keys.dtype.element_ty), mask=inside)
    if APART:
        place = _at(made, batch, head, start, out_b, out_h, out_n, rows, features)
        tl.store(place, new, mask=inside)
    if SIDE:
        over = above.to(tl.int8) - below.to(tl.int8)
        tl.store(_at(side, batch, head, start, out_b, out_h, out_n, rows, features), over, mask=inside)


@triton.jit
def _backward(
    side, grad_state, grad_keys, d_key, d_state, d_low, d_bound,
    side_b, side_h, side_n, state_b, state_h, state_n, keys_b, keys_h, keys_n, out_b, out_h, out_n,
    heads, n, d, tiles,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    FIRST: tl.constexpr, PREPRINT: tl.constexpr, OF_STATE: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    start, head, batch = program % tiles * BLOCK_N, program // tiles % heads, program // (tiles * heads)
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


def forward(
    key: Tensor,
    previous: Pair | None,
    bound: Tensor,
    preprint: bool,
    last: bool,
    keep: bool,
    tile: int | None = None,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The next state, None where it is the keys or not wanted; the keys; the clipped sides, if to be kept.

    Shapes: key and both of previous (b, h, n, d), bound (b, h, 1 or n, 1) in float32.
    """
    batch, heads, n, d = key.shape
    first = previous is None
    state, low = (key, key) if previous is None else map(_rows, previous)
    key = _rows(key)
    apart = is_apart(key, first, preprint, last)
    keys = room(key, key.dtype)
    made = room(key, torch.float32) if apart else None
    side = room(key, torch.int8) if keep else key.new_empty(0, dtype=torch.int8)
    tile, width = tile or _tile(n, d), triton.next_power_of_2(d)
    tiles = triton.cdiv(n, tile)
    _forward[(tiles * heads * batch,)](
        key, state, low, bound, made, keys, side,
        *key.stride()[:3], *state.stride()[:3], *low.stride()[:3],
        *bound.stride()[:2], bound.stride(2) if bound.shape[2] == n else 0, *keys.stride()[:3],
        heads, n, d, tiles,
        BLOCK_N=tile, BLOCK_D=width, FIRST=first, PREPRINT=preprint, APART=apart, SIDE=keep,
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


def is_apart(key: Tensor, first: bool, preprint: bool, last: bool) -> bool:
    """Whether an update makes a state beside the keys that attend."""
    return preprint and not last and not (first and key.dtype == torch.float32)


def room(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for an output: laid out as `like` where that is dense, else with heads inside points."""
    if like.is_contiguous():
        return torch.empty_like(like, dtype=dtype)
    batch, heads, n, d = like.shape
    return like.new_empty((batch, n, heads, d), dtype=dtype).transpose(1, 2)


def _rows(points: Tensor) -> Tensor:
    return points if points.stride(-1) == 1 else points.contiguous()


def _strides(points: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if points is None else points.stride()[:3]


def _tile(n: int, d: int) -> int:
    """Points of a tile: about four thousand entries, and no more than there are."""
    return max(1, min(4096 // triton.next_power_of_2(d), triton.next_power_of_2(n)))
