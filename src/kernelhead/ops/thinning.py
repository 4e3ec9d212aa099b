"""Dropout from one drawn word: entries stay or go by a hash of the word with their place."""

import torch
from torch import Tensor

from kernelhead.ops.eager.thinning import RANGE, hashed


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


def scrambled(places: Tensor, word: Tensor) -> Tensor:
    """A number of 31 bits for every place and word, each bit as good as drawn.

    Shapes: places (...), word (), both int32; returns (...), int32.
    """
    return hashed(places, word) & (RANGE - 1)
