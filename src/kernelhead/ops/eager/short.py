"""The linear rivals as a GPU is fast at them: long products in the points' precision, sums in float32."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kernelhead.ops.eager import linear as eager
from kernelhead.ops.eager.softmax import softmax_attention, wide
from kernelhead.shapes import zeroed

PART = 1024  # points that one product sums over: few long products would leave most of the device idle


def linear_attention(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """`eager.linear_attention` with features rounded to the precision of the points."""
    with eager.no_autocast(query):
        return _means(*eager.linear_sides(query, key, mask), value, mask)


def performer_attention(
    query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor, *, mask: Tensor | None = None
) -> Tensor:
    """`eager.performer_attention` with features rounded so, their exponents in float32."""
    with eager.no_autocast(query):
        return _means(*eager.positive_sides(query, key, frequencies, mask), value, mask)


def nystrom_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    landmarks: int,
    iterations: int,
    mask: Tensor | None = None,
    invert: Callable[[Tensor, int], Tensor] = eager.iterated_inverse,
) -> Tensor:
    """`eager.nystrom_attention` with both long sides as fused softmax attention, the inverse in float32.

    It is the iterated one, as `invert` makes it: an exact inverse may be as large as it likes, and with it
    what rounding left.
    """
    kind, n = value.dtype, query.shape[-2]
    count = min(landmarks, n)
    with eager.no_autocast(query):
        query, key, value = (zeroed(side, mask) for side in (query, key, value))
        seen = whole = None
        means: Callable[[Tensor], Tensor] = partial(_equal_means, count=count)
        if mask is not None or n % count:
            means, sizes = _segment_means(query, mask, count)
            seen, whole = sizes.squeeze(-1) > 0, (sizes <= 1).all(-2, keepdim=True)
        # All three sides see the same landmarks: what rounding takes from one the inverse gives back.
        left, right = means(query).to(kind), means(key).to(kind)
        gathered = means(value)
        if count < n or whole is not None:
            among = (wide(left) * left.shape[-1] ** -0.5) @ wide(right).mT
            inverse = invert(among.softmax(-1), iterations)
            near, centre = _centred(value, mask, kind)
            mixed = inverse @ wide(softmax_attention(left, key, near, mask=mask))
            mixed = mixed + inverse.sum(-1, keepdim=True) * centre
            gathered = mixed if whole is None else torch.where(whole, gathered, mixed)
        near, centre = _centred(gathered, seen, kind)
        output = wide(softmax_attention(query, right, near, mask=seen)) + centre
        return zeroed(output, mask).to(kind)


def _centred(value: Tensor, mask: Tensor | None, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values less the mean of the real ones, and what that took on average, a constant (... 1 e) in float32.

    Means of values have it added. What all values share would be rounded, and lost between the two large
    parts of a query's gradient. It is not the mean itself: a small one is lost in the rounding of large
    values, and would be counted twice.
    """
    seen = wide(zeroed(value, mask))
    count = seen.new_tensor(value.shape[-2]) if mask is None else mask.sum(-1)[..., None, None].clamp_min(1)
    near = zeroed(seen - seen.detach().sum(-2, keepdim=True) / count, mask).to(kind)
    return near, (seen - near).detach().sum(-2, keepdim=True) / count


def _equal_means(points: Tensor, count: int) -> Tensor:
    """The means of as many segments of one size."""
    return points.unflatten(-2, (count, -1)).mean(-2, dtype=_sums(points))


def _segment_means(
    query: Tensor, mask: Tensor | None, count: int
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A map from points to the means of segments, and how many points each of these has (... s 1)."""
    mask = query.new_ones(query.shape[-2], dtype=torch.bool) if mask is None else mask
    member = eager.segments(mask, count)  # (... s n)
    sizes = member.sum(-1, keepdim=True)

    def means(side: Tensor) -> Tensor:
        return wide(member.to(side.dtype) @ side) / sizes.clamp_min(1)

    return means, sizes


def _means(left: Tensor, right: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Means of values, weighted by the inner products of features rounded to the values' precision."""
    near, centre = _centred(value, mask, value.dtype)
    left, right = left.to(value.dtype), right.to(value.dtype)
    total = right.sum(-2, keepdim=True, dtype=_sums(right))
    weight = (left * total).sum(-1, keepdim=True)
    mixed = left @ _long_product(right, near) / weight.masked_fill(weight == 0, 1)
    return (mixed + centre).to(value.dtype)


def _long_product(left: Tensor, right: Tensor) -> Tensor:
    """left' right over many points, (... n p) and (... n e) to (... p e)."""
    if left.shape[-2] % PART == 0:
        left, right = left.unflatten(-2, (-1, PART)), right.unflatten(-2, (-1, PART))
        return (left.mT @ right).sum(-3)
    return left.mT @ right


def _sums(points: Tensor) -> torch.dtype:
    return torch.promote_types(points.dtype, torch.float32)
