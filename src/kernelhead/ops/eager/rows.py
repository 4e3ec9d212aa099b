"""Attention to a context and to oneself in plain PyTorch: one more key and one more feature."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelhead.ops.eager.softmax import softmax_attention, softmax_pattern


def own_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    *,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """`own_pattern` times the values of the context and the own value."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key, mask = _joined(query, key, own_key, mask)
    mixed = softmax_attention(query, key, _unit_below(value), mask=mask, dropout=dropout, scale=scale)
    return mixed[..., :-1] + mixed[..., -1:] * own_value


def own_pattern(
    query: Tensor, key: Tensor, own_key: Tensor, *, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """exp(scale q'k) over the context's keys and the own key, every row divided by its sum."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key, mask = _joined(query, key, own_key, mask)
    return softmax_pattern(query, key, mask=mask, scale=scale)


def _joined(
    query: Tensor, key: Tensor, own_key: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sides of a plain attention whose last key has, for every query, the score of its own key."""
    own = (query * own_key).sum(-1, keepdim=True)
    mask = None if mask is None else F.pad(mask, (0, 1), value=True)
    return torch.cat([query, own], dim=-1), _unit_below(key), mask


def _unit_below(points: Tensor) -> Tensor:
    """Points (... m d) as (... m+1 d+1): a zero after each, and a last one that is the last unit vector."""
    wider = F.pad(points, (0, 1, 0, 1))
    wider[..., -1, -1] = 1
    return wider
