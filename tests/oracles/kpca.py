"""Kernel PCA of attention in loops: from the Gram matrix, and once more in an explicit feature space."""

import math

import torch
from torch import Tensor

from tests.oracles.kernels import dot, exact, exponential_kernel
from tests.oracles.ksvd import kernel_svd


def norms(points: Tensor, keys: Tensor) -> list[float]:
    """g(x) = sum_j exp(x'k_j / sqrt(d)) of every point, spec 1.1."""
    points, keys = exact(points), exact(keys)
    return [sum(exponential_kernel(x, k) for k in keys) for x in points]


def kernel(points: Tensor, keys: Tensor) -> Tensor:
    """k_phi(x, k_j) = exp(x'k_j / sqrt(d)) / (g(x) g(k_j)), spec 1.1: (m, d), (n, d) to (m, n)."""
    points, keys = exact(points), exact(keys)
    left, right = norms(points, keys), norms(keys, keys)
    entries = torch.zeros(len(points), len(keys), dtype=torch.float64)
    for i in range(len(points)):
        for j in range(len(keys)):
            entries[i, j] = exponential_kernel(points[i], keys[j]) / (left[i] * right[j])
    return entries


def centred_gram(keys: Tensor) -> Tensor:
    """K - 1K - K1 + 1K1 with 1 the matrix of entries 1/n, spec 1.2, entry by entry."""
    gram = kernel(keys, keys)
    n = len(keys)
    means = [sum(gram[i].tolist()) / n for i in range(n)]
    grand = sum(means) / n
    centred = torch.zeros_like(gram)
    for i in range(n):
        for j in range(n):
            centred[i, j] = gram[i, j] - means[i] - means[j] + grand
    return centred


def kernel_pca(keys: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """K a = n lambda a with a'Ka = 1, so |a|^2 = 1 / (n lambda), spec 1.2: n lambda (s,) and a (n, s)."""
    vectors, values, _ = kernel_svd(centred_gram(keys), rank)
    scaled = torch.zeros_like(vectors)
    for component in range(rank):
        scaled[:, component] = vectors[:, component] / math.sqrt(float(values[component]))
    return values, scaled


def project(keys: Tensor, vectors: Tensor, queries: Tensor) -> Tensor:
    """h_i(s) = sum_j a_js (k_phi(q_i, k_j) - mean_j' k_phi(q_i, k_j')), spec 1.2."""
    entries, vectors = kernel(queries, keys), exact(vectors)
    scores = torch.zeros(len(queries), vectors.shape[1], dtype=torch.float64)
    for i in range(len(queries)):
        mean = sum(entries[i].tolist()) / len(keys)
        for component in range(vectors.shape[1]):
            scores[i, component] = dot(vectors[:, component], entries[i] - mean)
    return scores


def feature_norms(keys: Tensor, queries: Tensor) -> Tensor:
    """exp(|q|^2 / sqrt(d)) / g(q)^2 of every query, spec 1.5."""
    found = zip(exact(queries), norms(queries, keys), strict=True)
    return torch.tensor([exponential_kernel(q, q) / g**2 for q, g in found], dtype=torch.float64)


def monomials(row: Tensor, order: int) -> list[float]:
    """Features of exp(x'y / sqrt(2)) for two coordinates: x_1^a x_2^b / sqrt(a! b! sqrt(2)^(a+b)).

    By the series of the exponential and the binomial theorem, cut off after `order`.
    """
    one, other = row.tolist()
    return [
        one**a * other**b / math.sqrt(math.factorial(a) * math.factorial(b) * math.sqrt(2) ** (a + b))
        for a in range(order + 1)
        for b in range(order + 1 - a)
    ]


def explicit(
    keys: Tensor, queries: Tensor, rank: int, order: int = 30
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """PCA of phi(k_j) / g(k_j) in the space of monomials, where nothing is a kernel; two coordinates.

    Returns:
        n times the eigenvalues of the covariance (s,), scores of the queries (m, s), their squared
        feature norms (m,), and squared distances to what the axes rebuild of them (m,).
    """
    right = [_over(monomials(x, order), g) for x, g in zip(exact(keys), norms(keys, keys), strict=True)]
    left = [_over(monomials(x, order), g) for x, g in zip(exact(queries), norms(queries, keys), strict=True)]
    mean = [sum(column) / len(right) for column in zip(*right, strict=True)]
    centred = torch.tensor(
        [[x - m for x, m in zip(row, mean, strict=True)] for row in right], dtype=torch.float64
    )
    _, values, axes = kernel_svd(centred, rank)  # axes (p, s)
    scores = torch.zeros(len(queries), rank, dtype=torch.float64)
    lengths = torch.zeros(len(queries), dtype=torch.float64)
    distances = torch.zeros(len(queries), dtype=torch.float64)
    for i, row in enumerate(torch.tensor(left, dtype=torch.float64)):
        rest = row.clone()
        for component in range(rank):
            scores[i, component] = dot(row, axes[:, component])
            rest -= scores[i, component] * axes[:, component]
        lengths[i], distances[i] = dot(row, row), dot(rest, rest)
    return values**2, scores, lengths, distances


def _over(features: list[float], norm: float) -> list[float]:
    return [feature / norm for feature in features]
