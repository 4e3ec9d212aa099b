"""Attention of linear cost in plain PyTorch: elu features, positive random features, landmarks."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelhead.kernels.features import by_hand
from kernelhead.ops.eager.softmax import seen_softmax, wide
from kernelhead.pattern import Dense, Factored, Pattern
from kernelhead.shapes import zeroed

CHUNK = 64


@dataclass(frozen=True, eq=False)
class LinearState:
    """What causal linear attention remembers of the points so far; its size does not grow with them.

    Shapes: products (... d e), sums of features times values; total (... d), sums of features; both
    in float32 or better.

    Example:
        >>> LinearState(torch.zeros(4, 2), torch.zeros(4)).total.shape
        torch.Size([4])
    """

    products: Tensor
    total: Tensor


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Means of values weighted by the inner products of elu(q) + 1 and elu(k) + 1."""
    with no_autocast(query):
        left, right = linear_sides(query, key, mask)
        extended = _with_ones(value, mask)
        if causal:
            size = CHUNK
            chunks = (_chunks(side, size) for side in (left, right, extended))
            joined = _scan(*chunks, fade=left.new_ones(1))[..., : query.shape[-2], :]
        else:
            joined = left @ (right.mT @ extended)
        return _ratio(joined).to(value.dtype)


def linear_pattern(
    query: Tensor, key: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Pattern:
    """What `linear_attention` applies: factors, or entries if causal."""
    if causal:
        return Dense(linear_attention(query, key, _identity(key), mask=mask, causal=True))
    with no_autocast(query):
        return _factored(*linear_sides(query, key, mask), query.dtype)


def linear_step(
    state: LinearState | None, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, LinearState]:
    """One more row of causal `linear_attention`, at a cost that does not grow with the rows before."""
    with no_autocast(query):
        left, right, value_wide = elu_features(wide(query)), elu_features(wide(key)), wide(value)
        products, total = right.unsqueeze(-1) * value_wide.unsqueeze(-2), right
        if state is not None:
            products, total = state.products + products, state.total + total
        weight = (left * total).sum(-1, keepdim=True)
        output = (left.unsqueeze(-2) @ products).squeeze(-2) / weight.masked_fill(weight == 0, 1)
        return output.to(value.dtype), LinearState(products, total)


def elu_features(points: Tensor) -> Tensor:
    """elu(x) + 1, without the cancellation that rounds it to zero below -17 in float32."""
    if by_hand(points):
        made: Tensor = _EluFeatures.apply(points)
        return made
    return points.clamp_max(0).exp() + points.relu()


class _EluFeatures(torch.autograd.Function):
    """elu(x) + 1 with its gradient from itself: it is 1 above 1, and where it is less its own derivative."""

    @staticmethod
    def forward(ctx: Any, points: Tensor) -> Tensor:
        made = points.clamp_max(0).exp_().add_(points.relu())
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (made,) = ctx.saved_tensors
        return grads[0] * made.clamp_max(1)


def performer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    frequencies: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Means of values weighted by the inner products of positive random features."""
    with no_autocast(query):
        extended = _with_ones(value, mask)
        if causal:
            size = CHUNK
            left, right = _log_sides(query, key, frequencies, mask)
            left, right = _chunks(left, size), _chunks(right, size, fill=-torch.inf)
            left, right, fade = _exponentials(left, right)
            joined = _scan(left, right, _chunks(extended, size), fade=fade)[..., : query.shape[-2], :]
        else:
            left, right = positive_sides(query, key, frequencies, mask)
            joined = left @ (right.mT @ extended)
        return _ratio(joined).to(value.dtype)


def performer_pattern(
    query: Tensor, key: Tensor, frequencies: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Pattern:
    """What `performer_attention` applies: factors, or entries if causal."""
    if causal:
        values = _identity(key)
        return Dense(performer_attention(query, key, values, frequencies, mask=mask, causal=True))
    with no_autocast(query):
        return _factored(*positive_sides(query, key, frequencies, mask), query.dtype)


def nystrom_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    landmarks: int,
    mask: Tensor | None = None,
    iterations: int = 6,
    pinv: str = "iterative",
) -> Tensor:
    """Softmax to landmarks, the inverse among landmarks, softmax from landmarks, times values."""
    n, d = query.shape[-2:]
    count = min(landmarks, n)
    with no_autocast(query):
        left, right, values = (wide(zeroed(side, mask)) for side in (query, key, value))
        left = left * d**-0.5
        if mask is None and n % count == 0:
            # Segments are of one size: their means are sums of neighbours and no product.
            left_marks, right_marks = (side.unflatten(-2, (count, -1)).mean(-2) for side in (left, right))
            gathered = values
            if count < n:
                from_marks = (left_marks @ right.mT).softmax(-1)  # (... s n)
                gathered = inverted(left_marks, right_marks, pinv, iterations) @ (from_marks @ values)
            return ((left @ right_marks.mT).softmax(-1) @ gathered).to(value.dtype)
        mask = query.new_ones(n, dtype=torch.bool) if mask is None else mask
        member = segments(mask, count)  # (... s n)
        sizes = member.sum(-1, keepdim=True)
        means = member.to(left.dtype) / sizes.clamp_min(1)
        # Where every real point is its own landmark the exact answer costs less than the inverse.
        whole = (sizes <= 1).all(-2, keepdim=True)  # (... 1 1)
        left_marks, right_marks = means @ left, means @ right  # (... s d)
        to_marks = seen_softmax(left @ right_marks.mT, sizes.mT > 0)  # (... n s)
        from_marks = seen_softmax(left_marks @ right.mT, mask.unsqueeze(-2))  # (... s n)
        inverse = inverted(left_marks, right_marks, pinv, iterations)
        gathered = torch.where(whole, means @ values, inverse @ (from_marks @ values))
        return zeroed(to_marks @ gathered, mask).to(value.dtype)


def nystrom_pattern(
    query: Tensor,
    key: Tensor,
    *,
    landmarks: int,
    mask: Tensor | None = None,
    iterations: int = 6,
    pinv: str = "iterative",
) -> Tensor:
    """The entries of what `nystrom_attention` applies."""
    values = _identity(key)
    return nystrom_attention(
        query, key, values, landmarks=landmarks, mask=mask, iterations=iterations, pinv=pinv
    )


def linear_sides(query: Tensor, key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """elu features of both sides, zero at padded keys."""
    return elu_features(wide(query)), zeroed(elu_features(wide(zeroed(key, mask))), mask)


def positive_sides(
    query: Tensor, key: Tensor, frequencies: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Positive random features of both sides, zero at padded keys, up to factors that cancel in every mean.

    Entries are at most one, and a query's sum to one.
    """
    left, right = _log_sides(query, key, frequencies, mask)
    left, right, _ = _exponentials(left.unsqueeze(-3), right.unsqueeze(-3))
    return left.squeeze(-3), right.squeeze(-3)


def _log_sides(query: Tensor, key: Tensor, frequencies: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logarithms of positive random features up to what is the same for all features of a query, or of all
    keys, which cancels in every mean; minus infinity at padded keys."""
    size = query.shape[-1] ** -0.25
    left, right = wide(query), wide(zeroed(key, mask))
    drawn = frequencies.to(left).mT * size
    right = right @ drawn - right.square().sum(-1, keepdim=True) * (size * size / 2)
    return left @ drawn, right if mask is None else right.masked_fill(~mask.unsqueeze(-1), -torch.inf)


def _exponentials(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features from logarithms in chunks (... g c p), with factors taken out that cancel in every mean.

    Each feature of the keys is divided by its largest value so far and that of the queries multiplied
    by it, then each query by the sum of its features: nothing overflows, and a query that sees its whole
    chunk has a sum of weights of at least one.

    Shapes: returns both sides (... g c p) and fade (... g p), which takes a sum over earlier chunks
    to the factors of a chunk.
    """
    with torch.no_grad():
        # A chunk without real keys has no largest value; any finite one does.
        peak = right.amax(-2).clamp_min(torch.finfo(right.dtype).min / 4).cummax(-2).values
        fade = torch.cat(
            [torch.ones_like(peak[..., :1, :]), (peak[..., :-1, :] - peak[..., 1:, :]).exp()], -2
        )
        peak = peak.unsqueeze(-2)
    return (left + peak).softmax(-1), (right - peak).exp(), fade


def _scan(left: Tensor, right: Tensor, value: Tensor, *, fade: Tensor) -> Tensor:
    """Causal sums over chunks: triangles inside them, and one running state (... p e) between them.

    Shapes: left, right (... g c p), value (... g c e), fade (... g p); returns (... g*c e).
    """
    grown = right.mT @ value  # (... g p e)
    fade = fade.expand(*grown.shape[:-1]).unsqueeze(-1)
    state, earlier = torch.zeros_like(grown[..., 0, :, :]), []
    for chunk in range(grown.shape[-3]):
        earlier.append(state * fade[..., chunk, :, :])
        state = earlier[-1] + grown[..., chunk, :, :]
    inside = (left @ right.mT).tril() @ value
    return (inside + left @ torch.stack(earlier, -3)).flatten(-3, -2)


def _chunks(points: Tensor, size: int, *, fill: float = 0.0) -> Tensor:
    """(... n p) to (... g c p), filled up to a whole number of chunks."""
    missing = -points.shape[-2] % size
    return torch.nn.functional.pad(points, (0, 0, 0, missing), value=fill).unflatten(-2, (-1, size))


def _with_ones(value: Tensor, mask: Tensor | None) -> Tensor:
    """Values with a column of ones, whose sum is the normaliser."""
    value = wide(zeroed(value, mask))
    return torch.cat([value, torch.ones_like(value[..., :1])], -1)


def _ratio(joined: Tensor) -> Tensor:
    """Sums over their normaliser; zero where nothing was summed."""
    total = joined[..., -1:]
    return joined[..., :-1] / total.masked_fill(total == 0, 1)


def _factored(left: Tensor, right: Tensor, dtype: torch.dtype) -> Factored:
    """The row-normalised product of two positive sides."""
    total = left @ right.sum(-2).unsqueeze(-1)
    left = left / total.masked_fill(total == 0, 1)
    return Factored(left.to(dtype), left.new_ones(left.shape[-1], dtype=dtype), right.to(dtype))


def segments(mask: Tensor, count: int) -> Tensor:
    """Which of `count` segments holds a real point, (... s n); a row of fewer points fills fewer.

    Segment j of N points runs from floor(j N / count) to floor((j + 1) N / count).
    """
    total = mask.sum(-1, keepdim=True)
    place = mask.cumsum(-1) * total.clamp_max(count) - 1
    segment = (place // total.clamp_min(1)).masked_fill(~mask, -1)
    return segment.unsqueeze(-2) == torch.arange(count, device=mask.device).unsqueeze(-1)


def inverted(left: Tensor, right: Tensor, pinv: str, iterations: int) -> Tensor:
    """The pseudo-inverse of softmax among landmarks (... s d), exact or by so many steps."""
    among = (left @ right.mT).softmax(-1)
    return torch.linalg.pinv(among) if pinv == "exact" else iterated_inverse(among, iterations)


def iterated_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Third-order iteration to the pseudo-inverse of positive matrices whose rows sum to one."""
    eye = _identity(matrix)
    inverse = matrix.mT / matrix.sum(-2).amax(-1)[..., None, None]
    for _ in range(iterations):
        near = matrix @ inverse
        inverse = inverse @ (13 * eye - near @ (15 * eye - near @ (7 * eye - near))) / 4
    return inverse


def _identity(rows: Tensor) -> Tensor:
    """The identity over the rows of a tensor; as values it turns an output into the pattern's entries."""
    return torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)


def no_autocast(tensor: Tensor) -> torch.autocast:
    """Exponentials, long sums and inverses are taken in float32 or better, also under autocast."""
    return torch.autocast(tensor.device.type, enabled=False)
