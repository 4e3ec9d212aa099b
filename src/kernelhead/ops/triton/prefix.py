"""Sums over the points before each point, as scans over chunks: products with a state, and means.

Points are cut into tiles and runs of tiles into chunks. One kernel leaves for each tile what its chunk
has walked over before it and for each chunk its sum, one adds up the sums of chunks, and one makes the
tiles' results, each from its own points and what was left for it. A scan in reverse walks the same tiles
from the last to the first. All orders are fixed, so two runs give the same bits, and nothing that comes
later in a walk reaches what came before.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import add_to, aligned, block_of, empty_output, only_if, precision_of


@triton.jit
def _start(step, tiles, BLOCK_N: tl.constexpr, REVERSE: tl.constexpr):
    """Where the tile begins that is walked over at a step."""
    return (tiles - 1 - step) * BLOCK_N if REVERSE else step * BLOCK_N


@triton.jit
def _place(pointer, at, first, stride_n, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr):
    """Where the columns from `first` on of a tile of points lie."""
    rows, columns = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK)
    return pointer + (at * stride_n + first) + (rows[:, None] * stride_n + columns[None, :])


@triton.jit
def _inside(at, first, n, width, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr):
    """Which entries of a tile exist."""
    return (tl.arange(0, BLOCK_N) < n - at)[:, None] & (tl.arange(0, BLOCK) < width - first)[None, :]


@triton.jit
def _tile(pointer, at, first, stride_n, n, width, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr):
    """A tile of points, zero beyond its edges."""
    place = _place(pointer, at, first, stride_n, BLOCK_N, BLOCK)
    return tl.load(place, mask=_inside(at, first, n, width, BLOCK_N, BLOCK), other=0.0)


@triton.jit
def _grown(state, lost, rows, values, PRECISION: tl.constexpr):
    """The state with rows' values added; in float32 what rounding takes is carried along."""
    if PRECISION == "ieee":
        state, lost = add_to(state, lost, tl.dot(tl.trans(rows), values, input_precision=PRECISION))
    else:
        state = tl.dot(tl.trans(rows), values, acc=state, input_precision=PRECISION)
    return state, lost


@triton.jit
def _states(
    rows, values, states, totals,
    rows_b, rows_h, rows_n, values_b, values_h, values_n,
    heads, n, p, e, tiles, length, chunks, blocks,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_E: tl.constexpr,
    REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For each tile the sum of rows' values that its chunk has walked over; for each chunk the whole."""
    program = tl.program_id(0).to(tl.int64)
    first, program = program % blocks * BLOCK_E, program // blocks
    head, chunk, row = program % heads, program // heads % chunks, program // (heads * chunks)
    rows += row * rows_b + head * rows_h
    values += row * values_b + head * values_h
    states += (row * heads + head) * tiles * p * e
    totals += ((row * heads + head) * chunks + chunk) * p * e
    inside = _inside(0, first, p, e, BLOCK_P, BLOCK_E)
    state = tl.zeros([BLOCK_P, BLOCK_E], tl.float32)
    lost = tl.zeros([BLOCK_P, BLOCK_E], tl.float32)
    for step in range(chunk * length, tl.minimum(chunk * length + length, tiles)):
        at = _start(step, tiles, BLOCK_N, REVERSE)
        r = _tile(rows, at, 0, rows_n, n, p, BLOCK_N, BLOCK_P)
        v = _tile(values, at, first, values_n, n, e, BLOCK_N, BLOCK_E)
        place = _place(states + at // BLOCK_N * p * e, 0, first, e, BLOCK_P, BLOCK_E)
        tl.store(place, state.to(states.dtype.element_ty), mask=inside)
        state, lost = _grown(state, lost, r, v, PRECISION)
    tl.store(_place(totals, 0, first, e, BLOCK_P, BLOCK_E), state, mask=inside)


@triton.jit
def _products(
    features, rows, values, states, totals, out,
    features_b, features_h, features_n, rows_b, rows_h, rows_n, values_b, values_h, values_n,
    out_b, out_h, out_n, out_width,
    heads, n, p, e, tiles, length, chunks, blocks,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_E: tl.constexpr,
    REVERSE: tl.constexpr, PRECISION: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Features times the state before a tile, and times the rows of the tile that they see."""
    program = tl.program_id(0).to(tl.int64)
    first, program = program % blocks * BLOCK_E, program // blocks
    head, chunk, row = program % heads, program // heads % chunks, program // (heads * chunks)
    features += row * features_b + head * features_h
    rows += row * rows_b + head * rows_h
    values += row * values_b + head * values_h
    out += row * out_b + head * out_h
    kind: tl.constexpr = features.dtype.element_ty
    point = tl.arange(0, BLOCK_N)
    seen = point[:, None] <= point[None, :] if REVERSE else point[:, None] >= point[None, :]
    exists = _inside(0, first, p, e, BLOCK_P, BLOCK_E)
    if not ALONE:
        states += (row * heads + head) * tiles * p * e
        totals += ((row * heads + head) * chunks + chunk - 1) * p * e
        summed = _place(totals, 0, first, e, BLOCK_P, BLOCK_E)
        before = tl.load(summed, mask=only_if(exists, chunk), other=0.0)
    for step in range(chunk * length, tl.minimum(chunk * length + length, tiles)):
        at = _start(step, tiles, BLOCK_N, REVERSE)
        f = _tile(features, at, 0, features_n, n, p, BLOCK_N, BLOCK_P)
        r = _tile(rows, at, 0, rows_n, n, p, BLOCK_N, BLOCK_P)
        v = _tile(values, at, first, values_n, n, e, BLOCK_N, BLOCK_E)
        scores = tl.where(seen, tl.dot(f, tl.trans(r), input_precision=PRECISION), 0.0)
        o = tl.dot(scores.to(kind), v, input_precision=PRECISION)
        if not ALONE:
            place = _place(states + at // BLOCK_N * p * e, 0, first, e, BLOCK_P, BLOCK_E)
            state = tl.load(place, mask=exists, other=0.0).to(tl.float32) + before
            if kind == tl.float16:
                # A sum over many points may leave the range of float16: this product is wide.
                o = tl.dot(f.to(tl.float32), state, acc=o, input_precision=PRECISION)
            else:
                o = tl.dot(f, state.to(kind), acc=o, input_precision=PRECISION)
        inside = _inside(at, first, n, out_width, BLOCK_N, BLOCK_E)
        tl.store(_place(out, at, first, out_n, BLOCK_N, BLOCK_E), o.to(kind), mask=inside)


@triton.jit
def _add_up(parts, sums, count, size, blocks, BLOCK_G: tl.constexpr, BLOCK: tl.constexpr):
    """Running sums over `count` parts of a size."""
    program = tl.program_id(0).to(tl.int64)
    first, head = program % blocks * BLOCK, program // blocks
    parts += head * count * size
    sums += head * count * size
    carry = tl.zeros([BLOCK], tl.float32)
    for at in range(0, count, BLOCK_G):
        part = _tile(parts, at, first, size, count, size, BLOCK_G, BLOCK)
        inside = _inside(at, first, count, size, BLOCK_G, BLOCK)
        place = _place(sums, at, first, size, BLOCK_G, BLOCK)
        tl.store(place, tl.cumsum(part, axis=0) + carry[None, :], mask=inside)
        carry += tl.sum(part, axis=0)


@triton.jit
def _real(mask, at, n, BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr):
    """Which points of a tile are real."""
    index = tl.arange(0, BLOCK_N)
    real = index < n - at
    if HAS_MASK:
        real = real & (tl.load(mask + at + index, mask=real, other=0) != 0)
    return real


@triton.jit
def _counts(counts, at, n, BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr):
    """Real points up to each point of a tile."""
    index = tl.arange(0, BLOCK_N)
    count = tl.load(counts + at + index, mask=index < n - at, other=1) if HAS_MASK else at + index + 1
    return count.to(tl.float32)


@triton.jit
def _taken(
    points, mask, counts, at, first, stride_n, n, d,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HAS_MASK: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """What is summed: real points, or in reverse all points over their counts."""
    wanted = _inside(at, first, n, d, BLOCK_N, BLOCK_D)
    if not REVERSE:
        wanted = wanted & _real(mask, at, n, BLOCK_N, HAS_MASK)[:, None]
    place = _place(points, at, first, stride_n, BLOCK_N, BLOCK_D)
    taken = tl.load(place, mask=wanted, other=0.0).to(tl.float32)
    if REVERSE:
        taken = tl.div_rn(taken, _counts(counts, at, n, BLOCK_N, HAS_MASK)[:, None])
    return taken


@triton.jit
def _chunk_sums(
    points, mask, counts, parts,
    points_b, points_h, points_n, heads, n, d, tiles, length, chunks, blocks,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HAS_MASK: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The sum of the points of each chunk but the last."""
    program = tl.program_id(0).to(tl.int64)
    first, program = program % blocks * BLOCK_D, program // blocks
    head, chunk, row = program % heads, program // heads % (chunks - 1), program // (heads * (chunks - 1))
    points += row * points_b + head * points_h
    if HAS_MASK:
        mask += row * n
        counts += row * n
    total = tl.zeros([BLOCK_D], tl.float32)
    for step in range(chunk * length, chunk * length + length):
        at = _start(step, tiles, BLOCK_N, REVERSE)
        taken = _taken(
            points, mask, counts, at, first, points_n, n, d, BLOCK_N, BLOCK_D, HAS_MASK, REVERSE
        )  # fmt: skip
        total += tl.sum(taken, axis=0)
    feature = first + tl.arange(0, BLOCK_D)
    parts += ((row * heads + head) * (chunks - 1) + chunk) * d
    tl.store(parts + feature, total, mask=feature < d)


@triton.jit
def _means(
    points, mask, counts, sums, out,
    points_b, points_h, points_n, out_b, out_h, out_n, heads, n, d, tiles, length, chunks, blocks,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HAS_MASK: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Running sums over their counts; in reverse the adjoint of that."""
    program = tl.program_id(0).to(tl.int64)
    first, program = program % blocks * BLOCK_D, program // blocks
    head, chunk, row = program % heads, program // heads % chunks, program // (heads * chunks)
    points += row * points_b + head * points_h
    out += row * out_b + head * out_h
    if HAS_MASK:
        mask += row * n
        counts += row * n
    feature = first + tl.arange(0, BLOCK_D)
    sums += ((row * heads + head) * (chunks - 1) + chunk - 1) * d
    carry = tl.load(sums + feature, mask=only_if(feature < d, chunk), other=0.0)
    for step in range(chunk * length, tl.minimum(chunk * length + length, tiles)):
        at = _start(step, tiles, BLOCK_N, REVERSE)
        taken = _taken(
            points, mask, counts, at, first, points_n, n, d, BLOCK_N, BLOCK_D, HAS_MASK, REVERSE
        )  # fmt: skip
        made = tl.cumsum(taken, axis=0, reverse=REVERSE) + carry[None, :]
        carry += tl.sum(taken, axis=0)
        if REVERSE:
            made = tl.where(_real(mask, at, n, BLOCK_N, HAS_MASK)[:, None], made, 0.0)
        else:
            made = tl.div_rn(made, _counts(counts, at, n, BLOCK_N, HAS_MASK)[:, None])
        inside = _inside(at, first, n, d, BLOCK_N, BLOCK_D)
        place = _place(out, at, first, out_n, BLOCK_N, BLOCK_D)
        tl.store(place, made.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Plan:
    """How the points are cut up: points of a tile, tiles of a chunk."""

    tile: int
    length: int
    warps: int = 4
    stages: int = 1

    def cut(self, n: int) -> tuple[int, int, int]:
        """All tiles of n points, tiles of a chunk, and chunks; the last may have fewer tiles."""
        tiles = triton.cdiv(n, self.tile)
        return tiles, self.length, triton.cdiv(tiles, self.length)


def plan(n: int, width: int, *, size: int) -> Plan:
    """A plan for a shape: chunks of 512 points or more, and at most 128 of them.

    Args:
        n: points of a sequence.
        width: the most features of a point.
        size: bytes of a number.
    """
    tile = min(64 if size < 4 else 32, max(16, triton.next_power_of_2(n)))
    length = max(512 // tile, triton.cdiv(n, 128 * tile))
    # One stage alone is no pipeline, and is left to float32, whose products do not run beside loads.
    warps, stages = 4 if width <= 64 else 8, 1 if size == 4 else 2
    return Plan(tile, length, warps, stages)


def prefix_products(
    features: Tensor, rows: Tensor, values: Tensor, reverse: bool, layout: Plan | None = None
) -> Tensor:
    """Row t is features_t times the sum over u up to t, or from t on in reverse, of rows_u' values_u.

    Shapes: features, rows (b, h, n, p), values (b, h, n, e) of one type, p and e up to 128; returns
    (b, h, n, e).
    """
    out = empty_output(features, values.shape[-1])
    features, rows, values = (aligned(side) for side in (features, rows, values))
    (batch, heads, n, p), e = features.shape, values.shape[-1]
    layout = layout or plan(n, max(p, e), size=features.element_size())
    tiles, length, chunks = layout.cut(n)
    block, precision = min(64, block_of(e)), precision_of(features.dtype)
    blocks = triton.cdiv(e, block)
    sizes = heads, n, p, e, tiles, length, chunks, blocks
    options = {
        "BLOCK_N": layout.tile, "BLOCK_P": block_of(p), "BLOCK_E": block, "REVERSE": reverse,
        "PRECISION": precision, "num_warps": layout.warps, "num_stages": layout.stages,
    }  # fmt: skip
    alone = tiles == 1
    # bfloat16 has the range of float32, and the state is rounded to it for its product anyway.
    kept = torch.bfloat16 if features.dtype == torch.bfloat16 else torch.float32
    states = features.new_empty((0,) if alone else (batch, heads, tiles, p * e), dtype=kept)
    totals = features.new_empty((0,) if alone else (batch, heads, chunks, p * e), dtype=torch.float32)
    if not alone:
        _states[(batch * heads * chunks * blocks,)](
            rows, values, states, totals, *rows.stride()[:3], *values.stride()[:3], *sizes, **options
        )
        totals = running_totals(totals) if chunks > 1 else totals
    _products[(batch * heads * chunks * blocks,)](
        features, rows, values, states, totals, out, *features.stride()[:3], *rows.stride()[:3],
        *values.stride()[:3], *out.stride()[:3], out.shape[-1], *sizes, **options, ALONE=alone,
    )  # fmt: skip
    return out


def running_means(
    points: Tensor, mask: Tensor | None, counts: Tensor | None, reverse: bool, layout: Plan | None = None
) -> Tensor:
    """Means of the real points up to each point; in reverse the adjoint of that, for gradients.

    Shapes: points (b, h, n, d), mask (b, n) and counts (b, n), the real points up to each and at least
    one, or neither; returns (b, h, n, d).
    """
    out, points = empty_output(points), points if points.stride(-1) == 1 else points.contiguous()
    batch, heads, n, d = points.shape
    layout = layout or plan(n, 64, size=2)
    tiles, length, chunks = layout.cut(n)
    block = min(64, block_of(d))
    blocks = triton.cdiv(d, block)
    sizes = heads, n, d, tiles, length, chunks, blocks
    options = {
        "BLOCK_N": layout.tile, "BLOCK_D": block, "HAS_MASK": mask is not None, "REVERSE": reverse,
        "num_warps": layout.warps,
    }  # fmt: skip
    if mask is not None and counts is not None:
        mask, counts = mask.contiguous(), counts.contiguous()
    sums = points.new_empty((batch, heads, chunks - 1, d), dtype=torch.float32)
    if chunks > 1:
        _chunk_sums[(batch * heads * (chunks - 1) * blocks,)](
            points, mask, counts, sums, *points.stride()[:3], *sizes, **options
        )
        sums = running_totals(sums)
    _means[(batch * heads * chunks * blocks,)](
        points, mask, counts, sums, out, *points.stride()[:3], *out.stride()[:3], *sizes, **options
    )
    return out


def running_totals(parts: Tensor) -> Tensor:
    """Running sums over chunks, (b, h, g, size)."""
    batch, heads, count, size = parts.shape
    sums, block = torch.empty_like(parts), 128
    blocks = triton.cdiv(size, block)
    _add_up[(batch * heads * blocks,)](parts, sums, count, size, blocks, BLOCK_G=16, BLOCK=block)
    return sums
