"""Attention through features, not causal: elu + 1, or exponentials of products with random frequencies.

Features never leave the chip. One kernel sums products of key features and values, one makes means of them
for every query; two more make the gradients, for which nothing but these sums is kept. All orders are
fixed, so that two runs give the same bits.

Exponents are to base two. Frequencies come as two parts in the points' precision, so that exponents are
right to 2^-17 of their terms; features are rounded, products of them summed in float32. Sums of key features
and values are kept less a mean of values, which is added to the output: what all values share would be
rounded, and lost between the two large parts of a query's gradient.
"""

from dataclasses import replace
from math import log2

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import Cut, aligned, block_of, empty_output, precision_of

LOG2_E, LN_2 = log2(torch.e), tl.constexpr(0.6931471805599453)
# Below every exponent, and a number whose reciprocal is one as well.
LEAST, TINY = tl.constexpr(-1e30), tl.constexpr(1e-37)
LEAST_HALF = tl.constexpr(-6e4)  # that float16 has
COLUMNS = tl.constexpr(16)  # the fewest of a product
Sums = tuple[Tensor, Tensor, Tensor, Tensor]


FEW = 64  # features
NARROW = 32  # features, and columns of points: registers of a thread have room to spare
SHORTEST = 512  # points of a chunk that are worth what a program loads before it begins
# A sequence is cut into chunks where heads are fewer than programs.
KEYS, QUERIES = Cut(64, 256, 4, 3), Cut(64, 1024, 4, 3, 128)
QUERY_GRADIENTS, KEY_GRADIENTS = Cut(64, 512, 4, 2, 128), Cut(64, 1024, 4, 2)


def chunks_of(cut: Cut, heads: int, n: int) -> tuple[int, int]:
    """Points of a chunk, whole tiles of them, and how many chunks n points are cut into.

    Args:
        cut: how points are shared out.
        heads: of all samples together.
        n: points of a sequence.
    """
    tiles = triton.cdiv(n, cut.tile)
    length = max(triton.cdiv(tiles, triton.cdiv(cut.programs, heads)), min(tiles, SHORTEST // cut.tile))
    return length * cut.tile, triton.cdiv(tiles, length)


@triton.jit
def _begin(heads, n, chunk, chunks):
    """Sample, head and chunk of a program, and where the chunk begins and ends."""
    program = tl.program_id(0).to(tl.int64)
    head, split, row = program % heads, program // heads % chunks, program // (heads * chunks)
    return row, head, split, split * chunk, tl.minimum(split * chunk + chunk, n)


@triton.jit
def _place(pointer, at, stride_n, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr):
    """Where a tile of points lies; the far part of the address is one number."""
    rows, columns = tl.arange(0, BLOCK_N), tl.arange(0, WIDTH)
    return pointer + at * stride_n + (rows[:, None] * stride_n + columns[None, :])


@triton.jit
def _real(mask, at, n, BLOCK_N: tl.constexpr):
    """Which points of a tile are real."""
    index = tl.arange(0, BLOCK_N)
    real = index < n - at
    if mask is not None:
        real = real & (tl.load(mask + at + index, mask=real, other=0) != 0)
    return real


@triton.jit
def _drawn(frequencies, p, scale, BLOCK_P: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr):
    """Scaled frequencies (p, d) rounded, and what rounding took from them, rounded as well."""
    feature, column = tl.arange(0, BLOCK_P), tl.arange(0, D)
    place = frequencies + feature[:, None] * D + column[None, :]
    wide = tl.load(place, mask=(feature < p)[:, None], other=0.0) * scale
    near = wide.to(KIND)
    return near, (wide - near.to(tl.float32)).to(KIND)


@triton.jit
def _matrix(pointer, p, BLOCK_P: tl.constexpr, E: tl.constexpr):
    """A (p, e) matrix, zero beyond its edge."""
    feature, column = tl.arange(0, BLOCK_P), tl.arange(0, E)
    place = pointer + feature[:, None] * E + column[None, :]
    return tl.load(place, mask=(feature < p)[:, None], other=0.0)


@triton.jit
def _parts(numbers, KIND: tl.constexpr):
    """Numbers for products in a precision: three columns whose sum each is, twice, and zeros.

    One for every feature in every thread would take most of the registers.
    """
    first = numbers.to(KIND)
    rest = numbers - first.to(tl.float32)
    second = rest.to(KIND)
    third = (rest - second.to(tl.float32)).to(KIND)
    few = tl.arange(0, COLUMNS)[None, :]
    made = tl.where(few % 3 == 0, first[:, None], tl.where(few % 3 == 1, second[:, None], third[:, None]))
    return tl.where(few < 6, made, 0.0).to(KIND)


@triton.jit
def _ones(BLOCK_N: tl.constexpr, KIND: tl.constexpr):
    """What takes the parts of a number together, for every point."""
    few = tl.arange(0, COLUMNS)[None, :]
    return tl.broadcast_to(tl.where(few < 3, 1.0, 0.0), [BLOCK_N, COLUMNS]).to(KIND)


@triton.jit
def _together(made):
    """Products with the three parts, added up."""
    return tl.sum(tl.where(tl.arange(0, COLUMNS)[None, :] < 3, made, 0.0), axis=1)


@triton.jit
def _level(peaks, totals, p, BLOCK_P: tl.constexpr, KIND: tl.constexpr):
    """Peaks of the features of keys in parts; far below the others where there is no such feature."""
    feature = tl.arange(0, BLOCK_P)
    weight = tl.load(totals + feature, mask=feature < p, other=0.0)
    level = tl.load(peaks + feature, mask=feature < p, other=0.0)
    level = tl.where(weight > 0, level, 0.0)
    kind: tl.constexpr = KIND
    level = tl.where(feature < p, level, LEAST_HALF if kind == tl.float16 else LEAST)
    return _parts(level, KIND)


@triton.jit
def _exponents(points, near, rest, start, PRECISION: tl.constexpr):
    """Products of points and frequencies, added to what they start from, (n, p)."""
    made = tl.dot(points, tl.trans(near), acc=start, input_precision=PRECISION)
    if points.dtype != tl.float32:
        made = tl.dot(points, tl.trans(rest), acc=made, input_precision=PRECISION)
    return made


@triton.jit
def _elu(points):
    """elu(x) + 1."""
    wide = points.to(tl.float32)
    return tl.where(wide > 0, wide + 1, tl.exp(tl.minimum(wide, 0.0)))


@triton.jit
def _placed(points, KIND: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr):
    """The same in float32 as a product leaves them, so that what is made of them is made once.

    Else Triton makes it again for every product that it goes into, each of which wants it laid out otherwise.
    """
    kind: tl.constexpr = KIND
    placed = points
    if kind != tl.float32:
        # Minus infinity times zero would be no number.
        finite = tl.where(points == float("-inf"), LEAST_HALF, points.to(tl.float32)).to(kind)
        same = (tl.arange(0, D)[:, None] == tl.arange(0, D)[None, :]).to(kind)
        placed = tl.dot(finite, same, input_precision=PRECISION)
    return placed


@triton.jit
def _fallen(points, real, half):
    """Minus half the squared norms of scaled points, minus infinity where they are not real."""
    wide = points.to(tl.float32)
    return tl.where(real, tl.sum(wide * wide, axis=1) * -half, float("-inf"))


@triton.jit
def _query_features(q, near, rest, level, ones, DRAWN: tl.constexpr, PRECISION: tl.constexpr):
    """Features of queries, up to a factor for each."""
    if DRAWN:
        start = tl.dot(ones, tl.trans(level), input_precision=PRECISION)
        exponents = _exponents(q, near, rest, start, PRECISION)
        features = tl.exp2(exponents - tl.max(exponents, axis=1)[:, None])
    else:
        features = _elu(q)
    return features


@triton.jit
def _reciprocal(weight):
    """One over each weight, or one where there is none, or less than what has a reciprocal."""
    return 1.0 / tl.where(weight < TINY, 1.0, weight)


@triton.jit
def _keys(
    key, value, mask, frequencies, sums, totals, peaks, centres,
    key_b, key_h, key_n, value_b, value_h, value_n, mask_b, mask_h,
    heads, m, p, chunk, chunks, scale, half,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    ALONE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums over keys of features times values, and of features; each feature over its largest value."""
    row, head, split, start, stop = _begin(heads, m, chunk, chunks)
    key += row * key_b + head * key_h
    value += row * value_b + head * value_h
    if mask is not None:
        mask += row * mask_b + head * mask_h
    kind: tl.constexpr = key.dtype.element_ty
    grown = tl.zeros([BLOCK_P, E], tl.float32)
    total = tl.zeros([BLOCK_P, COLUMNS], tl.float32)
    ones = tl.full([BLOCK_N, COLUMNS], 1.0, kind)
    if frequencies is not None:
        near, rest = _drawn(frequencies, p, scale, BLOCK_P, D, kind)
        peak = tl.full([BLOCK_P], LEAST, tl.float32)
    for at in range(start, stop, BLOCK_N):
        real = _real(mask, at, stop, BLOCK_N)
        k = tl.load(_place(key, at, key_n, BLOCK_N, D), mask=real[:, None], other=0.0)
        v = tl.load(_place(value, at, value_n, BLOCK_N, E), mask=real[:, None], other=0.0)
        if frequencies is not None:
            # With features as rows, as the sums have them, they go from product to product in registers.
            exponents = tl.broadcast_to(_fallen(k, real, half)[None, :], [BLOCK_P, BLOCK_N])
            exponents = tl.dot(near, tl.trans(k), acc=exponents, input_precision=PRECISION)
            if kind != tl.float32:
                exponents = tl.dot(rest, tl.trans(k), acc=exponents, input_precision=PRECISION)
            higher = tl.maximum(peak, tl.max(exponents, axis=1))
            fade = tl.exp2(peak - higher)
            grown *= fade[:, None]
            total *= fade[:, None]
            peak = higher
            features = tl.exp2(exponents - higher[:, None]).to(kind)
        else:
            features = tl.trans(tl.where(real[:, None], _elu(k), 0.0).to(kind))
        grown = tl.dot(features, v, acc=grown, input_precision=PRECISION)
        total = tl.dot(features, ones, acc=total, input_precision=PRECISION)
    feature, column = tl.arange(0, BLOCK_P), tl.arange(0, E)
    exists = feature < p
    # All columns are the same.
    weight = tl.where(exists, tl.max(total, axis=1), 0.0)
    part = (row * heads + head) * chunks + split
    if ALONE:
        grown = tl.where(exists[:, None], grown, 0.0)
        # A sum of one axis, not of what a sum left: Triton 3.7 does not place that on Blackwell.
        every = tl.reshape(tl.where(exists[:, None], total, 0.0), [BLOCK_P * COLUMNS])
        centre = tl.sum(grown, axis=0) / tl.maximum(tl.sum(every, axis=0) / COLUMNS, TINY)
        grown -= weight[:, None] * centre[None, :]
        tl.store(centres + part * E + column, centre)
    place = sums + part * p * E + (feature[:, None] * E + column[None, :])
    tl.store(place, grown, mask=exists[:, None])
    tl.store(totals + part * p + feature, weight, mask=exists)
    if frequencies is not None:
        tl.store(peaks + part * p + feature, peak, mask=exists)


@triton.jit
def _queries(
    query, frequencies, sums, totals, peaks, centres, out,
    query_b, query_h, query_n, out_b, out_h, out_n, heads, n, p, chunk, chunks, scale,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Means of values for each query."""
    row, head, _, start, stop = _begin(heads, n, chunk, chunks)
    query += row * query_b + head * query_h
    out += row * out_b + head * out_h
    part = row * heads + head
    kind: tl.constexpr = query.dtype.element_ty
    feature = tl.arange(0, BLOCK_P)
    gathered = _matrix(sums + part * p * E, p, BLOCK_P, E).to(kind)
    total = _parts(tl.load(totals + part * p + feature, mask=feature < p, other=0.0), kind)
    centre = tl.load(centres + part * E + tl.arange(0, E))
    ones = _ones(BLOCK_N, kind)
    near, rest, level = gathered, gathered, total
    if frequencies is not None:
        near, rest = _drawn(frequencies, p, scale, BLOCK_P, D, kind)
        level = _level(peaks + part * p, totals + part * p, p, BLOCK_P, kind)
    for at in range(start, stop, BLOCK_N):
        exists = (tl.arange(0, BLOCK_N) < stop - at)[:, None]
        q = tl.load(_place(query, at, query_n, BLOCK_N, D), mask=exists, other=0.0)
        features = _query_features(q, near, rest, level, ones, frequencies is not None, PRECISION).to(kind)
        factor = _reciprocal(_together(tl.dot(features, total, input_precision=PRECISION)))
        mixed = tl.dot(features, gathered, input_precision=PRECISION)
        mixed = mixed * factor[:, None] + centre[None, :]
        tl.store(_place(out, at, out_n, BLOCK_N, E), mixed.to(kind), mask=exists)


@triton.jit
def _query_gradients(
    query, grad, frequencies, sums, totals, peaks, d_query, pulls, pushes,
    query_b, query_h, query_n, grad_b, grad_h, grad_n, out_b, out_h, out_n,
    heads, n, p, chunk, chunks, scale,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, and those of the sums over keys, summed over the queries of a chunk."""
    row, head, split, start, stop = _begin(heads, n, chunk, chunks)
    query += row * query_b + head * query_h
    grad += row * grad_b + head * grad_h
    d_query += row * out_b + head * out_h
    part = row * heads + head
    kind: tl.constexpr = query.dtype.element_ty
    feature, column, few = tl.arange(0, BLOCK_P), tl.arange(0, E), tl.arange(0, COLUMNS)[None, :]
    gathered = _matrix(sums + part * p * E, p, BLOCK_P, E).to(kind)
    total = _parts(tl.load(totals + part * p + feature, mask=feature < p, other=0.0), kind)
    ones = _ones(BLOCK_N, kind)
    near, rest, level = gathered, gathered, total
    if frequencies is not None:
        near, rest = _drawn(frequencies, p, scale, BLOCK_P, D, kind)
        level = _level(peaks + part * p, totals + part * p, p, BLOCK_P, kind)
    pull = tl.zeros([BLOCK_P, E], tl.float32)
    push = tl.zeros([BLOCK_P, COLUMNS], tl.float32)
    for at in range(start, stop, BLOCK_N):
        exists = (tl.arange(0, BLOCK_N) < stop - at)[:, None]
        q = tl.load(_place(query, at, query_n, BLOCK_N, D), mask=exists, other=0.0)
        g = tl.load(_place(grad, at, grad_n, BLOCK_N, E), mask=exists, other=0.0)
        placed = q if frequencies is not None else _placed(q, kind, D, PRECISION)
        features = _query_features(placed, near, rest, level, ones, frequencies is not None, PRECISION)
        rounded = features.to(kind)
        factor = _reciprocal(_together(tl.dot(rounded, total, input_precision=PRECISION)))
        mixed = tl.dot(rounded, gathered, input_precision=PRECISION)
        share = (g.to(tl.float32) * factor[:, None]).to(kind)
        # From the rounded share, so that nothing remains of a factor common to all features.
        back = -tl.sum(share.to(tl.float32) * mixed, axis=1) * factor
        first = back.to(kind)
        second = (back - first.to(tl.float32)).to(kind)
        both = tl.where(few < 3, first[:, None], tl.where(few < 6, second[:, None], 0.0)).to(kind)
        pull = tl.dot(tl.trans(rounded), share, acc=pull, input_precision=PRECISION)
        push = tl.dot(tl.trans(rounded), both, acc=push, input_precision=PRECISION)
        below = tl.dot(both, tl.trans(total), input_precision=PRECISION)
        below = tl.dot(share, tl.trans(gathered), acc=below, input_precision=PRECISION)
        if frequencies is not None:
            below *= rounded.to(tl.float32)
            made = tl.dot(below.to(kind), near, input_precision=PRECISION) * LN_2
        else:
            made = below * tl.minimum(features, 1.0)
        tl.store(_place(d_query, at, out_n, BLOCK_N, D), made.to(kind), mask=exists)
    part = part * chunks + split
    place = pulls + part * p * E + (feature[:, None] * E + column[None, :])
    tl.store(place, pull, mask=(feature < p)[:, None])
    push = tl.where(few % 3 == 0, push, 0.0)  # the first of the columns that are the same
    tl.store(pushes + part * p + feature, tl.sum(push, axis=1), mask=feature < p)


@triton.jit
def _key_gradients(
    key, value, mask, frequencies, peaks, centres, pulls, pushes, d_key, d_value,
    key_b, key_h, key_n, value_b, value_h, value_n, mask_b, mask_h, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    heads, m, p, chunk, chunks, scale, half, along,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and of values, zero where they are not real."""
    row, head, _, start, stop = _begin(heads, m, chunk, chunks)
    key += row * key_b + head * key_h
    value += row * value_b + head * value_h
    d_key += row * dk_b + head * dk_h
    d_value += row * dv_b + head * dv_h
    if mask is not None:
        mask += row * mask_b + head * mask_h
    part = row * heads + head
    kind: tl.constexpr = key.dtype.element_ty
    feature = tl.arange(0, BLOCK_P)
    pull = _matrix(pulls + part * p * E, p, BLOCK_P, E).to(kind)
    centre = tl.load(centres + part * E + tl.arange(0, E))
    # Values enter as they are: what they have in common is taken out where it was rounded with them.
    push = tl.load(pushes + part * p + feature, mask=feature < p, other=0.0)
    push = _parts(push - tl.sum(pull.to(tl.float32) * centre[None, :], axis=1), kind)
    ones = _ones(BLOCK_N, kind)
    if frequencies is not None:
        near, rest = _drawn(frequencies, p, scale, BLOCK_P, D, kind)
        peak = tl.load(peaks + part * p + feature, mask=feature < p, other=0.0)
        # Where no key is real there is no peak.
        level = _parts(tl.where(peak > LEAST, -peak, 0.0), kind)
    for at in range(start, stop, BLOCK_N):
        exists = (tl.arange(0, BLOCK_N) < stop - at)[:, None]
        real = _real(mask, at, stop, BLOCK_N)
        k = tl.load(_place(key, at, key_n, BLOCK_N, D), mask=real[:, None], other=0.0)
        v = tl.load(_place(value, at, value_n, BLOCK_N, E), mask=real[:, None], other=0.0)
        if frequencies is not None:
            # The peak goes last, as it did in the sums: far keys have exponents beside which it is lost.
            exponents = tl.broadcast_to(_fallen(k, real, half)[:, None], [BLOCK_N, BLOCK_P])
            exponents = _exponents(k, near, rest, exponents, PRECISION)
            exponents = tl.dot(ones, tl.trans(level), acc=exponents, input_precision=PRECISION)
            features = tl.exp2(tl.minimum(exponents, 0.0))
        else:
            features = tl.where(real[:, None], _elu(_placed(k, kind, D, PRECISION)), 0.0)
        rounded = features.to(kind)
        made = tl.dot(rounded, pull, input_precision=PRECISION)
        tl.store(_place(d_value, at, dv_n, BLOCK_N, E), made.to(kind), mask=exists)
        below = tl.dot(ones, tl.trans(push), input_precision=PRECISION)
        below = tl.dot(v, tl.trans(pull), acc=below, input_precision=PRECISION)
        if frequencies is not None:
            below *= rounded.to(tl.float32)
            made = tl.dot(below.to(kind), near, input_precision=PRECISION) * LN_2
            made -= k.to(tl.float32) * (tl.sum(below, axis=1) * along)[:, None]
        else:
            made = below * tl.minimum(features, 1.0)
        tl.store(_place(d_key, at, dk_n, BLOCK_N, D), made.to(kind), mask=exists)


def forward(
    query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Means of values weighted by inner products of features, and the sums that they were made of.

    Shapes: query (b, h, n, d), key (b, h, m, d), value (b, h, m, e) of one type, d and e powers of two and at
    least 16; frequencies (p, d) in float32 or none for elu + 1; mask (b, 1, m) or (b, h, m); returns
    (b, h, n, e), and for `backward` in float32 (b, h, p, e), (b, h, p), (b, h, p), empty for elu + 1, and
    (b, h, e).
    """
    out = empty_output(query, value.shape[-1])
    query, key, value = (aligned(side) for side in (query, key, value))
    state = _summed(key, value, frequencies, mask)
    (batch, heads, n, d), e, p = query.shape, value.shape[-1], state[1].shape[-1]
    chunk, chunks = chunks_of(QUERIES, batch * heads, n)
    _queries[(batch * heads * chunks,)](
        query, frequencies, *state, out, *query.stride()[:3], *out.stride()[:3],
        heads, n, p, chunk, chunks, _scale(d), **_options(QUERIES, p, d, e, query.dtype),
    )  # fmt: skip
    return out, *state


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    frequencies: Tensor | None,
    mask: Tensor | None,
    sums: Tensor,
    totals: Tensor,
    peaks: Tensor,
    centres: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, from what `forward` returned and the gradient of its output."""
    d_query, pulls, pushes = query_gradients(query, frequencies, sums, totals, peaks, grad)
    made = empty_output(key), empty_output(value)
    key, value = aligned(key), aligned(value)
    (batch, heads, m, d), e, p = key.shape, value.shape[-1], totals.shape[-1]
    chunk, chunks = chunks_of(KEY_GRADIENTS, batch * heads, m)
    mask, strides = _read(mask)
    _key_gradients[(batch * heads * chunks,)](
        key, value, mask, frequencies, peaks, centres, pulls, pushes, made[0], made[1],
        *key.stride()[:3], *value.stride()[:3], *strides, *made[0].stride()[:3], *made[1].stride()[:3],
        heads, m, p, chunk, chunks, _scale(d), _half(d), d**-0.5,
        **_options(KEY_GRADIENTS, p, d, e, query.dtype),
    )  # fmt: skip
    return d_query, *made


def query_gradients(
    query: Tensor, frequencies: Tensor | None, sums: Tensor, totals: Tensor, peaks: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, and in float32 those of the sums over keys and of their totals."""
    made = empty_output(query)
    query, grad = aligned(query), aligned(grad)
    (batch, heads, n, d), (p, e) = query.shape, sums.shape[-2:]
    # Wide features would spill.
    narrow = max(p, d, e) <= NARROW and query.element_size() == 2
    cut = QUERY_GRADIENTS if narrow else replace(QUERY_GRADIENTS, registers=None)
    chunk, chunks = chunks_of(cut, batch * heads, n)
    pulls = query.new_empty((batch, heads, chunks, p, e), dtype=torch.float32)
    pushes = query.new_empty((batch, heads, chunks, p), dtype=torch.float32)
    _query_gradients[(batch * heads * chunks,)](
        query, grad, frequencies, sums, totals, peaks, made, pulls, pushes,
        *query.stride()[:3], *grad.stride()[:3], *made.stride()[:3],
        heads, n, p, chunk, chunks, _scale(d), **_options(cut, p, d, e, query.dtype),
    )  # fmt: skip
    if chunks > 1:
        pulls, pushes = pulls.sum(2), pushes.sum(2)
    return made, pulls, pushes


def empty_sums(key: Tensor, value: Tensor, frequencies: Tensor | None, *chunks: int) -> Sums:
    """Room for sums over keys, or over the keys of each chunk: see `forward`."""
    (batch, heads, _, d), e = key.shape, value.shape[-1]
    p, front = d if frequencies is None else len(frequencies), (batch, heads, *chunks)
    shapes = (*front, p, e), (*front, p), (0,) if frequencies is None else (*front, p), (batch, heads, e)
    made = [key.new_empty(shape, dtype=torch.float32) for shape in shapes]
    return made[0], made[1], made[2], made[3]


def _summed(key: Tensor, value: Tensor, frequencies: Tensor | None, mask: Tensor | None) -> Sums:
    """Sums over keys of features times values and of features, peaks of exponents and a mean of values."""
    (batch, heads, m, d), e = key.shape, value.shape[-1]
    chunk, chunks = chunks_of(KEYS, batch * heads, m)
    sums, totals, peaks, centres = empty_sums(key, value, frequencies, *([chunks] if chunks > 1 else []))
    mask, strides = _read(mask)
    p = totals.shape[-1]
    # Its rows are features: few of them leave nothing for more warps.
    cut = replace(KEYS, warps=2 * KEYS.warps) if p > FEW else KEYS
    _keys[(batch * heads * chunks,)](
        key, value, mask, frequencies, sums, totals, peaks, centres,
        *key.stride()[:3], *value.stride()[:3], *strides, heads, m, p, chunk, chunks, _scale(d), _half(d),
        **_options(cut, p, d, e, key.dtype), ALONE=chunks == 1,
    )  # fmt: skip
    if chunks == 1:
        return sums, totals, peaks, centres
    if frequencies is not None:
        highest = peaks.amax(2)
        fade = (peaks - highest.unsqueeze(2)).exp2_()
        sums, totals, peaks = sums * fade.unsqueeze(-1), totals * fade, highest
    sums, totals = sums.sum(2), totals.sum(2)
    centres = sums.sum(-2) / totals.sum(-1, keepdim=True).clamp_min(TINY.value)
    return sums - totals.unsqueeze(-1) * centres.unsqueeze(-2), totals, peaks, centres


def _read(mask: Tensor | None) -> tuple[Tensor | None, tuple[int, int]]:
    """A mask whose rows lie in one piece, and how far samples and heads are apart in it."""
    if mask is None:
        return None, (0, 0)
    mask = mask if mask.stride(-1) == 1 else mask.contiguous()
    return mask, (mask.stride(0), 0 if mask.shape[1] == 1 else mask.stride(1))


def _scale(d: int) -> float:
    """What frequencies are multiplied by, for exponents to base two."""
    return d**-0.25 * LOG2_E


def _half(d: int) -> float:
    """What squared norms of keys are multiplied by, likewise."""
    return d**-0.5 / 2 * LOG2_E


def _options(cut: Cut, p: int, d: int, e: int, kind: torch.dtype) -> dict[str, int | str | None]:
    return {
        "BLOCK_N": cut.tile, "BLOCK_P": block_of(p), "D": d, "E": e, "PRECISION": precision_of(kind),
        "num_warps": cut.warps, "num_stages": cut.stages, "maxnreg": cut.registers,
    }  # fmt: skip
