"""Contextual similarity aggregation, its rivals and its metrics in loops, from their definitions."""

import math

import torch
from torch import Tensor

from tests.oracles.kernels import exact


def cosine(x: Tensor, y: Tensor) -> float:
    """x'y / (|x| |y|)."""
    dot = sum(a * b for a, b in zip(x.tolist(), y.tolist(), strict=True))
    return dot / math.sqrt(sum(a * a for a in x.tolist()) * sum(b * b for b in y.tolist()))


def affinity(items: Tensor, anchors: int) -> Tensor:
    """a_i = [cos(f_i, f_1), ..., cos(f_i, f_L)]: the anchors are the first items."""
    items = exact(items)
    return torch.tensor(
        [[cosine(one, other) for other in items[:anchors]] for one in items], dtype=torch.float64
    )


def linear(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    rows = [
        [sum(w * v for w, v in zip(row, point, strict=True)) for row in weight.tolist()]
        for point in x.tolist()
    ]
    return torch.tensor(rows, dtype=torch.float64) + bias


def layer_norm(weight: Tensor, bias: Tensor, x: Tensor, *, eps: float = 1e-5) -> Tensor:
    rows = []
    for point in x.tolist():
        mean = sum(point) / len(point)
        spread = sum((v - mean) ** 2 for v in point) / len(point)
        rows.append([(v - mean) / math.sqrt(spread + eps) for v in point])
    return torch.tensor(rows, dtype=torch.float64) * weight + bias


def gelu(x: Tensor) -> Tensor:
    """x Phi(x)."""
    rows = [[v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in point] for point in x.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def attended(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Softmax attention of contiguous heads, scale head width to the power -1/2."""
    n, width = query.shape
    head = width // heads
    made = torch.zeros(n, width, dtype=torch.float64)
    for h in range(heads):
        part = slice(h * head, (h + 1) * head)
        for i in range(n):
            logits = [float(query[i, part] @ key[j, part]) / math.sqrt(head) for j in range(n)]
            weights = [math.exp(logit - max(logits)) for logit in logits]
            for j in range(n):
                made[i, part] += weights[j] / sum(weights) * value[j, part]
    return made


def scores(weights: dict[str, Tensor], features: Tensor, *, depth: int, heads: int) -> tuple[Tensor, Tensor]:
    """The network: L to d linear, pre-norm blocks, no last norm; cosines to item 0, and the reconstruction.

    Weights by the names of `RerankerModel`.
    """
    held = {name: exact(weight) for name, weight in weights.items()}

    def mapped(name: str, x: Tensor) -> Tensor:
        return linear(held[f"{name}.weight"], held[f"{name}.bias"], x)

    x = mapped("embedding", exact(features))
    for layer in range(depth):
        block = f"blocks.{layer}"
        shown = layer_norm(held[f"{block}.attention_norm.weight"], held[f"{block}.attention_norm.bias"], x)
        sides = (mapped(f"{block}.attention.{side}", shown) for side in ("query", "key", "value"))
        x = x + mapped(f"{block}.attention.out", attended(*sides, heads))
        shown = layer_norm(held[f"{block}.forward_norm.weight"], held[f"{block}.forward_norm.bias"], x)
        inner = gelu(mapped(f"{block}.feed_forward.0", shown))
        x = x + mapped(f"{block}.feed_forward.3", inner)
    found = torch.tensor([cosine(x[0], point) for point in x], dtype=torch.float64)
    return found, mapped("reconstruction", x)


def contrastive(found: Tensor, same: list[bool], *, temperature: float) -> float:
    """-ln(sum_i y_i e^{s_i / tau} / sum_i e^{s_i / tau})."""
    powers = [math.exp(s / temperature) for s in found.tolist()]
    return -math.log(sum(p for p, y in zip(powers, same, strict=True) if y) / sum(powers))


def reconstruction(made: Tensor, features: Tensor) -> float:
    """Mean of | made / |made| - a / |a| |, the squared norm held in [1e-4, 1e4]."""
    total = 0.0
    for again, feature in zip(exact(made), exact(features), strict=True):
        gap = again / again.norm() - feature / feature.norm()
        total += math.sqrt(min(max(float(gap @ gap), 1e-4), 1e4))
    return total / len(features)


def average_precision(order: list[int], relevant: set[int], junk: set[int]) -> float:
    """Trapezoids: mean over relevant items of (precision just before + precision at) / 2, junk removed."""
    kept = [item for item in order if item not in junk]
    places = [place for place, item in enumerate(kept) if item in relevant]
    total = 0.0
    for hits, place in enumerate(places):
        before = 1.0 if place == 0 else hits / place
        total += (before + (hits + 1) / (place + 1)) / 2
    return total / len(relevant)


def precision(order: list[int], relevant: set[int], junk: set[int], k: int) -> float:
    """Of the first k, or of all up to the last relevant item where that is before."""
    kept = [item for item in order if item not in junk]
    missing = not relevant <= set(kept)
    last = k if missing else min(k, max(kept.index(item) for item in relevant) + 1)
    return sum(item in relevant for item in kept[:last]) / last


def expanded(point: Tensor, database: Tensor, *, neighbours: int, alpha: float) -> Tensor:
    """The unit vector of x + sum over the nearest of max(x'z, 0)^alpha z."""
    x, items = exact(point), [each / each.norm() for each in exact(database)]
    x = x / x.norm()
    near = sorted(range(len(items)), key=lambda i: -float(x @ items[i]))[:neighbours]
    made = x.clone()
    for i in near:
        made += max(float(x @ items[i]), 0.0) ** alpha * items[i]
    return made / made.norm()


def reciprocal_distances(
    points: Tensor, place: int, *, near: int, nearest: int, weight: float
) -> list[float]:
    """(1 - lambda) Jaccard + lambda d of one point to all, by k-reciprocal encoding.

    d is 2 - 2 cos over the largest of its row; R(i, k) holds the points that are among the k + 1 first of
    each other; R*(i) adds R(j, k/2) of j in R(i, k) of which more than two thirds are in R(i, k).
    """
    units = [each / each.norm() for each in exact(points)]
    n = len(units)
    distance = [[max(2 - 2 * float(one @ other), 0.0) for other in units] for one in units]
    distance = [[d / max(row) for d in row] for row in distance]
    order = [sorted(range(n), key=lambda j, row=row: row[j]) for row in distance]

    def mutual(i: int, k: int) -> set[int]:
        return {j for j in order[i][: k + 1] if i in order[j][: k + 1]}

    vectors = []
    for i in range(n):
        found = mutual(i, near)
        members = set(found)
        for j in found:
            closer = mutual(j, round(near / 2))
            if len(closer & found) > 2 / 3 * len(closer):
                members |= closer
        powers = [math.exp(-distance[i][j]) if j in members else 0.0 for j in range(n)]
        vectors.append([p / sum(powers) for p in powers])
    mixed = [
        [sum(vectors[i][j] for i in order[row][:nearest]) / len(order[row][:nearest]) for j in range(n)]
        for row in range(n)
    ]
    made = []
    for other in range(n):
        shared = sum(min(a, b) for a, b in zip(mixed[place], mixed[other], strict=True))
        made.append((1 - weight) * (1 - shared / (2 - shared)) + weight * distance[place][other])
    return made
