"""Mixing of neighbours: a tile of outputs reads its points tap by tap, as rows, and nothing is transposed.

The gradient of the points is the same mixing with the taps in reverse. That of the weights is summed by
programs for some tiles and all taps, or a group of them, and their sums are added up in a fixed order: two
runs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import block_of

TILE = 32  # points that are made at a time
STEP, GROUP = 8, 16  # points, and taps, whose products are summed at a time
PROGRAMS = 1024  # that share the sums of a weight's gradient


@triton.jit
def _tile(
    x, row, at, first, x_b, x_n, n, c, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Points of a row from `at` on, zero before the first and behind the last, in float32."""
    point, feature = at + tl.arange(0, BLOCK_N), first + tl.arange(0, BLOCK_C)
    inside = ((point >= 0) & (point < n))[:, None] & (feature < c)[None, :]
    place = x + row * x_b + point[:, None] * x_n + feature[None, :]
    return tl.load(place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _mix(
    x, weight, bias, out, x_b, x_n, n, c, dilation, own, tiles, blocks,
    TAPS: tl.constexpr, REVERSE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A bias, if there is one, and the sum over taps of weights times the points that far from tap `own`."""
    program = tl.program_id(0).to(tl.int64)
    first, program = program % blocks * BLOCK_C, program // blocks
    at, row = program % tiles * BLOCK_N, program // tiles
    feature = first + tl.arange(0, BLOCK_C)
    made = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    if bias is not None:
        made += tl.load(bias + feature, mask=feature < c, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(TAPS):
        away = (own - tap) * dilation if REVERSE else (tap - own) * dilation
        taken = _tile(x, row, at + away, first, x_b, x_n, n, c, BLOCK_N, BLOCK_C)
        factor = tl.load(weight + tap * c + feature, mask=feature < c, other=0.0).to(tl.float32)
        made += taken * factor[None, :]
    point = at + tl.arange(0, BLOCK_N)
    place = out + row * n * c + point[:, None] * c + feature[None, :]
    tl.store(place, made.to(out.dtype.element_ty), mask=(point < n)[:, None] & (feature < c)[None, :])


@triton.jit
def _weigh(
    x, grad, parts, x_b, x_n, grad_b, grad_n, n, c, dilation, own, taps, tiles, count, length, blocks, groups,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums over some tiles of gradients times the points of taps; behind the last tap of gradients alone."""
    program = tl.program_id(0).to(tl.int64)
    group, program = program % groups, program // groups
    block, part = program % blocks, program // blocks
    tap, feature = group * BLOCK_K + tl.arange(0, BLOCK_K), block * BLOCK_C + tl.arange(0, BLOCK_C)
    away = ((tap - own) * dilation)[:, None, None] + tl.arange(0, BLOCK_N)[None, :, None]
    real = (tap < taps)[:, None, None] & (feature < c)[None, None, :]
    alone = tl.where(tap == taps, 1.0, 0.0)[:, None, None]
    total = tl.zeros([BLOCK_K, BLOCK_N, BLOCK_C], tl.float32)
    for tile in range(part * length, tl.minimum(part * length + length, count)):
        row, at = tile // tiles, tile % tiles * BLOCK_N
        pull = _tile(grad, row, at, block * BLOCK_C, grad_b, grad_n, n, c, BLOCK_N, BLOCK_C)
        point = at + away
        place = x + row * x_b + point * x_n + feature[None, None, :]
        taken = tl.load(place, mask=real & (point >= 0) & (point < n), other=0.0).to(tl.float32)
        total += pull[None, :, :] * (taken + alone)
    place = parts + (part * (taps + 1) + tap[:, None]) * c + feature[None, :]
    tl.store(place, tl.sum(total, axis=1), mask=(tap <= taps)[:, None] & (feature < c)[None, :])


def mix(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, own: int, reverse: bool) -> Tensor:
    """Each point becomes the bias and the sum over taps j of weight_j times the point (j - own) dilations on.

    Shapes: x (b, n, c), weight (k, c), bias (c,); returns (b, n, c).

    Args:
        x: points, of any strides but in features.
        weight: of every tap and feature, contiguous.
        bias: added to every point, or None.
        dilation: distance of taps.
        own: the tap that meets the point itself.
        reverse: whether taps look the other way, as for a gradient.
    """
    batch, n, c = x.shape
    out = x.new_empty(x.shape)
    block = min(64, block_of(c))
    tiles, blocks = triton.cdiv(n, TILE), triton.cdiv(c, block)
    _mix[(batch * tiles * blocks,)](
        x, weight, bias, out, *x.stride()[:2], n, c, dilation, own, tiles, blocks,
        TAPS=len(weight), REVERSE=reverse, BLOCK_N=TILE, BLOCK_C=block,
    )  # fmt: skip
    return out


def weigh(x: Tensor, grad: Tensor, taps: int, dilation: int, own: int) -> Tensor:
    """Gradients of the weights of every tap, and behind them of the bias, float32.

    Shapes: x, grad (b, n, c), of any strides but in features; returns (taps + 1, c).
    """
    batch, n, c = x.shape
    block = min(64, block_of(c))
    tiles, blocks, groups = triton.cdiv(n, STEP), triton.cdiv(c, block), triton.cdiv(taps + 1, GROUP)
    count = batch * tiles
    length = triton.cdiv(count, max(PROGRAMS // (groups * blocks), 1))
    chunks = triton.cdiv(count, length)
    parts = x.new_empty((chunks, taps + 1, c), dtype=torch.float32)
    _weigh[(chunks * blocks * groups,)](
        x, grad, parts, *x.stride()[:2], *grad.stride()[:2], n, c, dilation, own, taps, tiles, count, length,
        blocks, groups, BLOCK_K=GROUP, BLOCK_N=STEP, BLOCK_C=block,
    )  # fmt: skip
    return parts.sum(0)
