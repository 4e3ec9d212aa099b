"""Dropout by cheap draws: a hash of one word with every place, or sixteen drawn bits for every entry."""

from typing import Any

import torch
from torch import Tensor

from kernelhead.kernels.features import by_hand
from kernelhead.ops.eager.thinning import RANGE, hashed

LEVELS = 2**16  # of sixteen bits


def thinned(x: Tensor, p: float) -> Tensor:
    """Entries zeroed with probability p, the others over 1 - p.

    Args:
        x: fewer than 2 ** 31 entries.
        p: within (0, 1).

    Example:
        >>> _ = torch.manual_seed(0)
        >>> thinned(torch.ones(4, 50), 0.25).unique()
        tensor([0.0000, 1.3333])
    """
    word = torch.randint(RANGE - 1, (), device=x.device, dtype=torch.int32)
    places = torch.arange(x.numel(), device=x.device, dtype=torch.int32).view(x.shape)
    return torch.where(scrambled(places, word) >= int(p * RANGE), x * (1 / (1 - p)), 0.0)


def thinned_by_bits(x: Tensor, p: float) -> Tensor:
    """Entries zeroed with the probability of whole 65,536ths next to p, the others over one less that.

    A drawn number of 64 bits serves four entries.

    Args:
        x: of any size, on any device.
        p: within (0, 1), where at most all but one of the 65,536ths are.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> thinned_by_bits(torch.ones(4, 50), 0.25).unique()
        tensor([0.0000, 1.3333])
    """
    gone = gone_of(p)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    drawn = words.view(torch.int16)[: x.numel()].view(x.shape)
    least, growth = gone - LEVELS // 2, LEVELS / (LEVELS - gone)
    if by_hand(x):
        made: Tensor = _Thinned.apply(x, drawn, least, growth)
        return made
    return x * (drawn >= least) * growth


class _Thinned(torch.autograd.Function):
    """The same numbers in half of the time: truth values are slow factors on a CPU, numbers are not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, drawn: Tensor, least: int, growth: float) -> Tensor:
        kept = torch.ge(drawn, least, out=torch.empty_like(x, dtype=torch.int8))
        ctx.save_for_backward(kept)
        ctx.growth = growth
        return kept.to(x.dtype).mul_(x).mul_(growth)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return kept.to(grads[0].dtype).mul_(grads[0]).mul_(ctx.growth), None, None, None


def gone_of(p: float) -> int:
    """How many of 65,536 entries go at a probability.

    Example:
        >>> gone_of(0.1)
        6554
    """
    return round(p * LEVELS)


def scrambled(places: Tensor, word: Tensor) -> Tensor:
    """A number of 31 bits for every place and word, each bit as good as drawn.

    Shapes: places (...), word (), both int32; returns (...), int32.
    """
    return hashed(places, word) & (RANGE - 1)
