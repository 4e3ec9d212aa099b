"""The Primal-Attention layer point by point: data-dependent or not, causal or not, self or cross."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.oracles.kernels import cosine_features, dot, exact, map_rows


@dataclass(frozen=True, eq=False)
class PrimalResult:
    """What the layer computes; scores are zero at padded points.

    Shapes: output (b, n, c); left_scores (b, h, n, s); right_scores (b, h, n, s), or (b, h, m, s)
    for cross-attention; left_moments, right_moments (b, h, s); trace (h,); projected_trace (b, h).
    """

    output: Tensor
    left_scores: Tensor
    right_scores: Tensor
    left_moments: Tensor
    right_moments: Tensor
    trace: Tensor
    projected_trace: Tensor


def primal_layer(
    x: Tensor,
    params: Mapping[str, Tensor],
    *,
    heads: int,
    landmarks: int | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
    phi: Callable[[Tensor], Tensor] = cosine_features,
    landmark_phi: Callable[[Tensor], Tensor] | None = None,
) -> PrimalResult:
    """e_i = W_{e|X}' phi(q_i), r_i = W_{r|X}' phi(k_i), o_i = C [e_i; r_i] + c; spec 1.2, 1.6-1.8, 1.11.

    Without `landmarks` the weights are W themselves; with `causal` points are then running means
    (spec 1.11). With `landmarks` the weights are F'W; with `causal` they grow point by point
    (`causal_landmark_weights`). With `context` the landmarks and the keys are the context's and the
    output is C_left e_i + c. A padded point neither counts nor is read, and its output is zero.

    Args:
        params: query_w, key_w, out_w (c, c) and query_b, key_b, out_b (c,); left, right (h, l, s) with
            landmarks, else (h, p, s); join_w (d, 2s) and join_b (d,), or one a head, (h, d, 2s) and
            (h, d). A bias that is left out is zero.
        phi: the feature map of one row, (d,) to (p,).
        landmark_phi: applied to the rows of F too; for maps that change the width.
    """
    params = {name: exact(value) for name, value in params.items()}
    mask = _all_real(x) if mask is None else mask
    x = _zeroed(exact(x), mask)
    source, source_mask = x, mask
    if context is not None:
        source_mask = _all_real(context) if context_mask is None else context_mask
        source = _zeroed(exact(context), source_mask)

    query = split(linear(x, params["query_w"], params.get("query_b")), heads)
    key = split(linear(source, params["key_w"], params.get("key_b")), heads)
    if causal and landmarks is None:
        query, key = running_mean(query, mask), running_mean(key, source_mask)
    query, key = map_rows(query, phi), map_rows(key, phi)

    left, right = params["left"], params["right"]
    if landmarks is None:
        assert context is None, "cross-attention needs landmarks"
        left_scores, right_scores = project(query, left, mask), project(key, right, mask)
        projected_trace = torch.stack([_traces(left, right)] * len(x))
    else:
        assert left.shape[1] == right.shape[1] == landmarks
        rows = split(source, heads)
        rows = rows if landmark_phi is None else map_rows(rows, landmark_phi)
        assert context is None or not causal, "cross-attention is not causal"
        weights = causal_landmark_weights if causal else landmark_weights
        left_weights, right_weights = weights(rows, source_mask, left), weights(rows, source_mask, right)
        left_scores = project(query, left_weights, mask)
        right_scores = project(key, right_weights, source_mask)
        if causal:
            left_weights, right_weights = _at_last(left_weights, mask), _at_last(right_weights, mask)
        projected_trace = torch.stack(
            [_traces(e, r) for e, r in zip(left_weights, right_weights, strict=True)]
        )

    joined = join(
        left_scores, right_scores if context is None else None, params["join_w"], params.get("join_b")
    )
    output = _zeroed(linear(merge(joined), params["out_w"], params.get("out_b")), mask)
    return PrimalResult(
        output=output,
        left_scores=left_scores,
        right_scores=right_scores,
        left_moments=second_moments(left_scores, mask),
        right_moments=second_moments(right_scores, source_mask),
        trace=_traces(left, right),
        projected_trace=projected_trace,
    )


def landmark_index(length: int, count: int) -> list[int]:
    """Evenly spaced points, spec 1.6 step 2; `count` above `length` repeats some.

    step = (length-1)/(count-1); idx_i = trunc(step i) in the first half, counted from the far end
    in the second: trunc((length-1) - step (count-1-i)).
    """
    if count == 1:
        return [0]
    step, half = (length - 1) / (count - 1), count // 2
    first = [int(step * i) for i in range(half)]
    return first + [int((length - 1) - step * (count - 1 - i)) for i in range(half, count)]


def landmark_weights(x_heads: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
    """W_{.|X}[b,h] = F' W[h], spec 1.6 steps 3-4; F holds the landmarks among the real points.

    Shapes: x_heads (b, h, n, d), mask (b, n), weights (h, l, s); returns (b, h, d, s), zero where no
    point is real.
    """
    x_heads, weights = exact(x_heads), exact(weights)
    b, h, n, d = x_heads.shape
    count, s = weights.shape[1:]
    result = torch.zeros(b, h, d, s, dtype=torch.float64)
    for sample in range(b):
        real = _real(mask, sample, n)
        if not real:
            continue
        index = landmark_index(len(real), count)
        for head in range(h):
            for slot in range(count):
                row = x_heads[sample, head, real[index[slot]]]
                for a in range(d):
                    for component in range(s):
                        result[sample, head, a, component] += row[a] * weights[head, slot, component]
    return result


def causal_landmark_weights(x_heads: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
    """W_t = min(c_t, l)/c_t sum_{u <= t} x_u W[slot(u)]', the prefix-restricted f(X) of spec 6.

    Sums run over real points, c_t counts them up to t, and slot(u) = (c_u - 1) mod l. When c_t = l
    this is the F'W of `landmark_weights` of those l points.

    Shapes: x_heads (b, h, n, d), mask (b, n), weights (h, l, s); returns (b, h, n, d, s), zero at
    padded points.
    """
    x_heads, weights = exact(x_heads), exact(weights)
    b, h, n, d = x_heads.shape
    count, s = weights.shape[1:]
    result = torch.zeros(b, h, n, d, s, dtype=torch.float64)
    for sample in range(b):
        real = _real(mask, sample, n)
        for head in range(h):
            for seen, t in enumerate(real, start=1):
                for order, u in enumerate(real[:seen]):
                    for a in range(d):
                        for component in range(s):
                            term = x_heads[sample, head, u, a] * weights[head, order % count, component]
                            result[sample, head, t, a, component] += term * min(seen, count) / seen
    return result


def running_mean(x_heads: Tensor, mask: Tensor | None) -> Tensor:
    """(1/c_t) sum over real u <= t of x_u, spec 1.11: (b, h, n, d) to the same, zero at padded points."""
    x_heads = exact(x_heads)
    b, h, n, d = x_heads.shape
    result = torch.zeros(b, h, n, d, dtype=torch.float64)
    for sample in range(b):
        real = _real(mask, sample, n)
        for head in range(h):
            for seen, t in enumerate(real, start=1):
                for a in range(d):
                    for u in real[:seen]:
                        result[sample, head, t, a] += x_heads[sample, head, u, a] / seen
    return result


def project(features: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scores W' phi_i, the constraints of spec 1.2; zero at padded points.

    Shapes: features (b, h, n, p), already mapped; weights (h, p, s), one a sample (b, h, p, s), or one
    a point (b, h, n, p, s); returns (b, h, n, s).
    """
    features, weights = exact(features), exact(weights)
    b, h, n, _ = features.shape
    s = weights.shape[-1]
    result = torch.zeros(b, h, n, s, dtype=torch.float64)
    for sample in range(b):
        for head in range(h):
            for i in _real(mask, sample, n):
                here = {3: (head,), 4: (sample, head), 5: (sample, head, i)}[weights.dim()]
                for component in range(s):
                    column = weights[here][:, component]
                    result[sample, head, i, component] = dot(column, features[sample, head, i])
    return result


def second_moments(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over real points of score^2, as in v of spec 1.9: (b, h, n, s) to (b, h, s)."""
    scores = exact(scores)
    b, h, n, s = scores.shape
    result = torch.zeros(b, h, s, dtype=torch.float64)
    for sample in range(b):
        real = _real(mask, sample, n)
        for head in range(h):
            for component in range(s):
                for i in real:
                    result[sample, head, component] += scores[sample, head, i, component] ** 2 / len(real)
    return result


def join(left_scores: Tensor, right_scores: Tensor | None, join_w: Tensor, join_b: Tensor | None) -> Tensor:
    """o_i = C [e_i; r_i] + c, spec 1.8; without right scores o_i = C_left e_i + c.

    Shapes: scores (b, h, n, s); join_w (d, 2s) or (h, d, 2s); join_b (d,) or (h, d); returns (b, h, n, d).
    """
    left_scores, join_w = exact(left_scores), exact(join_w)
    b, h, n, s = left_scores.shape
    d = join_w.shape[-2]
    result = torch.zeros(b, h, n, d, dtype=torch.float64)
    for sample in range(b):
        for head in range(h):
            matrix = join_w if join_w.dim() == 2 else join_w[head]
            for i in range(n):
                for a in range(d):
                    total = dot(matrix[a, :s], left_scores[sample, head, i])
                    if right_scores is not None:
                        total += dot(matrix[a, s:], exact(right_scores)[sample, head, i])
                    if join_b is not None:
                        total += float(join_b[a] if join_b.dim() == 1 else join_b[head, a])
                    result[sample, head, i, a] = total
    return result


def learned_pattern(
    left_scores: Tensor,
    right_scores: Tensor,
    root: Tensor,
    *,
    left_mask: Tensor | None = None,
    right_mask: Tensor | None = None,
) -> Tensor:
    """K_ij ~ sum_l e_il (root_l^2 / N) r_jl, spec 1.3 and 1.9, where root^2 = N / sigma at the optimum.

    N is the number of real points; n left and m right ones count as 2 / (1/n + 1/m).

    Shapes: left_scores (b, h, n, s), right_scores (b, h, m, s), root (h, s), left_mask (b, n), right_mask
    (b, m), the same as left_mask in self-attention; returns (b, h, n, m), zero at padded points.
    """
    left, right, root = exact(left_scores), exact(right_scores), exact(root)
    b, h, n, s = left.shape
    m = right.shape[2]
    pattern = torch.zeros(b, h, n, m, dtype=torch.float64)
    for sample in range(b):
        rows, columns = _real(left_mask, sample, n), _real(right_mask, sample, m)
        for head in range(h):
            for i in rows:
                for j in columns:
                    for component in range(s):
                        value = root[head, component] ** 2 * (1 / len(rows) + 1 / len(columns)) / 2
                        score = left[sample, head, i, component] * right[sample, head, j, component]
                        pattern[sample, head, i, j] += score * value
    return pattern


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x_i + b for every point, spec 1.1: (b, n, c) to (b, n, out)."""
    b, n, _ = x.shape
    result = torch.zeros(b, n, len(weight), dtype=torch.float64)
    for sample in range(b):
        for i in range(n):
            for a in range(len(weight)):
                result[sample, i, a] = dot(weight[a], x[sample, i]) + (
                    0.0 if bias is None else float(bias[a])
                )
    return result


def split(x: Tensor, heads: int) -> Tensor:
    """Head h is the h-th contiguous block of channels, spec 1.1: (b, n, c) to (b, h, n, d)."""
    b, n, c = x.shape
    d = c // heads
    result = torch.zeros(b, heads, n, d, dtype=torch.float64)
    for head in range(heads):
        for a in range(d):
            result[:, head, :, a] = x[:, :, head * d + a]
    return result


def merge(x_heads: Tensor) -> Tensor:
    """The heads side by side, spec 1.8: (b, h, n, d) to (b, n, c)."""
    b, h, n, d = x_heads.shape
    result = torch.zeros(b, n, h * d, dtype=torch.float64)
    for head in range(h):
        for a in range(d):
            result[:, :, head * d + a] = x_heads[:, head, :, a]
    return result


def _traces(left: Tensor, right: Tensor) -> Tensor:
    """Tr(W_e' W_r) of every head, spec 1.2: two (h, p, s) to (h,)."""
    traces = [dot(e.flatten(), r.flatten()) for e, r in zip(left, right, strict=True)]
    return torch.tensor(traces, dtype=torch.float64)


def _at_last(weights: Tensor, mask: Tensor) -> Tensor:
    """The weights at the last real point, (b, h, n, d, s) to (b, h, d, s); zero where there is none."""
    result = torch.zeros_like(weights[:, :, 0])
    for sample in range(len(weights)):
        for t in _real(mask, sample, weights.shape[2]):
            result[sample] = weights[sample, :, t]
    return result


def _real(mask: Tensor | None, sample: int, n: int) -> list[int]:
    """The real points of one sample, in order."""
    return [i for i in range(n) if mask is None or bool(mask[sample, i])]


def _all_real(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


def _zeroed(x: Tensor, mask: Tensor) -> Tensor:
    """(b, n, c) with zeros at padded points, whatever stood there."""
    result = torch.zeros_like(x)
    for sample in range(len(x)):
        for i in _real(mask, sample, x.shape[1]):
            result[sample, i] = x[sample, i]
    return result
