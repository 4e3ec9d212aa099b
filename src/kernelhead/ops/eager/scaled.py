"""Values of Scaled Attention in plain PyTorch: the exact rank-one form and its learned stand-ins."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kernelhead.ops.eager.softmax import softmax_attention, wide
from kernelhead.shapes import zeroed


def scaled_values(key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Values less their mean weighted with g(k_j), divided by their own g(k_j)."""
    logs = log_sums(zeroed(key, mask), mask)  # (... n)
    logs = (logs - logs.detach().amax(-1, keepdim=True)).unsqueeze(-1)
    kept = wide(zeroed(value, mask))
    count = value.shape[-2] if mask is None else mask.sum(-1).clamp_min(1)[..., None, None]
    mean = (logs.exp() * kept).sum(-2, keepdim=True) / count
    return zeroed(kept - (-logs).exp() * mean, mask).to(value.dtype)


def log_sums(key: Tensor, mask: Tensor | None, chunk: int = 1024) -> Tensor:
    """log g(k_j), the log of the sum over real keys of exp(k_j'k / sqrt(d)), (... n), a chunk at a time."""
    if mask is None:
        seen = key.new_ones(key.shape[-2], dtype=torch.bool)
    else:
        # Where nothing is real everything counts: the result is dropped but must be finite.
        seen = mask | ~mask.any(-1, keepdim=True)
    chunks = key.split(chunk, dim=-2)
    if len(chunks) == 1:
        return _log_sums(key, key, seen)
    pieces = [checkpoint(_log_sums, rows, key, seen, use_reentrant=False) for rows in chunks]
    return torch.cat(pieces, dim=-1)


def _log_sums(rows: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    scores = wide(rows) @ wide(key).mT * key.shape[-1] ** -0.5
    return scores.masked_fill(~seen.unsqueeze(-2), -torch.inf).logsumexp(-1)


def values_less_pattern(key: Tensor, value: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Values minus `weight` times what symmetric attention makes of them."""
    key, value = zeroed(key, mask), zeroed(value, mask)
    return zeroed(value - weight.to(value.dtype) * softmax_attention(key, key, value, mask=mask), mask)


def values_less_matrix(value: Tensor, matrix: Tensor, mask: Tensor | None) -> Tensor:
    """Values minus a matrix times values."""
    kept = zeroed(value, mask)
    return zeroed(kept - matrix.to(value.dtype) @ kept, mask)
