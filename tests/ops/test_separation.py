"""Closed forms of the separation rank: their values, both regimes, the published bounds, the words."""

from itertools import pairwise
from math import comb, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput
from kernelhead.ops import generic_rank, log_separation_rank, nested_sums, separation_bounds


def test_the_bound_of_the_degrees_is_the_closed_form() -> None:
    """The other point has degrees 0, 2, ..., 2C; the rank at most the sum of the smaller dimensions."""
    for depth in (1, 2, 3):
        sums = nested_sums(depth)
        for width in range(1, 12):
            dimensions = [comb(degree + width - 1, width - 1) for degree in range(2 * sums + 2)]
            bound = sum(min(dimensions[b], dimensions[2 * sums + 1 - b]) for b in range(0, 2 * sums + 1, 2))
            assert generic_rank(depth, width) == bound


@given(depth=st.integers(0, 5), width=st.integers(1, 300))
def test_the_logarithm_is_that_of_the_number(depth: int, width: int) -> None:
    wanted = log(generic_rank(depth, width), 3)
    assert log_separation_rank(depth, width) == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    assert log_separation_rank(depth, width, base=10) == pytest.approx(
        wanted * log(3, 10), rel=1e-12, abs=1e-12
    )


@given(depth=st.integers(1, 40), width=st.integers(1, 2000))
def test_more_depth_and_more_width_have_more_rank(depth: int, width: int) -> None:
    here = log_separation_rank(depth, width)
    assert here < log_separation_rank(depth + 1, width)
    assert here < log_separation_rank(depth, width + 1)
    assert log_separation_rank(depth + 1, width) - here <= width * (1 + 1e-9)


def test_both_regimes() -> None:
    """Factors at width 768 below the threshold; steps at width 8 that end at the width."""
    ranks = [log_separation_rank(depth, 768) for depth in range(1, 8)]
    factors = [after / before for before, after in pairwise(ranks)]
    assert [round(factor, 1) for factor in factors] == [3.5, 2.7, 2.4, 2.2, 2.0, 1.8]
    ranks = [log_separation_rank(depth, 8) for depth in range(1, 13)]
    steps = [after - before for before, after in pairwise(ranks)]
    assert [round(step, 2) for step in steps[:6]] == [3.65, 5.48, 6.85, 7.56, 7.84, 7.95]
    assert steps[-1] == pytest.approx(8, abs=1e-3)


@given(depth=st.integers(1, 30), width=st.integers(2, 1500))
def test_the_published_bounds_hold(depth: int, width: int) -> None:
    for heads in (1, 2):
        low, high = separation_bounds(depth, width, heads)
        assert low <= log_separation_rank(depth, width) <= high + 1e-9


def test_one_layer_meets_the_upper_bound() -> None:
    assert separation_bounds(1, 50)[1] == pytest.approx(log_separation_rank(1, 50))
    assert separation_bounds(9, 4, 4)[0] == -float("inf")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nested_sums(-1), "nested_sums: depth is -1"),
        (lambda: generic_rank(1, 0), "generic_rank: width is 0"),
        (lambda: log_separation_rank(1, 0), "log_separation_rank: width is 0"),
        (lambda: log_separation_rank(1, 2, base=1.0), "log_separation_rank: base is 1.0"),
        (lambda: separation_bounds(1, 2, 0), "separation_bounds: heads is 0"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()
