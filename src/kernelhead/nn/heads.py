"""Split a width into heads and join heads to a width; contiguous blocks of channels, as published."""

from torch import Tensor


def split_heads(points: Tensor, heads: int) -> Tensor:
    """(b, n, c) to (b, h, n, c/h); head i holds the i-th contiguous block of channels.

    Args:
        points: points as rows.

    Example:
        >>> import torch
        >>> split_heads(torch.zeros(2, 5, 12), 3).shape
        torch.Size([2, 3, 5, 4])
    """
    return points.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(points: Tensor) -> Tensor:
    """(b, h, n, d) to (b, n, h d); undoes `split_heads`.

    Args:
        points: points split into heads.
    """
    return points.transpose(-3, -2).flatten(-2)
