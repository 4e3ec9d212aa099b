"""Transport in loops: Sinkhorn's steps, the best pairing among all, the figures of a training."""

import math
from itertools import pairwise, permutations

import torch
from torch import Tensor


def squared(x: Tensor, y: Tensor) -> float:
    """|x - y|^2."""
    return sum((a - b) ** 2 for a, b in zip(x.tolist(), y.tolist(), strict=True))


def best_pairing(x: Tensor, y: Tensor, cost: str = "sqeuclidean") -> tuple[tuple[int, ...], float]:
    """The permutation of least summed cost, by trying all."""

    def price(order: tuple[int, ...]) -> float:
        each = [squared(x[i], y[j]) for i, j in enumerate(order)]
        return sum(each) if cost == "sqeuclidean" else sum(math.sqrt(one) for one in each)

    order = min(permutations(range(len(x))), key=price)
    return order, price(order)


def sinkhorn_scores(scores: Tensor, steps: int) -> Tensor:
    """exp(s) with rows scaled to 1, then so often columns to n / m and rows to 1."""
    entries = [[math.exp(value) for value in row] for row in scores.tolist()]
    rows, columns = scores.shape

    def by_rows() -> None:
        for row in entries:
            total = sum(row)
            for j in range(columns):
                row[j] /= total

    by_rows()
    for _ in range(steps):
        for j in range(columns):
            total = sum(row[j] for row in entries)
            for row in entries:
                row[j] *= rows / columns / total
        by_rows()
    return torch.tensor(entries, dtype=torch.float64)


def figures(paths: list[list[Tensor]]) -> dict[str, float]:
    """All figures of classes, each a list of clouds (n, d), the start first; without chance."""
    found = dict.fromkeys(
        ("direct", "wasserstein", "path", "length", "matched", "count", "cost", "centred"), 0.0
    )
    for clouds in paths:
        start, end = clouds[0], clouds[-1]
        n = len(start)
        own = sum(squared(start[i], end[i]) for i in range(n))
        order, least = best_pairing(start, end)
        shift = n * squared(start.mean(0), end.mean(0))
        found["direct"] += math.sqrt(own)
        found["wasserstein"] += math.sqrt(least)
        found["centred"] += math.sqrt(max(own - shift, 0)) - math.sqrt(max(least - shift, 0))
        found["cost"] += own - least
        found["length"] += sum(math.sqrt(squared(start[i], end[i])) for i in range(n))
        found["path"] += sum(
            math.sqrt(squared(one[i], other[i])) for one, other in pairwise(clouds) for i in range(n)
        )
        found["matched"] += sum(i == j for i, j in enumerate(order))
        found["count"] += n
    return {
        "direct": found["direct"],
        "wasserstein": found["wasserstein"],
        "monge_gap": found["direct"] - found["wasserstein"],
        "cost_gap": found["cost"] / found["count"],
        "centred_gap": found["centred"],
        "optimality": found["wasserstein"] / found["direct"],
        "matching": found["matched"] / found["count"],
        "path": found["path"],
        "efficiency": found["length"] / found["path"],
        "thesis_efficiency": found["direct"] / found["path"],
    }
