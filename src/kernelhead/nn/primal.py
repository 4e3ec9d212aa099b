"""Attention in the primal: two score matrices and no n-by-n matrix."""

from dataclasses import dataclass
from math import pi, sqrt

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kernelhead.decomposition.linalg import orthonormal_columns, unit_frobenius
from kernelhead.errors import BadInput, unknown
from kernelhead.kernels import AbstractKernel, named_kernel
from kernelhead.nn.base import AbstractKernelAttention, Attended, Moments, check_heads
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.hooks import is_hooked, is_plain
from kernelhead.nn.maps import mapped
from kernelhead.ops.backends import step_backend
from kernelhead.ops.maps import linear_maps
from kernelhead.ops.primal import (
    folded_maps,
    gather_landmarks,
    prefix_growth,
    prefix_scores,
    prefix_weights,
    primal_attention,
    primal_attention_moments,
    primal_pairs,
    primal_scores,
    primal_weights,
    running_means,
    score_moments,
)
from kernelhead.pattern import Dense, Factored
from kernelhead.shapes import check_size, zeroed

INITS = {"orthonormal": orthonormal_columns, "published": unit_frobenius}
JOINS = ("shared", "per_head")
PART = 512
FOLDED = 1024  # points from which a folded map is worth making


@dataclass(frozen=True, eq=False)
class PrimalState:
    """What a causal layer carries from one point to the next; its size does not grow.

    Attributes:
        left: sums of queries (b, h, d), or weights of the left side (b, h, p, s) before scaling.
        right: the same for keys and the right side.
        seen: real points so far, (b,).
    """

    left: Tensor
    right: Tensor
    seen: Tensor


class PrimalAttention(AbstractKernelAttention):
    r"""Self-attention as the SVD of an asymmetric kernel, taken in the primal.

    In each head point $i$ becomes $C [W_e^\top \phi(q_i); W_r^\top \psi(k_i)]$, its left and
    right score joined; time and memory grow as n. In the paper `left` is W_e, `rank` is s,
    and `root` squared is Lambda; the released code stores `root` under the name Lambda.

    - With `landmarks` the weights depend on the data: $W_{e|X} = F^\top W_e$ with F that many evenly
      spaced real points of the layer's input. Any length works; fewer points than landmarks repeat.
    - Without, they are free and, unless causal, a point sees nothing but itself.
    - Causal without landmarks: queries and keys are replaced by their running means.
    - Causal with landmarks: the weights of a point are built from the points before it and itself,
      the u-th of them, from 0, in slot u mod `landmarks`.
    - Cross, with `context`: queries come from `x`, landmarks and keys from the context. Kept are the
      left scores and their half of `join`; the right scores belong to the points of the context,
      so they enter the moments and the pattern but not the output. Needs landmarks; never causal.

    Padding has no influence: landmarks, means and moments count real points only.

    Shapes: x (b, n, c), one point a row; mask (b, n), True where real; context (b, m, c); returns
    (b, n, c), zero at padded points.

    Args:
        width: features of a point, c.
        heads: heads h; must divide `width`.
        rank: singular components s kept in each head; above the head width they depend on each other.
        landmarks: points that the weights are spread over, or None for data-independent weights.
        causal: whether a point sees only itself and the points before it.
        feature_map: name of a kernel, or a kernel.
        join: one output map "shared" by all heads as published, or one "per_head".
        init: "orthonormal" columns in each head, or "published", unit Frobenius norm.
        modes: cosines over the slots of landmarks that the weights are made of, the slowest first, so that
            slots that lie close to each other weigh alike; None for weights of each slot's own. A free slot
            can learn single training sequences by heart.
        seed: of the frequencies that a random feature map draws.

    Raises:
        BadInput: a size is not a positive whole number, or the heads do not divide the width.
        UnknownName: no such feature map, join or init.

    Example:
        >>> layer = PrimalAttention(16, heads=2, rank=3, landmarks=5)
        >>> layer(torch.zeros(4, 9, 16)).shape
        torch.Size([4, 9, 16])
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        rank: int,
        landmarks: int | None = None,
        causal: bool = False,
        feature_map: str | AbstractKernel = "cosine",
        join: str = "shared",
        init: str = "orthonormal",
        modes: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        head = check_heads("PrimalAttention", width, heads)
        check_size("PrimalAttention", "rank", rank)
        if landmarks is not None:
            check_size("PrimalAttention", "landmarks", landmarks)
        if modes is not None and check_size("PrimalAttention", "modes", modes) > (landmarks or 0):
            raise BadInput(
                f"PrimalAttention: {modes} modes of {landmarks} landmarks, expected at most as many"
            )
        if join not in JOINS:
            raise unknown("PrimalAttention", "join", join, JOINS)
        if init not in INITS:
            raise unknown("PrimalAttention", "init", init, INITS)
        self.width, self.heads, self.rank, self.landmarks, self.causal = width, heads, rank, landmarks, causal
        self._kernel = named_kernel(feature_map, width=head, seed=seed)
        for name, tensor in self._kernel.tensors().items():
            self.register_buffer(f"map_{name}", tensor.clone())
        rows = self._kernel.feature_width(head) if landmarks is None else landmarks
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.left = nn.Parameter(INITS[init](heads, modes or rows, rank))
        self.right = nn.Parameter(INITS[init](heads, modes or rows, rank))
        if modes is not None:
            for side in ("left", "right"):
                parametrize.register_parametrization(self, side, Waves(rows, modes), unsafe=True)
        self.root = nn.Parameter(torch.rand(heads, rank))
        self.join = nn.Linear(2 * rank, head) if join == "shared" else HeadLinear(heads, 2 * rank, head)
        self.out = nn.Linear(width, width)

    @property
    def kernel(self) -> AbstractKernel:
        """The kernel whose features the scores are taken of."""
        held = self._kernel.tensors()
        return self._kernel.with_tensors({name: getattr(self, f"map_{name}") for name in held})

    def extra_repr(self) -> str:
        """The options that parameters do not show."""
        kind = type(self._kernel).__name__.lower()
        shape = f"heads={self.heads}, rank={self.rank}, landmarks={self.landmarks}"
        return f"{shape}, causal={self.causal}, feature_map={kind}"

    def attend(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
        keep: str,
    ) -> Attended:
        """Attend to checked inputs; see the class."""
        if context is not None:
            return self._attend_across(x, context, mask, context_mask, keep)
        if torch.is_autocast_enabled(x.device.type):
            # What the projections would cast for themselves serves the landmarks too.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if keep == "off" and not self.causal:
            return Attended(self._attend_locally(x, mask))
        both = self._projected(x)  # (b, n, 2, h, d)
        real = None if mask is None else mask[:, None]  # (b, 1, n)
        query, key = (side.transpose(1, 2) for side in both.unbind(2))  # (b, h, n, d)
        if self.causal and self.landmarks is not None:
            return self._attend_prefix(x, query, key, real, keep)
        left, right = self._weights(x, mask)
        kernel, moments = self.kernel, None
        inputs = both, None, left, right, self.join.weight, self._bias()
        if keep == "off":
            joined = primal_attention(*inputs, kernel=kernel, mask=real, causal=self.causal)
        else:
            joined, *sides = primal_attention_moments(*inputs, kernel=kernel, mask=real, causal=self.causal)
            moments = self._moments(sides[0], sides[1], (left * right).sum((-2, -1)))
        (output,) = mapped(merge_heads(joined), self.out)
        if keep != "patterns":
            return Attended(output, moments)
        if self.causal:
            query, key = running_means(query, mask=real), running_means(key, mask=real)
        scores = primal_scores(query, key, left, right, kernel=kernel, mask=real)
        pattern = Factored(scores[0], self.root.square() / _count(x, mask), scores[1])
        return Attended(output, moments, pattern, self._implied(query, key, x, real, real, mask))

    def _attend_locally(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Once the weights are known each output needs its own point only."""
        left, right = self._weights(x, mask)
        fold = self._folded(x)

        def made(part: slice) -> Tensor:
            real = None if mask is None else mask[:, None, part]
            both = self._projected(x[:, part])
            if fold is not None:
                pairs = primal_pairs(both, None, left, right, kernel=self.kernel, mask=real)
                return nn.functional.linear(merge_heads(pairs), *fold)
            join = self.join.weight, self._bias()
            joined = primal_attention(both, None, left, right, *join, kernel=self.kernel, mask=real)
            return mapped(merge_heads(joined), self.out)[0]

        whole = x.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling()
        if whole or not is_plain(self.query, self.key, self.out):
            return made(slice(None))
        # Nothing is kept for a backward pass: a few points at a time stay in the processor's cache.
        starts = range(0, x.shape[1], PART)
        return torch.cat([made(slice(start, start + PART)) for start in starts], dim=1)

    def _folded(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """The out projection after the join as one map of all scores, where that is less to do.

        Shapes: x (b, n, c); returns (c, 2 h s) and (c,).
        """
        pairs, head = 2 * self.rank, self.width // self.heads
        # On a GPU reading and writing is what costs, and as many scores as features save none of it.
        fewer = pairs <= head if x.device.type == "cpu" else pairs < head
        enough = x.shape[0] * x.shape[1] >= FOLDED
        if torch.is_grad_enabled() or not (
            fewer and enough and is_plain(self.out) and not is_hooked(self.join)
        ):
            return None
        out = self.out.weight.unflatten(-1, (self.heads, head))  # (c, h, d)
        join, bias = self.join.weight.to(out.dtype), self.join.bias.to(out.dtype)
        weight = (out.transpose(0, 1) @ join).transpose(0, 1).flatten(1)
        return weight, self.out.bias + (out * bias).sum((1, 2))

    def _projected(self, x: Tensor) -> Tensor:
        """Queries and keys, (b, n, 2, h, d), by one product unless someone changed a projection."""
        if is_plain(self.query, self.key):
            weight = torch.cat([self.query.weight, self.key.weight])
            (both,) = linear_maps(x, [(weight, torch.cat([self.query.bias, self.key.bias]))])
        else:
            both = torch.cat([self.query(x), self.key(x)], dim=-1)
        return both.unflatten(-1, (2, self.heads, self.width // self.heads))

    def _attend_prefix(
        self, x: Tensor, query: Tensor, key: Tensor, real: Tensor | None, keep: str
    ) -> Attended:
        rows, kernel = split_heads(x, self.heads), self.kernel
        left, right = prefix_scores(query, key, rows, self.left, self.right, kernel=kernel, mask=real)
        joined = self.join(torch.cat([left, right], dim=-1))
        output = self.out(merge_heads(joined))
        if keep == "off":
            return Attended(output)
        mask = None if real is None else real[:, 0]
        count = _count(x, mask)
        sides = [scores.to(_wide(scores)).square().sum(-2) / count for scores in (left, right)]
        last = prefix_weights(rows, self.left, self.right, kernel=kernel, mask=real)
        moments = self._moments(sides[0], sides[1], (last[0] * last[1]).sum((-2, -1)))
        if keep != "patterns":
            return Attended(output, moments)
        seen = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
        growth = prefix_growth(seen.cumsum(-1), self.left.shape[-2])[:, None, :, None].to(x.dtype)
        features, landmarks = kernel.left_features(query), kernel.landmark_features(rows)
        entries = (features @ landmarks.mT).tril() * growth * seen[:, None, :, None] * seen[:, None, None, :]
        return Attended(output, moments, Factored(left, self.root.square() / count, right), Dense(entries))

    def _attend_across(
        self, x: Tensor, context: Tensor, mask: Tensor | None, context_mask: Tensor | None, keep: str
    ) -> Attended:
        if self.landmarks is None or self.causal:
            reason = "causal" if self.causal else "without landmarks, so that nothing would be read from it"
            raise BadInput(f"PrimalAttention: `context` was given to a layer that is {reason}")
        query = split_heads(self.query(x), self.heads)
        left, right = self._weights(context, context_mask)
        kernel, real = self.kernel, None if mask is None else mask[:, None]
        left_map, _ = folded_maps(left, right, self.join.weight)
        joined = kernel.left_features(query) @ left_map + self._bias().to(left.dtype)
        output = self.out(merge_heads(joined))
        if keep == "off":
            return Attended(output)
        key = split_heads(self.key(context), self.heads)
        other = None if context_mask is None else context_mask[:, None]
        sides = (
            score_moments(kernel.left_features(query), left, mask=real),
            score_moments(kernel.right_features(key), right, mask=other),
        )
        moments = self._moments(*sides, (left * right).sum((-2, -1)))
        if keep != "patterns":
            return Attended(output, moments)
        left_scores = primal_scores(query, query, left, left, kernel=kernel, mask=real)[0]
        right_scores = primal_scores(key, key, right, right, kernel=kernel, mask=other)[1]
        # Means over n and over m points: at the optimum the values are scaled by their harmonic mean.
        count = 2 / (1 / _count(x, mask) + 1 / _count(context, context_mask))
        pattern = Factored(left_scores, self.root.square() / count, right_scores)
        return Attended(
            output, moments, pattern, self._implied(query, key, context, real, other, context_mask)
        )

    def _weights(self, source: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights on the features, (h, p, s), or (b, h, p, s) where they depend on the data."""
        if self.landmarks is None:
            return self.left, self.right
        return primal_weights(source, self.left, self.right, kernel=self.kernel, mask=mask)

    def _implied(
        self,
        query: Tensor,
        key: Tensor,
        source: Tensor,
        real: Tensor | None,
        other: Tensor | None,
        mask: Tensor | None,
    ) -> Factored:
        """The kernel whose SVD the layer takes: features times F'F times features."""
        kernel = self.kernel
        left, right = kernel.left_features(query), kernel.right_features(key)
        if self.landmarks is not None:
            rows = split_heads(gather_landmarks(source, self.landmarks, mask=mask), self.heads)
            rows = kernel.landmark_features(rows)
            left = left @ (rows.mT @ rows)
        return Factored(zeroed(left, real), left.new_ones(left.shape[-1]), zeroed(right, other))

    def _moments(self, left: Tensor, right: Tensor, projected_trace: Tensor) -> Moments:
        trace = (self.left * self.right).sum((-2, -1))
        batch = projected_trace.expand(left.shape[:-1])
        return Moments(left, right, self.root.square(), trace, batch)

    def _bias(self) -> Tensor:
        """(d,), or (h, 1, d) where each head has its own."""
        bias: Tensor = self.join.bias
        return bias if bias.dim() == 1 else bias.unsqueeze(-2)

    def start(self, batch: int) -> PrimalState:
        """The state of a causal layer before the first point of `batch` sequences.

        Raises:
            BadInput: the layer is not causal.
        """
        self._check_causal()
        head = self.width // self.heads
        shape = (head,) if self.landmarks is None else (self._kernel.feature_width(head), self.rank)
        zeros = self.left.new_zeros((batch, self.heads, *shape), dtype=_wide(self.left))
        return PrimalState(zeros, zeros, torch.zeros(batch, dtype=torch.int64, device=zeros.device))

    def step(
        self, x: Tensor, state: PrimalState, *, mask: Tensor | None = None
    ) -> tuple[Tensor, PrimalState]:
        """One more point for each sequence, at a cost that does not grow; equals the parallel form.

        Shapes: x (b, c), mask (b,), True where the point is real; returns (b, c) and the new state.

        Raises:
            BadInput: the layer is not causal, or `x` does not fit it or the state.

        Example:
            >>> layer = PrimalAttention(8, heads=2, rank=2, causal=True)
            >>> out, state = layer.step(torch.zeros(3, 8), layer.start(3))
            >>> out.shape, state.seen
            (torch.Size([3, 8]), tensor([1, 1, 1]))
        """
        self._check_step(x, state.seen.shape[0], mask)
        x = zeroed(x, mask)
        # Two products: to lay the weights of both side by side costs more than one point does.
        query, key, row = (
            split_heads(each[:, None], self.heads) for each in (self.query(x), self.key(x), x)
        )  # (b, h, 1, d)
        fused = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        if fused and step_backend(query, state.left, self.left, self.kernel) == "triton":
            from kernelhead.ops.triton.step import primal_step

            points = query, key, None if self.landmarks is None else row
            states, weights = (state.left, state.right, state.seen), (self.left, self.right)
            joined, made = primal_step(points, states, weights, self.join.weight, self._bias(), mask)
            state = PrimalState(*made)
        else:
            joined, state = self._stepped(query, key, row, state, mask)
        return zeroed(self.out(merge_heads(joined))[:, 0], mask), state

    def _stepped(
        self, query: Tensor, key: Tensor, row: Tensor, state: PrimalState, mask: Tensor | None
    ) -> tuple[Tensor, PrimalState]:
        """The joined output of one more point, (b, h, 1, d), and the state after it."""
        real = torch.ones_like(state.seen, dtype=torch.bool) if mask is None else mask
        if self.landmarks is not None:
            state = self._with_row(state, row, real)
            growth = prefix_growth(state.seen, self.landmarks)[:, None, None, None].to(state.left.dtype)
            left, right = state.left * growth, state.right * growth
        else:
            state = self._with_means(state, query, key, real)
            count = state.seen.clamp_min(1)[:, None, None, None]
            query, key = ((side.unsqueeze(-2) / count).to(query.dtype) for side in (state.left, state.right))
            left, right = self.left, self.right
        joined = primal_attention(query, key, left, right, self.join.weight, self._bias(), kernel=self.kernel)
        return joined, state

    def _with_means(self, state: PrimalState, query: Tensor, key: Tensor, real: Tensor) -> PrimalState:
        """The state with one more query and key, (b, h, 1, d), where they are real."""
        left, right = (side[..., 0, :].masked_fill(~real[:, None, None], 0) for side in (query, key))
        return PrimalState(state.left + left, state.right + right, state.seen + real)

    def _with_row(self, state: PrimalState, row: Tensor, real: Tensor) -> PrimalState:
        """The state with one more landmark row, (b, h, 1, d), where it is real."""
        row = self.kernel.landmark_features(row).to(state.left.dtype)
        row = row.masked_fill(~real[:, None, None, None], 0)  # (b, h, 1, p)
        slot = state.seen % self.left.shape[-2]
        left, right = (weight[:, slot].transpose(0, 1).unsqueeze(-2) for weight in (self.left, self.right))
        return PrimalState(state.left + row.mT * left, state.right + row.mT * right, state.seen + real)


class Waves(nn.Module):
    """Weights of all slots from those of a few cosines over them, which are orthonormal.

    Shapes: (h, modes, s) to (h, slots, s).

    Example:
        >>> Waves(4, 1)(torch.ones(1, 1, 1)).flatten()
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    waves: Tensor

    def __init__(self, slots: int, modes: int) -> None:
        super().__init__()
        phase = (torch.arange(slots, dtype=torch.float64) + 0.5)[:, None] * torch.arange(modes) * (pi / slots)
        waves = phase.cos() * sqrt(2 / slots)
        waves[:, 0] = sqrt(1 / slots)
        self.register_buffer("waves", waves.to(torch.get_default_dtype()), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight of every slot."""
        return self.waves.to(weight.dtype) @ weight


class HeadLinear(nn.Module):
    """One linear map for each head; holds weight (h, o, i) and bias (h, o).

    Example:
        >>> HeadLinear(2, 6, 4).weight.shape
        torch.Size([2, 4, 6])
    """

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(heads, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(heads, outputs).uniform_(-bound, bound))

    def forward(self, scores: Tensor) -> Tensor:
        """(b, h, n, i) to (b, h, n, o)."""
        return scores @ self.weight.mT + self.bias.unsqueeze(-2)


def _count(points: Tensor, mask: Tensor | None) -> Tensor:
    """Real points of each sequence, (b, 1, 1), at least one."""
    if mask is None:
        return torch.full((points.shape[0], 1, 1), points.shape[1], dtype=_wide(points), device=points.device)
    return mask.sum(-1).clamp_min(1)[:, None, None].to(_wide(points))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
