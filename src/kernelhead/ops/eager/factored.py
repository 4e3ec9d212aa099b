"""Values mixed by a pattern that is held as factors, in plain PyTorch."""

import torch
from torch import Tensor

from kernelhead.ops.eager.softmax import wide
from kernelhead.shapes import zeroed

CHUNK = 128


def factored_attention(
    left: Tensor, values: Tensor, right: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool
) -> Tensor:
    """Means over the keys that a row sees of (l_i' diag(values) r_j) v_j."""
    with torch.autocast(left.device.type, enabled=False):
        # Zero first: 0 times NaN would be NaN.
        rows = wide(left) * wide(values).unsqueeze(-2)
        columns, points = wide(zeroed(right, mask)), wide(zeroed(value, mask))
        mixed = _prefix_products(rows, columns, points) if causal else rows @ (columns.mT @ points)
        return (mixed / seen_keys(left, right, mask=mask, causal=causal)).to(value.dtype)


def seen_keys(left: Tensor, right: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
    """How many real keys each row sees, at least one: (... n 1), or (... 1 1) where all see the same."""
    n, m = left.shape[-2], right.shape[-2]
    if mask is None:
        mask = torch.ones(m, dtype=torch.bool, device=right.device)
    counts = mask.cumsum(-1)[..., m - n :] if causal else mask.sum(-1, keepdim=True)
    return counts.clamp_min(1).unsqueeze(-1)


def _prefix_products(rows: Tensor, columns: Tensor, points: Tensor) -> Tensor:
    """Row i is rows_i times the sum over j up to i + m - n of columns_j' points_j."""
    n, m = rows.shape[-2], columns.shape[-2]
    before, columns = columns.tensor_split([m - n], dim=-2)
    earlier, points = points.tensor_split([m - n], dim=-2)
    state, pieces = before.mT @ earlier, []
    for start in range(0, n, CHUNK):
        part = slice(start, start + CHUNK)
        row, column, point = rows[..., part, :], columns[..., part, :], points[..., part, :]
        pieces.append(row @ state + (row @ column.mT).tril() @ point)
        state = state + column.mT @ point
    return torch.cat(pieces, dim=-2)
