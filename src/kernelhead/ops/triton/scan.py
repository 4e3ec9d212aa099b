"""Sums of all points before each tile, and running sums from the last point back, in place."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import block_of, only_if, precision_of
from kernelhead.ops.triton.prefix import running_totals

# Tiles that one program adds up; what comes before them is added in a second, small scan.
LENGTH = 16


@triton.jit
def _tile_starts(
    points, mask, starts, totals,
    points_b, points_h, points_n, heads, n, d, tiles, chunks,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPAN: tl.constexpr,
    HAS_MASK: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """For each tile the sum of the tiles that its chunk has walked over before it; for each chunk its sum."""
    program = tl.program_id(0).to(tl.int64)
    head, chunk, row = program % heads, program // heads % chunks, program // (heads * chunks)
    points += row * points_b + head * points_h
    index, features = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    carry = tl.zeros([BLOCK_D], tl.float32)
    for step in range(chunk * SPAN, tl.minimum(chunk * SPAN + SPAN, tiles)):
        tile = tiles - 1 - step if REVERSE else step
        at = tile * BLOCK_N
        real = index < n - at
        if HAS_MASK:
            real = real & (tl.load(mask + row * n + at + index, mask=real, other=0) != 0)
        place = points + at * points_n + index[:, None] * points_n + features[None, :]
        x = tl.load(place, mask=real[:, None] & (features < d)[None, :], other=0.0).to(tl.float32)
        tl.store(starts + ((row * heads + head) * tiles + tile) * d + features, carry, mask=features < d)
        carry += tl.sum(x, axis=0)
    tl.store(totals + ((row * heads + head) * chunks + chunk) * d + features, carry, mask=features < d)


@triton.jit
def start_of(
    starts, totals, sequence, tile, tiles, chunks, d,
    BLOCK_D: tl.constexpr, SPAN: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The sum of all points before a tile, (d,); of all behind it in reverse."""
    features = tl.arange(0, BLOCK_D)
    step = tiles - 1 - tile if REVERSE else tile
    chunk = step // SPAN
    start = tl.load(starts + (sequence * tiles + tile) * d + features, mask=features < d, other=0.0)
    before = only_if(features < d, chunk)
    return start + tl.load(totals + (sequence * chunks + chunk - 1) * d + features, mask=before, other=0.0)


@triton.jit
def _sum_back(
    points, mask, starts, totals,
    points_b, points_h, points_n, heads, n, d, tiles, chunks,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPAN: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Each point becomes the sum of itself and all behind it; padded points become zero."""
    program = tl.program_id(0).to(tl.int64)
    head, tile, row = program % heads, program // heads % tiles, program // (heads * tiles)
    index, features = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    at = tile * BLOCK_N
    inside = (index < n - at)[:, None] & (features < d)[None, :]
    place = points + row * points_b + head * points_h + at * points_n
    place = place + index[:, None] * points_n + features[None, :]
    x = tl.load(place, mask=inside, other=0.0)
    behind = (index[:, None] <= index[None, :]).to(x.dtype)
    start = start_of(starts, totals, row * heads + head, tile, tiles, chunks, d, BLOCK_D, SPAN, True)
    made = tl.dot(behind, x, input_precision=PRECISION) + start[None, :]
    if HAS_MASK:
        real = tl.load(mask + row * n + at + index, mask=index < n - at, other=0) != 0
        made = tl.where(real[:, None], made, 0.0)
    tl.store(place, made.to(x.dtype), mask=inside)


def tile_starts(
    points: Tensor, mask: Tensor | None, tile: int, *, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """What `start_of` reads: sums before each tile within its chunk, and running sums of chunks.

    Shapes: points (b, h, n, d), mask (b, n); returns (b, h, tiles, d) and (b, h, chunks, d).
    """
    batch, heads, n, d = points.shape
    tiles = triton.cdiv(n, tile)
    chunks = triton.cdiv(tiles, LENGTH)
    starts = points.new_empty((batch, heads, tiles, d), dtype=torch.float32)
    totals = points.new_empty((batch, heads, chunks, d), dtype=torch.float32)
    _tile_starts[(batch * heads * chunks,)](
        points, mask, starts, totals, *points.stride()[:3], heads, n, d, tiles, chunks,
        BLOCK_N=tile, BLOCK_D=block_of(d), SPAN=LENGTH, HAS_MASK=mask is not None, REVERSE=reverse,
    )  # fmt: skip
    return starts, running_totals(totals) if chunks > 1 else totals


def sum_back(points: Tensor, mask: Tensor | None, tile: int) -> None:
    """Running sums over (b, h, n, d) from the last point to the first, in place.

    Args:
        points: what is summed; entries of padded points count, and become zero.
        mask: (b, n), contiguous, True where real.
        tile: points of a tile, 16 or more.
    """
    batch, heads, n, d = points.shape
    tiles = triton.cdiv(n, tile)
    starts, totals = tile_starts(points, None, tile, reverse=True)
    _sum_back[(batch * heads * tiles,)](
        points, mask, starts, totals, *points.stride()[:3], heads, n, d, tiles, totals.shape[2],
        BLOCK_N=tile, BLOCK_D=block_of(d), SPAN=LENGTH, HAS_MASK=mask is not None,
        PRECISION=precision_of(points.dtype),
    )  # fmt: skip
