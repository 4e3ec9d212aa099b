"""Features: their type, their files, their words; the ranked list that goes out."""

import re
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Features, read_features, write_ranking
from kernelhead.errors import BadInput


@given(n=st.integers(1, 5), d=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_file_gives_the_same_back(
    n: int, d: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("features")
    x = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    ids, labels = [f"item {i}" for i in range(n)], [f"kind {i % 2}" for i in range(n)]
    np.save(folder / "plain.npy", x)
    np.savez(folder / "named.npz", x=x, ids=ids, labels=labels)
    rows = [",".join([ids[i], labels[i], *map(str, x[i])]) for i in range(n)]
    header = ",".join(["id", "label", *(f"f{j}" for j in range(d))])
    (folder / "table.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    plain, named, table = (read_features(folder / name) for name in ("plain.npy", "named.npz", "table.csv"))
    assert plain.ids == tuple(map(str, range(n)))
    assert plain.labels is None
    for each in (named, table):
        assert (each.ids, each.labels) == (tuple(ids), tuple(labels))
    assert all(np.array_equal(each.x, x) for each in (plain, named, table))
    assert [named.place(each) for each in ids] == [*range(n)]


def test_labels_and_ids_may_be_numbers_or_missing(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", x=np.eye(2), ids=[7, 9])
    assert read_features(str(tmp_path / "some.npz")).ids == ("7", "9")
    (tmp_path / "bare.csv").write_text("﻿a,b\n1,2\n\n3,4\n", encoding="utf-8")
    read = read_features(tmp_path / "bare.csv")
    assert (read.x.tolist(), read.ids, read.name) == ([[1, 2], [3, 4]], ("0", "1"), "bare")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"x": np.eye(3), "ids": ("a", "b", "a")}, r"id 'a' is that of row 0 and of row 2, expected it once"),
        ({"x": np.eye(3), "ids": ("a",)}, "1 ids for 3 rows"),
        ({"x": np.eye(3), "labels": ("a",)}, "1 labels for 3 rows"),
        ({"x": np.ones(3)}, r"`x` is float64 of shape \(3,\), expected numbers \(n, d\)"),
        ({"x": np.ones((0, 2))}, r"of shape \(0, 2\), expected numbers"),
        ({"x": np.array([["a"]])}, "expected numbers"),
        ({"x": np.array([[1.0], [np.nan]])}, "row 1 holds a number that is not finite"),
    ],
)
def test_features_that_are_refused(made: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=f"Features 'mine': .*{words}"):
        Features(**made, name="mine")


def test_an_id_that_is_not_there_is_named() -> None:
    with pytest.raises(BadInput, match="Features 'pair': no item has the id 'cat'; it has 2 others"):
        Features(np.eye(2), name="pair").place("cat")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.txt", b"", "has the suffix '.txt', expected one of .npy, .npz, .csv"),
        ("x.npy", b"none", "is not a readable .npy file"),
        ("x.npz", b"PK half", "is not a readable .npz file"),
        ("x.csv", b"", "is not a header of different names"),
        ("x.csv", b"id,label\na,b\n", "is not a header of different names"),
        ("x.csv", b"a,a\n1,2\n", "is not a header of different names"),
        ("x.csv", b"a,b\n1,2\n1\n", "row 2 has 1 entries, expected 2"),
        ("x.csv", b"a,b\n1,big\n", "row 1: could not convert string to float: 'big'"),
        ("x.csv", b'a,b\n1,"2\n', "is not a readable .csv file"),
        ("x.csv", b"a,b\n\xff,2\n", "is not a readable .csv file"),
        ("x.csv", b"id,a\nq,1\nq,2\n", "id 'q' is that of row 0 and of row 1"),
    ],
)
def test_files_that_are_refused(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=re.escape(words)):
        read_features(tmp_path / name)


def test_a_file_that_is_missing_or_holds_something_else(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none.npy is not a file"):
        read_features(tmp_path / "none.npy")
    np.savez(tmp_path / "other.npz", y=np.eye(2))
    with pytest.raises(BadInput, match=r"other.npz holds y, expected x"):
        read_features(tmp_path / "other.npz")
    np.save(tmp_path / "flat.npy", np.ones(3))
    with pytest.raises(BadInput, match=r"Features 'flat': `x` is float64 of shape \(3,\)"):
        read_features(tmp_path / "flat.npy")


def test_a_ranking_is_written_as_rows(tmp_path: Path) -> None:
    write_ranking(tmp_path / "ranked.csv", [("a, b", 1, "c", 0.25), ("a, b", 2, "d", 0.125)])
    assert (tmp_path / "ranked.csv").read_text(encoding="utf-8").splitlines() == [
        "query,rank,id,score",
        '"a, b",1,c,0.25',
        '"a, b",2,d,0.125',
    ]


def test_ids_that_are_no_row_of_names_are_a_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2), ids=np.array(3.0))
    with pytest.raises(BadInput, match="1 ids for 2 rows"):
        read_features(tmp_path / "a.npz")


def test_a_member_that_is_no_array_is_a_sentence(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x", b"no array")
    with pytest.raises(BadInput, match=r"`x` is \|S8 of shape \(\)"):
        read_features(tmp_path / "a.npz")
