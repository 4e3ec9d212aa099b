"""Softmax attention to as many keys as are real, by PyTorch's kernel for sequences of different lengths."""

from typing import Any

import torch
from torch import Tensor

from kernelhead.shapes import zeroed


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """What `eager.softmax_attention` gives, at a cost that grows with the real keys and not with all.

    Real keys go to the front of their sample. A sample is two sequences to the kernel: its queries with the
    real keys, and no query with the others.

    Shapes: query (b h n d), key, value (b h m d), mask (b 1 m), True where a key is real; returns (b h n d),
    zero in samples without a real key.
    """
    from torch.nn.attention.varlen import varlen_attn

    samples, points = mask.shape[0], mask.shape[-1]
    real = mask.squeeze(1)
    before = real.cumsum(-1)  # and with it
    count, all_before = before[:, -1:], torch.arange(1, points + 1, device=mask.device)
    place = torch.where(real, before, count + all_before - before) - 1
    begins = torch.arange(samples + 1, device=mask.device)
    asked = (begins * query.shape[-2]).repeat_interleave(2)[1:]
    # Of a sample without a real key the first is looked at, which is zero, and the output dropped.
    parts = torch.stack([begins[:-1] * points, begins[:-1] * points + count.squeeze(-1).clamp_min(1)], -1)
    told = torch.cat([parts.flatten(), begins[-1:] * points])
    keys, values = (_to_front(zeroed(side, mask), place) for side in (key, value))
    # A copy of its own begins and lies as the kernel takes it for granted.
    queries = query.transpose(1, 2).clone(memory_format=torch.contiguous_format).flatten(0, 1)
    most = query.shape[-2], points
    mixed: Any = varlen_attn(queries, keys, values, asked.to(torch.int32), told.to(torch.int32), *most)
    output: Tensor = mixed.unflatten(0, (samples, -1)).transpose(1, 2)
    return output.masked_fill(count[..., None, None] == 0, 0)


def _to_front(side: Tensor, place: Tensor) -> Tensor:
    """Points at their places (b m) in samples one after another, (b h m d) to (b*m h d)."""
    points = side.transpose(1, 2)
    # Each place is taken once: a scatter is stores alone, and so is its gradient, a gather.
    moved = torch.empty_like(points).scatter(1, place[..., None, None].expand_as(points), points)
    return moved.flatten(0, 1)
