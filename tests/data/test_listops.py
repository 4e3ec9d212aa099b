"""Lists of operations: the file, the draw, the value, and the words for what is wrong."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data.listops import (
    DIGESTS,
    OPERATORS,
    VOCABULARY,
    draw_listops,
    listops_marks,
    listops_value,
    read_listops,
)
from kernelhead.errors import BadInput, UnknownName

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")
SMALL = {"depth": 4, "arguments": 4, "shortest": 6, "longest": 60}


def ids(text: str) -> list[int]:
    return [VOCABULARY.index(word) for word in text.split()]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MIN 4 9 2 ]", 2),
        ("[MAX 4 9 2 ]", 9),
        ("[MED 4 9 2 ]", 4),
        ("[MED 4 9 2 1 ]", 3),
        ("[MED 1 2 ]", 1),
        ("[SM 4 9 2 ]", 5),
        ("[MAX 2 [SM 5 9 ] [MIN 8 [MED 1 7 9 ] ] ]", 7),
        ("[MED 4 9 2 ] <pad> <pad>", 4),
    ],
)
def test_values_are_those_of_the_operations(text: str, value: int) -> None:
    assert listops_value(ids(text)) == value


@given(seed=st.integers(0, 9999), depth=st.integers(2, 6), arguments=st.integers(2, 6))
def test_labels_are_the_values_read_again(seed: int, depth: int, arguments: int) -> None:
    drawn = draw_listops(3, seed=seed, depth=depth, arguments=arguments, shortest=3, longest=200)
    assert drawn.x.shape == (3, 200)
    assert [listops_value(row) for row in drawn.x] == drawn.y.tolist()
    assert drawn.lengths.min() > 3
    assert drawn.lengths.max() < 200
    for row in drawn.x.tolist():
        depths, counts, deepest = [0], [0], 0
        for token in filter(None, row):
            if VOCABULARY[token] == "]":
                assert 2 <= counts.pop() <= arguments
                depths.pop()
                continue
            counts[-1] += 1
            deepest = max(deepest, len(depths))
            if VOCABULARY[token].startswith("["):
                counts.append(0)
                depths.append(0)
        assert deepest <= depth


def test_a_seed_gives_the_same_lists_and_fewer_are_the_first_of_more() -> None:
    drawn = draw_listops(8, seed=3, **SMALL)
    again, fewer = draw_listops(8, seed=3, **SMALL), draw_listops(5, seed=3, **SMALL)
    assert np.array_equal(drawn.x, again.x)
    assert np.array_equal(drawn.x[:5], fewer.x)
    assert np.array_equal(drawn.y[:5], fewer.y)
    assert not np.array_equal(drawn.x, draw_listops(8, seed=4, **SMALL).x)
    assert len({row.tobytes() for row in drawn.x}) == 8


def test_digits_and_operations_are_drawn_evenly() -> None:
    drawn = draw_listops(120, seed=0)
    assert (drawn.name, drawn.vocabulary, drawn.classes) == ("listops", 16, tuple("0123456789"))
    assert drawn.x.dtype == np.uint8
    counts = np.bincount(drawn.x.ravel(), minlength=16)[1:]
    total = counts.sum()
    assert counts[:4].sum() == counts[4]  # every operation ends
    # Three deviations of a binomial count of so many tokens.
    for shares in (counts[:4] / counts[:4].sum() * 4, counts[5:] / counts[5:].sum() * 10):
        assert np.abs(shares - 1).max() < 3 * 3 / np.sqrt(total / 20)
    assert 900 < drawn.lengths.mean() < 1_200
    # Minimum and maximum of several digits are most often 0 and 9.
    values = np.bincount(drawn.y, minlength=10)
    assert values[0] + values[9] > 2 * values[1:9].mean()


def test_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["[MIN 4 9 2 ]", "3", "[MAX 4 3 ]", "[SM 1 1 ]", "4", "2", "3"]
    cases = [ids(text) for text in texts]
    held = {
        "tokens": np.concatenate(cases).astype(np.uint8),
        "length": np.array([*map(len, cases)], np.int16),
        "y": np.array([*map(listops_value, cases)], np.uint8),
    }
    (tmp_path / "listops").mkdir()
    for place in DIGESTS:
        np.savez(tmp_path / place, vocab=np.array(VOCABULARY), **held)
        monkeypatch.setitem(DIGESTS, place, sha256((tmp_path / place).read_bytes()).hexdigest()[:16])
    whole, test = read_listops(root=tmp_path, validation=0), read_listops("test", root=tmp_path)
    assert whole.x.shape == (7, 2000)
    assert np.array_equal(whole.x, test.x)
    assert whole.y.tolist() == [2, 3, 4, 2, 4, 2, 3]
    assert [row[:length].tolist() for row, length in zip(whole.x, whole.lengths, strict=True)] == cases
    parts = [read_listops(split, root=tmp_path, validation=0.4) for split in ("train", "validation")]
    assert [len(part) for part in parts] == [4, 3]
    assert sorted(row.tobytes() for part in parts for row in part.x) == sorted(
        row.tobytes() for row in whole.x
    )


def test_drawn_lists_are_made_once_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "listops").mkdir()
    parts = [read_listops(split, root=tmp_path, drawn=30) for split in ("train", "validation")]
    drawn = draw_listops(30, seed=0)
    assert sorted(row.tobytes() for part in parts for row in part.x) == sorted(
        row.tobytes() for row in drawn.x
    )
    made = tmp_path / "listops" / "cache" / "drawn-30.npz"
    before = made.stat().st_mtime_ns
    again = read_listops("train", root=tmp_path, drawn=30)
    assert made.stat().st_mtime_ns == before
    assert np.array_equal(again.y, parts[0].y)
    with pytest.raises(BadInput, match="read_listops: drawn is -1, expected a whole number of at least 0"):
        read_listops("train", root=tmp_path, drawn=-1)


@needs_shared
def test_the_shared_file_has_our_tokens_and_values() -> None:
    assert tuple(np.load(Path(str(SHARED)) / "listops" / "train.npz")["vocab"].tolist()) == VOCABULARY
    parts = {split: read_listops(split, root=SHARED) for split in ("train", "validation", "test")}
    assert len(parts["train"]) + len(parts["validation"]) == 6_000
    assert len(parts["test"]) == 2_000
    for part in parts.values():
        assert (part.x.shape[1], part.lengths.min() > 500, part.lengths.max() < 2_000) == (2000, True, True)
        assert [listops_value(row) for row in part.x[:200]] == part.y[:200].tolist()


@needs_shared
def test_our_draw_is_as_long_as_the_shared_file() -> None:
    drawn, held = draw_listops(200, seed=1), read_listops("test", root=SHARED)
    spread = held.lengths.std() / np.sqrt(200)
    assert abs(drawn.lengths.mean() - held.lengths.mean()) < 4 * spread


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "0 tokens leave 0 lists open, expected one value"),
        ("[MIN 4 [MAX 2 ]", "5 tokens leave 1 lists open, expected one value"),
        ("[MIN ]", "']' at place 1 ends no list with arguments"),
        ("]", "']' at place 0 ends no list with arguments"),
        ("4 5", "'5' at place 1 stands behind the end of the list"),
    ],
)
def test_tokens_that_are_no_list_are_named(text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=f"listops_value: {sentence}"):
        listops_value(ids(text))


def test_every_token_is_marked_with_what_its_list_is_worth_so_far() -> None:
    """The tokens of its list up to there, read by themselves."""
    end = VOCABULARY.index("]")
    drawn = draw_listops(20, seed=3, shortest=20, longest=120)
    for row, length in zip(drawn.x, drawn.lengths, strict=True):
        begins: list[int] = []
        for place, (token, mark) in enumerate(zip(row[:length], listops_marks(row), strict=False)):
            if VOCABULARY[token] in OPERATORS:
                begins.append(place)
                assert mark == 9 + len(begins)
                continue
            so_far = row[begins[-1] : place + 1].tolist()
            assert mark == listops_value(so_far if token == end else [*so_far, end])
            if token == end:
                begins.pop()
        assert (listops_marks(row)[length:] == -1).all()
    assert listops_marks([9]).tolist() == [3]
    with pytest.raises(BadInput, match="listops_marks: '5' at place 1 stands behind the end of the list"):
        listops_marks(ids("4 5"))


@pytest.mark.parametrize("token", [-1, 16])
def test_tokens_without_a_word_are_named(token: int) -> None:
    with pytest.raises(BadInput, match=f"listops_value: token {token} at place 1, expected 0 to 15"):
        listops_value([6, token])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": 0}, "count is 0, expected a whole number of at least 1"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
        ({"depth": 0}, "depth is 0, expected a whole number of at least 1"),
        ({"arguments": 1}, "arguments is 1, expected a whole number of at least 2"),
        ({"shortest": -1}, "shortest is -1, expected a whole number of at least 0"),
        ({"longest": 1}, "longest is 1, expected a whole number of at least 2"),
    ],
)
def test_sizes_out_of_range_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"draw_listops: {sentence}"):
        draw_listops(**{"count": 1, "seed": 0, **SMALL, **given})


def test_lengths_that_no_tree_has_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(draw_listops.__globals__, "PATIENCE", 300)
    sentence = (
        "300 trees in a row gave no new list of more than 0 and fewer than 2 tokens; 10 of 11 were found"
    )
    with pytest.raises(BadInput, match=f"draw_listops: {sentence}"):
        draw_listops(11, seed=0, depth=1, shortest=0, longest=2)


def test_files_and_splits_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="read_listops: unknown split 'valid', did you mean 'validation'"):
        read_listops("valid")
    with pytest.raises(BadInput, match=r"read_listops: .*train.npz cannot be read: No such file"):
        read_listops(root=tmp_path)
