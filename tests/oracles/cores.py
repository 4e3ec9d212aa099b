"""Primal attention after the projections, point by point, and values mixed by factors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tests.oracles.kernels import cosine_features, dot, exact, map_rows
from tests.oracles.primal import causal_landmark_weights, join, landmark_weights, project, running_mean


def factored_attention(
    left: Tensor,
    values: Tensor,
    right: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """o_i = 1/m_i sum_j (sum_l left_il values_l right_jl) v_j over the m_i real keys that row i sees.

    With `causal` row i of n sees the keys up to i + m - n.

    Shapes: left (b, h, n, s), values (h, s), right (b, h, m, s), value (b, h, m, e), mask (b, m);
    returns (b, h, n, e), zero where nothing is seen.
    """
    left, values, right, value = exact(left), exact(values), exact(right), exact(value)
    b, h, n, _ = left.shape
    m, e = value.shape[2:]
    result = torch.zeros(b, h, n, e, dtype=torch.float64)
    for sample in range(b):
        for head in range(h):
            for i in range(n):
                end = i + m - n + 1 if causal else m
                seen = [j for j in range(end) if mask is None or mask[sample, j]]
                for j in seen:
                    weight = dot(left[sample, head, i] * values[head], right[sample, head, j]) / len(seen)
                    result[sample, head, i] += weight * value[sample, head, j]
    return result


def primal_core(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    params: Mapping[str, Tensor],
    *,
    landmarks: int | None,
    mix: str,
    mask: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output and both scores of the core with the cosine map; as many queries as keys.

    The join is that of `primal_layer` with rows of the values for landmarks; the pattern is
    `factored_attention` of scores W' phi + offset. Padded points come out as zero.

    Shapes: query, key, value (b, h, n, d), mask (b, n); returns (b, h, n, d) and two (b, h, n, s).
    """
    left, right = exact(params["left"]), exact(params["right"])
    if mix == "join" and causal and landmarks is None:
        query, key = running_mean(query, mask), running_mean(key, mask)
    features = map_rows(exact(query), cosine_features), map_rows(exact(key), cosine_features)
    if landmarks is not None:
        weigh = causal_landmark_weights if causal else landmark_weights
        left, right = weigh(value, mask, left), weigh(value, mask, right)
    scores = [project(side, weight, mask) for side, weight in zip(features, (left, right), strict=True)]
    if mix == "join":
        output = join(scores[0], scores[1], params["join.weight"], params["join.bias"])
    else:
        for name, score in zip(("left_offset", "right_offset"), scores, strict=True):
            score += exact(params[name])[:, None]
        values = exact(params["root"]) ** 2
        output = factored_attention(scores[0], values, scores[1], value, mask=mask, causal=causal)
    for each in (output, *scores):
        for sample, i in [] if mask is None else (~mask).nonzero().tolist():
            each[sample, :, i] = 0
    return output, scores[0], scores[1]
