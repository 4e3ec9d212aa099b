"""How good a ranking is: average precision and precision at a rank, with what counts neither way removed."""

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.shapes import check_axes, check_size


def mean_average_precision(order: Tensor, relevant: Tensor, *, junk: Tensor | None = None) -> float:
    r"""Mean over queries of the area under precision over recall, by trapezoids.

    Junk is removed from a ranking first. With the $j$-th relevant item at place $r_j$ of what is left, both
    from 0, a query scores $\frac1P \sum_j \frac12 (j / r_j + (j + 1) / (r_j + 1))$, where $0 / 0$ is 1.
    Relevant items that are not in the ranking count as missed. Queries without a relevant item are left out.

    Shapes: order (q, n), places in a database of m items, best first; relevant, junk (q, m).

    Args:
        order: the ranking of every query; may be shorter than the database.
        relevant: True where an item is relevant to a query.
        junk: True where an item counts neither way.

    Raises:
        ShapeError: the axes do not agree.
        BadInput: no query has a relevant item; an item is ranked twice, is none of the database's, or is both
            relevant and junk; or a mask is not boolean.

    Example:
        >>> relevant = torch.tensor([[True, False, True, False]])
        >>> mean_average_precision(torch.tensor([[0, 2, 1, 3]]), relevant)
        1.0
        >>> round(mean_average_precision(torch.tensor([[0, 1, 2, 3]]), relevant), 4)
        0.7917
        >>> mean_average_precision(torch.tensor([[0, 1, 2, 3]]), relevant, junk=torch.eye(4)[1:2].bool())
        1.0
    """
    hit, place, counted = _places("mean_average_precision", order, relevant, junk)
    hits = hit.cumsum(1).double()
    before = torch.where(place > 0, (hits - 1) / place.clamp_min(1), 1.0)
    area = torch.where(hit, (before + hits / (place + 1)) / 2, 0.0)
    return float((area.sum(1) / counted).mean())


def precision_at(order: Tensor, relevant: Tensor, k: int, *, junk: Tensor | None = None) -> float:
    """Mean over queries of the share of relevant items among the first `k`, junk removed first.

    As in the revisited protocol of landmark retrieval a list ends with its last relevant item where that
    comes before `k`, so that a perfect ranking scores 1 whatever `k` is.

    Shapes: order (q, n), places in a database of m items, best first; relevant, junk (q, m).

    Args:
        order: the ranking of every query.
        relevant: True where an item is relevant to a query.
        k: how many.
        junk: True where an item counts neither way.

    Raises:
        ShapeError: the axes do not agree.
        BadInput: `k` is below one, or as for `mean_average_precision`.

    Example:
        >>> relevant = torch.tensor([[True, False, True, False]])
        >>> precision_at(torch.tensor([[0, 1, 2, 3]]), relevant, 2)
        0.5
    """
    check_size("precision_at", "k", k)
    hit, place, counted = _places("precision_at", order, relevant, junk)
    # Items that were not ranked come after all that were.
    last = torch.where(hit, place + 1, 0).amax(1) if order.shape[1] else torch.zeros_like(counted)
    last = torch.where(hit.sum(1) < counted, k, last).clamp_max(k)
    return float(((hit & (place < last[:, None])).sum(1) / last).mean())


def _places(who: str, order: Tensor, relevant: Tensor, junk: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Of queries that have any: hits (q, n), places without junk (q, n), relevant items (q,)."""
    junk = torch.zeros_like(relevant) if junk is None else junk
    sizes = check_axes(who, order=(order, "q n"), relevant=(relevant, "q m"), junk=(junk, "q m"))
    for name, mask in (("relevant", relevant), ("junk", junk)):
        if mask.dtype != torch.bool:
            raise BadInput(f"{who}: `{name}` is {mask.dtype}, expected torch.bool")
    both = (relevant & junk).nonzero()
    if len(both):
        raise BadInput(f"{who}: item {int(both[0, 1])} is both relevant and junk to query {int(both[0, 0])}")
    whole = not order.is_floating_point() and order.dtype != torch.bool
    if not whole or (order.numel() and not 0 <= order.min() <= order.max() < sizes["m"]):
        raise BadInput(f"{who}: `order` does not hold places from 0 to {sizes['m'] - 1} alone")
    order = order.long()
    ranked = torch.zeros(relevant.shape, dtype=torch.int64, device=order.device)
    if (ranked.scatter_add(1, order, torch.ones_like(order)) > 1).any():
        raise BadInput(f"{who}: `order` holds an item twice in one ranking")
    some = relevant.any(1)
    if not some.any():
        raise BadInput(f"{who}: none of {len(relevant)} queries has a relevant item")
    order, relevant, junk = order[some], relevant[some], junk[some]
    hit, kept = relevant.gather(1, order), ~junk.gather(1, order)
    return hit, kept.cumsum(1) - 1, relevant.sum(1)
