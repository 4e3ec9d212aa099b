"""Dropout whose draws cost little, compiled for a GPU and on a CPU."""

import torch
from torch import Tensor, nn

from kernelhead.ops.backends import FARTHEST
from kernelhead.ops.thinning import LEVELS, gone_of, thinned, thinned_by_bits

MANY = 2**14  # entries from which cheaper draws are worth it on a CPU


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with cheaper draws, on a CPU and compiled for a GPU.

    - On a CPU sixteen bits are drawn for an entry, so that p is rounded to whole 65,536ths. Torch draws a
      number for every entry, on one thread.
    - Compiled for a GPU one word is drawn a call and hashed with every entry's place. The compiler's own
      dropout runs all rounds of Philox for every entry, and keeps one of the four words that they make; a
      hash is some ten operations, and is made again for the gradient, so no mask is kept.

    Example:
        >>> Dropout(0.5).eval()(torch.ones(3))
        tensor([1., 1., 1.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Zero each entry with probability p, and scale the others up."""
        if not self.training or not 0 < self.p < 1:
            return super().forward(x)
        if torch.compiler.is_compiling():
            return thinned(x, self.p) if x.is_cuda and x.numel() < FARTHEST else super().forward(x)
        return thinned_by_bits(x, self.p) if self._by_bits(x) else super().forward(x)

    def _by_bits(self, x: Tensor) -> bool:
        """Whether an entry has bits of its own: many on a CPU, of no stack whose models draw apart."""
        many = x.device.type == "cpu" and x.is_floating_point() and x.numel() >= MANY
        transformed = torch._C._functorch.is_functorch_wrapped_tensor(x) or torch._C._get_tracing_state()
        return many and not self.inplace and 0 < gone_of(self.p) < LEVELS and not transformed
