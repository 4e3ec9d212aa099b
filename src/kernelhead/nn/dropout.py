"""Dropout whose draws cost little where it is compiled for a GPU."""

import torch
from torch import Tensor, nn

from kernelhead.ops.eager.thinning import RANGE, hashed


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`; compiled for a GPU, one word is drawn a call and hashed with every entry's place.

    The compiler's own dropout runs all rounds of Philox for every entry, and keeps one of the four words
    that they make; a hash is some ten operations, and is made again for the gradient, so no mask is kept.

    Example:
        >>> Dropout(0.5).eval()(torch.ones(3))
        tensor([1., 1., 1.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Zero each entry with probability p, and scale the others up."""
        on_gpu = torch.compiler.is_compiling() and x.is_cuda and x.numel() < RANGE
        return thinned(x, self.p) if on_gpu and self.training and 0 < self.p < 1 else super().forward(x)


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
