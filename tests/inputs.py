"""Seeded inputs for tests: points on no special position, and lengths with a mask."""

import torch
from torch import Tensor


def points(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers of a shape, the same for a seed in every precision up to rounding."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype)


def keep(lengths: list[int], n: int) -> Tensor:
    """A mask (b, n) that is True for the first `lengths[i]` points of row i."""
    return torch.arange(n) < torch.tensor(lengths)[:, None]
