"""Primal attention with the cosine map as one kernel forward and one backward.

Both read queries and keys once. A program walks over tiles of points of one head and keeps the small
weights and their gradients on chip. Sums over programs are taken from a buffer of parts in a fixed
order, so two runs give the same bits.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

SMALLEST_NORM = tl.constexpr(1e-12)


@triton.jit
def _reciprocal_norm(points):
    """One over the norm of each row, and whether the norm is above the smallest."""
    norm = tl.sqrt(tl.sum(points * points, axis=1))
    return 1.0 / tl.maximum(norm, SMALLEST_NORM), norm > SMALLEST_NORM


@triton.jit
def _real(mask, batch, at, stop, stride_mask, BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr):
    """Which rows of the tile at `at` exist, and which of them are real points."""
    exists = tl.arange(0, BLOCK_N) < stop - at
    real = exists
    if HAS_MASK:
        real = exists & (
            tl.load(mask + batch * stride_mask + at + tl.arange(0, BLOCK_N), mask=exists, other=0) != 0
        )
    return exists, real


@triton.jit
def _weights(pointer, batch, head, stride_b, stride_h, d, s, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr):
    """A (d, s) matrix, zero beyond its edges."""
    rows, columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    inside = (rows < d)[:, None] & (columns < s)[None, :]
    place = pointer + batch * stride_b + head * stride_h + rows[:, None] * s + columns[None, :]
    return tl.load(place, mask=inside, other=0.0)


@triton.jit
def _place(
    pointer, batch, head, at, stride_b, stride_h, stride_n, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Where the features of a tile of points lie; the far part of the address is one number."""
    rows, features = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    return (
        pointer
        + (batch * stride_b + head * stride_h + at * stride_n)
        + (rows[:, None] * stride_n + features[None, :])
    )


@triton.jit
def _forward(
    query, key, left, right, left_join, right_join, bias, mask, out, left_sums, right_sums,
    query_b, query_h, query_n, key_b, key_h, key_n, weight_b, weight_h, join_h, bias_h, mask_b,
    out_b, out_h, out_n,
    batch, heads, n, d, s, chunk, splits,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    HAS_MASK: tl.constexpr, MOMENTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    head, split, row = program % heads, (program // heads) % splits, program // (heads * splits)
    features, scores = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    columns = (features < d)[None, :]
    kind = query.dtype.element_ty
    start, stop = split * chunk, tl.minimum(split * chunk + chunk, n)
    shift = tl.load(bias + head * bias_h + features, mask=features < d, other=0.0).to(tl.float32)
    weight_l = _weights(left, row, head, weight_b, weight_h, d, s, BLOCK_D, BLOCK_S)
    weight_r = _weights(right, row, head, weight_b, weight_h, d, s, BLOCK_D, BLOCK_S)
    join_l = _weights(left_join, 0, head, 0, join_h, d, s, BLOCK_D, BLOCK_S)
    join_r = _weights(right_join, 0, head, 0, join_h, d, s, BLOCK_D, BLOCK_S)
    if not MOMENTS:
        map_l = tl.dot(weight_l, tl.trans(join_l), input_precision=PRECISION).to(kind)
        map_r = tl.dot(weight_r, tl.trans(join_r), input_precision=PRECISION).to(kind)
    total_l = tl.zeros([BLOCK_S], tl.float32)
    total_r = tl.zeros([BLOCK_S], tl.float32)
    for at in range(start, stop, BLOCK_N):
        exists, real = _real(mask, row, at, stop, mask_b, BLOCK_N, HAS_MASK)
        wanted = real[:, None] & columns
        q = tl.load(
            _place(query, row, head, at, query_b, query_h, query_n, BLOCK_N, BLOCK_D), mask=wanted, other=0.0
        )
        k = tl.load(_place(key, row, head, at, key_b, key_h, key_n, BLOCK_N, BLOCK_D), mask=wanted, other=0.0)
        scale_q, _ = _reciprocal_norm(q.to(tl.float32))
        scale_k, _ = _reciprocal_norm(k.to(tl.float32))
        if MOMENTS:
            e = tl.dot(q, weight_l, input_precision=PRECISION) * scale_q[:, None]
            r = tl.dot(k, weight_r, input_precision=PRECISION) * scale_k[:, None]
            total_l += tl.sum(e * e, axis=0)
            total_r += tl.sum(r * r, axis=0)
            o = tl.dot(e.to(kind), tl.trans(join_l), input_precision=PRECISION)
            o = tl.dot(r.to(kind), tl.trans(join_r), acc=o, input_precision=PRECISION)
        else:
            o = tl.dot(q, map_l, input_precision=PRECISION) * scale_q[:, None]
            o += tl.dot(k, map_r, input_precision=PRECISION) * scale_k[:, None]
        o = tl.where(real[:, None], o + shift[None, :], 0.0)
        place = _place(out, row, head, at, out_b, out_h, out_n, BLOCK_N, BLOCK_D)
        tl.store(place, o.to(kind), mask=exists[:, None] & columns)
    if MOMENTS:
        place = ((split * batch + row) * heads + head) * s + scores
        tl.store(left_sums + place, total_l, mask=scores < s)
        tl.store(right_sums + place, total_r, mask=scores < s)


@triton.jit
def _backward_side(
    points, weights, join, mask, grad_out, pulls, d_points, d_weights, d_join, d_bias,
    points_b, points_h, points_n, weight_b, weight_h, join_h, mask_b, grad_b, grad_h, grad_n,
    out_b, out_h, out_n,
    row, head, split, batch, heads, n, d, s, chunk,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    HAS_MASK: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One side of one head: gradients of its points tile by tile, of its weights at the end.

    With M = W C' the output's part is phi M, and S = W diag(pull) W' carries the moments, so that
    the gradient of phi is g M' + phi S; sums of phi' g and phi' phi give those of W and C.
    """
    features, scores = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    columns = (features < d)[None, :]
    kind: tl.constexpr = points.dtype.element_ty
    start, stop = split * chunk, tl.minimum(split * chunk + chunk, n)
    weight = _weights(weights, row, head, weight_b, weight_h, d, s, BLOCK_D, BLOCK_S)
    joining = _weights(join, 0, head, 0, join_h, d, s, BLOCK_D, BLOCK_S)
    pull = tl.load(pulls + (row * heads + head) * s + scores, mask=scores < s, other=0.0)
    back = tl.dot(joining, tl.trans(weight), input_precision=PRECISION).to(kind)  # (out, in)
    pulled = (weight.to(tl.float32) * pull[None, :]).to(kind)
    form = tl.dot(pulled, tl.trans(weight), input_precision=PRECISION).to(kind)  # (in, in)
    grad_map = tl.zeros([BLOCK_D, BLOCK_D], tl.float32)
    gram = tl.zeros([BLOCK_D, BLOCK_D], tl.float32)
    grad_bias = tl.zeros([16, BLOCK_D], tl.float32)
    eye = (features[:, None] == features[None, :]).to(kind)
    for at in range(start, stop, BLOCK_N):
        exists, real = _real(mask, row, at, stop, mask_b, BLOCK_N, HAS_MASK)
        wanted = real[:, None] & columns
        g = tl.load(
            _place(grad_out, row, head, at, grad_b, grad_h, grad_n, BLOCK_N, BLOCK_D), mask=wanted, other=0.0
        )
        x = tl.load(
            _place(points, row, head, at, points_b, points_h, points_n, BLOCK_N, BLOCK_D),
            mask=wanted,
            other=0.0,
        )
        # A product with the identity brings the points, exactly, into the layout of the other products,
        # so that all that follows is local to a thread and its neighbours.
        wide = tl.dot(x, eye, input_precision=PRECISION)
        scale, free = _reciprocal_norm(wide)
        grad = tl.dot(x, form, input_precision=PRECISION) * scale[:, None]
        grad = tl.dot(g, back, acc=grad, input_precision=PRECISION)
        unit = wide * scale[:, None]
        phi = unit.to(kind)
        turned = tl.trans(phi)
        grad_map = tl.dot(turned, g, acc=grad_map, input_precision=PRECISION)
        gram = tl.dot(turned, phi, acc=gram, input_precision=PRECISION)
        if BIAS:
            # Rows that lie in one thread are added there; the rest waits for the end.
            grad_bias += tl.sum(tl.reshape(g.to(tl.float32), [BLOCK_N // 16, 16, BLOCK_D]), axis=0)
        # The gradient loses its part along the point itself, except where the norm was clamped.
        along = tl.where(free, tl.sum(unit * grad, axis=1), 0.0)
        grad = (grad - unit * along[:, None]) * scale[:, None]
        place = _place(d_points, row, head, at, out_b, out_h, out_n, BLOCK_N, BLOCK_D)
        tl.store(place, grad.to(kind), mask=exists[:, None] & columns)
    grad_weight = tl.dot(grad_map.to(kind), joining, input_precision=PRECISION)
    grad_weight += tl.dot(gram.to(kind), weight, input_precision=PRECISION) * pull[None, :]
    grad_join = tl.dot(tl.trans(grad_map).to(kind), weight, input_precision=PRECISION)
    part = ((split * batch + row) * heads + head) * d
    small, inside = features[:, None] * s + scores[None, :], (features < d)[:, None] & (scores < s)[None, :]
    tl.store(d_weights + part * s + small, grad_weight, mask=inside)
    # Rows of the join's gradient: left half, right half, then that of the bias.
    whole = part * (2 * s + 1)
    tl.store(d_join + whole + features[:, None] * (2 * s + 1) + scores[None, :], grad_join, mask=inside)
    if BIAS:
        tl.store(d_bias + whole + features * (2 * s + 1), tl.sum(grad_bias, axis=0), mask=features < d)


@triton.jit
def _backward(
    query, key, left, right, left_join, right_join, mask, grad_out, left_pull, right_pull,
    d_query, d_key, d_left, d_right, d_joins,
    query_b, query_h, query_n, key_b, key_h, key_n, weight_b, weight_h, join_h, mask_b,
    grad_b, grad_h, grad_n, dq_b, dq_h, dq_n, dk_b, dk_h, dk_n,
    batch, heads, n, d, s, chunk, splits,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Both sides of the same rows run next to each other, so that the second finds the output's
    # gradient in the cache.
    program = tl.program_id(0).to(tl.int64)
    side, program = program % 2, program // 2
    head, split, row = program % heads, (program // heads) % splits, program // (heads * splits)
    if side == 0:
        _backward_side(
            query, left, left_join, mask, grad_out, left_pull, d_query, d_left, d_joins, d_joins + 2 * s,
            query_b, query_h, query_n, weight_b, weight_h, join_h, mask_b, grad_b, grad_h, grad_n,
            dq_b, dq_h, dq_n, row, head, split, batch, heads, n, d, s, chunk,
            BLOCK_N, BLOCK_D, BLOCK_S, HAS_MASK, True, PRECISION,
        )  # fmt: skip
    else:
        _backward_side(
            key, right, right_join, mask, grad_out, right_pull, d_key, d_right, d_joins + s, d_joins,
            key_b, key_h, key_n, weight_b, weight_h, join_h, mask_b, grad_b, grad_h, grad_n,
            dk_b, dk_h, dk_n, row, head, split, batch, heads, n, d, s, chunk,
            BLOCK_N, BLOCK_D, BLOCK_S, HAS_MASK, False, PRECISION,
        )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How the points are cut up: tiles, and chunks of tiles that one program walks over."""

    tile: int
    chunk: int
    splits: int
    warps: int
    stages: int


def plan(n: int, d: int, s: int, *, size: int, backward: bool) -> Plan:
    """A plan for a shape: long enough chunks to use their weights, small enough tiles to fit on chip.

    Args:
        n: points of a sequence.
        d: features of a point in a head.
        s: components.
        size: bytes of a number.
        backward: whether it is for the backward pass, which needs more room.
    """
    wide = triton.next_power_of_2(max(d, s, 16)) * size
    tile = 128 if wide <= 64 else 64 if wide <= 256 else 32
    tile = min(64 if backward else tile, max(16, triton.next_power_of_2(n)))
    warps, stages = (4, 3) if wide <= 128 else (8, 1)
    splits = max(1, n // (4096 if backward else 1024))
    chunk = triton.cdiv(triton.cdiv(n, splits), tile) * tile
    return Plan(tile, chunk, triton.cdiv(n, chunk), warps, stages)


def forward(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    moments: bool,
    layout: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (b, h, n, d) and sums over real points of both squared scores, (b, h, s), or nothing of them."""
    batch, heads, n, d = query.shape
    s = left.shape[-1]
    layout = layout or plan(n, d, s, size=query.element_size(), backward=False)
    out = empty_output(query)
    left, right, weight_b, weight_h = _ready_weights(left, right)
    left_join, right_join, join_h, bias, bias_h = _ready_join(join, bias, s)
    shape = (layout.splits, batch, heads, s) if moments else (0,)
    left_sums, right_sums = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
    mask, mask_b = _ready_mask(mask)
    _forward[(heads * layout.splits * batch,)](
        query, key, left, right, left_join, right_join, bias, mask, out, left_sums, right_sums,
        *query.stride()[:3], *key.stride()[:3], weight_b, weight_h, join_h, bias_h, mask_b, *out.stride()[:3],
        batch, heads, n, d, s, layout.chunk, layout.splits,
        BLOCK_N=layout.tile, BLOCK_D=_block(d), BLOCK_S=_block(s),
        HAS_MASK=mask is not None, MOMENTS=moments, PRECISION=_precision(query),
        num_warps=layout.warps, num_stages=layout.stages,
    )  # fmt: skip
    if not moments:
        return out, left_sums, right_sums
    return out, left_sums.sum(0), right_sums.sum(0)


def backward(
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
    layout: Plan | None = None,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of query, key, left, right, join and bias; pulls are twice those of the sums, (b, h, s)."""
    batch, heads, n, d = query.shape
    s = left.shape[-1]
    layout = layout or plan(n, d, s, size=query.element_size(), backward=True)
    if grad_out.stride(-1) != 1:
        grad_out = grad_out.contiguous()
    d_query, d_key = into or (empty_output(query), empty_output(key))
    shared, shape = left.dim() == 3, left.shape
    left, right, weight_b, weight_h = _ready_weights(left, right)
    left_join, right_join, join_h, _, _ = _ready_join(join, bias, s)
    # Parts of one program each: gradients of left and right; of both halves of the join and the bias.
    d_weights = query.new_empty((2, layout.splits, batch, heads, d, s), dtype=torch.float32)
    d_joins = query.new_empty((layout.splits, batch, heads, d, 2 * s + 1), dtype=torch.float32)
    mask, mask_b = _ready_mask(mask)
    _backward[(2 * heads * layout.splits * batch,)](
        query, key, left, right, left_join, right_join, mask, grad_out, left_pull.contiguous(),
        right_pull.contiguous(), d_query, d_key, d_weights[0], d_weights[1], d_joins,
        *query.stride()[:3], *key.stride()[:3], weight_b, weight_h, join_h, mask_b, *grad_out.stride()[:3],
        *d_query.stride()[:3], *d_key.stride()[:3],
        batch, heads, n, d, s, layout.chunk, layout.splits,
        BLOCK_N=layout.tile, BLOCK_D=_block(d), BLOCK_S=_block(s),
        HAS_MASK=mask is not None, PRECISION=_precision(query),
        num_warps=layout.warps, num_stages=layout.stages,
    )  # fmt: skip
    kind = query.dtype
    if shared:
        d_weights = d_weights.sum((1, 2))
    else:
        d_weights = d_weights.sum(1) if layout.splits > 1 else d_weights[:, 0]
    d_left, d_right = (each.to(kind, copy=True).reshape(shape) for each in d_weights)
    total = d_joins.sum((0, 1) if join.dim() == 3 else (0, 1, 2)).to(kind)
    d_join, d_bias = (each.contiguous() for each in total.split([2 * s, 1], dim=-1))
    return d_query, d_key, d_left, d_right, d_join, d_bias.reshape(bias.shape)


def empty_output(query: Tensor) -> Tensor:
    """Room for the output: laid out as the query where that is dense, else with heads inside points."""
    if query.is_contiguous():
        return torch.empty_like(query)
    batch, heads, n, d = query.shape
    return query.new_empty((batch, n, heads, d)).transpose(1, 2)


def _ready_weights(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, int, int]:
    """Contiguous weights with their strides over batch rows and heads; shared ones have none over rows."""
    left, right = left.contiguous(), right.contiguous()
    return left, right, (left.stride(0) if left.dim() == 4 else 0), left.stride(-3)


def _ready_join(join: Tensor, bias: Tensor, s: int) -> tuple[Tensor, Tensor, int, Tensor, int]:
    """Both halves of the join as (d, s) with their stride over heads, and the bias with its own."""
    left_join, right_join = (half.contiguous() for half in join.split(s, dim=-1))
    join_h = left_join.stride(0) if join.dim() == 3 else 0
    return left_join, right_join, join_h, bias.contiguous(), bias.stride(0) if bias.dim() == 3 else 0


def _ready_mask(mask: Tensor | None) -> tuple[Tensor | None, int]:
    if mask is None:
        return None, 0
    mask = mask.contiguous()
    return mask, mask.stride(0)


def _block(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def _precision(query: Tensor) -> str:
    return "ieee" if query.dtype == torch.float32 else "tf32"
