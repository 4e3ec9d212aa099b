"""Entropic transport in plain PyTorch: rows and columns of a Gibbs kernel scaled in turn, in logarithms."""

from math import log

import torch
from torch import Tensor

HALVING = 0.5  # of the entropy from one step to the next, down to the one that is asked for


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Squared lengths of all differences, (... n m), without holding the differences."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()


def log_shares(sizes: tuple[int, ...], mask: Tensor | None, like: Tensor) -> Tensor:
    """Logarithms of equal shares of real points, minus infinity at the others; of all where none is real."""
    if mask is None:
        return like.new_full(sizes, -log(sizes[-1]))
    mask = mask | ~mask.any(-1, keepdim=True)
    return like.new_zeros(sizes).masked_fill(~mask, -torch.inf) - mask.sum(-1, keepdim=True).to(like).log()


def potentials(
    cost: Tensor, left: Tensor, right: Tensor, *, epsilon: Tensor, steps: int, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Potentials of both sides after so many steps, the left one last, so that rows have their shares.

    Shapes: cost (... n m), left (... n) and right (... m), logarithms of shares, epsilon and start (...);
    returns (... n) and (... m).
    """
    entropy = epsilon if start is None else torch.maximum(epsilon, start)
    below = cost.new_zeros(right.shape)
    above = _row_potential(cost, below, right, entropy)
    for _ in range(steps):
        entropy = torch.maximum(epsilon, HALVING * entropy)
        below = _row_potential(cost.mT, above, left, entropy)
        above = _row_potential(cost, below, right, entropy)
    return above, below


def coupling(
    cost: Tensor, above: Tensor, below: Tensor, left: Tensor, right: Tensor, epsilon: Tensor
) -> Tensor:
    """The Gibbs kernel scaled by both potentials and both shares, (... n m)."""
    # A point that is not real has a share whose logarithm is minus infinity.
    inner = above.unsqueeze(-1) + below.unsqueeze(-2) - cost
    return (inner / epsilon[..., None, None] + left.unsqueeze(-1) + right.unsqueeze(-2)).exp()


def rounded(entries: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The nearest coupling whose sums are exactly the shares: excess is cut, what lacks is spread."""
    rows, columns = left.exp(), right.exp()
    entries = entries * (rows / _above_zero(entries.sum(-1))).clamp_max(1).unsqueeze(-1)
    entries = entries * (columns / _above_zero(entries.sum(-2))).clamp_max(1).unsqueeze(-2)
    lacking, wanting = (
        (a - b).clamp_min(0) for a, b in ((rows, entries.sum(-1)), (columns, entries.sum(-2)))
    )
    spread = lacking.unsqueeze(-1) * wanting.unsqueeze(-2)
    return entries + spread / _above_zero(lacking.sum(-1))[..., None, None]


def dual_value(cost: Tensor, below: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """What feasible potentials are worth, (...): never more than the least cost."""
    columns = right.isfinite()
    least = (cost - below.unsqueeze(-2)).masked_fill(~columns.unsqueeze(-2), torch.inf).amin(-1)
    return (left.exp() * least).sum(-1) + (right.exp() * below.masked_fill(~columns, 0)).sum(-1)


def _row_potential(cost: Tensor, other: Tensor, shares: Tensor, entropy: Tensor) -> Tensor:
    entropy = entropy.unsqueeze(-1)
    inner = (other.unsqueeze(-2) - cost) / entropy.unsqueeze(-1) + shares.unsqueeze(-2)
    found: Tensor = -entropy * inner.logsumexp(-1)
    return found


def _above_zero(sums: Tensor) -> Tensor:
    return sums.clamp_min(torch.finfo(sums.dtype).tiny)
