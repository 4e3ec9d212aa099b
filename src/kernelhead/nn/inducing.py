"""Attention through a few learned points: every point sees a summary of all others, at linear cost."""

import torch
from torch import Tensor, nn

from kernelhead.decomposition.linalg import orthonormal_columns
from kernelhead.kernels import Cosine
from kernelhead.nn.base import AbstractKernelAttention, Attended, Moments, check_heads
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.normed import SideNorm
from kernelhead.nn.softmax import without_padding
from kernelhead.ops.primal import landmark_weights, primal_attention, primal_attention_moments, primal_scores
from kernelhead.ops.softmax import check_dropout, softmax_attention, softmax_pattern
from kernelhead.pattern import Factored
from kernelhead.shapes import check_size


class InducingAttention(AbstractKernelAttention):
    r"""Two softmax attentions through m learned points: these read all points, and all points read these.

    $S = \mathrm{softmax}(P K^\top / \sqrt d)\,V$ is a summary of all points in m rows, and the output is
    $\mathrm{softmax}(Q K_S^\top / \sqrt d)\,V_S$ with keys and values of the normed summary, whose rows are
    means and else much alike. Time grows as n m, and moving points moves outputs. With a context the summary
    is one of the context. A recorded pattern is the product of the two, head by head.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, k, c); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        inducing: learned points m.
        norm: of "all" sides, of the "query" only, or "none".
        dropout: probability with which an entry of either pattern is dropped in training.
        epsilon: of both norms.

    Raises:
        BadInput: the heads do not divide the width, a size is not positive, or `dropout` is not in [0, 1).
        UnknownName: no such norm.

    Example:
        >>> InducingAttention(8, heads=2, inducing=3)(torch.zeros(1, 5, 8)).shape
        torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        inducing: int,
        norm: str = "none",
        dropout: float = 0.0,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        head = check_heads("InducingAttention", width, heads)
        check_size("InducingAttention", "inducing", inducing)
        check_dropout("InducingAttention", dropout)
        self.width, self.heads, self.inducing, self.dropout = width, heads, inducing, dropout
        self.norm = SideNorm(width, norm, epsilon=epsilon)
        self.points = nn.Parameter(torch.randn(heads, inducing, head))
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.summary_norm = nn.LayerNorm(width, eps=epsilon)
        self.summary_key, self.summary_value = nn.Linear(width, width), nn.Linear(width, width)

    def extra_repr(self) -> str:
        """The options that parameters do not show."""
        return f"heads={self.heads}, inducing={self.inducing}, norm={self.norm.sides}"

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Summarise, then read the summary."""
        queries, source = self.norm(x)
        real = mask
        if context is not None:
            source, real = self.norm.source(context), context_mask
        real = None if real is None else real[:, None]
        dropout = self.dropout if self.training else 0.0
        query, key, value = (
            split_heads(projection(points), self.heads)
            for projection, points in ((self.query, queries), (self.key, source), (self.value, source))
        )
        # The precision of the projections, which autocast may have lowered.
        points = self.points.to(key.dtype).expand(x.shape[0], -1, -1, -1)
        pooled = softmax_attention(points, key, value, mask=real, dropout=dropout)
        summary = self.summary_norm(merge_heads(pooled))
        other = split_heads(self.summary_key(summary), self.heads)
        read = split_heads(self.summary_value(summary), self.heads)
        output = self.out(merge_heads(softmax_attention(query, other, read, dropout=dropout)))
        if keep != "patterns":
            return Attended(output)
        left, right = softmax_pattern(query, other), softmax_pattern(points, key, mask=real).mT
        pattern = Factored(left, left.new_ones(self.inducing), right)
        return Attended(output, pattern=without_padding(pattern, mask))


class PooledPrimalAttention(AbstractKernelAttention):
    r"""Primal attention whose landmarks are means over all points, weighted by l learned points.

    As `PrimalAttention`, $o_i = C [W_{e|X}^\top \phi(q_i); W_{r|X}^\top \phi(k_i)]$ with
    $W_{e|X} = F^\top W_e$ and cosine features; here $F = \mathrm{softmax}(P K_P^\top / \sqrt d)\,X$ and not l
    points at fixed places, so that moving points moves outputs, and what a landmark stands for is learned.
    Time and memory grow as n. With a context F is of the context; queries and keys stay those of x.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c); returns (b, n, c).

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        rank: singular components s kept in each head.
        landmarks: learned points l.
        norm: of "all" sides, of the "query" only, or "none".
        epsilon: of the norm.

    Raises:
        BadInput: a size is not a positive whole number, or the heads do not divide the width.
        UnknownName: no such norm.

    Example:
        >>> PooledPrimalAttention(8, heads=2, rank=3, landmarks=5)(torch.zeros(1, 6, 8)).shape
        torch.Size([1, 6, 8])
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        rank: int,
        landmarks: int,
        norm: str = "none",
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        who = "PooledPrimalAttention"
        head = check_heads(who, width, heads)
        check_size(who, "rank", rank)
        check_size(who, "landmarks", landmarks)
        self.width, self.heads, self.rank, self.landmarks = width, heads, rank, landmarks
        self.kernel = Cosine()
        self.norm = SideNorm(width, norm, epsilon=epsilon)
        self.points = nn.Parameter(torch.randn(heads, landmarks, head))
        self.pool, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.left = nn.Parameter(orthonormal_columns(heads, landmarks, rank))
        self.right = nn.Parameter(orthonormal_columns(heads, landmarks, rank))
        self.root = nn.Parameter(torch.rand(heads, rank))
        self.join = nn.Linear(2 * rank, head)

    def extra_repr(self) -> str:
        """The options that parameters do not show."""
        shape = f"heads={self.heads}, rank={self.rank}, landmarks={self.landmarks}"
        return f"{shape}, norm={self.norm.sides}"

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Pool landmarks, then what a primal layer does."""
        queries, source = self.norm(x)
        query, key = (
            split_heads(projection(points), self.heads)
            for projection, points in ((self.query, queries), (self.key, source))
        )
        real = None if mask is None else mask[:, None]
        others, other = source, real
        if context is not None:
            others = self.norm.source(context)
            other = None if context_mask is None else context_mask[:, None]
        left, right = self._weights(others, other)
        inputs = query, key, left, right, self.join.weight, self.join.bias
        if keep == "off":
            joined = primal_attention(*inputs, kernel=self.kernel, mask=real)
            return Attended(self.out(merge_heads(joined)))
        joined, *sides = primal_attention_moments(*inputs, kernel=self.kernel, mask=real)
        trace, projected = (self.left * self.right).sum((-2, -1)), (left * right).sum((-2, -1))
        moments = Moments(sides[0], sides[1], self.root.square(), trace, projected)
        output = self.out(merge_heads(joined))
        if keep != "patterns":
            return Attended(output, moments)
        seen = key if context is None else split_heads(self.key(others), self.heads)
        left_scores = primal_scores(query, query, left, left, kernel=self.kernel, mask=real)[0]
        right_scores = primal_scores(seen, seen, right, right, kernel=self.kernel, mask=other)[1]
        count = others.shape[1] if other is None else other.sum(-1).clamp_min(1)[..., None].to(left.dtype)
        return Attended(output, moments, Factored(left_scores, self.root.square() / count, right_scores))

    def _weights(self, points: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights of both sides, (b, h, d, s), from landmarks that are means of points (b, m, c)."""
        place, rows = split_heads(self.pool(points), self.heads), split_heads(points, self.heads)
        learned = self.points.to(place.dtype).expand(points.shape[0], -1, -1, -1)
        pooled = softmax_attention(learned, place, rows.to(place.dtype), mask=real)
        return landmark_weights(self.kernel.landmark_features(pooled), self.left, self.right)
