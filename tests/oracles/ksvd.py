"""Kernel SVD by Jacobi rotations, and the primal weights, scores and objective it belongs to."""

import math

import torch
from torch import Tensor

from tests.oracles.kernels import dot, exact, norm


def kernel_svd(pattern: Tensor, rank: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """K V = U S and K'U = V S, spec 1.3: left vectors, values, right vectors, largest value first.

    One-sided Jacobi (Hestenes): columns are rotated in pairs until all are orthogonal; their lengths
    are then the singular values. A value under max(n, m) eps of the pattern's norm is zero, and so is
    its vector on the longer side.

    Shapes: pattern (n, m); returns (n, s), (s,), (m, s), with s = min(n, m) if `rank` is None.
    """
    if pattern.shape[0] < pattern.shape[1]:
        right, values, left = kernel_svd(pattern.mT, rank)
        return left, values, right
    columns = exact(pattern).clone()
    n, m = columns.shape
    rotations = torch.eye(m, dtype=torch.float64)
    rounding = n * torch.finfo(torch.float64).eps
    floor = rounding * norm(columns.flatten())
    while _sweep(columns, rotations, rounding, floor):
        pass
    lengths = [norm(columns[:, j]) for j in range(m)]
    order = sorted(range(m), key=lambda j: -lengths[j])[:rank]
    left = torch.zeros(n, len(order), dtype=torch.float64)
    values = torch.zeros(len(order), dtype=torch.float64)
    right = torch.zeros(m, len(order), dtype=torch.float64)
    for component, j in enumerate(order):
        right[:, component] = rotations[:, j]
        if lengths[j] > floor:
            values[component] = lengths[j]
            left[:, component] = columns[:, j] / lengths[j]
    return left, values, right


def reconstruction(left: Tensor, values: Tensor, right: Tensor) -> Tensor:
    """K_ij ~ sum_l U_il S_l V_jl, spec 1.3: (n, s), (s,), (m, s) to (n, m)."""
    left, values, right = exact(left), exact(values), exact(right)
    pattern = torch.zeros(len(left), len(right), dtype=torch.float64)
    for i in range(len(left)):
        for j in range(len(right)):
            for component in range(len(values)):
                pattern[i, j] += left[i, component] * values[component] * right[j, component]
    return pattern


def pseudo_inverse(pattern: Tensor) -> Tensor:
    """sum over non-zero S_l of V_l U_l' / S_l: (n, m) to (m, n)."""
    left, values, right = kernel_svd(pattern)
    inverted = torch.tensor([1 / v if v > 0 else 0.0 for v in values.tolist()], dtype=torch.float64)
    return reconstruction(right, inverted, left)


def primal_weights(
    left_features: Tensor, right_features: Tensor, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """W_e = B'V and W_r = A'U, the stationary point of spec 1.3.

    Shapes: left_features A (n, p), right_features B (m, p), left U (n, s), right V (m, s); both results
    (p, s).
    """
    return _weigh(right_features, right), _weigh(left_features, left)


def primal_scores(features: Tensor, weights: Tensor) -> Tensor:
    """Rows W'phi(x_i), spec 1.2: features (n, p), weights (p, s) to (n, s)."""
    features, weights = exact(features), exact(weights)
    scores = torch.zeros(len(features), weights.shape[1], dtype=torch.float64)
    for i in range(len(features)):
        for component in range(weights.shape[1]):
            scores[i, component] = dot(features[i], weights[:, component])
    return scores


def dual_scores(pattern: Tensor, right: Tensor) -> Tensor:
    """e(x) = sum_j h_{r,j} kappa(x, x_j), spec 1.3: pattern (n, m) of new against old points, right (m, s).

    The right scores r(x) are those of the transposed pattern and the left vectors.
    """
    return primal_scores(pattern, right)


def objective(
    left_features: Tensor,
    right_features: Tensor,
    left_weights: Tensor,
    right_weights: Tensor,
    weights: Tensor,
) -> float:
    """J = 1/2 sum_i e_i' Lambda e_i + 1/2 sum_j r_j' Lambda r_j - Tr(W_e' W_r), spec 1.2.

    Shapes: features (n, p) and (m, p); left_weights, right_weights (p, s); weights (s,), the diagonal of
    Lambda, which is 1/S at the solution.
    """
    total = 0.0
    for scores in (primal_scores(left_features, left_weights), primal_scores(right_features, right_weights)):
        for row in scores.tolist():
            for score, weight in zip(row, weights.tolist(), strict=True):
                total += weight * score**2 / 2
    return total - dot(exact(left_weights).flatten(), exact(right_weights).flatten())


def dual_objective(left: Tensor, values: Tensor, right: Tensor) -> float:
    """1/2 sum_l S_l |U_l|^2 + 1/2 sum_l S_l |V_l|^2 - sum_l S_l |U_l|^2, the lemma of spec 1.4."""
    total = 0.0
    for component, value in enumerate(values.tolist()):
        u, v = dot(left[:, component], left[:, component]), dot(right[:, component], right[:, component])
        total += value * (u / 2 + v / 2 - u)
    return total


def _weigh(features: Tensor, vectors: Tensor) -> Tensor:
    """sum_i phi(x_i) h_i': (n, p), (n, s) to (p, s)."""
    features, vectors = exact(features), exact(vectors)
    result = torch.zeros(features.shape[1], vectors.shape[1], dtype=torch.float64)
    for a in range(features.shape[1]):
        for component in range(vectors.shape[1]):
            result[a, component] = dot(features[:, a], vectors[:, component])
    return result


def _sweep(columns: Tensor, rotations: Tensor, rounding: float, floor: float) -> bool:
    """Rotate every pair of columns that is not yet orthogonal, in place; whether there was one."""
    turned = False
    for p in range(columns.shape[1]):
        for q in range(p + 1, columns.shape[1]):
            one, other = norm(columns[:, p]), norm(columns[:, q])
            inner = dot(columns[:, p], columns[:, q])
            # Columns of rounding noise never become orthogonal and stand for a zero value.
            if min(one, other) <= floor or abs(inner) <= rounding * one * other:
                continue
            turned = True
            _rotate(columns, p, q, one**2, other**2, inner)
            _rotate(rotations, p, q, one**2, other**2, inner)
    return turned


def _rotate(columns: Tensor, p: int, q: int, a: float, b: float, c: float) -> None:
    """Turn columns p and q until orthogonal, where [[a, c], [c, b]] is the Gram matrix of the two."""
    zeta = (b - a) / (2 * c)
    tangent = math.copysign(1.0, zeta) / (abs(zeta) + math.sqrt(1 + zeta**2))
    cosine = 1 / math.sqrt(1 + tangent**2)
    sine = cosine * tangent
    for i in range(len(columns)):
        one, other = float(columns[i, p]), float(columns[i, q])
        columns[i, p], columns[i, q] = cosine * one - sine * other, sine * one + cosine * other
