"""Masks of five dialects, each by one converter to one form: real keys, causality and a bias."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelhead.nn.hosts.sides import lowest


class Seen(NamedTuple):
    """What queries may see, as `Sides` has it.

    Shapes: mask (b, m), True where a key is real; bias broadcasts to (b, h, n, m).
    """

    mask: Tensor | None = None
    causal: bool = False
    bias: Tensor | None = None


Shape = tuple[int, int, int, int]


def from_torch(padding: Tensor | None, mask: Tensor | None, shape: Shape) -> Seen:
    """The two masks of `nn.MultiheadAttention`: True means ignore, floats are added.

    Shapes: padding (b, m), or (m,) for one sequence; mask (n, m) or (b h, n, m).

    Args:
        shape: (b, h, n, m).

    Example:
        >>> from_torch(torch.tensor([[False, True]]), None, (1, 2, 2, 2)).mask
        tensor([[ True, False]])
        >>> from_torch(None, torch.ones(3, 3).triu(1).bool(), (1, 2, 3, 3)).causal
        True
    """
    b, h, n, m = shape
    parts = []
    if padding is not None:
        parts.append((~padding if padding.dtype == torch.bool else padding).reshape(b, 1, 1, m))
    if mask is not None:
        mask = ~mask if mask.dtype == torch.bool else mask
        parts.append(mask.reshape(b, h, n, m) if mask.dim() == 3 else mask.reshape(1, 1, n, m))
    return _reduced(parts, shape)


def from_sdpa(mask: Tensor | None, causal: bool, shape: Shape) -> Seen:
    """The mask of `scaled_dot_product_attention`: True means keep, floats are added.

    Its `is_causal` lets the first query see the first key, however many keys there are.

    Shapes: mask broadcasts to (b, h, n, m).

    Args:
        shape: (b, h, n, m).

    Example:
        >>> from_sdpa(None, True, (1, 1, 3, 3))
        Seen(mask=None, causal=True, bias=None)
    """
    _, _, n, m = shape
    if mask is None and causal and n == m:
        return Seen(causal=True)
    parts = [] if mask is None else [mask.reshape((1,) * (4 - mask.dim()) + mask.shape)]
    if causal:
        device = None if mask is None else mask.device
        parts.append(torch.ones(1, 1, n, m, dtype=torch.bool, device=device).tril())
    return _reduced(parts, shape)


def from_timm(mask: Tensor | None, causal: bool, shape: Shape, *, fused: bool) -> Seen:
    """The mask of timm's attention: SDPA's, but unfused `is_causal` wins over it.

    Example:
        >>> from_timm(torch.eye(2).bool(), True, (1, 1, 2, 2), fused=False)
        Seen(mask=None, causal=True, bias=None)
    """
    return from_sdpa(None if causal and not fused else mask, causal, shape)


def from_huggingface(mask: Any, causal: bool, shape: Shape, *, window: int | None = None) -> Seen:
    """The mask that an attention function of Hugging Face gets, whichever mask function made it.

    True, one or zero added means keep; the smallest number or -inf added means masked. A mask of
    pairs, (b, 1, n, m) or a BlockMask, has causality and windows in it already.

    Shapes: mask (b, m), shorter where the cache has room; or broadcasts to (b, h, n, m).

    Args:
        causal: whether queries see the keys up to their own only; for masks of keys and for None.
        shape: (b, h, n, m).
        window: how near a key must be to be seen; for masks of keys and for None.

    Example:
        >>> from_huggingface(torch.tensor([[0, 1, 1]]), True, (1, 2, 3, 3))
        Seen(mask=tensor([[False,  True,  True]]), causal=True, bias=None)
    """
    if isinstance(mask, Tensor) and mask.dim() > 2:
        # Keys of a cache that was cropped may have a mask that is too long.
        return from_sdpa(mask[..., : shape[-1]], False, shape)
    if mask is not None and not isinstance(mask, Tensor):
        return from_flex(mask, shape)
    _, _, n, m = shape
    seen = Seen()
    if mask is not None:
        seen = _reduced([F.pad(mask.bool(), (0, m - mask.shape[-1]))[:, None, None]], shape)
    if window is None or window >= m:
        return seen._replace(causal=causal)
    device = None if mask is None else mask.device
    ahead = torch.arange(m, device=device) - torch.arange(m - n, m, device=device)[:, None]  # (n, m)
    return seen._replace(causal=causal, bias=_logits(ahead.abs() < window))


def from_flex(mask: Any, shape: Shape) -> Seen:
    """The BlockMask of FlexAttention, whose `mask_mod` is True for what is kept.

    Args:
        shape: (b, h, n, m).

    Example:
        >>> from torch.nn.attention.flex_attention import create_block_mask
        >>> mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 5, 5, device="cpu")
        >>> from_flex(mask, (1, 2, 5, 5))
        Seen(mask=None, causal=True, bias=None)
    """
    from torch.nn.attention.flex_attention import create_mask

    b, h, n, m = shape
    return _reduced([create_mask(mask.mask_mod, b, h, n, m, device=str(mask.kv_num_blocks.device))], shape)


def _reduced(parts: list[Tensor], shape: Shape) -> Seen:
    """Masks of four axes together, as few as will say it; booleans keep, floats are added."""
    b, _, n, m = shape
    keep: Tensor | None = None
    bias: Tensor | None = None
    for part in parts:
        kept = part if part.dtype == torch.bool else part > lowest(part)
        keep = kept if keep is None else keep & kept
        if part.dtype != torch.bool and bool((kept & (part != 0)).any()):
            added = part.masked_fill(~kept, 0)
            bias = added if bias is None else bias + added
    if keep is None or bool(keep.all()):
        return Seen(bias=bias)
    last = keep[:, 0, -1]  # (b, m) or (1, m): the last query sees every real key, causal or not
    triangle = keep.new_ones(n, m).tril(m - n)
    for causal, form in ((False, last[:, None, None]), (True, last[:, None, None] & triangle)):
        if bool((keep == form).all()):
            return Seen(None if bool(last.all()) else last.expand(b, m), causal, bias)
    return Seen(bias=_logits(keep) if bias is None else bias.masked_fill(~keep, -torch.inf))


def _logits(keep: Tensor) -> Tensor:
    """What to add to logits so that only this is seen."""
    return torch.zeros_like(keep, dtype=torch.float32).masked_fill(~keep, -torch.inf)
