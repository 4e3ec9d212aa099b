"""Shape checks: the sizes they return and the one sentence for each mistake."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, ShapeError
from kernelhead.shapes import check_axes, check_mask, check_size
from tests.inputs import keep, points

SIZES = st.integers(1, 5)


def test_sizes_come_back_in_order() -> None:
    sizes = check_axes("f", query=(points(2, 3, 5, 4), "... n d"), left=(points(4, 6), "d s"))
    assert list(sizes.items()) == [("n", 5), ("d", 4), ("s", 6)]


@given(batch=st.lists(SIZES, max_size=3), n=SIZES, m=SIZES, d=SIZES)
def test_axes_that_agree_pass_under_any_batch(batch: list[int], n: int, m: int, d: int) -> None:
    left, right = torch.zeros(*batch, n, d), torch.zeros(m, d)
    assert check_axes("f", left=(left, "... n d"), right=(right, "... m d")) == {"n": n, "m": m, "d": d}


@given(d=SIZES, more=SIZES)
def test_axes_that_differ_never_pass(d: int, more: int) -> None:
    with pytest.raises(ShapeError, match=f"axis `d` is {d} in `left` but {d + more} in `right`"):
        check_axes("f", left=(torch.zeros(3, d), "... n d"), right=(torch.zeros(2, d + more), "... m d"))


def test_a_wrong_size_names_both_owners() -> None:
    words = "primal_scores: axis `d` is 4 in `query` but 6 in `left` (6, 2), whose axes are (... d s)"
    with pytest.raises(ShapeError, match=re.escape(words)):
        check_axes("primal_scores", query=(points(3, 4), "... n d"), left=(points(6, 2), "... d s"))


def test_a_letter_twice_in_one_tensor_means_square() -> None:
    assert check_axes("f", kernel=(points(3, 3), "n n")) == {"n": 3}
    with pytest.raises(ShapeError, match=re.escape("f: axis `n` is 3 in `kernel` but 4 in `kernel` (3, 4)")):
        check_axes("f", kernel=(points(3, 4), "n n"))


@pytest.mark.parametrize(("shape", "axes"), [((3,), "... n d"), ((3,), "n d"), ((2, 3, 4), "n d"), ((), "n")])
def test_a_wrong_number_of_axes_is_named(shape: tuple[int, ...], axes: str) -> None:
    with pytest.raises(ShapeError, match=re.escape(f"f: `x` has shape {shape}, but its axes are ({axes})")):
        check_axes("f", x=(points(*shape), axes))


def test_an_empty_axis_is_a_size_like_any_other() -> None:
    assert check_axes("f", x=(points(2, 0, 4), "... n d")) == {"n": 0, "d": 4}


def test_no_mask_and_a_fitting_mask_pass() -> None:
    check_mask("f", None, points(2, 5, 4))
    check_mask("f", keep([5, 3], 5), points(2, 5, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8], ids=str)
def test_a_mask_that_is_not_boolean_is_named(dtype: torch.dtype) -> None:
    with pytest.raises(
        BadInput, match=f"f: `mask` is {dtype}, expected torch.bool with True where a point is"
    ):
        check_mask("f", keep([5, 3], 5).to(dtype), points(2, 5, 4))


@pytest.mark.parametrize("shape", [(2, 4), (1, 5), (5,), (2, 5, 4)], ids=str)
def test_a_mask_of_another_shape_is_named(shape: tuple[int, ...]) -> None:
    words = f"f: `kept` has shape {shape}, expected (2, 5), one entry for each point of (2, 5, 4)"
    with pytest.raises(ShapeError, match=re.escape(words)):
        check_mask("f", torch.ones(shape, dtype=torch.bool), points(2, 5, 4), "kept")


@given(least=st.integers(-3, 3), more=st.integers(0, 9))
def test_a_whole_number_comes_back(least: int, more: int) -> None:
    assert check_size("f", "rank", least + more, least=least) == least + more


@pytest.mark.parametrize("value", [0, -2, 1.0, "3", None, True], ids=repr)
def test_anything_else_is_no_size(value: object) -> None:
    words = f"f: rank is {value!r}, expected a whole number of at least 1"
    with pytest.raises(BadInput, match=re.escape(words)):
        check_size("f", "rank", value)
