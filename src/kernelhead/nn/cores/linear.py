"""The linear rivals after the projections: elu features, positive random features, landmarks."""

from math import log
from typing import Any

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.kernels import draw_frequencies
from kernelhead.nn.base import Attended
from kernelhead.nn.cores.base import AbstractCore, Call, last_rows
from kernelhead.ops.linear import (
    linear_attention,
    linear_pattern,
    nystrom_attention,
    nystrom_pattern,
    performer_attention,
    performer_pattern,
)
from kernelhead.pattern import Dense
from kernelhead.rng import generator
from kernelhead.shapes import check_size


class LinearCore(AbstractCore):
    """Linear attention with the feature map elu + 1; time and memory grow as n + m.

    It has no softmax, and `scale` is not read.

    Shapes: as `AbstractCore`; queries may be of another sequence.

    Example:
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> LinearCore(2, 4)(x, x, x).shape
        torch.Size([1, 2, 3, 4])
    """

    name = "linear"
    crosses = True

    def options(self) -> dict[str, Any]:
        """None."""
        return {}

    def attend(self, call: Call) -> Attended:
        """Linear attention in every head."""
        n, sides, real, causal = call.query.shape[-2], (call.rows, call.key), call.real, call.causal
        mixed = linear_attention(*sides, call.value, mask=real, causal=causal)
        pattern = None
        if call.keep == "patterns":
            pattern = last_rows(linear_pattern(*sides, mask=real, causal=causal), n)
        return Attended(mixed[..., -n:, :], pattern=pattern)


class PerformerCore(AbstractCore):
    """Softmax attention estimated by positive random features; time and memory grow as n + m.

    Shapes: as `AbstractCore`; queries may be of another sequence. The frequencies (p, d) are shared by the
    heads and saved.

    Args:
        heads: heads h.
        head: features of a head, d.
        features: random features p; if None, d log d rounded, and d at least.
        seed: of the frequencies; the global generator is left alone.

    Raises:
        BadInput: a size is not a positive whole number.

    Example:
        >>> PerformerCore(2, 16).frequencies.shape
        torch.Size([44, 16])
    """

    name = "performer"
    crosses = True
    frequencies: Tensor

    def __init__(self, heads: int, head: int, *, features: int | None = None, seed: int = 0) -> None:
        super().__init__(heads, head)
        count = max(head, round(head * log(head))) if features is None else features
        self.features, self.seed = check_size("PerformerCore", "features", count), seed
        drawn = draw_frequencies(count, head, generator(seed))
        self.register_buffer("frequencies", drawn.to(torch.get_default_dtype()))

    def options(self) -> dict[str, Any]:
        """Features and seed."""
        return {"features": self.features, "seed": self.seed}

    def attend(self, call: Call) -> Attended:
        """Attention by random features in every head."""
        n, sides = call.query.shape[-2], (scaled(call.rows, call.scale), call.key)
        real, causal, drawn = call.real, call.causal, self.frequencies
        mixed = performer_attention(*sides, call.value, drawn, mask=real, causal=causal)
        pattern = None
        if call.keep == "patterns":
            pattern = last_rows(performer_pattern(*sides, drawn, mask=real, causal=causal), n)
        return Attended(mixed[..., -n:, :], pattern=pattern)


class NystromCore(AbstractCore):
    """Softmax attention through landmarks, means of segments; time and memory grow as n. Never causal.

    Shapes: as `AbstractCore`.

    Args:
        heads: heads h.
        head: features of a head, d.
        landmarks: the most landmarks that a sequence may have.

    Raises:
        BadInput: a size is not a positive whole number.

    Example:
        >>> x = torch.zeros(1, 2, 9, 4)
        >>> NystromCore(2, 4, landmarks=3)(x, x, x).shape
        torch.Size([1, 2, 9, 4])
    """

    name = "nystrom"

    def __init__(self, heads: int, head: int, *, landmarks: int = 64) -> None:
        super().__init__(heads, head)
        self.landmarks = check_size("NystromCore", "landmarks", landmarks)

    def options(self) -> dict[str, Any]:
        """Landmarks."""
        return {"landmarks": self.landmarks}

    def attend(self, call: Call) -> Attended:
        """Attention through landmarks in every head."""
        if call.causal:
            raise BadInput("NystromCore: landmarks are means over the whole sequence, so it cannot be causal")
        sides, real = (scaled(call.query, call.scale), call.key), call.real
        mixed = nystrom_attention(*sides, call.value, landmarks=self.landmarks, mask=real)
        pattern = None
        if call.keep == "patterns":
            pattern = Dense(nystrom_pattern(*sides, landmarks=self.landmarks, mask=real))
        return Attended(mixed, pattern=pattern)


def scaled(query: Tensor, scale: float | None) -> Tensor:
    """Queries whose inner products over sqrt(d) are scaled by `scale`."""
    return query if scale is None else query * (scale * query.shape[-1] ** 0.5)
