"""Primal attention in plain PyTorch: the definition that every faster writing is held against."""

import torch
from torch import Tensor

from kernelhead.kernels.base import AbstractKernel
from kernelhead.kernels.features import gram


def primal_scores(
    query: Tensor, key: Tensor, left: Tensor, right: Tensor, kernel: AbstractKernel, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Left scores (... n s) and right scores (... m s), zero at padded points of a shared mask."""
    left_scores = _kept(kernel.left_features(query), mask) @ left
    right_scores = _kept(kernel.right_features(key), mask) @ right
    return left_scores, right_scores


def primal_attention(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    kernel: AbstractKernel,
    mask: Tensor | None,
) -> Tensor:
    """Both scores joined to a head's width, (... n d), through folded maps: no score is made."""
    features = kernel.left_features(query), kernel.right_features(key)
    return _joined(*features, left, right, join, bias, mask)


def primal_attention_moments(
    query: Tensor,
    key: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    kernel: AbstractKernel,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`primal_attention` and `score_moments` of both sides, of features that are made once."""
    features = kernel.left_features(query), kernel.right_features(key)
    output = _joined(*features, left, right, join, bias, mask)
    first, second = (
        score_moments(side, weight, mask) for side, weight in zip(features, (left, right), strict=True)
    )
    return output, first, second


def folded_maps(left: Tensor, right: Tensor, join: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (... p s) and join (... d 2s) as two maps from features to outputs, (... p d)."""
    left_join, right_join = join.split([left.shape[-1], right.shape[-1]], dim=-1)
    return left @ left_join.mT, right @ right_join.mT


def score_moments(features: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    r"""Means over real points of squared scores: the diagonal of $W^\top G W$.

    The p-by-p matrix G, the mean of $\phi \phi^\top$, stands in for the n-by-s scores, which are
    neither made nor kept, unless features are so wide that G would be the larger of the two.
    """
    wide = torch.promote_types(features.dtype, torch.float32)
    with torch.autocast(features.device.type, enabled=False):
        features, weight = _kept(features, mask).to(wide), weight.to(wide)
        count = real_points(features, mask)[..., None]
        if features.shape[-1] > max(2 * weight.shape[-1], 128):
            return (features @ weight).square().sum(-2) / count
        return ((gram(features) @ weight) * weight).sum(-2) / count


def running_means(points: Tensor, mask: Tensor | None) -> Tensor:
    """Means of the real points up to each point, (... n d); sums are kept in float32 or better."""
    wide = torch.promote_types(points.dtype, torch.float32)
    sums = _kept(points, mask).to(wide).cumsum(-2)
    return (sums / points_so_far(points, mask).clamp_min(1).unsqueeze(-1)).to(points.dtype)


def points_so_far(points: Tensor, mask: Tensor | None) -> Tensor:
    """How many real points there are up to each point, (n,) or the shape of the mask."""
    if mask is None:
        return torch.arange(1, points.shape[-2] + 1, device=points.device)
    return mask.cumsum(-1)


def prefix_scores(
    query: Tensor,
    key: Tensor,
    rows: Tensor,
    left: Tensor,
    right: Tensor,
    kernel: AbstractKernel,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Left and right scores (... n s) with weights that are built from the rows up to each point.

    Rows are taken in chunks: within a chunk by a masked product, before it by a p-by-s state.
    """
    seen = points_so_far(rows, mask)  # (n,) or (... n)
    slot = (seen - 1).clamp_min(0) % left.shape[-2]
    growth = prefix_growth(seen, left.shape[-2]).to(query.dtype).unsqueeze(-1)
    rows = _kept(kernel.landmark_features(rows), mask)
    sides = (kernel.left_features(query), left), (kernel.right_features(key), right)
    made = [_prefix_products(features, rows, _slotted(weight, slot)) * growth for features, weight in sides]
    return _kept(made[0], mask), _kept(made[1], mask)


def prefix_weights(
    rows: Tensor, left: Tensor, right: Tensor, kernel: AbstractKernel, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The weights of both sides, (... p s), after all rows."""
    seen = points_so_far(rows, mask)
    slot = (seen - 1).clamp_min(0) % left.shape[-2]
    growth = prefix_growth(seen[..., -1], left.shape[-2]).to(rows.dtype)[..., None, None]
    rows = _kept(kernel.landmark_features(rows), mask).mT * growth
    return rows @ _slotted(left, slot), rows @ _slotted(right, slot)


def prefix_growth(seen: Tensor, landmarks: int) -> Tensor:
    """What a sum over `seen` rows is scaled by, so that it never weighs more than `landmarks` rows."""
    return seen.clamp(1, landmarks) / seen.clamp_min(1).to(torch.float64)


def _prefix_products(features: Tensor, rows: Tensor, values: Tensor, chunk: int = 128) -> Tensor:
    """Row t is features_t times the sum over u up to t of rows_u' values_u."""
    state = rows.new_zeros((*values.shape[:-2], rows.shape[-1], values.shape[-1]))
    pieces = []
    for start in range(0, rows.shape[-2], chunk):
        part = slice(start, start + chunk)
        here, row, value = features[..., part, :], rows[..., part, :], values[..., part, :]
        pieces.append(here @ state + (here @ row.mT).tril() @ value)
        state = state + row.mT @ value
    return torch.cat(pieces, dim=-2)


def _slotted(weight: Tensor, slot: Tensor) -> Tensor:
    """The row of weight (h, l, s) that each point's slot (n,) or (b, 1, n) names, as (... h n s)."""
    if slot.dim() == 1:
        return weight[..., slot, :]
    index = slot.unsqueeze(-1).expand(*slot.shape[:-2], weight.shape[-3], -1, weight.shape[-1])
    return weight.expand(*index.shape[:-2], *weight.shape[-2:]).gather(-2, index)


def real_points(points: Tensor, mask: Tensor | None) -> Tensor:
    """How many real points there are, at least one; a scalar or the batch shape of the mask."""
    if mask is None:
        return torch.full((), points.shape[-2], device=points.device)
    return mask.sum(-1).clamp_min(1)


def _kept(points: Tensor, mask: Tensor | None) -> Tensor:
    return points if mask is None else points.masked_fill(~mask.unsqueeze(-1), 0)


def _joined(
    left_features: Tensor,
    right_features: Tensor,
    left: Tensor,
    right: Tensor,
    join: Tensor,
    bias: Tensor,
    mask: Tensor | None,
) -> Tensor:
    left_map, right_map = folded_maps(left, right, join)
    return _kept(left_features @ left_map + right_features @ right_map + bias, mask)
