"""Dropout whose draws cost little where it is compiled for a GPU."""

import torch
from torch import Tensor, nn

from kernelhead.ops.backends import FARTHEST
from kernelhead.ops.thinning import thinned


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
        on_gpu = torch.compiler.is_compiling() and x.is_cuda and x.numel() < FARTHEST
        return thinned(x, self.p) if on_gpu and self.training and 0 < self.p < 1 else super().forward(x)
