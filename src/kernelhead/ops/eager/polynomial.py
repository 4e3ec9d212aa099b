"""Attention without softmax in plain PyTorch: one product after another."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernelhead.shapes import zeroed


def polynomial_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    product: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
) -> Tensor:
    """Sums over keys of inner products times values; `product` may be one of another arithmetic."""
    key, value = zeroed(key, mask), zeroed(value, mask)
    (n, d), (m, e) = query.shape[-2:], value.shape[-2:]
    if n * m * (d + e) < (n + m) * d * e:
        return product(product(query, key.mT), value)
    return product(query, product(key.mT, value))
