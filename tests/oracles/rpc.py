"""Principal Attention Pursuit as alternating directions, in loops and once more for autograd."""

import math

import torch
from torch import Tensor

from tests.oracles.kernels import dot, exact


def rpc_attention(
    key: Tensor,
    value: Tensor,
    *,
    iterations: int,
    strength: float,
    query: Tensor | None = None,
    sign: str = "preprint",
    threshold: str = "times_mu",
    width: str = "embed",
    scope: str = "sequence",
    guard: float = 0.0,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """L of the last iteration, spec 1.8: from L = Y = 0, for t = 1..n,

    1. S = shrink_tau(K - L + Y/mu)   2. K^ = K - S -+ Y/mu
    3. L = softmax(K^ K^' / sqrt(d)) V   4. Y = Y + mu (K - L - S),

    where mu = n w / (4 |K|_1 ), w the width of all heads or of one, is taken over the real keys, or
    for row i over those up to i, and tau is strength * mu or strength / mu. Rows at padded points are zero.

    Shapes: key, value, query (b, h, n, d), mask (b, n); returns (b, h, n, d).
    """
    key, value, output = exact(key), exact(value), torch.zeros(value.shape, dtype=torch.float64)
    batch, heads, n, d = key.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    for b in range(batch):
        real = [i for i in range(n) if mask is None or bool(mask[b, i])]
        for h in range(heads):
            if not real:
                continue
            K, V = key[b, h], value[b, h]
            mu = {}
            for i in real:
                over = [j for j in real if scope == "sequence" or j <= i]
                total = max(sum(abs(x) for j in over for x in K[j].tolist()), guard * len(over) * d)
                columns = heads * d if width == "embed" else d
                mu[i] = len(over) * columns / (4 * total) if total else math.inf
            S, L, Y, hat = (torch.zeros(n, d, dtype=torch.float64) for _ in range(4))
            for _ in range(iterations):
                for i in real:
                    tau = strength * mu[i] if threshold == "times_mu" else strength / mu[i]
                    for a in range(d):
                        offset = float(K[i, a] - L[i, a] + Y[i, a] / mu[i])
                        S[i, a] = math.copysign(max(abs(offset) - tau, 0.0), offset)
                        dual = Y[i, a] / mu[i]
                        hat[i, a] = K[i, a] - S[i, a] - (dual if sign == "preprint" else -dual)
                for i in real:
                    left = hat[i] if query is None else exact(query)[b, h, i]
                    keys = [j for j in real if not causal or j <= i]
                    scores = [scale * dot(left, hat[j]) for j in keys]
                    weights = [math.exp(score - max(scores)) for score in scores]
                    L[i] = sum(w * V[j] for w, j in zip(weights, keys, strict=True)) / sum(weights)
                for i in real:
                    Y[i] += mu[i] * (K[i] - L[i] - S[i])
            for i in real:
                output[b, h, i] = L[i]
    return output


def unrolled(
    key: Tensor,
    value: Tensor,
    *,
    iterations: int,
    strength: float,
    query: Tensor | None = None,
    sign: str = "preprint",
    threshold: str = "times_mu",
    width: str = "embed",
    scope: str = "sequence",
    guard: float = 0.0,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """`rpc_attention` line by line on whole tensors, for its gradients and for what a naive writing keeps.

    Products are taken in float32 or better.
    """
    heads, n, d = key.shape[1:]
    real = torch.ones(len(key), n, dtype=torch.bool) if mask is None else mask
    seen = real[:, None, None, :].expand(-1, 1, n, n)
    seen = seen.tril() if causal else seen
    count = real[:, None, :, None].to(key.dtype)
    sums = (key.abs() * count).sum(-1, keepdim=True)  # (b, h, n, 1)
    count, sums = (each.cumsum(-2) if scope == "prefix" else each.sum(-2, True) for each in (count, sums))
    mu = count * (heads * d if width == "embed" else d) / (4 * torch.maximum(sums, guard * d * count))
    tau = strength * mu if threshold == "times_mu" else strength / mu
    L, Y, wide = torch.zeros_like(key), torch.zeros_like(key), torch.promote_types(key.dtype, torch.float32)
    for _ in range(iterations):
        offset = key - L + Y / mu
        S = torch.sign(offset) * torch.relu(offset.abs() - tau)
        hat = key - S - Y / mu if sign == "preprint" else key - S + Y / mu
        scores = (hat if query is None else query).to(wide) @ hat.to(wide).mT / math.sqrt(d)
        L = (scores.masked_fill(~seen, -math.inf).softmax(-1) @ value.to(wide)).to(key.dtype)
        Y = Y + mu * (key - L - S)
    return L * real[:, None, :, None]


def scaled_values(key: Tensor, value: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """v_j - sum_j' S_jj' v_j' with S_jj' = g(k_j') / (n g(k_j)), g(k) = sum_j exp(k'k_j / sqrt(d)); spec 1.6.

    Shapes: key (b, h, n, d), value (b, h, n, e), mask (b, n); returns (b, h, n, e), zero at padded points.
    """
    key, value, output = exact(key), exact(value), torch.zeros(value.shape, dtype=torch.float64)
    for b in range(len(key)):
        real = [i for i in range(key.shape[2]) if mask is None or bool(mask[b, i])]
        for h in range(key.shape[1]):
            k, v = key[b, h], value[b, h]
            g = {j: sum(math.exp(dot(k[j], k[i]) / math.sqrt(key.shape[3])) for i in real) for j in real}
            for j in real:
                output[b, h, j] = v[j] - sum(g[i] / (len(real) * g[j]) * v[i] for i in real)
    return output
