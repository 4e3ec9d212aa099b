"""Rankings that learn nothing: their definitions by loops, their laws, faiss, their words."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.kernels import unit_rows
from kernelhead.models import (
    RANKERS,
    Ranking,
    affinity_cosine,
    alpha_qe,
    expanded,
    expanded_sides,
    first_round,
    k_reciprocal,
    list_affinity,
    list_items,
    ranked,
)
from tests.inputs import points
from tests.oracles import reranking as oracle
from tests.tolerance import assert_exact

rankers = pytest.mark.parametrize("method", RANKERS)


@given(items=st.integers(1, 7), seed=st.integers(0, 999))
def test_the_first_round_sorts_cosines(items: int, seed: int) -> None:
    query, database = points(2, 3, seed=seed), points(items, 3, seed=seed + 1)
    found = first_round(query, database)
    for row in range(2):
        scores = [oracle.cosine(query[row], item) for item in database]
        order = sorted(range(items), key=lambda i, scores=scores: -scores[i])
        assert found.order[row].tolist() == order
        assert_exact(found.scores[row], torch.tensor([scores[i] for i in order], dtype=torch.float64))


@rankers
@given(seed=st.integers(0, 99))
def test_shuffling_the_database_changes_places_and_nothing_else(method: str, seed: int) -> None:
    query, database = points(2, 4, seed=seed), points(9, 4, seed=seed + 1)
    moved = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    found, other = (ranked(method, query, each, 5) for each in (database, database[moved]))
    assert torch.equal(moved[other.order], found.order)
    assert_exact(other.scores, found.scores)


@rankers
def test_a_query_of_the_database_is_left_out_of_its_own_ranking(method: str) -> None:
    database, own = points(8, 4), torch.tensor([3, 0])
    found = ranked(method, database[own], database, 4, own=own)
    assert found.order.shape == (2, 7)
    assert all(sorted(row) == [i for i in range(8) if i != place] for row, place in zip(
        found.order.tolist(), own.tolist(), strict=True
    ))  # fmt: skip


@rankers
def test_a_list_may_be_longer_than_the_database(method: str) -> None:
    query, database = points(2, 4), points(3, 4, seed=1)
    whole, longer = (ranked(method, query, database, k) for k in (3, 99))
    assert longer.order.shape == (2, 3)
    # The number of anchors is that of the list, and columns beyond it are zero.
    assert torch.equal(whole.order, longer.order)


@pytest.mark.parametrize("method", ["affinity", "k-reciprocal"])
def test_the_tail_is_untouched(method: str) -> None:
    query, database = points(3, 4), points(12, 4, seed=1)
    first, found = first_round(query, database), ranked(method, query, database, 5)
    assert torch.equal(found.order[:, 5:], first.order[:, 5:])
    assert torch.equal(found.scores[:, 5:], first.scores[:, 5:])
    assert torch.equal(found.order[:, :5].sort(1)[0], first.order[:, :5].sort(1)[0])


@given(items=st.integers(1, 7), neighbours=st.integers(1, 9), seed=st.integers(0, 999))
def test_expansion_is_its_definition(items: int, neighbours: int, seed: int) -> None:
    x, database = points(3, seed=seed), points(items, 3, seed=seed + 1)
    wanted = oracle.expanded(x, database, neighbours=neighbours, alpha=3.0)
    assert_exact(expanded(x[None], database, neighbours=neighbours)[0], wanted)


def test_both_sides_move_items_without_themselves() -> None:
    database, own = points(6, 3), torch.tensor([2])
    query, moved = expanded_sides(database[own], database, sides="both", neighbours=2, own=own)
    for place in range(6):
        others = torch.cat([database[:place], database[place + 1 :]])
        assert_exact(moved[place], oracle.expanded(database[place], others, neighbours=2, alpha=3.0))
    assert_exact(query[0], moved[2])
    ranking = alpha_qe(database[own], database, sides="both", neighbours=2, own=own)
    assert torch.equal(ranking.order, first_round(query, moved, own=own).order)


def test_nothing_moves_where_there_is_no_other_item() -> None:
    alone = points(1, 3)
    assert_exact(expanded(alone, alone, own=torch.tensor([0])), unit_rows(alone))
    assert expanded_sides(alone, alone, sides="none")[0].shape == (1, 3)


def test_affinity_is_its_definition() -> None:
    query, database = points(2, 4), points(9, 4, seed=1)
    first, found = first_round(query, database), affinity_cosine(query, database, 6, anchors=4)
    for row in range(2):
        items = torch.cat([query[row : row + 1], database[first.order[row, :6]]])
        features = oracle.affinity(items, 4)
        scores = [oracle.cosine(features[0], features[i]) for i in range(1, 7)]
        order = sorted(range(6), key=lambda i, scores=scores: -scores[i])
        assert found.order[row, :6].tolist() == first.order[row, order].tolist()
        assert_exact(found.scores[row, :6], torch.tensor([scores[i] for i in order], dtype=torch.float64))


@pytest.mark.parametrize("inside", [True, False], ids=["in the database", "not in it"])
@pytest.mark.parametrize(("near", "nearest"), [(4, 1), (5, 3), (99, 99)])
def test_reciprocal_neighbours_are_their_definition(near: int, nearest: int, inside: bool) -> None:
    database = points(12, 3)
    query, own = (database[:2], torch.tensor([0, 1])) if inside else (points(2, 3, seed=1), None)
    found = k_reciprocal(query, database, 8, near=near, nearest=nearest, own=own)
    everything = database if inside else torch.cat([query, database])
    for row in range(2):
        wanted = oracle.reciprocal_distances(everything, row, near=near, nearest=nearest, weight=0.3)
        items = first_round(query, database, own=own).order[row, :8] + (0 if inside else 2)
        scores = torch.tensor([-wanted[i] for i in items.tolist()], dtype=torch.float64)
        assert_exact(found.scores[row, :8], scores.sort(descending=True)[0])


def test_lists_shorter_than_their_anchors_have_columns_of_zeros() -> None:
    items = list_items(points(2, 4), points(5, 4, seed=1), torch.tensor([[0, 3], [4, 1]]))
    affinity = list_affinity(items, 5)
    assert affinity.shape == (2, 3, 5)
    assert_exact(affinity[1, :, :3], oracle.affinity(items[1], 3))
    assert not affinity[..., 3:].any()


class Index:
    """What faiss does, with its names."""

    def __init__(self, width: int) -> None:
        self.width = width

    def add(self, items: Any) -> None:
        self.items = items

    def search(self, query: Any, k: int) -> tuple[Any, Any]:
        scores = query @ self.items.T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, 1), order


@pytest.fixture
def faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", SimpleNamespace(IndexFlatIP=Index))
    monkeypatch.setattr("kernelhead.models.ranking.find_spec", lambda name: name == "faiss")


@pytest.mark.usefixtures("faiss")
@pytest.mark.parametrize("own", [None, torch.tensor([4, 0, 2])], ids=["others", "own"])
def test_faiss_finds_the_same(own: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    database = points(9, 4, dtype=torch.float32)
    query = points(3, 4, seed=1, dtype=torch.float32) if own is None else database[own]
    found = first_round(query, database, 5, own=own)
    monkeypatch.setattr("kernelhead.models.ranking.find_spec", lambda name: None)
    assert torch.equal(found.order, first_round(query, database, 5, own=own).order)


@pytest.mark.usefixtures("faiss")
def test_equal_items_may_hide_the_query_from_faiss() -> None:
    same = torch.ones(6, 3)
    found = first_round(same[:2], same, 2, own=torch.tensor([0, 5]))
    assert found.order.tolist() == [[1, 2], [0, 1]]


def test_equal_items_stay_in_order() -> None:
    assert first_round(torch.ones(1, 3), torch.ones(4, 3)).order.tolist() == [[0, 1, 2, 3]]
    assert Ranking(torch.tensor([[5, 2]]), torch.zeros(1, 2)).resorted(torch.zeros(1, 2)).order.tolist() == [
        [5, 2]
    ]


X = points(3, 4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: first_round(X, points(3, 5)), ShapeError, "first_round: axis `d` is 4 in `query` but 5"),
        (lambda: first_round(X, X[:0]), BadInput, r"first_round: the database \(0, 4\) holds no item"),
        (lambda: first_round(X, X, 0), BadInput, "first_round: k is 0"),
        (lambda: first_round(X, X, own=torch.tensor([0, 1, 3])), BadInput, "`own` does not hold places"),
        (lambda: first_round(X, X, own=torch.tensor([0])), ShapeError, "axis `q` is 3 in `query` but 1"),
        (lambda: expanded(X, X, neighbours=0), BadInput, "expanded: neighbours is 0"),
        (lambda: expanded(X, X, alpha=-1.0), BadInput, "expanded: alpha is -1.0, expected 0 or more"),
        (lambda: alpha_qe(X, X, sides="one"), UnknownName, "unknown sides 'one'.* Known: both, none, query"),
        (lambda: affinity_cosine(X, X, 2, anchors=0), BadInput, "affinity_cosine: anchors is 0"),
        (lambda: affinity_cosine(X, X, 0), BadInput, "affinity_cosine: k is 0"),
        (lambda: k_reciprocal(X, X, 0), BadInput, "k_reciprocal: k is 0"),
        (lambda: k_reciprocal(X, X, 2, near=0), BadInput, "k_reciprocal: near is 0"),
        (lambda: k_reciprocal(X, X, 2, weight=2.0), BadInput, "weight is 2.0, expected from 0 to 1"),
        (lambda: ranked("qe", X, X, 2), UnknownName, "ranked: unknown method 'qe'"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
