"""Tokens and as_tokens: pixels and bytes in one array, and the words for what is wrong."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Images, Reviews, Tokens, as_tokens, read_images, read_reviews
from kernelhead.errors import BadInput

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")
PAIR: Mapping[str, Any] = {
    "name": "pair",
    "x": np.array([[3, 1, 2], [4, 0, 0]], np.uint8),
    "y": np.array([0, 1], np.uint8),
    "lengths": np.array([3, 1]),
    "vocabulary": 5,
    "classes": ("no", "yes"),
}


def reviews(*texts: bytes) -> Reviews:
    cases = tuple(np.frombuffer(text, np.uint8) for text in texts)
    return Reviews("some", cases, np.arange(len(texts)) % 2, ("no", "yes"))


def test_sequences_are_taken_in_order_with_their_lengths() -> None:
    taken = Tokens(**PAIR).take([1, 0, 1])
    assert (taken.x[0].tolist(), taken.y.tolist(), taken.lengths.tolist()) == (
        [4, 0, 0],
        [1, 0, 1],
        [1, 3, 1],
    )
    assert (len(taken), taken.longest, taken.y.dtype) == (3, 3, np.int64)
    assert taken.mask().sum(1).tolist() == [1, 3, 1]


def test_marks_are_taken_with_their_sequences() -> None:
    marks = np.array([[0, -1, 4], [-1, -1, -1]], np.int8)
    taken = Tokens(**PAIR, marks=marks).take([1, 0, 1]).marks
    assert taken is not None
    assert taken.tolist() == [[-1] * 3, [0, -1, 4], [-1] * 3]
    assert Tokens(**PAIR).take([1]).marks is None


@pytest.mark.parametrize(
    "marks", [np.zeros((2, 2), np.int8), np.zeros((2, 3), np.int64), np.full((2, 3), -2, np.int8)], ids=str
)
def test_marks_that_do_not_fit_are_refused(marks: np.ndarray) -> None:
    with pytest.raises(BadInput, match=r"`marks` are int.* expected int8 of -1 and more and shape \(2, 3\)"):
        Tokens(**PAIR, marks=marks)


@given(texts=st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=4), longest=st.integers(1, 14))
def test_bytes_come_back_from_tokens(texts: list[bytes], longest: int) -> None:
    made = as_tokens(reviews(*texts), longest=longest)
    assert made.x.shape == (len(texts), longest)
    for row, length, text in zip(made.x, made.lengths, texts, strict=True):
        assert bytes((row[:length].astype(int) - 1).tolist()) == text[:longest]
    assert np.array_equal(made.mask(), made.x != 0)
    assert made.x.dtype == (np.int16 if any(255 in text[:longest] for text in texts) else np.uint8)


def test_reviews_have_4096_places_of_one_byte() -> None:
    made = as_tokens(reviews("né".encode(), b"b" * 5000))
    assert (made.x.shape, made.x.dtype, made.vocabulary) == ((2, 4096), np.uint8, 257)
    assert (made.lengths.tolist(), made.name, made.classes) == ([3, 4096], "some", ("no", "yes"))


def test_pixels_are_tokens_row_by_row_and_none_is_padding() -> None:
    x = np.arange(12, dtype=np.uint8).reshape(2, 1, 2, 3) * 20
    made = as_tokens(Images("two", x, np.array([1, 0]), ("no", "yes")))
    assert made.x.tolist() == [[0, 20, 40, 60, 80, 100], [120, 140, 160, 180, 200, 220]]
    assert (made.vocabulary, made.y.tolist(), bool(made.mask().all())) == (256, [1, 0], True)
    assert np.shares_memory(made.x, x)


@needs_shared
@pytest.mark.parametrize("name", ["cifar10-gray", "pathfinder32"])
def test_shared_images_are_1024_tokens(name: str) -> None:
    images = read_images(name, split="test", root=SHARED)
    made = as_tokens(images)
    assert made.x.shape == (len(images), 1024)
    assert np.array_equal(made.x[7].reshape(32, 32), images.x[7, 0])


@needs_shared
@pytest.mark.slow
def test_shared_reviews_are_bytes_behind_each_other() -> None:
    found = read_reviews("test", root=SHARED)
    made = as_tokens(found)
    assert (made.x.shape, made.x.dtype) == ((25_000, 4096), np.uint8)
    assert 0.02 < float((made.lengths == 4096).mean()) < 0.04
    row = made.x[11_000, : made.lengths[11_000]] - 1
    assert row.tobytes() == found.cases[11_000][:4096].tobytes()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"x": np.zeros((2, 0), int)}, r"`x` is int64 of shape \(2, 0\), expected whole numbers \(n, t\)"),
        ({"x": np.ones((2, 3))}, "`x` is float64 of shape"),
        ({"vocabulary": 4}, "`x` runs from 0 to 4, expected 0 to 3"),
        ({"y": np.array([0, 2])}, "`y` runs from 0 to 2, expected 0 to 1"),
        ({"y": np.array([0])}, r"`y` is int64 of shape \(1,\), expected whole numbers \(2,\)"),
        ({"lengths": np.array([3.0, 1.0])}, "`lengths` is float64 of shape"),
        ({"lengths": np.array([3, 0])}, "`lengths` runs from 0 to 3, expected 1 to 3"),
        ({"lengths": np.array([2, 1])}, "sequence 0 has tokens behind its 2, expected 0 there"),
    ],
)
def test_tokens_that_do_not_fit_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"Tokens 'pair': {sentence}"):
        Tokens(**{**PAIR, **given})


def test_sources_that_give_no_tokens_are_named() -> None:
    colour = Images("c", np.zeros((1, 3, 2, 2), np.uint8), np.array([0]), ("no",))
    with pytest.raises(BadInput, match="as_tokens: images 'c' have 3 channels, expected 1"):
        as_tokens(colour)
    grey = Images("g", np.zeros((1, 1, 2, 2), np.uint8), np.array([0]), ("no",))
    with pytest.raises(BadInput, match="as_tokens: longest is 5, but images 'g' have 4 pixels"):
        as_tokens(grey, longest=5)
    with pytest.raises(BadInput, match="as_tokens: longest is 0, expected a whole number of at least 1"):
        as_tokens(reviews(b"a"), longest=0)
    with pytest.raises(BadInput, match="Tokens 'some': `lengths` runs from 0 to 1, expected 1 to 4096"):
        as_tokens(reviews(b"a", b""))
