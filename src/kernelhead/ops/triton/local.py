"""Mixing of neighbours: a tile of outputs reads its points tap by tap, as rows, and nothing is transposed.

The gradient of the points is the same mixing with the taps in reverse. That of the weights is summed by
programs for some tiles and all taps, or a group of them, and their sums are added up in a fixed order: two
runs give the same bits. Both are bound by how many instructions a product takes: places within a tile are
made once, and one comparison without a sign finds both ends.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import block_of

TILE = 64  # points that are made at a time
STEP, GROUP = 8, 16  # points, and taps, whose products are summed at a time
PROGRAMS = 1024  # that share the sums of a weight's gradient
FAR = 2**31  # elements from which a place within a sequence needs 64 bits


@triton.jit
def _within(point, n):
    """Whether points lie within a row: those before its first are large without their sign."""
    return tl.cast(point, tl.uint32, bitcast=True) < tl.cast(
        tl.zeros_like(point) + n, tl.uint32, bitcast=True
    )


@triton.jit
def _mix(
    x, weight, bias, out, x_b, x_n, n, c, dilation, own, tiles, blocks,
    TAPS: tl.constexpr, REVERSE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A bias, if there is one, and the sum over taps of weights times the points that far from tap `own`."""
    program = tl.program_id(0)
    first, program = program % blocks * BLOCK_C, program // blocks
    at, row = program % tiles * BLOCK_N, tl.cast(program // tiles, tl.int64)
    lane, feature = tl.arange(0, BLOCK_N), first + tl.arange(0, BLOCK_C)
    real = feature < c
    made = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    if bias is not None:
        made += tl.load(bias + feature, mask=real, other=0.0).to(tl.float32)[None, :]
    hop = -dilation if REVERSE else dilation
    spot = at - own * hop
    start, place = x + row * x_b + tl.cast(spot, tl.int64) * x_n, lane[:, None] * x_n + feature[None, :]
    onward = tl.cast(hop, tl.int64) * x_n
    for _ in range(TAPS):
        inside = _within(lane + spot, n)[:, None] & real[None, :]
        taken = tl.load(start + place, mask=inside, other=0.0).to(tl.float32)
        made += taken * tl.load(weight + feature, mask=real, other=0.0).to(tl.float32)[None, :]
        spot += hop
        start += onward
        weight += c
    start = out + row * n * c + tl.cast(at, tl.int64) * c
    inside = (lane < n - at)[:, None] & real[None, :]
    tl.store(start + (lane[:, None] * c + feature[None, :]), made.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _weigh(
    x, grad, parts, x_b, x_n, grad_b, grad_n, n, c, dilation, own, taps, tiles, count, length, blocks, groups,
    WIDE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums over some tiles of gradients times the points of taps; behind the last tap of gradients alone."""
    program = tl.program_id(0)
    group, program = program % groups, program // groups
    block, part = program % blocks, program // blocks
    tap, feature = group * BLOCK_K + tl.arange(0, BLOCK_K), block * BLOCK_C + tl.arange(0, BLOCK_C)
    lane, real = tl.arange(0, BLOCK_N)[None, :, None], (feature < c)[None, None, :]
    away = ((tap - own) * dilation)[:, None, None] + lane
    place = tl.cast(away, tl.int64 if WIDE else tl.int32) * x_n + feature[None, None, :]
    beside = lane * grad_n + feature[None, None, :]
    total = tl.zeros([BLOCK_K, BLOCK_N, BLOCK_C], tl.float32)
    alone = tl.zeros([1, BLOCK_N, BLOCK_C], tl.float32)
    for tile in range(part * length, tl.minimum(part * length + length, count)):
        row, at = tl.cast(tile // tiles, tl.int64), tile % tiles * BLOCK_N
        there, inside, spot = (lane < n - at) & real, _within(at + away, n) & real, tl.cast(at, tl.int64)
        pull = tl.load(grad + row * grad_b + spot * grad_n + beside, mask=there, other=0.0).to(tl.float32)
        taken = tl.load(x + row * x_b + spot * x_n + place, mask=inside, other=0.0).to(tl.float32)
        total += pull * taken
        alone += pull
    start = parts + tl.cast(part, tl.int64) * (taps + 1) * c
    inside = (tap < taps)[:, None] & (feature < c)[None, :]
    tl.store(start + tap[:, None] * c + feature[None, :], tl.sum(total, axis=1), mask=inside)
    if group == 0:
        last = taps + tl.arange(0, 1)[:, None]
        tl.store(start + last * c + feature[None, :], tl.sum(alone, axis=1), mask=(feature < c)[None, :])


def mix(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, own: int, reverse: bool) -> Tensor:
    """Each point becomes the bias and the sum over taps j of weight_j times the point (j - own) dilations on.

    Shapes: x (b, n, c), weight (k, c), bias (c,); returns (b, n, c).

    Args:
        x: points, of any strides but in features.
        weight: of every tap and feature, contiguous.
        bias: added to every point, or None.
        dilation: distance of taps, at most n.
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
    tiles, blocks, groups = triton.cdiv(n, STEP), triton.cdiv(c, block), triton.cdiv(taps, GROUP)
    count = batch * tiles
    length = triton.cdiv(count, max(PROGRAMS // (groups * blocks), 1))
    chunks = triton.cdiv(count, length)
    parts = x.new_empty((chunks, taps + 1, c), dtype=torch.float32)
    _weigh[(chunks * blocks * groups,)](
        x, grad, parts, *x.stride()[:2], *grad.stride()[:2], n, c, dilation, own, taps, tiles, count, length,
        blocks, groups, WIDE=n * x.stride(1) >= FAR, BLOCK_K=GROUP, BLOCK_N=STEP, BLOCK_C=block,
    )  # fmt: skip
    return parts.sum(0)
