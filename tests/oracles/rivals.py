"""The attentions that Primal-Attention is compared with, each as weighted means of values in loops."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.oracles.kernels import dot, elu_features, exact, exponential_features, exponential_kernel
from tests.oracles.ksvd import pseudo_inverse


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """o_i = sum_j exp(q_i'k_j / sqrt(d)) v_j / sum_j exp(q_i'k_j / sqrt(d)); Vaswani et al. 2017, eq. 1.

    j runs over the real keys, with `causal` only those up to i; a row that sees none is zero. Padded
    queries are not special here: their rows are computed like any other.

    Shapes: query (b, h, n, d), key (b, h, m, d), value (b, h, m, v), mask (b, m); returns (b, h, n, v).
    """
    return _weighted_means(exponential_kernel, query, key, value, mask, causal)


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """o_i = sum_j phi(q_i)'phi(k_j) v_j / sum_j phi(q_i)'phi(k_j), phi = elu + 1.

    Katharopoulos et al. 2020, eq. 5 and 7. Masks, rows and shapes as in `softmax_attention`.
    """

    def kernel(q: Tensor, k: Tensor) -> float:
        return dot(elu_features(q), elu_features(k))

    return _weighted_means(kernel, query, key, value, mask, causal)


def performer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    frequencies: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Softmax attention with positive random features for its kernel; Choromanski et al. 2021, Lemma 1.

    phi(x)_i = exp(w_i'z - |z|^2/2) / sqrt(m), z = x d^(-1/4); nothing is added for stability.

    Shapes: frequencies (m, d), rows w_i; the rest as in `softmax_attention`.
    """

    def kernel(q: Tensor, k: Tensor) -> float:
        left = exponential_features(q, frequencies=frequencies)
        return dot(left, exponential_features(k, frequencies=frequencies))

    return _weighted_means(kernel, query, key, value, mask, causal)


def segment_means(points: Tensor, mask: Tensor | None, count: int) -> Tensor:
    """Means of `count` contiguous segments of the real points; Xiong et al. 2021.

    Segment j of N points runs from floor(j N / count) to floor((j+1) N / count), but holds at least
    the point it starts at, so that more segments than points repeat points.

    Shapes: points (b, h, n, d), mask (b, n); returns (b, h, count, d), zero where no point is real.
    """
    points = exact(points)
    b, h, n, d = points.shape
    result = torch.zeros(b, h, count, d, dtype=torch.float64)
    for sample in range(b):
        real = _seen(mask, sample, n)
        for head in range(h):
            for j in range(count if real else 0):
                start = j * len(real) // count
                stop = max(start + 1, (j + 1) * len(real) // count)
                for i in real[start:stop]:
                    for a in range(d):
                        result[sample, head, j, a] += points[sample, head, i, a] / (stop - start)
    return result


def nystrom_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_landmarks: Tensor,
    key_landmarks: Tensor,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """softmax(Q Kl') pinv(softmax(Ql Kl')) softmax(Ql K') V, all over sqrt(d); Xiong et al. 2021.

    The pseudo-inverse is exact, not the iterated one. Padded keys are left out of the last softmax;
    with no real key the result is zero.

    Shapes: query (b, h, n, d), key (b, h, m, d), value (b, h, m, v), landmarks (b, h, l, d), mask (b, m);
    returns (b, h, n, v).
    """
    query, key, value = exact(query), exact(key), exact(value)
    query_landmarks, key_landmarks = exact(query_landmarks), exact(key_landmarks)
    b, h, n, _ = query.shape
    result = torch.zeros(b, h, n, value.shape[-1], dtype=torch.float64)
    for sample in range(b):
        real = _seen(mask, sample, key.shape[2])
        if not real:
            continue
        for head in range(h):
            here = (sample, head)
            to_landmarks = _softmax_rows(query[here], key_landmarks[here])  # (n, l)
            core = pseudo_inverse(_softmax_rows(query_landmarks[here], key_landmarks[here]))  # (l, l)
            from_landmarks = _softmax_rows(query_landmarks[here], key[here][real])  # (l, real)
            gathered = _multiply(from_landmarks, value[here][real])
            result[here] = _multiply(to_landmarks, _multiply(core, gathered))
    return result


def _weighted_means(
    kernel: Callable[[Tensor, Tensor], float],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
) -> Tensor:
    """sum_j kernel(q_i, k_j) v_j / sum_j kernel(q_i, k_j) over the keys that i sees."""
    query, key, value = exact(query), exact(key), exact(value)
    b, h, n, _ = query.shape
    result = torch.zeros(b, h, n, value.shape[-1], dtype=torch.float64)
    for sample in range(b):
        real = _seen(mask, sample, key.shape[2])
        for head in range(h):
            for i in range(n):
                seen = [j for j in real if not causal or j <= i]
                weights = [kernel(query[sample, head, i], key[sample, head, j]) for j in seen]
                for weight, j in zip(weights, seen, strict=True):
                    result[sample, head, i] += weight / sum(weights) * value[sample, head, j]
    return result


def _softmax_rows(query: Tensor, key: Tensor) -> Tensor:
    """exp(q_i'k_j / sqrt(d)), every row divided by its sum: (n, d), (m, d) to (n, m)."""
    result = torch.zeros(len(query), len(key), dtype=torch.float64)
    for i in range(len(query)):
        weights = [exponential_kernel(query[i], key[j]) for j in range(len(key))]
        for j in range(len(key)):
            result[i, j] = weights[j] / sum(weights)
    return result


def _multiply(one: Tensor, other: Tensor) -> Tensor:
    """The matrix product, entry by entry."""
    result = torch.zeros(len(one), other.shape[1], dtype=torch.float64)
    for i in range(len(one)):
        for j in range(other.shape[1]):
            result[i, j] = dot(one[i], other[:, j])
    return result


def _seen(mask: Tensor | None, sample: int, n: int) -> list[int]:
    """The real points of one sample, in order."""
    return [j for j in range(n) if mask is None or bool(mask[sample, j])]
