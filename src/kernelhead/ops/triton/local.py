"""Mixing of neighbours: one kernel forward and for the points' gradient, one for the weights'.

A tile of points is read once for each tap, of which all but the first come from a cache. Gradients of
weights are summed in a fixed order, so two runs give the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Points of a tile; features of a block; entries that a program holds at once, and points that it sums
# weights' gradients over.
TILE, FEATURES, HELD, CHUNK = 32, 64, 8192, 512


@triton.jit
def _mix(
    points, weight, bias, out,
    points_b, points_n, out_b, out_n, n, c, tiles, blocks, dilation, centre,
    TAPS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """All taps of a tile of points; back, of a gradient, the other way round and without the bias."""
    program = tl.program_id(0)
    feature = program % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    start, row = program // blocks % tiles * BLOCK_N, (program // blocks // tiles).to(tl.int64)
    wanted = (feature < c)[None, :]
    place = start + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    if not BACK:
        total += tl.load(bias + feature, mask=feature < c, other=0.0).to(tl.float32)[None, :]
    points += row * points_b
    for tap in tl.static_range(TAPS):
        step = (tap - centre) * dilation
        at = place - step if BACK else place + step
        inside = ((at >= 0) & (at < n))[:, None] & wanted
        x = tl.load(points + at[:, None].to(tl.int64) * points_n + feature[None, :], mask=inside, other=0.0)
        w = tl.load(weight + tap * c + feature, mask=feature < c, other=0.0)
        total += x.to(tl.float32) * w.to(tl.float32)[None, :]
    spot = out + row * out_b + place[:, None].to(tl.int64) * out_n + feature[None, :]
    tl.store(spot, total.to(out.dtype.element_ty), mask=(place < n)[:, None] & wanted)


@triton.jit
def _weights(
    points, grad, parts,
    points_b, points_n, grad_b, grad_n, n, c, chunks, blocks, taps, dilation, centre,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Of a chunk of points: the sums of gradients times points for every tap, then the sum of gradients."""
    program = tl.program_id(0)
    feature = program % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    chunk, row = program // blocks % chunks, (program // blocks // chunks).to(tl.int64)
    wanted = feature < c
    tap = tl.arange(0, BLOCK_T)
    step = (tap - centre) * dilation
    points += row * points_b
    grad += row * grad_b
    total = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
    shift = tl.zeros([BLOCK_C], tl.float32)
    for tile in range(TILES):
        place = (chunk * TILES + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
        exists = place < n
        spot = grad + place[:, None].to(tl.int64) * grad_n + feature[None, :]
        g = tl.load(spot, mask=exists[:, None] & wanted[None, :], other=0.0).to(tl.float32)
        at = place[:, None] + step[None, :]
        inside = (at >= 0) & (at < n) & exists[:, None] & (tap < taps)[None, :]
        spots = points + at[:, :, None].to(tl.int64) * points_n + feature[None, None, :]
        x = tl.load(spots, mask=inside[:, :, None] & wanted[None, None, :], other=0.0).to(tl.float32)
        total += tl.sum(g[:, None, :] * x, axis=0)
        shift += tl.sum(g, axis=0)
    parts += (row * chunks + chunk) * (taps + 1) * c
    spot = parts + tap[:, None] * c + feature[None, :]
    tl.store(spot, total, mask=(tap < taps)[:, None] & wanted[None, :])
    tl.store(parts + taps * c + feature, shift, mask=wanted)


def mix(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, centre: int, back: bool = False) -> Tensor:
    """The mixed points (b, n, c), laid out densely; back, the gradient of x from one of the output."""
    x, weight = _rows(x), weight.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (batch, n, c), taps = x.shape, weight.shape[0]
    tiles, blocks = triton.cdiv(n, TILE), triton.cdiv(c, FEATURES)
    _mix[(batch * tiles * blocks,)](
        x, weight, bias, out, *x.stride()[:2], *out.stride()[:2], n, c, tiles, blocks, dilation, centre,
        TAPS=taps, BLOCK_N=TILE, BLOCK_C=FEATURES, BACK=back,
    )  # fmt: skip
    return out


def weight_gradients(x: Tensor, grad: Tensor, taps: int, dilation: int, centre: int) -> tuple[Tensor, Tensor]:
    """Gradients (k, c) and (c,) of weight and bias, in float32."""
    x, grad = _rows(x), _rows(grad)
    batch, n, c = x.shape
    block = triton.next_power_of_2(taps)
    features = FEATURES if block <= FEATURES // 4 else FEATURES // 2
    tile = min(16, HELD // (block * features))
    chunks, blocks = triton.cdiv(n, CHUNK), triton.cdiv(c, features)
    parts = x.new_empty((batch * chunks, taps + 1, c), dtype=torch.float32)
    _weights[(batch * chunks * blocks,)](
        x, grad, parts, *x.stride()[:2], *grad.stride()[:2], n, c, chunks, blocks, taps, dilation, centre,
        BLOCK_T=block, BLOCK_N=tile, BLOCK_C=features, TILES=CHUNK // tile,
    )  # fmt: skip
    total = parts.sum(0)
    return total[:taps], total[taps]


def local_mix(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, centre: int) -> Tensor:
    """The mixed points with gradients; see `mix`."""
    made: Tensor
    run = traced_mix if torch.compiler.is_compiling() else _Mix.apply
    made = run(x, weight, bias, dilation, centre)
    return made


@torch.library.custom_op("kernelhead::local_mix", mutates_args=())
def traced_mix(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, centre: int) -> Tensor:
    """`local_mix` as an op that torch.compile and torch.export keep whole."""
    return mix(x, weight, bias, dilation, centre)


@traced_mix.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, dilation: int, centre: int) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("kernelhead::local_mix_backward", mutates_args=())
def traced_backward(
    x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor, dilation: int, centre: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias."""
    d_weight, d_bias = weight_gradients(x, grad, weight.shape[0], dilation, centre)
    made = mix(grad, weight, bias, dilation, centre, back=True)
    # Clones: an op may not give out two views of one tensor.
    return made, d_weight.to(weight.dtype, copy=True), d_bias.to(bias.dtype, copy=True)


@traced_backward.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor, dilation: int, centre: int
) -> tuple[Tensor, Tensor, Tensor]:
    small = [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (x, weight, bias)]
    return small[0], small[1], small[2]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.dilation, ctx.centre = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    d_x = d_weight = d_bias = None
    if ctx.needs_input_grad[0]:
        d_x = mix(grad, weight, bias, ctx.dilation, ctx.centre, back=True)
    if any(ctx.needs_input_grad[1:3]):
        d_weight, d_bias = weight_gradients(x, grad, weight.shape[0], ctx.dilation, ctx.centre)
        d_weight, d_bias = d_weight.to(weight.dtype), d_bias.to(bias.dtype)
    return d_x, d_weight, d_bias, None, None


# Tracing differentiates an op with fake tensors: there its backward must be an op as well.
traced_mix.register_autograd(
    lambda ctx, grad: (*traced_backward(*ctx.saved_tensors, grad, ctx.dilation, ctx.centre), None, None),
    setup_context=_keep,
)


class _Mix(torch.autograd.Function):
    """The same without the dispatcher in between."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        made = mix(*inputs)
        _keep(ctx, inputs, made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, grads[0])


def _rows(points: Tensor) -> Tensor:
    return points if points.stride(-1) == 1 else points.contiguous()
