"""Softmax attention after the projections."""

from typing import Any

from kernelhead.nn.base import Attended
from kernelhead.nn.cores.base import AbstractCore, Call
from kernelhead.ops.softmax import softmax_attention, softmax_pattern
from kernelhead.pattern import Dense


class SoftmaxCore(AbstractCore):
    """Softmax attention, what hosts have: for parity, and to be recorded. Time grows as n m.

    Shapes: as `AbstractCore`; queries may be of another sequence.

    Example:
        >>> import torch
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> SoftmaxCore(2, 4)(x[:, :, :1], x, x, causal=True).shape
        torch.Size([1, 2, 1, 4])
    """

    name = "softmax"
    crosses = True

    def options(self) -> dict[str, Any]:
        """None."""
        return {}

    def attend(self, call: Call) -> Attended:
        """Softmax attention in every head."""
        n, real, scale = call.query.shape[-2], call.real, call.scale
        # The last query sees every key: alone it needs no triangle.
        causal = call.causal and n > 1
        rows = call.rows if causal else call.query
        mixed = softmax_attention(rows, call.key, call.value, mask=real, causal=causal, scale=scale)
        pattern = None
        if call.keep == "patterns":
            entries = softmax_pattern(rows, call.key, mask=real, causal=causal, scale=scale)
            pattern = Dense(entries[..., -n:, :])
        return Attended(mixed[..., -n:, :], pattern=pattern)
