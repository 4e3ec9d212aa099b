"""Linear maps of the same points: one kernel for all of them, and one for all of their gradients.

A tile of points is read once for up to three maps, and once more for the gradients of points, weights and
biases. Programs take tiles in turns and sum the gradients of weights over theirs; these sums are added up in
a fixed order, so that two runs give the same bits.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.backends import BLACKWELL, HOPPER, MOST_MAPS
from kernelhead.ops.triton.parts import Cut, aligned

# Forward, and backward, where programs leave sums each: see `python -m benchmarks.plans maps maps-back`. The
# first two are for tiles of few columns on devices with 227 KiB of shared memory.
AMPLE, SCARCE = (Cut(128, 528, 4, 3), Cut(128, 132, 8, 3)), (Cut(64, 1056, 4, 3), Cut(32, 264, 4, 3))
COLUMNS = 256
SUMMED = tl.constexpr(16)  # rows of ones, the fewest of a product, that add up gradients for the biases
Maps = Sequence[tuple[Tensor, Tensor]]


@triton.jit
def _matrix(weight, C: tl.constexpr, E: tl.constexpr, KIND: tl.constexpr):
    """A weight in the precision of products."""
    return tl.load(weight + tl.arange(0, E)[:, None] * C + tl.arange(0, C)[None, :]).to(KIND)


@triton.jit
def _map(weight, bias, C: tl.constexpr, E: tl.constexpr, KIND: tl.constexpr):
    """A weight as points take it, and its bias."""
    return tl.trans(_matrix(weight, C, E, KIND)), tl.load(bias + tl.arange(0, E)).to(tl.float32)


@triton.jit
def _put(out, points, matrix, bias, row, real, E: tl.constexpr):
    """What a map makes of a tile."""
    made = tl.dot(points, matrix) + bias[None, :]
    tl.store(out + row[:, None] * E + tl.arange(0, E)[None, :], made.to(points.dtype), mask=real)


@triton.jit
def _forward(
    x, weight, bias, out, weight_2, bias_2, out_2, weight_3, bias_3, out_3, rows,
    TILE: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """All maps of the points."""
    kind: tl.constexpr = x.dtype.element_ty
    first, first_bias = _map(weight, bias, C, E, kind)
    if weight_2 is not None:
        second, second_bias = _map(weight_2, bias_2, C, E, kind)
    if weight_3 is not None:
        third, third_bias = _map(weight_3, bias_3, C, E, kind)
    for tile in range(tl.program_id(0), tl.cdiv(rows, TILE), tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        real = (row < rows)[:, None]
        points = tl.load(x + row[:, None] * C + tl.arange(0, C)[None, :], mask=real, other=0.0)
        _put(out, points, first, first_bias, row, real, E)
        if weight_2 is not None:
            _put(out_2, points, second, second_bias, row, real, E)
        if weight_3 is not None:
            _put(out_3, points, third, third_bias, row, real, E)


@triton.jit
def _shown(grad, row, real, E: tl.constexpr):
    """A tile of gradients."""
    return tl.load(grad + row[:, None] * E + tl.arange(0, E)[None, :], mask=real, other=0.0)


@triton.jit
def _left(parts, weights, biases, C: tl.constexpr, E: tl.constexpr):
    """The sums of a map, written where they are added up."""
    feature, made = tl.arange(0, C), tl.arange(0, E)
    tl.store(parts + made[:, None] * C + feature[None, :], weights)
    # All rows are the same.
    tl.store(parts + E * C + made, tl.max(biases, axis=0))


@triton.jit
def _backward(
    x, weight, grad, weight_2, grad_2, weight_3, grad_3, pull, parts, rows,
    TILE: tl.constexpr, C: tl.constexpr, E: tl.constexpr, MAPS: tl.constexpr,
):  # fmt: skip
    """Gradients of the points, and those of weights and biases summed over the tiles of a program."""
    feature = tl.arange(0, C)
    kind: tl.constexpr = x.dtype.element_ty
    ones = tl.full([SUMMED, TILE], 1.0, kind)
    one, one_bias = tl.zeros([E, C], tl.float32), tl.zeros([SUMMED, E], tl.float32)
    first = _matrix(weight, C, E, kind)
    if weight_2 is not None:
        second = _matrix(weight_2, C, E, kind)
        two, two_bias = tl.zeros([E, C], tl.float32), tl.zeros([SUMMED, E], tl.float32)
    if weight_3 is not None:
        third = _matrix(weight_3, C, E, kind)
        three, three_bias = tl.zeros([E, C], tl.float32), tl.zeros([SUMMED, E], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, TILE), tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        real = (row < rows)[:, None]
        place = row[:, None] * C + feature[None, :]
        points = tl.load(x + place, mask=real, other=0.0)
        shown = _shown(grad, row, real, E)
        down = tl.dot(shown, first)
        one = tl.dot(tl.trans(shown), points, one)
        one_bias = tl.dot(ones, shown, one_bias)
        if weight_2 is not None:
            shown_2 = _shown(grad_2, row, real, E)
            down = tl.dot(shown_2, second, down)
            two = tl.dot(tl.trans(shown_2), points, two)
            two_bias = tl.dot(ones, shown_2, two_bias)
        if weight_3 is not None:
            shown_3 = _shown(grad_3, row, real, E)
            down = tl.dot(shown_3, third, down)
            three = tl.dot(tl.trans(shown_3), points, three)
            three_bias = tl.dot(ones, shown_3, three_bias)
        tl.store(pull + place, down.to(kind), mask=real)
    start = parts + tl.program_id(0) * (MAPS * (C * E + E))
    _left(start, one, one_bias, C, E)
    if weight_2 is not None:
        _left(start + C * E + E, two, two_bias, C, E)
    if weight_3 is not None:
        _left(start + 2 * (C * E + E), three, three_bias, C, E)


def cuts(x: Tensor, columns: int) -> tuple[Cut, Cut]:
    """How points are shared out, forward and backward.

    Args:
        x: points, which tell the device.
        columns: of a tile of points and of all that maps make of it.
    """
    large = x.is_cuda and torch.cuda.get_device_properties(x.device).major in (HOPPER, BLACKWELL)
    return AMPLE if large and columns <= COLUMNS else SCARCE


def forward(x: Tensor, maps: Maps) -> list[Tensor]:
    """What each of up to three maps makes of the points.

    Shapes: x (..., c) in the precision of products, weights (e, c) and biases (e,), all contiguous, c and e
    powers of two and at least 16; returns (..., e) each.
    """
    (e, c), rows = maps[0][0].shape, x.numel() // x.shape[-1]
    made, (cut, _) = [x.new_empty((*x.shape[:-1], e)) for _ in maps], cuts(x, c + len(maps) * e)
    given = [each for (weight, bias), out in zip(maps, made, strict=True) for each in (weight, bias, out)]
    with torch.cuda.device_of(x):
        _forward[(min(triton.cdiv(rows, cut.tile), cut.programs),)](
            aligned(x), *given, *[None] * (3 * (MOST_MAPS - len(maps))), rows,
            TILE=cut.tile, C=c, E=e, num_warps=cut.warps, num_stages=cut.stages, maxnreg=cut.registers,
        )  # fmt: skip
    return made


def backward(x: Tensor, weights: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Gradients of the points, and of weights and biases in one piece, see `gradients`.

    Shapes: as for `forward`; grads (..., e), contiguous; returns (..., c) and (m, e c + e) in float32.
    """
    (e, c), rows = weights[0].shape, x.numel() // x.shape[-1]
    pull, (_, cut) = torch.empty_like(x), cuts(x, c + len(weights) * e)
    programs = min(triton.cdiv(rows, cut.tile), cut.programs)
    parts = x.new_empty((programs, len(weights), e * c + e), dtype=torch.float32)
    given = [each for weight, grad in zip(weights, grads, strict=True) for each in (weight, aligned(grad))]
    with torch.cuda.device_of(x):
        _backward[(programs,)](
            aligned(x), *given, *[None] * (2 * (MOST_MAPS - len(weights))), pull, parts, rows,
            TILE=cut.tile, C=c, E=e, MAPS=len(weights), num_warps=cut.warps, num_stages=cut.stages,
            maxnreg=cut.registers,
        )  # fmt: skip
    return pull, parts.sum(0)


def gradients(sums: Tensor, width: int) -> list[tuple[Tensor, Tensor]]:
    """Gradients of the weight and the bias of each map from their sums (m, e c + e), c being the width."""
    e = sums.shape[-1] // (width + 1)
    return [(each[: e * width].view(e, width), each[e * width :]) for each in sums.unbind(0)]
