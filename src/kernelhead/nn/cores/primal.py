"""Primal attention after the projections: two score matrices and no n-by-n matrix."""

from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.decomposition.linalg import orthonormal_columns
from kernelhead.errors import BadInput, unknown
from kernelhead.kernels import AbstractKernel, named_kernel
from kernelhead.nn.base import Attended, Moments
from kernelhead.nn.cores.base import AbstractCore, Call, last, with_past
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.primal import HeadLinear
from kernelhead.ops.factored import factored_attention, factored_pattern
from kernelhead.ops.primal import (
    gather_landmarks,
    prefix_growth,
    prefix_scores,
    prefix_weights,
    primal_attention,
    primal_attention_moments,
    primal_scores,
    primal_weights,
    running_means,
)
from kernelhead.pattern import Dense, Factored
from kernelhead.shapes import check_size, zeroed

MIXES = ("join", "pattern")


class PrimalCore(AbstractCore):
    r"""The kernel SVD of an attention in the primal: two scores a point, and no n-by-m matrix.

    Left scores are $e_i = W_e^\top \phi(q_i)$ and right scores $r_j = W_r^\top \psi(k_j)$, with
    $\Lambda$ the squares of `root`. How they become an output is the `mix`:

    - "join", as `PrimalAttention` with a join per head: $o_i = C\,[e_i; r_i] + c$. With `landmarks` the
      weights depend on the data, $F^\top W$ with F that many evenly spaced rows of the values (the
      published layer takes rows of its input, which a core does not get); if causal, the values up to
      each point. Without landmarks points do not mix unless causal, by running means, which needs
      the queries of all points and so no cache.
    - "pattern": the learned pattern is applied to the values,
      $o_i = \frac{1}{m_i} \sum_j (e_i^\top \Lambda\, r_j)\, v_j$ over the $m_i$ keys that a point sees;
      scores have offsets, $e_i = W_e^\top \phi(q_i) + b_e$. It takes no landmarks.

    Time and memory grow as n + m. `scale` has no meaning for a map to unit rows and is not read.

    Shapes: as `AbstractCore`. Weights `left` and `right` are (h, l, s) for l landmarks, else (h, p, s) for
    p features; `root` (h, s); `join` weight (h, d, 2s) and bias (h, d); offsets (h, s).

    Args:
        heads: heads h.
        head: features of a head, d.
        rank: components s.
        landmarks: rows of the values that the weights are spread over; None for weights of their own.
        mix: "join" or "pattern"; if None "join" with landmarks, else "pattern".
        feature_map: name of a kernel.
        seed: of the frequencies that a random feature map draws.

    Raises:
        BadInput: a size is not a positive whole number, or there are landmarks and the mix is "pattern".
        UnknownName: no such mix or feature map.

    Example:
        >>> x = torch.randn(1, 2, 5, 4)
        >>> PrimalCore(2, 4, rank=3, landmarks=2)(x, x, x).shape
        torch.Size([1, 2, 5, 4])
        >>> PrimalCore(2, 4, rank=3).mix
        'pattern'
    """

    name = "primal"

    def __init__(
        self,
        heads: int,
        head: int,
        *,
        rank: int,
        landmarks: int | None = None,
        mix: str | None = None,
        feature_map: str = "cosine",
        seed: int = 0,
    ) -> None:
        super().__init__(heads, head)
        self.rank, self.landmarks = check_size("PrimalCore", "rank", rank), landmarks
        if landmarks is not None:
            check_size("PrimalCore", "landmarks", landmarks)
        self.mix = mix or ("pattern" if landmarks is None else "join")
        if self.mix not in MIXES:
            raise unknown("PrimalCore", "mix", mix, MIXES)
        if self.mix == "pattern" and landmarks is not None:
            raise BadInput(f'PrimalCore: the mix "pattern" takes no landmarks, got {landmarks}')
        self.feature_map, self.seed = feature_map, seed
        self._kernel = named_kernel(feature_map, width=head, seed=seed)
        for name, tensor in self._kernel.tensors().items():
            self.register_buffer(f"map_{name}", tensor.clone())
        rows = landmarks or self._kernel.feature_width(head)
        self.left = nn.Parameter(orthonormal_columns(heads, rows, rank))
        self.right = nn.Parameter(orthonormal_columns(heads, rows, rank))
        if self.mix == "join":
            self.root = nn.Parameter(torch.rand(heads, rank))
            self.join = HeadLinear(heads, 2 * rank, head)
        else:
            # These offsets alone give every key the same weight, and weights that sum to one.
            self.root = nn.Parameter(torch.ones(heads, rank))
            self.left_offset = nn.Parameter(torch.full((heads, rank), rank**-0.5))
            self.right_offset = nn.Parameter(torch.full((heads, rank), rank**-0.5))
        blind = self.mix == "join" and landmarks is None
        self.unused = frozenset({"value"} if blind else ())

    def options(self) -> dict[str, Any]:
        """Rank, landmarks, mix, feature map and seed."""
        return {
            "rank": self.rank,
            "landmarks": self.landmarks,
            "mix": self.mix,
            "feature_map": self.feature_map,
            "seed": self.seed,
        }

    @property
    def kernel(self) -> AbstractKernel:
        """The kernel whose features the scores are taken of."""
        held = self._kernel.tensors()
        return self._kernel.with_tensors({name: getattr(self, f"map_{name}") for name in held})

    def attend(self, call: Call) -> Attended:
        """Scores in every head, and their mix."""
        if self.mix == "pattern":
            return self._attend_pattern(call)
        if call.causal and self.landmarks is not None:
            return self._attend_prefix(call)
        return self._attend_joined(call)

    def scores(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Scores of both sides for weights in place of the core's own, before any offset.

        With the identity for weights they are what scores are linear in.

        Shapes: as the core's; left and right (h, l, s) or (h, p, s); returns (b, h, n, s), (b, h, m, s).

        Raises:
            BadInput: running means are to be taken of fewer queries than keys.

        Example:
            >>> core, x = PrimalCore(2, 4, rank=3, landmarks=5), torch.randn(1, 2, 7, 4)
            >>> core.scores(x, x, x, *torch.eye(5).expand(2, 2, 5, 5))[0].shape
            torch.Size([1, 2, 7, 5])
        """
        real, kernel = None if mask is None else mask[:, None], self.kernel
        if causal and self.landmarks is not None:
            rows, n = with_past(query, key), query.shape[-2]
            first, second = prefix_scores(rows, key, value, left, right, kernel=kernel, mask=real)
            return first[..., -n:, :], second
        if causal and self.mix == "join":
            query, key = self._running(query, key, real)
        left, right = self._weights(value, left, right, mask)
        first, second = primal_scores(query, key, left, right, kernel=kernel)
        return zeroed(first, last(real, first)), zeroed(second, real)

    def _running(self, query: Tensor, key: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        n, m = query.shape[-2], key.shape[-2]
        if n != m:
            raise BadInput(
                f"PrimalCore: without landmarks a causal join takes running means of all queries, but there "
                f'are {n} queries and {m} keys; landmarks or the mix "pattern" need the new ones only'
            )
        return running_means(query, mask=real), running_means(key, mask=real)

    def _attend_joined(self, call: Call) -> Attended:
        query, key, kernel, real = call.query, call.key, self.kernel, call.real
        if call.causal:
            query, key = self._running(query, key, real)
        left, right = self._weights(call.value, self.left, self.right, call.mask)
        inputs = query, key, left, right, self.join.weight, self.join.bias.unsqueeze(-2)
        if call.keep == "off":
            return Attended(primal_attention(*inputs, kernel=kernel, mask=real))
        output, *sides = primal_attention_moments(*inputs, kernel=kernel, mask=real)
        moments = self._moments(sides[0], sides[1], (left * right).sum((-2, -1)))
        if call.keep != "patterns":
            return Attended(output, moments)
        scores = primal_scores(query, key, left, right, kernel=kernel, mask=real)
        features, other = kernel.left_features(query), kernel.right_features(key)
        if self.landmarks is not None:
            rows = gather_landmarks(merge_heads(call.value), self.landmarks, mask=call.mask)
            rows = kernel.landmark_features(split_heads(rows, self.heads))
            features = features @ (rows.mT @ rows)
        implied = Factored(zeroed(features, real), features.new_ones(features.shape[-1]), zeroed(other, real))
        return Attended(output, moments, self._learned(*scores, call.mask), implied)

    def _attend_prefix(self, call: Call) -> Attended:
        query, key, value, n, real = call.query, call.key, call.value, call.query.shape[-2], call.real
        left, right = self.scores(query, key, value, self.left, self.right, mask=call.mask, causal=True)
        output = self.join(torch.cat([left, right[..., -n:, :]], dim=-1)).to(value.dtype)
        if call.keep == "off":
            return Attended(output)
        ends = prefix_weights(value, self.left, self.right, kernel=self.kernel, mask=real)
        sides = _mean_square(left, last(real, left)), _mean_square(right, real)
        moments = self._moments(*sides, (ends[0] * ends[1]).sum((-2, -1)))
        if call.keep != "patterns":
            return Attended(output, moments)
        seen = _real(key, call.mask).cumsum(-1)[:, None, -n:, None]
        features, rows = self.kernel.left_features(query), self.kernel.landmark_features(value)
        entries = (features @ rows.mT).tril(key.shape[-2] - n) * prefix_growth(seen, self.left.shape[-2])
        entries = zeroed(zeroed(entries.mT, real).mT, last(real, query)).to(left.dtype)
        return Attended(output, moments, self._learned(left, right, call.mask), Dense(entries))

    def _attend_pattern(self, call: Call) -> Attended:
        real, causal = call.real, call.causal
        left, right = self.scores(call.query, call.key, call.value, self.left, self.right)
        left = zeroed(left + self.left_offset.unsqueeze(-2).to(left.dtype), last(real, left))
        right = zeroed(right + self.right_offset.unsqueeze(-2).to(right.dtype), real)
        factors = left, self.root.square(), right
        output = factored_attention(*factors, call.value, mask=real, causal=causal)
        if call.keep == "off":
            return Attended(output)
        sides = _mean_square(left, last(real, left)), _mean_square(right, real)
        moments = self._moments(*sides, self._trace())
        pattern = factored_pattern(*factors, mask=real, causal=causal) if call.keep == "patterns" else None
        return Attended(output, moments, pattern)

    def _weights(
        self, value: Tensor, left: Tensor, right: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Weights on the features, (h, p, s), or (b, h, p, s) where they depend on the data."""
        if self.landmarks is None:
            return left, right
        return primal_weights(merge_heads(value), left, right, kernel=self.kernel, mask=mask)

    def _learned(self, left: Tensor, right: Tensor, mask: Tensor | None) -> Factored:
        """The learned rank-s form of the kernel: scores, weighted by the values over the count of points."""
        count = _real(right, mask).sum(-1).clamp_min(1)[:, None, None]
        return Factored(left, self.root.square() / count, right)

    def _trace(self) -> Tensor:
        """Of the weights, (h,), in which offsets are the weights of a feature that is always 1."""
        trace = (self.left * self.right).sum((-2, -1))
        if self.mix == "pattern":
            trace = trace + (self.left_offset * self.right_offset).sum(-1)
        return trace

    def _moments(self, left: Tensor, right: Tensor, projected: Tensor) -> Moments:
        return Moments(left, right, self.root.square(), self._trace(), projected.expand(left.shape[:-1]))


def _real(points: Tensor, mask: Tensor | None) -> Tensor:
    """Which points are real, (b, m)."""
    return points.new_ones(points.shape[0], points.shape[-2], dtype=torch.bool) if mask is None else mask


def _mean_square(scores: Tensor, real: Tensor | None) -> Tensor:
    """Means over real points of squared scores that are zero elsewhere, (b, h, s), in float32 or better."""
    count = scores.shape[-2] if real is None else real.sum(-1, keepdim=True).clamp_min(1)
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).square().sum(-2) / count
