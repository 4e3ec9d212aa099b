"""Softmax attention in plain PyTorch: its pattern written out, and its output through SDPA."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelhead.shapes import zeroed

SHORT = 128  # keys up to which PyTorch's fused kernel in bfloat16 is slower on a CPU than in float32


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """`softmax_pattern` times values, without holding the pattern where PyTorch has a fused kernel.

    On a CPU few keys in bfloat16 are taken in float32, in which that kernel is faster.
    """
    halved = query.dtype == key.dtype == value.dtype == torch.bfloat16
    if halved and query.device.type == "cpu" and key.shape[-2] <= SHORT:
        with torch.autocast("cpu", enabled=False):
            sides = [each.float() for each in (query, key, value)]
            made = softmax_attention(*sides, mask=mask, causal=causal, dropout=dropout, scale=scale)
        return made.bfloat16()
    if mask is None:
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=causal, scale=scale
        )
    key, value = zeroed(key, mask), zeroed(value, mask)
    seen = _seen(mask, causal)
    # A row that sees no key would be 0 / 0: it may look at the zeroed keys, and its output is dropped.
    blind = ~seen.any(-1, keepdim=True)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2], seen.shape[:-2])
    output = F.scaled_dot_product_attention(
        query.expand(*batch, *query.shape[-2:]),
        key,
        value,
        attn_mask=seen | blind,
        dropout_p=dropout,
        scale=scale,
    )
    return output.masked_fill(blind, 0)


def softmax_pattern(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """exp(scale q'k) over the keys that a query sees, every row divided by its sum."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if mask is None:
        mask = key.new_ones(key.shape[-2], dtype=torch.bool)
    scores = wide(query) * scale @ wide(zeroed(key, mask)).mT
    return seen_softmax(scores, _seen(mask, causal)).to(query.dtype)


def seen_softmax(scores: Tensor, seen: Tensor) -> Tensor:
    """Softmax over the last axis where `seen` is True and zero elsewhere; a row of no seen entry is zero."""
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~seen, 0)


def wide(tensor: Tensor) -> Tensor:
    """The same numbers in float32 or better."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _seen(mask: Tensor, causal: bool) -> Tensor:
    """Which keys a query sees: (... 1 m), or (... m m) if causal."""
    seen = mask.unsqueeze(-2)
    return seen & seen.new_ones(mask.shape[-1], mask.shape[-1]).tril() if causal else seen
