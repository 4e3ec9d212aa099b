"""Rankings without training: the first round, query expansion, k-reciprocal neighbours, affinity."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from kernelhead.errors import BadInput, unknown
from kernelhead.kernels import anchor_affinity, unit_rows
from kernelhead.shapes import check_axes, check_size

PART = 1024  # queries of a product
SIDES = ("none", "query", "both")


@dataclass(frozen=True, eq=False)
class Ranking:
    """What a search found: items of a database for every query, best first.

    Shapes: order (q, n), places in the database; scores (q, n).

    Attributes:
        order: the items.
        scores: by which they were ranked; after a re-ranking those of the list and of the tail come from two
            different rounds.
    """

    order: Tensor
    scores: Tensor

    def head(self, k: int) -> "Ranking":
        """The first `k` of every query; all of them where there are fewer."""
        return Ranking(self.order[:, :k], self.scores[:, :k])

    def resorted(self, scores: Tensor) -> "Ranking":
        """The first of every query by new scores, (q, k), and the tail as it was.

        Example:
            >>> ranking = Ranking(torch.tensor([[4, 2, 7]]), torch.tensor([[0.9, 0.8, 0.7]]))
            >>> ranking.resorted(torch.tensor([[0.1, 0.3]])).order
            tensor([[2, 4, 7]])
        """
        scores, place = scores.sort(dim=1, descending=True, stable=True)
        k = place.shape[1]
        order = torch.cat([self.order[:, :k].gather(1, place), self.order[:, k:]], dim=1)
        return Ranking(order, torch.cat([scores.to(self.scores.dtype), self.scores[:, k:]], dim=1))


def first_round(
    query: Tensor, database: Tensor, k: int | None = None, *, own: Tensor | None = None
) -> Ranking:
    """Rank a database by the cosine to each query; by faiss where a list is shorter and faiss is installed.

    Where all are ranked, of items with equal scores the earlier one in the database comes first.

    Shapes: query (q, d), database (m, d), own (q,).

    Args:
        query: features of the queries; they need not be in the database.
        database: features of the items.
        k: how many items to rank; all if None or more than there are.
        own: where the queries are in the database; each is then left out of its own ranking. None where
            they are not in it.

    Raises:
        ShapeError: features are of different widths.
        BadInput: the database is empty, `k` is below one, or `own` is no place of the database.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> first_round(points[:1], points).order
        tensor([[0, 2, 1]])
        >>> first_round(points[:1], points, own=torch.tensor([0])).order
        tensor([[2, 1]])
    """
    query, database = _checked("first_round", query, database, own)
    most = len(database) - (own is not None)
    k = most if k is None else min(check_size("first_round", "k", k), most)
    wide = torch.promote_types(query.dtype, torch.float32)
    if k < most and query.device.type == "cpu" and wide == torch.float32 and find_spec("faiss") is not None:
        return _by_faiss(query.float(), database.float(), k, own)
    found = []
    for start in range(0, len(query), PART):
        scores = query[start : start + PART] @ database.mT
        if own is not None:
            scores = scores.scatter(1, own[start : start + PART, None], -torch.inf)
        if k < most:
            scores, order = scores.topk(k)
        else:
            scores, order = scores.sort(dim=1, descending=True, stable=True)
        found.append((order[:, :k], scores[:, :k]))
    order, scores = (torch.cat(each) for each in zip(*found, strict=True))
    return Ranking(order, scores)


def expanded(
    points: Tensor, database: Tensor, *, neighbours: int = 10, alpha: float = 3.0, own: Tensor | None = None
) -> Tensor:
    r"""Points moved to their nearest items: $x + \sum_i \max(x^\top z_i, 0)^\alpha z_i$, on the unit sphere.

    Shapes: points (q, d), database (m, d), own (q,); returns (q, d).

    Args:
        points: to be moved; all rows are put on the unit sphere first.
        database: whose items are neighbours.
        neighbours: how many; all where the database has fewer.
        alpha: power of the similarity.
        own: where the points are in the database, if they are; no point is its own neighbour then.

    Raises:
        ShapeError: features are of different widths.
        BadInput: `neighbours` is below one, `alpha` is negative, or as for `first_round`.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> expanded(points[:1], points[1:], neighbours=1, alpha=0.0)
        tensor([[0.9239, 0.3827]])
    """
    check_size("expanded", "neighbours", neighbours)
    if not alpha >= 0:
        raise BadInput(f"expanded: alpha is {alpha!r}, expected 0 or more")
    points, database = _checked("expanded", points, database, own)
    if len(database) == (own is not None):
        return points
    near = first_round(points, database, neighbours, own=own)
    weights = near.scores.clamp_min(0) ** alpha
    moved = [
        (weight[..., None] * database[order]).sum(1)
        for weight, order in zip(weights.split(PART), near.order.split(PART), strict=True)
    ]
    return unit_rows(points + torch.cat(moved))


def expanded_sides(
    query: Tensor,
    database: Tensor,
    *,
    sides: str = "query",
    neighbours: int = 10,
    alpha: float = 3.0,
    own: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Queries after `expanded`, and the database too for the sides "both"; for "none" both as they are.

    All rows come out on the unit sphere; see `alpha_qe`.

    Raises:
        UnknownName: no such sides.
        ShapeError: features are of different widths.
        BadInput: as for `expanded`.

    Example:
        >>> points = torch.eye(2)
        >>> expanded_sides(points[:1], points, own=torch.tensor([0]))[1]
        tensor([[1., 0.],
                [0., 1.]])
    """
    if sides not in SIDES:
        raise unknown("expanded_sides", "sides", sides, SIDES)
    if sides == "none":
        return _checked("expanded_sides", query, database, own)
    moved = expanded(query, database, neighbours=neighbours, alpha=alpha, own=own)
    if sides == "query":
        return moved, unit_rows(database)
    places = torch.arange(len(database), device=database.device)
    return moved, expanded(database, database, neighbours=neighbours, alpha=alpha, own=places)


def alpha_qe(
    query: Tensor,
    database: Tensor,
    k: int | None = None,
    *,
    sides: str = "query",
    neighbours: int = 10,
    alpha: float = 3.0,
    own: Tensor | None = None,
) -> Ranking:
    """Rank by alpha query expansion: a query moves towards its nearest items, then all is ranked again.

    Shapes: query (q, d), database (m, d), own (q,).

    Args:
        query: features of the queries.
        database: features of the items.
        k: how many items to rank; all if None.
        sides: "query" as published; "both": items of the database move in the same way, which takes a
            product of the database with itself, once for all queries; "none" is the first round.
        neighbours: how many a point moves towards.
        alpha: power of the similarity.
        own: where the queries are in the database, if they are.

    Raises:
        UnknownName: no such sides.
        ShapeError: features are of different widths.
        BadInput: as for `expanded`.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.8, -0.7], [0.0, 1.0]])
        >>> alpha_qe(points[:1], points[1:], neighbours=1).order
        tensor([[0, 1, 2]])
    """
    moved = expanded_sides(query, database, sides=sides, neighbours=neighbours, alpha=alpha, own=own)
    return first_round(*moved, k, own=own)


def affinity_cosine(
    query: Tensor, database: Tensor, k: int, *, anchors: int | None = None, own: Tensor | None = None
) -> Ranking:
    """Rank the first `k` again by the cosine of their affinity features; the tail stays.

    Shapes: query (q, d), database (m, d), own (q,).

    Args:
        query: features of the queries.
        database: features of the items.
        k: items of the list; all where the database has fewer.
        anchors: how many, the query and the best of the first round; the list's length if None.
        own: where the queries are in the database, if they are.

    Raises:
        ShapeError: features are of different widths.
        BadInput: a number is below one, or as for `first_round`.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.8, -0.7], [0.0, 1.0]])
        >>> affinity_cosine(points[:1], points[1:], 2, anchors=2).order
        tensor([[0, 1, 2]])
    """
    check_size("affinity_cosine", "k", k)
    anchors = k if anchors is None else check_size("affinity_cosine", "anchors", anchors)
    ranking = first_round(query, database, own=own)
    scores = []
    for some, order in zip(query.split(PART), ranking.head(k).order.split(PART), strict=True):
        affinity = unit_rows(list_affinity(list_items(some, database, order), anchors))
        scores.append((affinity[:, 1:] * affinity[:, :1]).sum(-1))
    return ranking.resorted(torch.cat(scores))


def ranked(method: str, query: Tensor, database: Tensor, k: int, *, own: Tensor | None = None) -> Ranking:
    """Rank by a method that learns nothing, by its name and with its own defaults.

    Shapes: query (q, d), database (m, d), own (q,).

    Args:
        method: one of the names in `RANKERS`.
        query: features of the queries.
        database: features of the items.
        k: items of the list that affinity and k-reciprocal re-order; the others rank all.
        own: where the queries are in the database, if they are.

    Raises:
        UnknownName: no such method; or as the method itself.

    Example:
        >>> ranked("first", torch.eye(2), torch.eye(2), 1).order[0]
        tensor([0, 1])
    """
    if method not in RANKERS:
        raise unknown("ranked", "method", method, RANKERS)
    return RANKERS[method](query, database, k, own)


def list_items(query: Tensor, database: Tensor, order: Tensor) -> Tensor:
    """The features of lists: each query, then its items in their order, (q, k + 1, d).

    Shapes: query (q, d), database (m, d), order (q, k).
    """
    return torch.cat([query[:, None], database[order]], dim=1)


def list_affinity(items: Tensor, anchors: int) -> Tensor:
    """Affinity features of lists whose items are sorted: cosines to the first `anchors` of them.

    Columns of anchors that a shorter list does not have are zero.

    Shapes: items (... n d), the query first; returns (... n l).

    Example:
        >>> list_affinity(torch.eye(2), 3)
        tensor([[1., 0., 0.],
                [0., 1., 0.]])
    """
    affinity = anchor_affinity(items, items[..., :anchors, :])
    return torch.nn.functional.pad(affinity, (0, anchors - affinity.shape[-1]))


def k_reciprocal(
    query: Tensor,
    database: Tensor,
    k: int,
    *,
    near: int = 20,
    nearest: int = 6,
    weight: float = 0.3,
    own: Tensor | None = None,
) -> Ranking:
    r"""Rank the first `k` again by neighbours that have each other among their nearest; the tail stays.

    A point becomes a vector with $e^{-\delta}$, of distances $\delta$, at its `near` reciprocal neighbours
    and at those of theirs, half as many, of which two thirds are already in; rows are averaged over the
    `nearest`. What ranks is the Jaccard distance of these vectors, mixed with the first distance. Needs a
    square of all points: time grows as the cube of their number.

    Shapes: query (q, d), database (m, d), own (q,).

    Args:
        query: features of the queries.
        database: features of the items.
        k: items of the list; all where the database has fewer.
        near: neighbours that are looked at, k1.
        nearest: rows that are averaged, k2.
        weight: of the first distance, lambda.
        own: where the queries are in the database, if they are.

    Raises:
        ShapeError: features are of different widths.
        BadInput: a number is out of range, or as for `first_round`.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.8, -0.7], [0.0, 1.0]])
        >>> k_reciprocal(points[:1], points[1:], 3, near=2, nearest=1).order
        tensor([[1, 0, 2]])
    """
    for name, size in (("near", near), ("nearest", nearest)):
        check_size("k_reciprocal", name, size)
    if not 0 <= weight <= 1:
        raise BadInput(f"k_reciprocal: weight is {weight!r}, expected from 0 to 1")
    ranking = first_round(query, database, own=own)
    head = ranking.head(check_size("k_reciprocal", "k", k)).order
    query, database = unit_rows(query), unit_rows(database)
    points = database if own is not None else torch.cat([query, database])
    places = own if own is not None else torch.arange(len(query), device=query.device)
    items = head if own is not None else head + len(query)
    distance = (2 - 2 * points @ points.mT).clamp_min(0)
    distance = distance / distance.amax(1, keepdim=True).clamp_min(torch.finfo(distance.dtype).tiny)
    order = distance.argsort(dim=1, stable=True)
    vectors = _reciprocal_vectors(distance, order, near)
    vectors = torch.stack([vectors[order[:, i]] for i in range(min(nearest, len(points)))]).mean(0)
    found = []
    for place, some in zip(places.tolist(), items, strict=True):
        held = vectors[place].nonzero()[:, 0]
        shared = torch.minimum(vectors[place, held], vectors[some][:, held]).sum(1)
        found.append((1 - weight) * (1 - shared / (2 - shared)) + weight * distance[place, some])
    return ranking.resorted(-torch.stack(found))


def _reciprocal_vectors(distance: Tensor, order: Tensor, near: int) -> Tensor:
    """Weights of each point's reciprocal neighbours, (n, n), rows that sum to one."""
    whole, half = (_reciprocal(order, count) for count in (near, round(near / 2)))
    wide, narrow = whole.to(distance.dtype), half.to(distance.dtype)
    shared = wide @ narrow.mT  # neighbours of i among the closer ones of j
    joins = whole & (3 * shared > 2 * narrow.sum(1))
    members = whole | (joins.to(distance.dtype) @ narrow > 0)
    weights = torch.where(members, (-distance).exp(), 0.0)
    return weights / weights.sum(1, keepdim=True)


def _reciprocal(order: Tensor, near: int) -> Tensor:
    """Whether two points are among the `near` of each other, (n, n); a point is its own nearest."""
    among = torch.zeros(order.shape, dtype=torch.bool, device=order.device)
    among.scatter_(1, order[:, : near + 1], True)
    return among & among.mT


def _checked(who: str, query: Tensor, database: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both on the unit sphere."""
    check_axes(who, query=(query, "q d"), database=(database, "m d"))
    if len(database) == 0:
        raise BadInput(f"{who}: the database {tuple(database.shape)} holds no item")
    if own is not None:
        check_axes(who, query=(query, "q d"), own=(own, "q"))
        if own.dtype not in (torch.int32, torch.int64) or (
            len(own) and not 0 <= own.min() <= own.max() < len(database)
        ):
            raise BadInput(f"{who}: `own` does not hold places from 0 to {len(database) - 1} alone")
    return unit_rows(query), unit_rows(database)


def _by_faiss(query: Tensor, database: Tensor, k: int, own: Tensor | None) -> Ranking:
    """An exact search by inner product; where a query is an item, one more is looked for, and it goes."""
    index = import_module("faiss").IndexFlatIP(database.shape[1])
    index.add(database.numpy())
    scores, order = map(torch.as_tensor, index.search(query.numpy(), k + (own is not None)))
    if own is None:
        return Ranking(order, scores)
    other = order != own[:, None]
    # Of many equal items the query itself may not be found; the last one goes then.
    other[:, -1] &= ~other.all(1)
    return Ranking(order[other].view(-1, k), scores[other].view(-1, k))


RANKERS: dict[str, Callable[[Tensor, Tensor, int, Tensor | None], Ranking]] = {
    "first": lambda query, database, k, own: first_round(query, database, own=own),
    "alpha-qe": lambda query, database, k, own: alpha_qe(query, database, own=own),
    "alpha-qe-both": lambda query, database, k, own: alpha_qe(query, database, sides="both", own=own),
    "k-reciprocal": lambda query, database, k, own: k_reciprocal(query, database, k, own=own),
    "affinity": lambda query, database, k, own: affinity_cosine(query, database, k, own=own),
}
