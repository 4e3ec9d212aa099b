"""One more point of causal primal attention with the cosine map: state, scores and join in one kernel.

A program serves one head of one sequence. States are read and written once, in float32; new ones are
returned and the given ones stay as they are. There are no gradients: this is for decoding.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import block_of, only_if

SMALLEST_NORM = tl.constexpr(1e-12)


@triton.jit
def _unit(point):
    """A point on the unit sphere; zero stays zero."""
    return tl.div_rn(point, tl.maximum(tl.sqrt_rn(tl.sum(point * point, axis=0)), SMALLEST_NORM))


@triton.jit
def _matrix(pointer, stride, d, s, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr):
    """A (d, s) matrix in float32, zero beyond its edges."""
    rows, columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    inside = (rows < d)[:, None] & (columns < s)[None, :]
    place = pointer + rows[:, None] * stride + columns[None, :]
    return tl.load(place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _row_side(
    point, row, state, weight, join, new_state, growth, d, s,
    BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """A side's part of the output, from weights with one more row in them."""
    feature, score = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    slot = tl.load(weight + score, mask=score < s, other=0.0).to(tl.float32)
    made = _matrix(state, s, d, s, BLOCK_D, BLOCK_S) + row[:, None] * slot[None, :]
    inside = (feature < d)[:, None] & (score < s)[None, :]
    tl.store(new_state + feature[:, None] * s + score[None, :], made, mask=inside)
    x = tl.load(point + feature, mask=feature < d, other=0.0).to(tl.float32)
    scores = tl.sum(_unit(x)[:, None] * made, axis=0) * growth
    return tl.sum(_matrix(join, 2 * s, d, s, BLOCK_D, BLOCK_S) * scores[None, :], axis=1)


@triton.jit
def _mean_side(
    point, real, state, weight, join, new_state, count, d, s,
    BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """A side's part of the output, from the mean of its points so far."""
    feature = tl.arange(0, BLOCK_D)
    x = tl.load(point + feature, mask=only_if(feature < d, real.to(tl.int32)), other=0.0).to(tl.float32)
    total = tl.load(state + feature, mask=feature < d, other=0.0) + x
    tl.store(new_state + feature, total, mask=feature < d)
    weights = _matrix(weight, s, d, s, BLOCK_D, BLOCK_S)
    scores = tl.sum(_unit(tl.div_rn(total, count))[:, None] * weights, axis=0)
    return tl.sum(_matrix(join, 2 * s, d, s, BLOCK_D, BLOCK_S) * scores[None, :], axis=1)


@triton.jit
def _step(
    query, key, rows, left, right, seen, mask, left_weight, right_weight, join, bias,
    out, new_left, new_right, new_seen,
    query_b, query_h, key_b, key_h, rows_b, rows_h, join_h, bias_h, mask_b, heads, d, s, landmarks,
    BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, HAS_ROWS: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    batch, head = program // heads, program % heads
    feature = tl.arange(0, BLOCK_D)
    before = tl.load(seen + batch)
    real = before >= 0
    if HAS_MASK:
        real = tl.load(mask + batch * mask_b) != 0
    after = before + real.to(tl.int64)
    if head == 0:
        tl.store(new_seen + batch, after)
    count = tl.maximum(after, 1).to(tl.float32)
    query += batch * query_b + head * query_h
    key += batch * key_b + head * key_h
    join += head * join_h
    if HAS_ROWS:
        growth = tl.div_rn(tl.minimum(count, landmarks * 1.0), count)
        rows += batch * rows_b + head * rows_h
        row = tl.load(rows + feature, mask=only_if(feature < d, real.to(tl.int32)), other=0.0).to(tl.float32)
        far, slot = program * d * s, (head * landmarks + before % landmarks) * s
        o = _row_side(
            query, row, left + far, left_weight + slot, join, new_left + far, growth, d, s, BLOCK_D, BLOCK_S
        )
        o += _row_side(
            key, row, right + far, right_weight + slot, join + s, new_right + far, growth, d, s,
            BLOCK_D, BLOCK_S,
        )  # fmt: skip
    else:
        far, weights = program * d, head * d * s
        o = _mean_side(
            query, real, left + far, left_weight + weights, join, new_left + far, count, d, s,
            BLOCK_D, BLOCK_S,
        )  # fmt: skip
        o += _mean_side(
            key, real, right + far, right_weight + weights, join + s, new_right + far, count, d, s,
            BLOCK_D, BLOCK_S,
        )  # fmt: skip
    o += tl.load(bias + head * bias_h + feature, mask=feature < d, other=0.0).to(tl.float32)
    tl.store(out + program * d + feature, o.to(out.dtype.element_ty), mask=feature < d)


def primal_step(
    points: tuple[Tensor, Tensor, Tensor | None],
    state: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The joined output (b, h, 1, d) of one point, and the state after it.

    Shapes: points are query, key and the landmark row, each (b, h, 1, d), or no row where the weights do
    not depend on the data; the state is left and right, (b, h, d, s) or (b, h, d) in float32, and seen
    (b,); weights (h, l, s) or (h, d, s), join (d, 2s) or (h, d, 2s), bias (d,) or (h, 1, d), mask (b,).
    """
    query, key = _ready(points[0]), _ready(points[1])
    row = None if points[2] is None else _ready(points[2])
    left, right, seen = (each.contiguous() for each in state)
    left_weight, right_weight = (each.contiguous() for each in weights)
    join, bias = join.contiguous(), bias.contiguous()
    (batch, heads, _, d), s = query.shape, left_weight.shape[-1]
    out = query.new_empty((batch, 1, heads, d)).transpose(1, 2)
    made = torch.empty_like(left), torch.empty_like(right), torch.empty_like(seen)
    _step[(batch * heads,)](
        query, key, row, left, right, seen, mask, left_weight, right_weight, join, bias, out, *made,
        *query.stride()[:2], *key.stride()[:2], *((0, 0) if row is None else row.stride()[:2]),
        join.stride(0) if join.dim() == 3 else 0, bias.stride(0) if bias.dim() == 3 else 0,
        0 if mask is None else mask.stride(0), heads, d, s, left_weight.shape[-2],
        BLOCK_D=block_of(d), BLOCK_S=block_of(s), HAS_ROWS=row is not None, HAS_MASK=mask is not None,
        num_warps=4 if d * s <= 4096 else 8,
    )  # fmt: skip
    return out, made


def _ready(points: Tensor) -> Tensor:
    return points if points.stride(-1) == 1 else points.contiguous()
