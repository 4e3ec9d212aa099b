"""Seeds: the same numbers give the same bits, and the global generator never notices."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput
from kernelhead.rng import generator, mixed, seeded

NUMBERS = st.lists(st.integers(-(2**70), 2**70), max_size=4)
BITS = 63


def drawn(*numbers: int) -> torch.Tensor:
    with seeded(*numbers):
        return torch.rand(4)


@given(numbers=NUMBERS)
def test_the_same_numbers_give_the_same_bits(numbers: list[int]) -> None:
    assert torch.equal(drawn(*numbers), drawn(*numbers))
    one, other = (torch.rand(4, generator=generator(*numbers)) for _ in range(2))
    assert torch.equal(one, other)


@given(one=NUMBERS, other=NUMBERS)
def test_other_numbers_give_other_bits(one: list[int], other: list[int]) -> None:
    assert one == other or mixed(*one) != mixed(*other)


def test_order_and_count_of_the_numbers_matter() -> None:
    named = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
    assert len({mixed(*numbers) for numbers in named}) == len(named)
    assert len({tuple(drawn(*numbers).tolist()) for numbers in named}) == len(named)


@given(numbers=NUMBERS)
def test_a_mixed_seed_fits_a_generator(numbers: list[int]) -> None:
    assert 0 <= mixed(*numbers) < 2**BITS


def test_neighbours_get_unrelated_seeds() -> None:
    count = 2000
    flips = sum((mixed(number) ^ mixed(number + 1)).bit_count() for number in range(count))
    # Unrelated seeds differ in a binomial number of bits, of mean 63/2 and variance 63/4.
    assert abs(flips / count - BITS / 2) < 4 * (BITS / 4 / count) ** 0.5


def test_a_block_leaves_the_global_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    with seeded(3):
        torch.rand(5)
        with seeded(4):
            torch.rand(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_block_that_fails_leaves_it_too() -> None:
    def fail() -> None:
        with seeded(3):
            torch.rand(5)
            raise RuntimeError("on purpose")

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_an_inner_block_does_not_move_the_outer_stream() -> None:
    with seeded(3):
        torch.rand(2)
        expected = torch.rand(2)
    with seeded(3):
        torch.rand(2)
        drawn(9)
        assert torch.equal(torch.rand(2), expected)


def test_a_generator_of_its_own_does_not_move_the_global_one() -> None:
    before = torch.get_rng_state()
    torch.rand(5, generator=generator(1, 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_stream_does_not_depend_on_what_was_drawn_before() -> None:
    with seeded(1):
        inside = drawn(7)
    with seeded(2):
        torch.rand(3)
        assert torch.equal(drawn(7), inside)


def test_whole_numbers_of_any_library_are_seeds() -> None:
    assert mixed(np.int64(3), torch.tensor(1)) == mixed(3, 1)
    for seed in (1.5, "one", None):
        with pytest.raises(BadInput, match=rf"seed is {seed!r}, expected a whole number"):
            mixed(seed)
