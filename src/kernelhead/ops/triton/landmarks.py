"""Data-dependent weights straight from the points: landmarks are read where they lie, never copied."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton.parts import added_up, block_of, precision_of

TILE = 64


@triton.jit
def _rows(
    points, places, row, head, at, points_b, points_n, places_b, d, length,
    BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One head's features of a tile of landmarks, (l, d), with their places among the points."""
    slots, features = at + tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_D)
    place = tl.load(places + row * places_b + slots, mask=slots < length, other=-1)
    inside = (slots < length)[:, None] & (features < d)[None, :]
    where = points + row * points_b + head * d + place[:, None] * points_n + features[None, :]
    return tl.load(where, mask=inside, other=0.0), place


@triton.jit
def _tile(pointer, first, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Rows from `first` on of a matrix, zero beyond its edges."""
    row, column = first + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(pointer + row[:, None] * columns + column[None, :], mask=inside, other=0.0)


@triton.jit
def _forward(
    points, places, left, right, out_left, out_right,
    points_b, points_n, places_b, heads, length, d, s,
    BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    head, row = program % heads, program // heads
    features, scores = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    kind = out_left.dtype.element_ty
    total_l = tl.zeros([BLOCK_D, BLOCK_S], tl.float32)
    total_r = tl.zeros([BLOCK_D, BLOCK_S], tl.float32)
    for at in range(0, length, BLOCK_L):
        rows, _ = _rows(
            points, places, row, head, at, points_b, points_n, places_b, d, length, BLOCK_L, BLOCK_D
        )
        turned = tl.trans(rows.to(kind))
        weight_l = _tile(left + head * length * s, at, length, s, BLOCK_L, BLOCK_S).to(kind)
        weight_r = _tile(right + head * length * s, at, length, s, BLOCK_L, BLOCK_S).to(kind)
        total_l = tl.dot(turned, weight_l, acc=total_l, input_precision=PRECISION)
        total_r = tl.dot(turned, weight_r, acc=total_r, input_precision=PRECISION)
    place = program * d * s + features[:, None] * s + scores[None, :]
    inside = (features < d)[:, None] & (scores < s)[None, :]
    tl.store(out_left + place, total_l.to(kind), mask=inside)
    tl.store(out_right + place, total_r.to(kind), mask=inside)


@triton.jit
def _backward_points(
    places, left, right, grad_left, grad_right, d_points,
    out_b, out_n, places_b, heads, length, d, s, shares,
    BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
    UNIQUE: tl.constexpr,
):  # fmt: skip
    """Writes into zeroed memory; a point that is several landmarks gets their sum in a fixed order."""
    program = tl.program_id(0).to(tl.int64)
    share, program = program % shares, program // shares
    head, row = program % heads, program // heads
    features = tl.arange(0, BLOCK_D)
    kind = grad_left.dtype.element_ty
    turned_l = tl.trans(_tile(grad_left + program * d * s, 0, d, s, BLOCK_D, BLOCK_S))
    turned_r = tl.trans(_tile(grad_right + program * d * s, 0, d, s, BLOCK_D, BLOCK_S))
    for at in range(share * BLOCK_L, length, shares * BLOCK_L):
        slots = at + tl.arange(0, BLOCK_L)
        place = tl.load(places + row * places_b + slots, mask=slots < length, other=-1)
        weight_l = _tile(left + head * length * s, at, length, s, BLOCK_L, BLOCK_S).to(kind)
        weight_r = _tile(right + head * length * s, at, length, s, BLOCK_L, BLOCK_S).to(kind)
        grad = tl.dot(weight_l, turned_l, input_precision=PRECISION)
        grad = tl.dot(weight_r, turned_r, acc=grad, input_precision=PRECISION)
        where = d_points + row * out_b + head * d + place[:, None] * out_n + features[None, :]
        inside = (slots < length)[:, None] & (features < d)[None, :]
        if not UNIQUE:
            # Landmarks of this tile at the same point: each holds the sum of all of them.
            same = (place[:, None] == place[None, :]).to(tl.float32)
            grad = tl.dot(same, grad, input_precision="ieee" if PRECISION == "ieee" else "tf32x3")
            # What an earlier tile left there must be read before anyone writes.
            grad += tl.load(where, mask=inside, other=0.0).to(tl.float32)
            tl.debug_barrier()
        tl.store(where, grad.to(d_points.dtype.element_ty), mask=inside)
        if not UNIQUE:
            tl.debug_barrier()


@triton.jit
def _backward_weights(
    points, places, grad_left, grad_right, d_left, d_right,
    points_b, points_n, places_b, batch, heads, length, d, s, tiles, group,
    BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    tile, head, part = program % tiles, (program // tiles) % heads, program // (tiles * heads)
    kind = grad_left.dtype.element_ty
    total_l = tl.zeros([BLOCK_L, BLOCK_S], tl.float32)
    total_r = tl.zeros([BLOCK_L, BLOCK_S], tl.float32)
    at = tile * BLOCK_L
    for row in range(part * group, tl.minimum(part * group + group, batch)):
        rows, _ = _rows(
            points, places, row, head, at, points_b, points_n, places_b, d, length, BLOCK_L, BLOCK_D
        )
        small = (row * heads + head) * d * s
        grad_l = _tile(grad_left + small, 0, d, s, BLOCK_D, BLOCK_S)
        grad_r = _tile(grad_right + small, 0, d, s, BLOCK_D, BLOCK_S)
        total_l = tl.dot(rows.to(kind), grad_l, acc=total_l, input_precision=PRECISION)
        total_r = tl.dot(rows.to(kind), grad_r, acc=total_r, input_precision=PRECISION)
    slots, scores = at + tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_S)
    place = (2 * part * heads + head) * length * s + slots[:, None] * s + scores[None, :]
    inside = (slots < length)[:, None] & (scores < s)[None, :]
    tl.store(d_left + place, total_l, mask=inside)
    tl.store(d_right + place, total_r, mask=inside)


def forward(
    points: Tensor, places: Tensor, left: Tensor, right: Tensor, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Weights (b, h, d, s) of both sides from points (b, n, c), places (l,) or (b, l), weights (h, l, s)."""
    batch, _, width = points.shape
    heads, length, s = left.shape
    d = width // heads
    made = [points.new_empty((batch, heads, d, s), dtype=kind) for _ in range(2)]
    _forward[(batch * heads,)](
        points, places, left.contiguous(), right.contiguous(), *made,
        points.stride(0), points.stride(1), _over_rows(places), heads, length, d, s,
        **_options(d, s, kind),
    )  # fmt: skip
    return made[0], made[1]


def backward(
    points: Tensor, places: Tensor, left: Tensor, right: Tensor, grad_left: Tensor, grad_right: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of points, left and right."""
    batch, _, width = points.shape
    heads, length, s = left.shape
    d = width // heads
    grads = grad_left.contiguous(), grad_right.contiguous()
    options = _options(d, s, grad_left.dtype)
    d_points = torch.zeros(points.shape, dtype=points.dtype, device=points.device)
    tiles = triton.cdiv(length, TILE)
    # No more landmarks than points, all of them real: each stands alone.
    unique = places.dim() == 1 and length <= points.shape[1]
    shares = tiles if unique else 1
    _backward_points[(batch * heads * shares,)](
        places, left.contiguous(), right.contiguous(), *grads, d_points,
        d_points.stride(0), d_points.stride(1), _over_rows(places), heads, length, d, s, shares,
        **options, UNIQUE=unique,
    )  # fmt: skip
    # About a thousand programs fill a large chip.
    group = max(1, triton.cdiv(batch * heads * tiles, 1024))
    parts = triton.cdiv(batch, group)
    sums = points.new_empty((parts, 2, heads, length, s), dtype=torch.float32)
    _backward_weights[(tiles * heads * parts,)](
        points, places, *grads, *sums[0],
        points.stride(0), points.stride(1), _over_rows(places), batch, heads, length, d, s, tiles, group,
        **options,
    )  # fmt: skip
    return d_points, *added_up(sums, left.shape, right.shape, left.dtype)


def _over_rows(places: Tensor) -> int:
    """The stride of places over batch rows; none where all rows share them."""
    return places.stride(0) if places.dim() == 2 else 0


def _options(d: int, s: int, kind: torch.dtype) -> dict[str, object]:
    return {
        "BLOCK_L": TILE,
        "BLOCK_D": block_of(d),
        "BLOCK_S": block_of(s),
        "PRECISION": precision_of(kind),
        "num_warps": 4 if max(d, s) <= 64 else 8,
        "num_stages": 2 if kind != torch.float32 else 1,
    }
