"""The noun: Dense and Factored answer alike, transposing twice is nothing, and both have their words."""

import re
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.pattern import Dense, Factored, Pattern
from tests.inputs import points
from tests.oracles.ksvd import kernel_svd, reconstruction
from tests.tolerance import assert_exact, assert_within

SIZES = st.integers(1, 6)
BATCH = st.lists(st.integers(1, 3), max_size=2)


def factored(*batch: int, n: int, m: int, p: int) -> Factored:
    """Factors in no special position: columns not orthonormal, values of both signs and unsorted."""
    return Factored(points(*batch, n, p), points(*batch, p, seed=1), points(*batch, m, p, seed=2))


def assert_answer_alike(one: Pattern, other: Pattern, values: Tensor) -> None:
    assert one.shape == other.shape == one.matrix().shape
    assert_exact(one.matrix(), other.matrix())
    assert_exact(one.apply(values), other.apply(values))
    for mine, theirs in zip(one.marginals(), other.marginals(), strict=True):
        assert_exact(mine, theirs)


@given(batch=BATCH, n=SIZES, m=SIZES, p=SIZES, d=SIZES)
def test_both_kinds_give_the_same_answers(batch: list[int], n: int, m: int, p: int, d: int) -> None:
    thin = factored(*batch, n=n, m=m, p=p)
    full = Dense(thin.matrix())
    assert_answer_alike(thin, full, points(*batch, m, d, seed=3))
    assert_answer_alike(thin.transpose(), full.transpose(), points(*batch, n, d, seed=3))


@given(n=SIZES, m=SIZES, p=SIZES)
def test_entries_are_the_sum_over_components(n: int, m: int, p: int) -> None:
    thin = factored(n=n, m=m, p=p)
    assert_exact(thin.matrix(), reconstruction(thin.left, thin.values, thin.right))


@given(batch=BATCH, n=SIZES, m=SIZES, p=SIZES)
def test_transposing_twice_is_nothing(batch: list[int], n: int, m: int, p: int) -> None:
    thin = factored(*batch, n=n, m=m, p=p)
    twice = thin.transpose().transpose()
    assert all(torch.equal(getattr(twice, name), getattr(thin, name)) for name in ("left", "values", "right"))
    full = Dense(points(*batch, n, m))
    assert torch.equal(full.transpose().transpose().entries, full.entries)


@given(batch=BATCH, n=SIZES, m=SIZES, p=SIZES)
def test_transposing_swaps_the_marginals(batch: list[int], n: int, m: int, p: int) -> None:
    for pattern in (factored(*batch, n=n, m=m, p=p), Dense(points(*batch, n, m))):
        rows, columns = pattern.marginals()
        swapped = pattern.transpose().marginals()
        assert_exact(swapped[0], columns)
        assert_exact(swapped[1], rows)
        assert rows.shape == (*batch, n)
        assert columns.shape == (*batch, m)


@given(n=SIZES, m=SIZES, p=SIZES)
def test_singular_values_are_the_oracles(n: int, m: int, p: int) -> None:
    thin = factored(n=n, m=m, p=p)
    expected = kernel_svd(thin.matrix())[1]
    assert_exact(Dense(thin.matrix()).singular_values(), expected)
    assert_exact(thin.singular_values(), expected[: min(n, m, p)])
    assert_exact(thin.transpose().singular_values(), expected[: min(n, m, p)])


@given(batch=BATCH, n=SIZES, m=SIZES, p=SIZES)
def test_singular_values_fall_and_give_the_norm(batch: list[int], n: int, m: int, p: int) -> None:
    thin = factored(*batch, n=n, m=m, p=p)
    for pattern in (thin, Dense(thin.matrix())):
        values = pattern.singular_values()
        assert bool((values >= 0).all())
        assert bool((values.diff(dim=-1) <= 0).all())
        assert_exact(values.norm(dim=-1), torch.linalg.matrix_norm(thin.matrix()))


def test_a_pattern_of_zeros_has_no_singular_values_but_zero() -> None:
    assert torch.equal(Dense(torch.zeros(3, 4)).singular_values(), torch.zeros(3))
    assert torch.equal(Factored(points(5, 2), torch.zeros(2).double(), points(4, 2)).singular_values(),
                       torch.zeros(2).double())  # fmt: skip


def test_sides_broadcast_over_the_batch() -> None:
    thin = Factored(points(3, 1, 5, 2), points(2), points(2, 4, 2))
    assert thin.shape == thin.matrix().shape == (3, 2, 5, 4)
    assert_exact(thin.singular_values(), Dense(thin.matrix()).singular_values()[..., :2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_widened_for_singular_values(dtype: torch.dtype) -> None:
    full = Dense(points(5, 4, dtype=dtype))
    oracle = kernel_svd(full.entries)[1]
    assert_within(full.singular_values(), eager=torch.linalg.svdvals(full.entries.float()), oracle=oracle)
    thin = Factored(points(5, 2, dtype=dtype), points(2, dtype=dtype), points(4, 2, dtype=dtype))
    assert thin.singular_values().dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_factors_lose_no_more_than_entries_do(dtype: torch.dtype) -> None:
    thin, values = factored(n=7, m=5, p=3), points(5, 4, seed=3, dtype=dtype)
    low = Factored(*(side.to(dtype) for side in (thin.left, thin.values, thin.right)))
    oracle = reconstruction(low.left, low.values, low.right) @ values.double()
    assert_within(low.apply(values), eager=low.matrix() @ values, oracle=oracle)


def test_gradients() -> None:
    sides = [
        points(*shape, seed=seed).requires_grad_()
        for seed, shape in enumerate([(4, 2), (2,), (3, 2), (3, 5)])
    ]

    def answers(left: Tensor, values: Tensor, right: Tensor, applied: Tensor) -> tuple[Tensor, ...]:
        thin = Factored(left, values, right)
        return thin.apply(applied), *thin.marginals(), Dense(thin.matrix()).apply(applied)

    assert torch.autograd.gradcheck(answers, sides)


def test_a_pattern_does_not_change() -> None:
    full = Dense(points(2, 2))
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'entries'"):
        full.entries = points(3, 3)  # type: ignore[misc]


def test_a_row_is_no_pattern() -> None:
    with pytest.raises(
        ShapeError, match=re.escape("Dense: `entries` has shape (3,), but its axes are (... n m)")
    ):
        Dense(points(3))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((5, 2), (3,), (4, 2)), "axis `p` is 2 in `left` but 3 in `values` (3,), whose axes are (... p)"),
        (((5, 2), (2,), (4, 3)), "axis `p` is 2 in `left` but 3 in `right` (4, 3), whose axes are (... m p)"),
        (((5,), (5,), (4, 5)), "`left` has shape (5,), but its axes are (... n p)"),
    ],
    ids=["values", "right", "left"],
)
def test_factors_that_do_not_fit_are_named(shapes: tuple[tuple[int, ...], ...], words: str) -> None:
    with pytest.raises(ShapeError, match=re.escape(f"Factored: {words}")):
        Factored(*(points(*shape) for shape in shapes))


def test_values_that_do_not_fit_are_named() -> None:
    words = "axis `m` is 4 in `{}` but 5 in `values` (5, 2), whose axes are (... m d)"
    with pytest.raises(ShapeError, match=re.escape("Dense.apply: " + words.format("entries"))):
        Dense(points(3, 4)).apply(points(5, 2))
    with pytest.raises(ShapeError, match=re.escape("Factored.apply: " + words.format("right"))):
        factored(n=3, m=4, p=2).apply(points(5, 2))


@pytest.mark.parametrize("hole", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("side", ["entries", "left", "values", "right"])
def test_no_singular_values_of_nan(side: str, hole: float) -> None:
    sides = {"left": points(4, 2), "values": points(2), "right": points(3, 2)}
    pattern: Pattern = Dense(points(4, 3)) if side == "entries" else Factored(**sides)
    getattr(pattern, side)[..., 0] = hole
    shape = tuple(getattr(pattern, side).shape)
    words = re.escape(f"singular_values: the pattern {shape} holds NaN or infinity")
    with pytest.raises(BadInput, match=words):
        pattern.singular_values()
