"""A feed-forward with its norm and residual: a tile of points goes through all of it without leaving chip.

Nothing but the points is kept for the gradient: the middle, wider than they are, is made again there.
Programs take tiles in turns and sum what gradients of weights are made of over theirs; these sums are added
up in a fixed order, so that two runs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import Cut

# See `python -m benchmarks.plans feed`. Programs share the points; those of a backward pass leave sums each.
# All registers are asked for: left alone, the assembler takes 32 of them on Ampere, and spills the rest.
FORWARD, BACKWARD = Cut(32, 1056, 4, 3), Cut(64, 132, 8, 1, 255)
KINDS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
# As in `eager.thinning`.
SPREAD = tl.constexpr(-1_640_531_535)
FIRST = tl.constexpr(-2_048_144_789)
SECOND = tl.constexpr(-1_028_477_387)
# Of the share of normal numbers below m, less a half and over m: a polynomial of m^2, of which [0, FAR]
# became [-1, 1]; with these a share is right to 4e-6.
FAR = tl.constexpr(20.25)
P0, P1, P2 = tl.constexpr(0.156906039), tl.constexpr(-0.0771858841), tl.constexpr(0.054637488)
P3, P4, P5 = tl.constexpr(-0.040236976), tl.constexpr(0.0288576558), tl.constexpr(-0.0184839759)
P6, P7, P8 = tl.constexpr(0.00965321437), tl.constexpr(-0.00607019197), tl.constexpr(0.00496270834)
P9 = tl.constexpr(-0.00193053298)
# Of 2 to the power of a square, for e to the power of minus half of it; and how normal numbers lie, likewise.
STEEP = tl.constexpr(-0.7213475204444817)
DENSITY = tl.constexpr(-1.3257480647361593)
# Of which nothing passes, nor of what is near it.
LOW = tl.constexpr(-64.0)


@triton.jit
def _hashed(places, word):
    """A number for every place and word, each of its bits as good as drawn."""
    made = places ^ word
    made = ((made ^ ((made >> 16) & 0xFFFF)) * SPREAD) ^ word
    made = (made ^ ((made >> 16) & 0xFFFF)) * FIRST
    made = (made ^ ((made >> 13) & 0x7FFFF)) * SECOND
    return made ^ ((made >> 16) & 0xFFFF)


@triton.jit
def _kept(row, lane, least):
    """Which entries stay, from hashes of rows and of features: those where both together come to no less."""
    made = (row[:, None] + lane[None, :]) * FIRST
    return (made ^ ((made >> 15) & 0x1FFFF)) * SECOND >= least


@triton.jit
def _normed(points, epsilon, C: tl.constexpr):
    """Rows of mean 0 and deviation 1, and by what they were divided, as a factor."""
    centred = points - (tl.sum(points, axis=1) / C)[:, None]
    factor = tl.rsqrt(tl.sum(centred * centred, axis=1) / C + epsilon)
    return centred * factor[:, None], factor


@triton.jit
def _share(middle):
    """The share of normal numbers below each entry m, which is what passes of it, and m squared."""
    square = middle * middle
    near = tl.minimum(square, FAR) * (2.0 / FAR) - 1.0
    made = ((((near * P9 + P8) * near + P7) * near + P6) * near + P5) * near + P4
    made = (((made * near + P3) * near + P2) * near + P1) * near + P0
    return tl.minimum(tl.maximum(made * middle + 0.5, 0.0), 1.0), square


@triton.jit
def _forward(
    x, scale, shift, enter, enter_bias, leave, leave_bias, word, out, rows, epsilon, least, growth,
    KIND: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr, C: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Points plus what the two layers make of their norm."""
    feature, inner = tl.arange(0, C), tl.arange(0, M)
    across = inner[:, None] * C + feature[None, :]
    into = tl.trans(tl.load(enter + across).to(KIND))  # (c, i)
    back = tl.trans(tl.load(leave + feature[:, None] * M + inner[None, :]).to(KIND))  # (i, c)
    factor, offset = tl.load(scale + feature).to(tl.float32), tl.load(shift + feature).to(tl.float32)
    first, last = tl.load(enter_bias + inner).to(tl.float32), tl.load(leave_bias + feature).to(tl.float32)
    if word is not None:
        one, two = tl.load(word), tl.load(word + 1)
        wide, thin = _hashed(inner, ~one), _hashed(feature, ~two)
    for tile in range(tl.program_id(0), tl.cdiv(rows, TILE), tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        real = (row < rows)[:, None]
        place = row[:, None] * C + feature[None, :]
        points = tl.load(x + place, mask=real, other=0.0).to(tl.float32)
        normed, _ = _normed(points, epsilon, C)
        shown = (normed * factor[None, :] + offset[None, :]).to(KIND)
        middle = tl.dot(shown, into, input_precision=PRECISION) + first[None, :]
        share, _ = _share(middle)
        middle *= share
        if word is not None:
            middle = tl.where(_kept(_hashed(row.to(tl.int32), one), wide, least), middle, 0.0)
        made = tl.dot(middle.to(KIND), back, input_precision=PRECISION) * growth + last[None, :]
        if word is not None:
            made = tl.where(_kept(_hashed(row.to(tl.int32), two), thin, least), made * growth, 0.0)
        tl.store(out + place, (points + made).to(out.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    x, scale, shift, enter, enter_bias, leave, word, grad, pull, parts, rows, epsilon, least, growth,
    KIND: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr, C: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Gradients of the points, and what those of all weights are made of, summed over the tiles of a program.

    The middle lies with its features as rows, the longer side, which fills all warps. By what dropout lets
    entries of the middle grow is left for the end, where there are fewer numbers.
    """
    feature, inner, lane = tl.arange(0, C), tl.arange(0, M), tl.arange(0, TILE)
    across = inner[:, None] * C + feature[None, :]
    into = tl.load(enter + across).to(KIND)  # (i, c)
    back = tl.load(leave + feature[:, None] * M + inner[None, :]).to(KIND)  # (c, i)
    factor, offset = tl.load(scale + feature).to(tl.float32), tl.load(shift + feature).to(tl.float32)
    first = tl.load(enter_bias + inner).to(tl.float32)
    steeply = factor * growth
    if word is not None:
        one, two = tl.load(word), tl.load(word + 1)
        wide, thin = _hashed(inner, ~one), _hashed(feature, ~two)
    enters, leaves = tl.zeros([M, C], tl.float32), tl.zeros([M, C], tl.float32)
    ones = tl.full([16, TILE], 1.0, KIND)
    lasts = tl.zeros([16, C], tl.float32)
    firsts = tl.zeros([M, 16], tl.float32)
    scales = tl.zeros([TILE, C], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, TILE), tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * TILE + lane
        real = (row < rows)[:, None]
        place = row[:, None] * C + feature[None, :]
        points = tl.load(x + place, mask=real, other=0.0).to(tl.float32)
        above = tl.load(grad + place, mask=real, other=0.0).to(tl.float32)
        normed, length = _normed(points, epsilon, C)
        shown = (normed * factor[None, :] + offset[None, :]).to(KIND)
        made = above
        if word is not None:
            made = tl.where(_kept(_hashed(row.to(tl.int32), two), thin, least), above * growth, 0.0)
        made = made.to(KIND)
        middle = tl.dot(into, tl.trans(shown), input_precision=PRECISION) + first[:, None]  # (i, n)
        if word is not None:
            # From where they lie once: a thread has many points of a tile, and would hash all of them again.
            hashed = tl.gather(_hashed(row.to(tl.int32), one), lane, 0)
            middle = tl.where(_kept(wide, hashed, least), middle, LOW)
        share, square = _share(middle)
        steep = share + middle * tl.exp2(square * STEEP + DENSITY)
        # The middle is done with before the gradient below it takes its registers.
        leaves = tl.dot((middle * share).to(KIND), made, leaves, input_precision=PRECISION)
        below = tl.dot(tl.trans(back), tl.trans(made), input_precision=PRECISION)
        lasts = tl.dot(ones, made, lasts, input_precision=PRECISION)
        below = (below * steep).to(KIND)
        firsts = tl.dot(below, tl.trans(ones), firsts, input_precision=PRECISION)
        enters = tl.dot(below, normed.to(KIND), enters, input_precision=PRECISION)
        down = tl.dot(tl.trans(below), into, input_precision=PRECISION)  # (n, c)
        # Not from `enters`, whose factors were rounded both.
        scales += down * normed
        down *= steeply[None, :]
        along, mean = tl.split(tl.sum(tl.join(down * normed, down), axis=1) / C)
        down = (down - mean[:, None] - normed * along[:, None]) * length[:, None]
        tl.store(pull + place, (above + down).to(pull.dtype.element_ty), mask=real)
    start = parts + tl.program_id(0) * (2 * C * M + 2 * C + M)
    tl.store(start + across, enters * growth)
    start += C * M
    tl.store(start + feature[None, :] * M + inner[:, None], leaves * growth)
    start += C * M
    tl.store(start + feature, tl.sum(lasts, axis=0) / 16)
    tl.store(start + C + inner, tl.sum(firsts, axis=1) / 16 * growth)
    tl.store(start + C + M + feature, tl.sum(scales, axis=0) * growth)


def _words(dropout: float) -> tuple[int, float]:
    """The least hash of an entry that stays, and by what it grows."""
    return int(dropout * 2**32) - 2**31, 1 / (1 - dropout)


def forward(
    x: Tensor,
    norm: tuple[Tensor, Tensor],
    enter: tuple[Tensor, Tensor],
    leave: tuple[Tensor, Tensor],
    word: Tensor | None,
    dropout: float,
    epsilon: float,
    kind: torch.dtype,
) -> Tensor:
    """Points plus the feed-forward of their norm.

    Shapes: x (..., c), contiguous; norm (c,) twice, enter (i, c) and (i,), leave (c, i) and (c,); word (2,).

    Args:
        x: points; c and i are powers of two, and at least 16.
        norm: scale and shift.
        enter: weight and bias of the first layer.
        leave: those of the second.
        word: what dropout hashes, or None.
        dropout: probability with which entries of the middle and of the result are dropped.
        epsilon: of the norm.
        kind: precision of products.
    """
    c, i = x.shape[-1], len(enter[0])
    rows = x.numel() // c
    out = torch.empty_like(x)
    _forward[(min(triton.cdiv(rows, FORWARD.tile), FORWARD.programs),)](
        x, *norm, *enter, *leave, word, out, rows, epsilon, *_words(dropout),
        KIND=KINDS[kind], PRECISION="ieee", TILE=FORWARD.tile, C=c, M=i, num_warps=FORWARD.warps,
        num_stages=FORWARD.stages, maxnreg=FORWARD.registers,
    )  # fmt: skip
    return out


def backward(
    x: Tensor,
    norm: tuple[Tensor, Tensor],
    enter: tuple[Tensor, Tensor],
    leave: Tensor,
    word: Tensor | None,
    grad: Tensor,
    dropout: float,
    epsilon: float,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Gradients of the points, and sums that those of all weights are made of, see `gradients`.

    Shapes: as for `forward`; grad like x; returns (..., c) and (2 c i + 2 c + i,).
    """
    c, i = x.shape[-1], len(enter[0])
    rows = x.numel() // c
    pull = torch.empty_like(x)
    programs = min(triton.cdiv(rows, BACKWARD.tile), BACKWARD.programs)
    parts = x.new_empty((programs, 2 * c * i + 2 * c + i), dtype=torch.float32)
    _backward[(programs,)](
        x, *norm, *enter, leave, word, grad, pull, parts, rows, epsilon, *_words(dropout),
        KIND=KINDS[kind], PRECISION="ieee", TILE=BACKWARD.tile, C=c, M=i, num_warps=BACKWARD.warps,
        num_stages=BACKWARD.stages, maxnreg=BACKWARD.registers,
    )  # fmt: skip
    return pull, parts.sum(0)


def gradients(
    sums: Tensor, norm: tuple[Tensor, Tensor], enter: Tensor, kind: torch.dtype
) -> tuple[Tensor, ...]:
    """Gradients of the norm, of the first layer and of the second, weights before biases, from their sums.

    Shapes: sums (2 c i + 2 c + i,); returns (c,), (c,), (i, c), (i,), (c, i), (c,).
    """
    i, c = enter.shape
    enters, leaves, lasts, firsts, scales = sums.split([c * i, c * i, c, i, c])
    weight = enters.view(i, c) * norm[0] + firsts[:, None] * norm[1]
    return scales, firsts @ enter.to(kind).float(), weight, firsts, leaves.view(c, i), lasts
