"""Primal attention with the cosine map as one kernel forward and one backward.

Both read queries and keys once. A program walks over tiles of points of one head and keeps the small
weights and their gradients on chip. Sums over programs are taken from a buffer of parts in a fixed
order, so two runs give the same bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import (
    add_to,
    added_up,
    aligned,
    block_of,
    empty_output,
    fill_rows,
    precision_of,
)
from kernelhead.ops.triton.scan import LENGTH, start_of, sum_back, tile_starts

SMALLEST_NORM = tl.constexpr(1e-12)
# Programs that keep a large chip busy, and the shortest chunk that is worth loading the weights for.
PROGRAMS, SHORTEST = 512, 256


@triton.jit
def _reciprocal_norm(points):
    """One over the norm of each row, and whether the norm is above the smallest."""
    norm = tl.sqrt_rn(tl.sum(points * points, axis=1))
    return tl.div_rn(1.0, tl.maximum(norm, SMALLEST_NORM)), norm > SMALLEST_NORM


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
def _weights(
    pointer, batch, head, stride_b, stride_h, stride_d, d, s, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr
):
    """A (d, s) matrix, zero beyond its edges."""
    rows, columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    inside = (rows < d)[:, None] & (columns < s)[None, :]
    place = pointer + batch * stride_b + head * stride_h + rows[:, None] * stride_d + columns[None, :]
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
def _count(counts, row, at, n, BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr):
    """Real points up to each point of a tile, at least one."""
    index = tl.arange(0, BLOCK_N)
    count = at + index + 1
    if HAS_MASK:
        count = tl.load(counts + row * n + at + index, mask=index < n - at, other=1)
    return count.to(tl.float32)


@triton.jit
def _running_mean(
    points, real, counts, starts, totals, row, head, heads, at, n, d, tiles, chunks,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPAN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Means of the points up to each point of a tile; zero at padded points."""
    index = tl.arange(0, BLOCK_N)
    seen = (index[:, None] >= index[None, :]).to(points.dtype)
    start = start_of(
        starts, totals, row * heads + head, at // BLOCK_N, tiles, chunks, d, BLOCK_D, SPAN, False
    )
    total = tl.dot(seen, points, input_precision=PRECISION) + start[None, :]
    mean = tl.div_rn(total, _count(counts, row, at, n, BLOCK_N, HAS_MASK)[:, None])
    return tl.where(real[:, None], mean, 0.0).to(points.dtype)


@triton.jit
def _forward(
    query, key, left, right, join, bias, mask, out, left_sums, right_sums,
    counts, starts_q, totals_q, starts_k, totals_k,
    query_b, query_h, query_n, key_b, key_h, key_n, weight_b, weight_h, join_h, bias_h, mask_b,
    out_b, out_h, out_n,
    batch, heads, n, d, s, o_width, chunk, splits, tiles, spans,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_O: tl.constexpr,
    SPAN: tl.constexpr, CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, MOMENTS: tl.constexpr,
    ADD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    head, split, row = program % heads, (program // heads) % splits, program // (heads * splits)
    features, scores = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    columns = (features < d)[None, :]
    kind = query.dtype.element_ty
    start, stop = split * chunk, tl.minimum(split * chunk + chunk, n)
    made = tl.arange(0, BLOCK_O)
    kept = (made < o_width)[None, :]
    shift = tl.load(bias + head * bias_h + made, mask=made < o_width, other=0.0).to(tl.float32)
    weight_l = _weights(left, row, head, weight_b, weight_h, s, d, s, BLOCK_D, BLOCK_S)
    weight_r = _weights(right, row, head, weight_b, weight_h, s, d, s, BLOCK_D, BLOCK_S)
    join_l = _weights(join, 0, head, 0, join_h, 2 * s, o_width, s, BLOCK_O, BLOCK_S)
    join_r = _weights(join + s, 0, head, 0, join_h, 2 * s, o_width, s, BLOCK_O, BLOCK_S)
    if not MOMENTS:
        map_l = tl.dot(weight_l, tl.trans(join_l), input_precision=PRECISION).to(kind)
        map_r = tl.dot(weight_r, tl.trans(join_r), input_precision=PRECISION).to(kind)
    # Squares are added where they lie; rows are added up once, at the end.
    squares_l = tl.zeros([BLOCK_N, BLOCK_S], tl.float32)
    squares_r = tl.zeros([BLOCK_N, BLOCK_S], tl.float32)
    for at in range(start, stop, BLOCK_N):
        exists, real = _real(mask, row, at, stop, mask_b, BLOCK_N, HAS_MASK)
        wanted = real[:, None] & columns
        q = tl.load(
            _place(query, row, head, at, query_b, query_h, query_n, BLOCK_N, BLOCK_D), mask=wanted, other=0.0
        )
        k = tl.load(_place(key, row, head, at, key_b, key_h, key_n, BLOCK_N, BLOCK_D), mask=wanted, other=0.0)
        if CAUSAL:
            q = _running_mean(
                q, real, counts, starts_q, totals_q, row, head, heads, at, n, d, tiles, spans,
                BLOCK_N, BLOCK_D, SPAN, HAS_MASK, PRECISION,
            )  # fmt: skip
            k = _running_mean(
                k, real, counts, starts_k, totals_k, row, head, heads, at, n, d, tiles, spans,
                BLOCK_N, BLOCK_D, SPAN, HAS_MASK, PRECISION,
            )  # fmt: skip
        scale_q, _ = _reciprocal_norm(q.to(tl.float32))
        scale_k, _ = _reciprocal_norm(k.to(tl.float32))
        if MOMENTS:
            e = tl.dot(q, weight_l, input_precision=PRECISION) * scale_q[:, None]
            r = tl.dot(k, weight_r, input_precision=PRECISION) * scale_k[:, None]
            squares_l += e * e
            squares_r += r * r
            o = tl.dot(e.to(kind), tl.trans(join_l), input_precision=PRECISION)
            o = tl.dot(r.to(kind), tl.trans(join_r), acc=o, input_precision=PRECISION)
        else:
            o = tl.dot(q, map_l, input_precision=PRECISION) * scale_q[:, None]
            o += tl.dot(k, map_r, input_precision=PRECISION) * scale_k[:, None]
        place = _place(out, row, head, at, out_b, out_h, out_n, BLOCK_N, BLOCK_O)
        if ADD:
            o += tl.load(place, mask=real[:, None] & kept, other=0.0).to(tl.float32)
        else:
            o += shift[None, :]
        o = tl.where(real[:, None], o, 0.0)
        tl.store(place, o.to(kind), mask=exists[:, None] & kept)
    if MOMENTS:
        place = ((2 * split * batch + row) * heads + head) * s + scores
        tl.store(left_sums + place, tl.sum(squares_l, axis=0), mask=scores < s)
        tl.store(right_sums + place, tl.sum(squares_r, axis=0), mask=scores < s)


@triton.jit
def _backward_side(
    points, weights, join, mask, grad_out, pulls, d_points, d_weights, d_join, d_bias,
    counts, starts, totals,
    points_b, points_h, points_n, weight_b, weight_h, weight_part, join_h, mask_b, grad_b, grad_h, grad_n,
    out_b, out_h, out_n,
    rows, head, split, batch, heads, n, d, s, chunk, group, tiles, spans,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, SPAN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, SHARED: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One side of one head: gradients of its points tile by tile, of its weights at the end.

    With scores e = phi W and t = g C + e pull, the gradient of phi is t W', that of W is phi' t and
    that of C is g' e. The sequences of a group are taken one after the other.
    """
    features, scores = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    columns = (features < d)[None, :]
    kind: tl.constexpr = points.dtype.element_ty
    start, stop = split * chunk, tl.minimum(split * chunk + chunk, n)
    small, inside = features[:, None] * s + scores[None, :], (features < d)[:, None] & (scores < s)[None, :]
    joining = _weights(join, 0, head, 0, join_h, 2 * s, d, s, BLOCK_D, BLOCK_S)
    grad_weight = tl.zeros([BLOCK_D, BLOCK_S], tl.float32)
    grad_join = tl.zeros([BLOCK_D, BLOCK_S], tl.float32)
    grad_bias = tl.zeros([16, BLOCK_D], tl.float32)
    EXACT: tl.constexpr = kind == tl.float32
    if EXACT:
        lost_weight, lost_join = tl.zeros_like(grad_weight), tl.zeros_like(grad_join)
    for row in range(rows * group, tl.minimum(rows * group + group, batch)):
        weight = _weights(weights, row, head, weight_b, weight_h, s, d, s, BLOCK_D, BLOCK_S)
        pull = tl.load(pulls + (row * heads + head) * s + scores, mask=scores < s, other=0.0)
        for at in range(start, stop, BLOCK_N):
            exists, real = _real(mask, row, at, stop, mask_b, BLOCK_N, HAS_MASK)
            wanted = real[:, None] & columns
            g = tl.load(
                _place(grad_out, row, head, at, grad_b, grad_h, grad_n, BLOCK_N, BLOCK_D),
                mask=wanted,
                other=0.0,
            )
            x = tl.load(
                _place(points, row, head, at, points_b, points_h, points_n, BLOCK_N, BLOCK_D),
                mask=wanted,
                other=0.0,
            )
            if CAUSAL:
                x = _running_mean(
                    x, real, counts, starts, totals, row, head, heads, at, n, d, tiles, spans,
                    BLOCK_N, BLOCK_D, SPAN, HAS_MASK, PRECISION,
                )  # fmt: skip
            wide = x.to(tl.float32)
            scale, free = _reciprocal_norm(wide)
            e = tl.dot(x, weight, input_precision=PRECISION) * scale[:, None]
            t = tl.dot(g, joining, input_precision=PRECISION) + e * pull[None, :]
            # The gradient loses its part along the point itself, except where the norm was clamped.
            along = tl.where(free, tl.sum(e * t, axis=1), 0.0) * scale * scale
            pulled = (t * scale[:, None]).to(kind)
            if EXACT:
                part = tl.dot(tl.trans(x), pulled, input_precision=PRECISION)
                grad_weight, lost_weight = add_to(grad_weight, lost_weight, part)
                part = tl.dot(tl.trans(g), e, input_precision=PRECISION)
                grad_join, lost_join = add_to(grad_join, lost_join, part)
            else:
                grad_weight = tl.dot(tl.trans(x), pulled, acc=grad_weight, input_precision=PRECISION)
                grad_join = tl.dot(tl.trans(g), e.to(kind), acc=grad_join, input_precision=PRECISION)
            grad = tl.dot(pulled, tl.trans(weight), acc=-wide * along[:, None], input_precision=PRECISION)
            if BIAS:
                # Rows that lie in one thread are added there; the rest waits for the end.
                grad_bias += tl.sum(tl.reshape(g.to(tl.float32), [BLOCK_N // 16, 16, BLOCK_D]), axis=0)
            if CAUSAL:
                grad = tl.div_rn(grad, _count(counts, row, at, n, BLOCK_N, HAS_MASK)[:, None])
            place = _place(d_points, row, head, at, out_b, out_h, out_n, BLOCK_N, BLOCK_D)
            if ADD:
                grad += tl.load(place, mask=wanted, other=0.0).to(tl.float32)
            tl.store(place, grad.to(kind), mask=exists[:, None] & columns)
        if not SHARED:
            part = split * weight_part + (row * heads + head) * d * s
            tl.store(d_weights + part + small, grad_weight.to(d_weights.dtype.element_ty), mask=inside)
            grad_weight = tl.zeros([BLOCK_D, BLOCK_S], tl.float32)
            if EXACT:
                lost_weight = tl.zeros_like(grad_weight)
    part = split * tl.cdiv(batch, group) + rows
    if SHARED:
        tl.store(d_weights + part * weight_part + head * d * s + small, grad_weight, mask=inside)
    # Both halves of the join's gradient side by side, then that of the bias.
    place = (part * heads + head) * d * (2 * s + 1)
    tl.store(d_join + place + features[:, None] * (2 * s) + scores[None, :], grad_join, mask=inside)
    if BIAS:
        place += d * 2 * s
        tl.store(d_bias + place + features, tl.sum(grad_bias, axis=0), mask=features < d)


@triton.jit
def _backward(
    query, key, left, right, join, mask, grad_out, left_pull, right_pull,
    d_query, d_key, d_left, d_right, d_join,
    counts, starts_q, totals_q, starts_k, totals_k,
    query_b, query_h, query_n, key_b, key_h, key_n, weight_b, weight_h, weight_part, join_h, mask_b,
    grad_b, grad_h, grad_n, dq_b, dq_h, dq_n, dk_b, dk_h, dk_n,
    batch, heads, n, d, s, chunk, splits, group, tiles, spans,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, SPAN: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, SHARED: tl.constexpr, ADD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # Both sides of the same rows run next to each other, so that the second finds the output's
    # gradient in the cache.
    program = tl.program_id(0).to(tl.int64)
    side, program = program % 2, program // 2
    head, split, rows = program % heads, (program // heads) % splits, program // (heads * splits)
    if side == 0:
        _backward_side(
            query, left, join, mask, grad_out, left_pull, d_query, d_left, d_join, d_join,
            counts, starts_q, totals_q,
            query_b, query_h, query_n, weight_b, weight_h, weight_part, join_h, mask_b,
            grad_b, grad_h, grad_n, dq_b, dq_h, dq_n,
            rows, head, split, batch, heads, n, d, s, chunk, group, tiles, spans,
            BLOCK_N, BLOCK_D, BLOCK_S, SPAN, CAUSAL, HAS_MASK, SHARED, True, ADD, PRECISION,
        )  # fmt: skip
    else:
        _backward_side(
            key, right, join + s, mask, grad_out, right_pull, d_key, d_right, d_join + s, d_join,
            counts, starts_k, totals_k,
            key_b, key_h, key_n, weight_b, weight_h, weight_part, join_h, mask_b,
            grad_b, grad_h, grad_n, dk_b, dk_h, dk_n,
            rows, head, split, batch, heads, n, d, s, chunk, group, tiles, spans,
            BLOCK_N, BLOCK_D, BLOCK_S, SPAN, CAUSAL, HAS_MASK, SHARED, False, ADD, PRECISION,
        )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How the points are cut up: tiles, and chunks of tiles that one program walks over.

    Attributes:
        tile: points that are held at once.
        chunk: points of a sequence that one program walks over, in whole tiles.
        splits: chunks of a sequence.
        warps: of a program.
        stages: tiles that are on their way at once.
        group: sequences that one program of the backward pass takes after each other.
        registers: most of a thread; as many as the compiler likes if None.
    """

    tile: int
    chunk: int
    splits: int
    warps: int
    stages: int
    group: int = 1
    registers: int | None = None


def plan(n: int, d: int, s: int, *, sequences: int, size: int, backward: bool) -> Plan:
    """A plan for a shape: long chunks, to use their weights, but enough of them for all of a chip.

    Args:
        n: points of a sequence.
        d: features of a point in a head.
        s: components.
        sequences: batch rows times heads.
        size: bytes of a number.
        backward: whether it is for the backward pass, which needs more room and takes sides apart.
    """
    wide = triton.next_power_of_2(max(d, s, 16)) * size
    tile = 64 if size < 4 else 16 if wide > 256 else 32
    # One stage alone is no pipeline, and is left to float32, whose products do not run beside loads.
    warps, stages = 4 if wide <= 128 else 8, 1 if size == 4 else 3 if wide <= 128 else 2
    if backward and size < 4 and wide <= 128:
        tile, warps = 64 if wide <= 64 else 32, 2  # few barriers a tile (python -m benchmarks.plans backward)
    tile = min(tile, max(16, triton.next_power_of_2(n)))
    programs, longest = 2 * sequences if backward else sequences, 4096 if backward else 1024
    wanted = max(triton.cdiv(n, longest), triton.cdiv(PROGRAMS, programs))
    chunk = triton.cdiv(triton.cdiv(n, min(wanted, max(1, n // SHORTEST))), tile) * tile
    splits = triton.cdiv(n, chunk)
    group = min(8, max(1, programs * splits // PROGRAMS)) if backward and splits == 1 else 1
    return Plan(tile, chunk, splits, warps, stages, group)


def forward(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    moments: bool,
    causal: bool = False,
    layout: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (b, h, n, o) and sums over real points of both squared scores, (b, h, s), or nothing of them.

    The join is (o, 2s); that o is d is asked by the backward pass only. If causal, queries and keys
    are replaced by their running means over real points.
    """
    out = empty_output(query, join.shape[-2])
    mask = None if mask is None else mask.contiguous()
    query, key = aligned(query), aligned(key)
    left, right = (fill_rows(weight, query.shape[-1]) for weight in (left, right))
    parts = [
        _launch_forward(query, key, *some, bias, mask, out, moments, causal, at > 0, layout)
        for at, some in enumerate(_slices(query, left, right, join))
    ]
    left_sums, right_sums = (_side_by_side(side) for side in zip(*parts, strict=True))
    return out, left_sums, right_sums


def _launch_forward(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    out: Tensor,
    moments: bool,
    causal: bool,
    add: bool,
    layout: Plan | None,
) -> tuple[Tensor, Tensor]:
    batch, heads, n, d = query.shape
    s = left.shape[-1]
    layout = layout or plan(n, d, s, sequences=batch * heads, size=query.element_size(), backward=False)
    left, right, weight_b, weight_h = _ready_weights(left, right)
    join, join_h, bias, bias_h = *_ready_join(join), *_ready_join(bias)
    sums = (batch, heads, s) if moments else (0,)
    alone = layout.splits == 1 or not moments
    # Both sides of a chunk stand next to each other.
    parts = query.new_empty((0,) if alone else (layout.splits, 2, *sums), dtype=torch.float32)
    made = [query.new_empty(sums, dtype=torch.float32) for _ in range(2)] if alone else parts[0].unbind()
    *scans, tiles, spans = _scans(query, key, mask, causal, layout.tile)
    _forward[(heads * layout.splits * batch,)](
        query, key, left, right, join, bias, mask, out, *made, *scans,
        *query.stride()[:3], *key.stride()[:3], weight_b, weight_h, join_h, bias_h, n,
        *out.stride()[:3],
        batch, heads, n, d, s, join.shape[-2], layout.chunk, layout.splits, tiles, spans,
        BLOCK_N=layout.tile, BLOCK_D=block_of(d), BLOCK_S=block_of(s), BLOCK_O=block_of(join.shape[-2]),
        SPAN=LENGTH, CAUSAL=causal,
        HAS_MASK=mask is not None, MOMENTS=moments, ADD=add, PRECISION=precision_of(query.dtype),
        num_warps=layout.warps, num_stages=layout.stages, maxnreg=layout.registers,
    )  # fmt: skip
    return (made[0], made[1]) if alone else added_up(parts, sums, sums, torch.float32)


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
    causal: bool = False,
    layout: Plan | None = None,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, left, right, join and bias; pulls are twice those of the sums, (b, h, s)."""
    mask = None if mask is None else mask.contiguous()
    into, d = into or (empty_output(query), empty_output(key)), query.shape[-1]
    query, key, grad_out = aligned(query), aligned(key), aligned(grad_out)
    if query.shape[-1] > d:
        left, right, join = (fill_rows(weight, query.shape[-1]) for weight in (left, right, join))
        bias = F.pad(bias, (0, query.shape[-1] - d))
        *sides, first, second, third, last = backward(
            query, key, left, right, join, bias, mask, grad_out, left_pull, right_pull, causal, layout
        )
        for side, made in zip(into, sides, strict=True):
            side.copy_(made[..., :d])
        first, second, third = (each[..., :d, :].contiguous() for each in (first, second, third))
        return *into, first, second, third, last[..., :d].contiguous()
    pulls = zip(*(pull.split(_most(query), dim=-1) for pull in (left_pull, right_pull)), strict=True)
    parts = [
        _launch_backward(query, key, *some, mask, grad_out, first, second, into, causal, at > 0, layout)
        for at, (some, (first, second)) in enumerate(
            zip(_slices(query, left, right, join), pulls, strict=True)
        )
    ]
    if causal:
        # The kernel left gradients of sums up to each point: a point is in all sums from it on.
        tile = layout.tile if layout else min(64, max(16, triton.next_power_of_2(query.shape[2])))
        for side in into:
            sum_back(side, mask, tile)
    if len(parts) == 1:
        return *into, *parts[0][:3], parts[0][3].reshape(bias.shape)
    # The halves of the join interleave over the parts; the bias is the same for all components.
    d_left, d_right, d_join, d_bias = zip(*parts, strict=True)
    halves = zip(*(each.chunk(2, dim=-1) for each in d_join), strict=True)
    joined = torch.cat([part for half in halves for part in half], dim=-1)
    return *into, torch.cat(d_left, dim=-1), torch.cat(d_right, dim=-1), joined, d_bias[0].reshape(bias.shape)


def _launch_backward(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    mask: Tensor | None,
    grad_out: Tensor,
    left_pull: Tensor,
    right_pull: Tensor,
    into: tuple[Tensor, Tensor],
    causal: bool,
    add: bool,
    layout: Plan | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of left, right, join and bias; those of the points go `into`."""
    batch, heads, n, d = query.shape
    s, kind, shared, shape = left.shape[-1], query.dtype, left.dim() == 3, left.shape
    layout = layout or plan(n, d, s, sequences=batch * heads, size=query.element_size(), backward=True)
    groups = triton.cdiv(batch, layout.group)
    left, right, weight_b, weight_h = _ready_weights(left, right)
    join, join_h = _ready_join(join)
    # One part for each program; where that is the whole gradient of a weight, in its own precision.
    whole = not shared and layout.splits == 1
    count = layout.splits * groups if shared else layout.splits
    parts = query.new_empty((0,) if whole else (count, 2, *shape), dtype=torch.float32)
    made = [query.new_empty(shape) for _ in range(2)] if whole else parts[0].unbind()
    join_parts = query.new_empty((layout.splits * groups, heads, d * (2 * s + 1)), dtype=torch.float32)
    *scans, tiles, spans = _scans(query, key, mask, causal, layout.tile)
    _backward[(2 * heads * layout.splits * groups,)](
        query, key, left, right, join, mask, grad_out, left_pull.contiguous(),
        right_pull.contiguous(), *into, *made, join_parts, *scans,
        *query.stride()[:3], *key.stride()[:3], weight_b, weight_h, 2 * left.numel(), join_h, n,
        *grad_out.stride()[:3],
        *into[0].stride()[:3], *into[1].stride()[:3],
        batch, heads, n, d, s, layout.chunk, layout.splits, layout.group, tiles, spans,
        BLOCK_N=layout.tile, BLOCK_D=block_of(d), BLOCK_S=block_of(s), SPAN=LENGTH, CAUSAL=causal,
        HAS_MASK=mask is not None, SHARED=shared, ADD=add, PRECISION=precision_of(query.dtype),
        num_warps=layout.warps, num_stages=layout.stages, maxnreg=layout.registers,
    )  # fmt: skip
    d_left, d_right = (made[0], made[1]) if whole else added_up(parts, shape, shape, kind)
    every = (heads,) if join.dim() == 3 else ()
    d_join, d_bias = added_up(join_parts, (*every, d, 2 * s), (*every, d), kind, heads if every else 1)
    return d_left, d_right, d_join, d_bias


def _scans(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, tile: int) -> tuple[Any, ...]:
    """Real points up to each point, and the sums before each tile of queries and keys, with their numbers."""
    if not causal:
        return None, None, None, None, None, 0, 0
    counts = None if mask is None else mask.cumsum(-1, dtype=torch.int32).clamp_min(1)
    sides = *tile_starts(query, mask, tile), *tile_starts(key, mask, tile)
    return counts, *sides, sides[0].shape[2], sides[1].shape[2]


def _most(query: Tensor) -> int:
    """Most components that a launch takes: their weights stay on chip."""
    return 64 if query.dtype == torch.float32 else 128


def _slices(
    query: Tensor, left: Tensor, right: Tensor, join: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Weights of both sides with their columns of the join, as many components as a launch takes."""
    s, most = left.shape[-1], _most(query)
    halves = (half.split(most, dim=-1) for half in join.split(s, dim=-1))
    sides = left.split(most, dim=-1), right.split(most, dim=-1)
    for first, second, *columns in zip(*sides, *halves, strict=True):
        yield first, second, join if s <= most else torch.cat(columns, dim=-1)


def _side_by_side(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _ready_weights(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, int, int]:
    """Contiguous weights with their strides over batch rows and heads; shared ones have none over rows."""
    left, right = left.contiguous(), right.contiguous()
    return left, right, (left.stride(0) if left.dim() == 4 else 0), left.stride(-3)


def _ready_join(join: Tensor) -> tuple[Tensor, int]:
    """The join, or its bias, contiguous with its stride over heads; none where all heads share it."""
    join = join.contiguous()
    return join, join.stride(0) if join.dim() == 3 else 0
