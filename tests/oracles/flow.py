"""Attention rollout and the flow between groups of points, as sums over entries."""

import torch
from torch import Tensor


def rollout(attentions: list[Tensor], residual: float) -> Tensor:
    """R = A_L ... A_1 with A = (1 - residual) mean over heads + residual I, for attentions (h, n, n)."""
    heads, n, _ = attentions[0].shape
    rolled = torch.eye(n, dtype=torch.float64)
    for attention in attentions:
        new = torch.zeros(n, n, dtype=torch.float64)
        for r in range(n):
            for s in range(n):
                for t in range(n):
                    mean = sum(float(attention[head, r, t]) for head in range(heads)) / heads
                    layer = (1 - residual) * mean + (residual if r == t else 0.0)
                    new[r, s] += layer * rolled[t, s]
        rolled = new
    return rolled


def flow(rolled: Tensor, groups: list[list[int]]) -> Tensor:
    """F[g, h]: mean over points r of g of the share of h in what r has from points of any group."""
    counted = [s for group in groups for s in group]
    found = torch.zeros(len(groups), len(groups), dtype=torch.float64)
    for g, reader in enumerate(groups):
        for h, source in enumerate(groups):
            for r in reader:
                inside = sum(float(rolled[r, s]) for s in counted)
                found[g, h] += sum(float(rolled[r, s]) for s in source) / inside / len(reader)
    return found


def outside(rolled: Tensor, groups: list[list[int]]) -> Tensor:
    """Mean over the points of a group of what they have from points of no group."""
    counted = [s for group in groups for s in group]
    rest = [s for s in range(len(rolled)) if s not in counted]
    means = [sum(float(rolled[r, s]) for r in group for s in rest) / len(group) for group in groups]
    return torch.tensor(means, dtype=torch.float64)


def uniform_flow(sizes: list[int], depth: int, alpha: float) -> Tensor:
    """F of uniform attention: n_h / n (1 - (1 - alpha)^L) from another group."""
    n, grown = sum(sizes), 1 - (1 - alpha) ** depth
    found = torch.tensor([[size / n * grown for size in sizes] for _ in sizes], dtype=torch.float64)
    for g in range(len(sizes)):
        found[g, g] = 1 - sum(float(found[g, h]) for h in range(len(sizes)) if h != g)
    return found


def two_mass_flow(a: float, b: float, depth: int, alpha: float) -> tuple[float, float]:
    """Both directions where each visual row sends mass a to words and each row of words b to vision."""
    if a + b == 0:
        return 0.0, 0.0
    grown = (1 - (1 - alpha * (a + b)) ** depth) / (a + b)
    return a * grown, b * grown
