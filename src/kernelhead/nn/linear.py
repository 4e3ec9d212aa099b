"""The linear rivals as modules: elu features, positive random features, landmarks."""

from math import log

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.kernels.features import draw_frequencies
from kernelhead.nn.base import AbstractKernelAttention, Attended, check_heads
from kernelhead.nn.heads import merge_heads
from kernelhead.nn.maps import mapped
from kernelhead.nn.softmax import project, refuse_causal_context, without_padding
from kernelhead.ops.linear import (
    LinearState,
    linear_attention,
    linear_pattern,
    linear_step,
    nystrom_attention,
    nystrom_pattern,
    performer_attention,
    performer_pattern,
)
from kernelhead.pattern import Dense
from kernelhead.rng import generator
from kernelhead.shapes import check_size


class LinearAttention(AbstractKernelAttention):
    """Linear attention with the feature map elu + 1, from `x` to itself or to a context.

    Time and memory grow as n + m.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        causal: whether a point sees itself and those before it only; rules out a context.

    Raises:
        BadInput: the heads do not divide the width.

    Example:
        >>> LinearAttention(8, heads=2, causal=True)(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, width: int, *, heads: int, causal: bool = False) -> None:
        super().__init__()
        check_heads("LinearAttention", width, heads)
        self.width, self.heads, self.causal = width, heads, causal
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Linear attention in every head."""
        refuse_causal_context(self, self.causal, context)
        query, key, value, real = project(self, x, mask, context, context_mask)
        mixed = linear_attention(query, key, value, mask=real, causal=self.causal)
        pattern = None
        if keep == "patterns":
            pattern = without_padding(linear_pattern(query, key, mask=real, causal=self.causal), mask)
        return Attended(mapped(merge_heads(mixed), self.out)[0], pattern=pattern)

    def start(self, batch: int) -> LinearState:
        """The state of a causal layer before the first point of `batch` sequences.

        Raises:
            BadInput: the layer is not causal.
        """
        self._check_causal()
        head, weight = self.width // self.heads, self.key.weight
        kind = torch.promote_types(weight.dtype, torch.float32)
        total = weight.new_zeros(batch, self.heads, head, dtype=kind)
        return LinearState(total.unsqueeze(-1).expand(-1, -1, -1, head), total)

    def step(self, x: Tensor, state: LinearState) -> tuple[Tensor, LinearState]:
        """One more point for each sequence, at a cost that does not grow; equals the parallel form.

        Shapes: x (b, c); returns (b, c) and the new state.

        Raises:
            BadInput: the layer is not causal, or `x` does not fit it or the state.

        Example:
            >>> layer = LinearAttention(8, heads=2, causal=True)
            >>> layer.step(torch.zeros(3, 8), layer.start(3))[0].shape
            torch.Size([3, 8])
        """
        self._check_step(x, state.total.shape[0])
        query, key, value, _ = project(self, x[:, None], None, None, None)
        mixed, state = linear_step(state, query[:, :, 0], key[:, :, 0], value[:, :, 0])  # (b, h, d)
        return self.out(mixed.flatten(-2)), state


class PerformerAttention(AbstractKernelAttention):
    """Softmax attention estimated by positive random features, from `x` to itself or to a context.

    Time and memory grow as n + m. The frequencies are drawn once, in orthogonal blocks, are shared by
    the heads and saved with the weights.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        features: random features p of a head; if None, d log d rounded, and d at least.
        causal: whether a point sees itself and those before it only; rules out a context.
        seed: of the frequencies; the global generator is left alone.

    Raises:
        BadInput: the heads do not divide the width, or `features` is not a positive whole number.

    Example:
        >>> PerformerAttention(32, heads=2).frequencies.shape
        torch.Size([44, 16])
    """

    frequencies: Tensor

    def __init__(
        self, width: int, *, heads: int, features: int | None = None, causal: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        head = check_heads("PerformerAttention", width, heads)
        count = max(head, round(head * log(head))) if features is None else features
        check_size("PerformerAttention", "features", count)
        self.width, self.heads, self.causal = width, heads, causal
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        drawn = draw_frequencies(count, head, generator(seed))
        self.register_buffer("frequencies", drawn.to(self.out.weight))  # (p, d)

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Attention by random features in every head."""
        refuse_causal_context(self, self.causal, context)
        query, key, value, real = project(self, x, mask, context, context_mask)
        mixed = performer_attention(query, key, value, self.frequencies, mask=real, causal=self.causal)
        pattern = None
        if keep == "patterns":
            applied = performer_pattern(query, key, self.frequencies, mask=real, causal=self.causal)
            pattern = without_padding(applied, mask)
        return Attended(mapped(merge_heads(mixed), self.out)[0], pattern=pattern)


class NystromAttention(AbstractKernelAttention):
    """Softmax attention through landmarks, the means of segments of the real points.

    Time and memory grow as n times landmarks; rows of at most as many points get exact softmax
    attention. The order of points matters.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        landmarks: the most landmarks that a sample may have.

    Raises:
        BadInput: the heads do not divide the width, or `landmarks` is not a positive whole number.

    Example:
        >>> import torch
        >>> NystromAttention(8, heads=2, landmarks=4)(torch.zeros(1, 9, 8)).shape
        torch.Size([1, 9, 8])
    """

    def __init__(self, width: int, *, heads: int, landmarks: int = 64) -> None:
        super().__init__()
        check_heads("NystromAttention", width, heads)
        self.width, self.heads = width, heads
        self.landmarks = check_size("NystromAttention", "landmarks", landmarks)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Attention through landmarks in every head."""
        if context is not None:
            raise BadInput(
                f"NystromAttention: pairs the landmarks of one sequence, and so takes no `context`, "
                f"got {tuple(context.shape)}"
            )
        query, key, value, real = project(self, x, mask, None, None)
        mixed = nystrom_attention(query, key, value, landmarks=self.landmarks, mask=real)
        pattern = None
        if keep == "patterns":
            entries = nystrom_pattern(query, key, landmarks=self.landmarks, mask=real)
            pattern = without_padding(Dense(entries), mask)
        return Attended(mapped(merge_heads(mixed), self.out)[0], pattern=pattern)
