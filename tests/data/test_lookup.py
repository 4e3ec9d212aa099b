"""lookup_tables: its sizes, its draw, its known answer, its words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import lookup_tables
from kernelhead.errors import BadInput


@given(tables=st.integers(1, 4), rows=st.integers(1, 6), features=st.integers(1, 5), seed=st.integers(0, 99))
def test_sizes_are_as_asked(tables: int, rows: int, features: int, seed: int) -> None:
    drawn = lookup_tables(tables, rows=rows, features=features, seed=seed)
    assert drawn.values.shape == drawn.missing.shape == (tables, 2 * rows, features + 1)
    assert drawn.answers.shape == (tables, rows)
    assert drawn.values.dtype == np.float32


def test_the_second_half_is_the_first_with_its_answers() -> None:
    drawn = lookup_tables(3, seed=0)
    assert np.array_equal(drawn.values[:, :16, :-1], drawn.values[:, 16:, :-1])
    assert np.array_equal(drawn.values[:, 16:, -1], drawn.answers)
    assert (drawn.values[:, :16, -1] == 0).all()
    assert drawn.missing[:, :16, -1].all()
    assert drawn.missing.sum() == 3 * 16
    assert np.array_equal(drawn.nearest(), drawn.answers)


def test_variants_mislead_the_nearest_neighbour() -> None:
    shifted = lookup_tables(500, shift=1.0, seed=0)
    assert np.allclose(shifted.nearest() - shifted.answers, 1, atol=1e-6)
    noisy = lookup_tables(500, random=2, seed=0)
    assert np.array_equal(noisy.values[:, :16, :2], noisy.values[:, 16:, :2])
    assert not np.isclose(noisy.values[:, :16, 2:4], noisy.values[:, 16:, 2:4]).any(axis=(1, 2)).all()
    assert 1.1 < np.sqrt(np.square(noisy.nearest() - noisy.answers).mean()) < 1.25


def test_a_seed_is_a_draw() -> None:
    assert np.array_equal(lookup_tables(2, seed=3).values, lookup_tables(2, seed=3).values)
    assert not np.array_equal(lookup_tables(2, seed=3).values, lookup_tables(2, seed=4).values)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(BadInput, match="lookup_tables: tables is 0"):
        lookup_tables(0, seed=0)
    with pytest.raises(BadInput, match="lookup_tables: random is 5, expected at most the 4 features"):
        lookup_tables(1, random=5, seed=0)
