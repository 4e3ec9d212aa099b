"""Kernels entry by entry and feature maps row by row, as their definitions say."""

import math
from collections.abc import Callable
from itertools import combinations_with_replacement

import torch
from torch import Tensor


def exact(tensor: Tensor) -> Tensor:
    """The same numbers in float64 on the CPU, cut off from autograd."""
    return tensor.detach().cpu().double()


def dot(one: Tensor, other: Tensor) -> float:
    """sum_a one[a] other[a] of two rows."""
    total = 0.0
    for a, b in zip(one.tolist(), other.tolist(), strict=True):
        total += a * b
    return total


def norm(row: Tensor) -> float:
    """The Euclidean length of a row."""
    return math.sqrt(dot(row, row))


def entries(kernel: Callable[[Tensor, Tensor], float], left: Tensor, right: Tensor) -> Tensor:
    """K_ij = kernel(left_i, right_j), spec 1.2: left (n, d), right (m, d) give (n, m)."""
    left, right = exact(left), exact(right)
    pattern = torch.zeros(len(left), len(right), dtype=torch.float64)
    for i in range(len(left)):
        for j in range(len(right)):
            pattern[i, j] = kernel(left[i], right[j])
    return pattern


def map_rows(points: Tensor, phi: Callable[[Tensor], Tensor]) -> Tensor:
    """phi of every row: (... n d) to (... n p)."""
    rows = exact(points).reshape(-1, points.shape[-1])
    mapped = [phi(row) for row in rows]
    return torch.stack(mapped).reshape(*points.shape[:-1], -1)


def identity_kernel(query: Tensor, key: Tensor) -> float:
    """q'k."""
    return dot(query, key)


def cosine_kernel(query: Tensor, key: Tensor) -> float:
    """q'k / (|q| |k|), each length at least 1e-12; spec 1.5."""
    return dot(query, key) / (max(norm(query), 1e-12) * max(norm(key), 1e-12))


def relu_kernel(query: Tensor, key: Tensor) -> float:
    """sum_a max(q_a, 0) max(k_a, 0)."""
    total = 0.0
    for a, b in zip(query.tolist(), key.tolist(), strict=True):
        total += max(a, 0.0) * max(b, 0.0)
    return total


def elu_kernel(query: Tensor, key: Tensor) -> float:
    """sum_a g(q_a) g(k_a) with g(z) = elu(z) + 1."""
    total = 0.0
    for a, b in zip(query.tolist(), key.tolist(), strict=True):
        total += _elu_plus_one(a) * _elu_plus_one(b)
    return total


def polynomial_kernel(query: Tensor, key: Tensor, *, degree: int, offset: float) -> float:
    """(q'k + offset)^degree."""
    return (dot(query, key) + offset) ** degree


def exponential_kernel(query: Tensor, key: Tensor) -> float:
    """exp(q'k / sqrt(d)), the un-normalised softmax; spec 1.5."""
    return math.exp(dot(query, key) / math.sqrt(len(query)))


def identity_features(row: Tensor) -> Tensor:
    """phi(z) = z, (d,) to (d,)."""
    return exact(row)


def cosine_features(row: Tensor) -> Tensor:
    """phi(z) = z / max(|z|, 1e-12), (d,) to (d,); spec 1.5."""
    length = max(norm(row), 1e-12)
    return _row([z / length for z in row.tolist()])


def relu_features(row: Tensor) -> Tensor:
    """phi(z)_a = max(z_a, 0), (d,) to (d,)."""
    return _row([max(z, 0.0) for z in row.tolist()])


def elu_features(row: Tensor) -> Tensor:
    """phi(z)_a = elu(z_a) + 1, (d,) to (d,)."""
    return _row([_elu_plus_one(z) for z in row.tolist()])


def polynomial_features(row: Tensor, *, degree: int, offset: float) -> Tensor:
    """One feature for each multi-index of `degree` over (sqrt(offset), z_1 .. z_d).

    By the multinomial theorem the feature of a is sqrt(degree! / prod a_i!) prod z_i^a_i; there are
    (d + degree choose degree). Their order is free: compare inner products, not features.
    """
    extended = [math.sqrt(offset), *row.tolist()]
    features = []
    for chosen in combinations_with_replacement(range(len(extended)), degree):
        ways, product = math.factorial(degree), 1.0
        for i in range(len(extended)):
            ways //= math.factorial(chosen.count(i))
        for i in chosen:
            product *= extended[i]
        features.append(math.sqrt(ways) * product)
    return _row(features)


def exponential_features(row: Tensor, *, frequencies: Tensor) -> Tensor:
    """exp(w_i'z - |z|^2 / 2) / sqrt(m) with z = row d^(-1/4), (d,) to (m,); spec 1.5.

    Shapes: frequencies (m, d), rows w_i standard normal.
    """
    scaled = _row([z * len(row) ** -0.25 for z in row.tolist()])
    half = dot(scaled, scaled) / 2
    return _row([math.exp(dot(w, scaled) - half) / math.sqrt(len(frequencies)) for w in exact(frequencies)])


def _elu_plus_one(z: float) -> float:
    return z + 1.0 if z > 0 else math.exp(z)


def _row(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)
