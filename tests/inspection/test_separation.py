"""Separation ranks: exact ones against closed forms, fractions and known figures; spectra and nulls."""

from fractions import Fraction
from math import comb
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.inspection import SeparationRank, separation_rank, separation_record, separation_spectrum
from kernelhead.models import LanguageModel
from kernelhead.nn import PolynomialAttention
from kernelhead.ops import generic_rank
from kernelhead.rng import seeded
from tests.inputs import points
from tests.oracles.separation import network, rank


def stack(depth: int, width: int, heads: int = 1, seed: int = 0) -> nn.Sequential:
    with seeded(seed):
        return nn.Sequential(*(PolynomialAttention(width, heads=heads) for _ in range(depth)))


@pytest.mark.parametrize(
    ("depth", "width", "wanted"),
    [
        *((1, width, width + 1) for width in (1, 2, 3, 8, 30)),
        (2, 2, 15), (2, 3, 35), (2, 4, 70), (2, 5, 126), (2, 6, 210), (2, 7, 330), (3, 2, 105),
        (2, 8, 495), (3, 3, 560), (4, 2, 861), pytest.param(2, 10, 1001, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_one_point_a_side_has_the_rank_of_the_closed_form(depth: int, width: int, wanted: int) -> None:
    found = separation_rank(stack(depth, width))
    assert (found.rank, found.complete) == (wanted, True)
    assert wanted == generic_rank(depth, width)


@pytest.mark.parametrize(("depth", "width", "heads"), [(1, 6, 6), (2, 3, 3), (2, 4, 2), (2, 6, 3), (3, 2, 2)])
def test_heads_change_nothing_with_one_point_a_side(depth: int, width: int, heads: int) -> None:
    for prime in (32749, 2_097_143):
        found = separation_rank(stack(depth, width, heads, seed=1), prime=prime, seed=1)
        assert found.rank == generic_rank(depth, width)


@pytest.mark.parametrize("width", [4, 5, 6])
def test_heads_of_one_feature_have_less_from_four_features_on(width: int) -> None:
    assert separation_rank(stack(2, width, width)).rank == generic_rank(2, width) - comb(width, 4)


@pytest.mark.parametrize(
    ("depth", "width", "heads", "wanted"),
    [
        (2, 2, 1, 18), (2, 2, 2, 17), (2, 3, 1, 49), (2, 4, 1, 110), (2, 4, 2, 107), (3, 2, 1, 232),
        (3, 2, 2, 215), (2, 6, 1, 385), (2, 6, 2, 379), (2, 6, 3, 340),
    ],
)  # fmt: skip
def test_two_points_a_side_have_more_and_heads_count(depth: int, width: int, heads: int, wanted: int) -> None:
    assert separation_rank(stack(depth, width, heads), left=2, right=2, samples=wanted + 5).rank == wanted


@pytest.mark.parametrize(("depth", "width", "heads", "wanted"), [(2, 2, 1, 18), (2, 2, 2, 17), (2, 3, 1, 49)])
def test_more_points_a_side_have_no_more(depth: int, width: int, heads: int, wanted: int) -> None:
    assert separation_rank(stack(depth, width, heads), left=4, right=4).rank == wanted


@pytest.mark.parametrize(("depth", "width", "heads"), [(1, 2, 1), (2, 1, 1), (1, 4, 2), (2, 2, 1)])
def test_the_field_has_the_rank_of_the_fractions(depth: int, width: int, heads: int) -> None:
    """Weights as they are stored, points of small whole numbers, elimination over the rationals."""
    layers = stack(depth, width, heads)
    weights = [
        [
            [[Fraction(entry) for entry in row] for row in part.weight.double().tolist()]
            for part in (each.query, each.key, each.value, each.out)
        ]
        for each in layers
    ]
    count = generic_rank(depth, width) + 2
    left, right = (
        torch.randint(-9, 10, (count, width), generator=torch.Generator().manual_seed(seed)).tolist()
        for seed in (0, 1)
    )
    matrix = [[network([a, b], weights, heads)[0][0] for b in right] for a in left]
    assert rank(matrix) == separation_rank(layers).rank == generic_rank(depth, width)


def test_special_weights_have_a_smaller_rank() -> None:
    """The rank is that of the weights at hand: with one feature after a layer little, without keys none."""
    layers = stack(2, 4)
    with torch.no_grad():
        layers[0].out.weight[1:] = 0
    assert 0 < separation_rank(layers).rank < generic_rank(2, 4)
    with torch.no_grad():
        layers[0].key.weight.zero_()
    assert separation_rank(layers).rank == 0


def test_samples_bound_the_rank_and_grow_where_they_may() -> None:
    few = separation_rank(stack(2, 3), samples=20)
    assert few == SeparationRank(20, 20, False, 2_097_143)
    many = separation_rank(stack(2, 3), left=2, right=2)
    assert (many.rank, many.complete) == (49, True)
    assert many.samples > 49
    assert separation_record(many)["samples"] == many.samples
    tied = PolynomialAttention(2, heads=1)
    assert separation_rank(nn.ModuleList([nn.Sequential(tied), tied])).rank <= generic_rank(2, 2)


class Planted(nn.Module):
    """A function of the sums a and b of two points that is a sum of `rank` products, or of two functions."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.scale = rank, nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[:, 0, 0], x[:, 1, 0]
        if self.rank == 0:
            made = a.sin() + b.square()
        else:
            made = sum((k * a).cos() * (k * b + 1).sin() for k in range(1, self.rank + 1))
        return made[:, None] * self.scale


@given(rank=st.integers(1, 6), seed=st.integers(0, 99))
def test_planted_ranks_are_found(rank: int, seed: int) -> None:
    left, right = points(24, 1, 1, seed=seed), points(20, 1, 1, seed=seed + 1)
    read = separation_spectrum(Planted(rank), left, right)
    assert read.found.numerical_rank == rank
    assert 1 <= read.found.stable_rank <= read.found.effective_rank + 1e-9 <= rank + 2e-9
    assert (read.left, read.right, read.outputs, len(read.values)) == (24, 20, 3, 20)
    assert sum(read.values) == pytest.approx(1)


def test_a_sum_of_two_functions_has_no_interaction() -> None:
    read = separation_spectrum(Planted(0), points(16, 1, 1), points(16, 1, 1, seed=1))
    assert read.found.numerical_rank == 2
    assert read.found.interaction == read.found.interaction_rank == 0
    assert read.nulls["independent"].interaction > 0.5
    assert read.nulls["independent"].numerical_rank == 16


@pytest.mark.parametrize(("depth", "width"), [(1, 3), (1, 6), (2, 2)])
def test_numerical_ranks_of_polynomials_are_the_exact_ones(depth: int, width: int) -> None:
    layers, count = stack(depth, width).double(), generic_rank(depth, width) + 8
    read = separation_spectrum(layers, points(count, 1, width), points(count, 1, width, seed=1), places=[1])
    assert read.found.numerical_rank == separation_rank(layers).rank


def test_a_language_model_is_read_beside_its_nulls() -> None:
    with seeded(0):
        model, fresh = (LanguageModel(11, width=8, depth=2, heads=2, longest=6) for _ in range(2))
    left, right = (
        torch.randint(11, (12, 3), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    read = separation_spectrum(model, left, right, places=[0, 2, 4], untrained=fresh, batch=50)
    assert {*read.nulls} == {"independent", "shuffled weights", "untrained"}
    assert read.outputs == 11
    assert 0 < read.found.interaction < 1
    assert read.nulls["independent"].effective_rank > read.found.effective_rank
    assert read == separation_spectrum(model, left, right, places=[0, 2, 4], untrained=fresh)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert model.training
    assert separation_record(read)["found"]["interaction"] == read.found.interaction


def test_places_say_which_points_are_left() -> None:
    left, right = points(9, 1, 1), points(7, 1, 1, seed=1)
    first = separation_spectrum(Planted(2), left, right)
    swapped = separation_spectrum(Planted(2), right, left, places=[1])
    assert swapped.found.effective_rank == pytest.approx(first.found.effective_rank)


X = points(4, 2, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: separation_rank(nn.Linear(2, 2)), r"separation_rank: `layers` holds 0 .* \['Linear'\]"),
        (lambda: separation_rank(nn.Sequential(PolynomialAttention(2, heads=1), nn.GELU())), r"\['GELU'\]"),
        (
            lambda: separation_rank(nn.Sequential(*(PolynomialAttention(w, heads=1) for w in (2, 3)))),
            r"2 PolynomialAttention of widths \[2, 3\]",
        ),
        (lambda: separation_rank(nn.Sequential()), "`layers` holds 0 PolynomialAttention"),
        (lambda: separation_rank(stack(1, 2), left=0), "separation_rank: left is 0"),
        (lambda: separation_rank(stack(1, 2), samples=0), "separation_rank: samples is 0"),
        (lambda: separation_rank(stack(1, 2), prime=8), "separation_rank: prime is 8"),
        (
            lambda: separation_spectrum(Planted(1), X, X[..., :2]),
            "separation_spectrum: `left` is torch.float64",
        ),
        (lambda: separation_spectrum(Planted(1), X, X.float()), "alike but for samples and points"),
        (
            lambda: separation_spectrum(Planted(1), X, X, places=[0]),
            r"`places` is \[0\], expected 2 different",
        ),
        (lambda: separation_spectrum(Planted(1), X, X, places=[0, 4]), r"`places` is \[0, 4\]"),
        (lambda: separation_spectrum(Planted(1), X, X, batch=0), "separation_spectrum: batch is 0"),
        (
            lambda: separation_spectrum(Planted(1), X, X, readout=lambda made: made[:, 0]),
            r"the model and `readout` made \(16,\) of 16 cases",
        ),
        (lambda: separation_spectrum(Planted(1), X * torch.nan, X), "expected finite numbers"),
    ],
)
def test_what_is_refused(call: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()
