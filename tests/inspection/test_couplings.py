"""Couplings and distances: exact against all pairings and POT, entropic within their bounds, Bures, words."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, MissingExtra, ShapeError, UnknownName
from kernelhead.inspection import (
    bures_difficulty,
    bures_distance,
    optimal_coupling,
    optimal_matching,
    wasserstein,
)
from tests.inputs import points
from tests.oracles import transport as oracle

TOLERANCE = 5e-3  # of the entropic distance, relative, with the steps that are taken by default


@given(n=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_matching_is_the_best_of_all(n: int, seed: int) -> None:
    x, y = points(n, 2, seed=seed), points(n, 2, seed=seed + 1)
    order, least = oracle.best_pairing(x, y)
    assert optimal_matching(x, y).tolist() == [*order]
    assert wasserstein(x, y) == pytest.approx((least / n) ** 0.5, rel=1e-12)
    _, lengths = oracle.best_pairing(x, y, "euclidean")
    assert wasserstein(x, y, cost="euclidean") == pytest.approx(lengths / n, rel=1e-12)


def test_a_coupling_is_a_pattern_with_its_shares() -> None:
    x, y = points(5, 2), points(5, 2, seed=1)
    made = optimal_coupling(x, y)
    assert torch.equal(made.matrix().argmax(1), optimal_matching(x, y))
    for sums in made.marginals():
        assert torch.allclose(sums, torch.full((5,), 0.2).double())


def test_sets_of_two_sizes() -> None:
    pytest.importorskip("ot")
    x = points(4, 2)
    twice = torch.cat([x, x])
    assert wasserstein(x, twice) == pytest.approx(0, abs=1e-7)
    rows, columns = optimal_coupling(x, points(6, 2, seed=1)).marginals()
    assert torch.allclose(rows, torch.full((4,), 0.25).double())
    assert torch.allclose(columns, torch.full((6,), 1 / 6).double())


@pytest.mark.parametrize("cost", ["sqeuclidean", "euclidean"])
@pytest.mark.parametrize("sizes", [(40, 40), (30, 50)], ids=str)
def test_the_entropic_distance_is_within_its_tolerance(sizes: tuple[int, int], cost: str) -> None:
    if sizes[0] != sizes[1]:
        pytest.importorskip("ot")
    x, y = points(sizes[0], 2), points(sizes[1], 2, seed=1) + 1
    exact, near = (wasserstein(x, y, cost=cost, solver=solver) for solver in ("exact", "sinkhorn"))
    assert near <= exact * (1 + 1e-9)
    assert near == pytest.approx(exact, rel=TOLERANCE)
    rows, _ = optimal_coupling(x, y, cost=cost, solver="sinkhorn").marginals()
    assert torch.allclose(rows, torch.full_like(rows, 1 / sizes[0]), rtol=1e-9)


@given(seed=st.integers(0, 99))
def test_distances_obey_the_triangle(seed: int) -> None:
    x, y, z = (points(7, 2, seed=3 * seed + place) for place in range(3))
    assert wasserstein(x, z) <= wasserstein(x, y) + wasserstein(y, z) + 1e-12
    assert wasserstein(x, y) == pytest.approx(wasserstein(y, x))


def test_batches_match_every_point_once_at_a_higher_cost() -> None:
    x, y = points(30, 2), points(30, 2, seed=1)
    whole, parts = optimal_matching(x, y), optimal_matching(x, y, batch=8)
    assert sorted(parts.tolist()) == [*range(30)]
    assert (y[parts] - x).square().sum() > (y[whole] - x).square().sum()
    assert torch.equal(optimal_matching(x, y, batch=30), whole)


def test_bures_is_that_of_normal_distributions() -> None:
    mean, other = torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 0.5])
    spread, wide = torch.diag(torch.tensor([4.0, 9.0])), torch.diag(torch.tensor([1.0, 16.0]))
    wanted = (4 + 2.25 + (2 - 1) ** 2 + (3 - 4) ** 2) ** 0.5  # roots commute: differences of deviations
    assert bures_distance(mean, spread, other, wide) == pytest.approx(wanted)
    assert bures_distance(mean, spread, mean, spread) == pytest.approx(0, abs=1e-6)


@given(seed=st.integers(0, 99))
def test_bures_is_a_lower_bound_of_the_distance_of_points(seed: int) -> None:
    x, y = points(20, 3, seed=seed), 2 * points(20, 3, seed=seed + 1) + 1
    both = torch.cat([x, y])
    difficulty = bures_difficulty(both, torch.arange(40) // 20)
    assert difficulty <= wasserstein(x, y) + 1e-9


def test_bures_agrees_with_pot() -> None:
    gaussian = pytest.importorskip("ot.gaussian")
    pairs = []
    for seed in (0, 1):
        root = points(3, 3, seed=seed)
        pairs += [points(3, seed=seed + 5), root @ root.mT]
    wanted = gaussian.bures_wasserstein_distance(
        pairs[0].numpy(), pairs[2].numpy(), pairs[1].numpy(), pairs[3].numpy()
    )
    assert bures_distance(*pairs) == pytest.approx(float(wanted), rel=1e-6)


def test_words(monkeypatch: pytest.MonkeyPatch) -> None:
    x = points(3, 2)
    with pytest.raises(ShapeError, match="optimal_matching: axis `n` is 3 in `x` but 4 in `y`"):
        optimal_matching(x, points(4, 2))
    with pytest.raises(BadInput, match=r"optimal_matching: `x` \(1, 2\) holds numbers that are not finite"):
        optimal_matching(torch.tensor([[0.0, torch.nan]]), torch.zeros(1, 2))
    with pytest.raises(BadInput, match=r"wasserstein: `x` \(0, 2\) has no points"):
        wasserstein(torch.zeros(0, 2), x)
    with pytest.raises(BadInput, match="batch is 0"):
        optimal_matching(x, x, batch=0)
    with pytest.raises(UnknownName, match="wasserstein: unknown cost 'cosine'"):
        wasserstein(x, x, cost="cosine")
    with pytest.raises(UnknownName, match="optimal_coupling: unknown solver 'simplex'"):
        optimal_coupling(x, x, solver="simplex")
    with pytest.raises(BadInput, match="bures_difficulty: class 1 has 1 point"):
        bures_difficulty(x, torch.tensor([0, 0, 1]))
    with pytest.raises(BadInput, match="bures_difficulty: 1 class, expected two or more"):
        bures_difficulty(x, torch.zeros(3))
    with pytest.raises(ShapeError, match="axis `d` is 2"):
        bures_distance(torch.zeros(2), torch.eye(2), torch.zeros(3), torch.eye(3))
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(MissingExtra, match=r"wasserstein of 3 and 4 points: needs POT.*kernelhead\[ot\]"):
        wasserstein(x, points(4, 2))
