"""read_table: sets by name with their splits, files, and the words for what is wrong with them."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

from kernelhead.data import TableEncoder, read_table
from kernelhead.data.table_sets import DIGESTS, SETS
from kernelhead.errors import BadInput, UnknownName

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")


@pytest.fixture(autouse=True)
def _no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)


def put(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, **arrays: Any) -> None:
    """An archive in a folder of data sets; its checksum is then the expected one."""
    (folder / "uci").mkdir(exist_ok=True)
    path = folder / "uci" / f"{name}.npz"
    np.savez(path, **arrays)
    monkeypatch.setitem(DIGESTS, f"uci/{name}.npz", sha256(path.read_bytes()).hexdigest()[:16])


def test_fixed_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.eye(3, 5, dtype=bool)
    put(tmp_path, monkeypatch, "yacht", x=np.arange(10.0).reshape(5, 2), y=np.arange(5.0), test_mask=mask)
    train, test = (read_table("yacht", part=part, split=2, root=tmp_path) for part in ("train", "test"))
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 3, 4], [2])
    assert (train.columns, train.classification, train.name) == (("x0", "x1"), False, "yacht")
    assert len(read_table("yacht", part="all", split=9, root=tmp_path)) == 5
    with pytest.raises(BadInput, match="read_table: yacht has 3 splits, but split is 3"):
        read_table("yacht", split=3, root=tmp_path)


def test_adult_has_missing_cells_and_its_own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {
        "num_names": np.array(["age"]),
        "cat_names": np.array(["work"]),
        "levels_work": np.array(["?", "Private"]),
        "num_train": np.array([[39], [50]]),
        "cat_train": np.array([[1], [0]]),
        "y_train": np.array([0, 1]),
        "num_test": np.array([[25]]),
        "cat_test": np.array([[1]]),
        "y_test": np.array([1]),
    }
    put(tmp_path, monkeypatch, "adult", **arrays)
    train, test = (read_table("adult", part=part, split=7, root=tmp_path) for part in ("train", "test"))
    assert train.x.tolist() == [[39, "Private"], [50, None]]
    assert (train.y.tolist(), test.y.tolist()) == (["<=50K", ">50K"], [">50K"])
    assert train.columns == ("age", "work")


def test_sets_without_splits_are_drawn_by_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    put(tmp_path, monkeypatch, "poker_hand_train", x=draws.integers(1, 5, (50, 10)), y=np.arange(50) % 2)
    train, test = (read_table("poker_hand", part=part, split=1, root=tmp_path) for part in ("train", "test"))
    assert (len(train), len(test), np.bincount(test.y).tolist()) == (40, 10, [5, 5])
    assert train.columns[:2] == ("suit 1", "rank 1")
    assert TableEncoder.fit(train.x, train.y, classification=True).schema.categorical == (True,) * 11
    one, two = (read_table("breast_cancer", part="test", split=split) for split in (0, 1))
    assert len(one) == len(two)
    assert not np.array_equal(one.x, two.x)


def test_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "fruit.csv"
    path.write_text("weight, colour, kind\n1.5, red, apple\n, ?, pear\n2, green, pear\n", encoding="utf-8")
    cells = read_table(path)
    assert cells.x.tolist() == [[1.5, "red"], [None, None], [2.0, "green"]]
    assert (cells.y.tolist(), cells.columns) == (["apple", "pear", "pear"], ("weight", "colour"))
    assert (cells.classification, cells.name) == (True, "fruit")
    path.write_text("a,b\n1,2\n3,4\n", encoding="utf-8")
    assert read_table(str(path), part="test").y.tolist() == [2, 4]
    assert not read_table(path).classification


def test_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.eye(3), y=np.array(["a", "b", "a"]), columns=np.array(["p", "q", "r"]))
    cells = read_table(path)
    assert (cells.columns, cells.classification, len(cells)) == (("p", "q", "r"), True, 3)
    np.savez(path, x=np.eye(3), y=np.arange(3.0), test_mask=np.array([[True, False, False]]))
    assert read_table(path, part="test").y.tolist() == [0]
    np.savez(path, x=np.eye(3), y=np.arange(3.0), test_mask=np.array([True, False, False]))
    with pytest.raises(BadInput, match=r"test_mask is bool \(3,\), expected bool \(splits, 3\)"):
        read_table(path)
    np.savez(path, x=np.eye(3), y=np.arange(2.0))
    with pytest.raises(BadInput, match=r"expected x \(rows, features\) and y \(rows,\)"):
        read_table(path)
    path.write_bytes(b"no")
    with pytest.raises(BadInput, match=r"mine\.npz is not a readable \.npz file"):
        read_table(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n", "has 1 lines of 2 columns, expected a header, rows, and a feature"),
        ("a\n1\n", "has 2 lines of 1 columns"),
        ("", "has 0 lines of 0 columns"),
        ("a,b\n1,2\n3\n", "row 3 has 1 cells, but the header has 2"),
        ("a,b\n1,2\n3,\n", "the target 'b' has empty cells, expected one a row"),
    ],
)
def test_csv_files_that_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=sentence):
        read_table(path)


def test_names_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="read_table: unknown data set 'yaht', did you mean 'yacht'"):
        read_table("yaht")
    with pytest.raises(UnknownName, match="read_table: unknown part 'valid'"):
        read_table("yacht", part="valid")
    with pytest.raises(BadInput, match="read_table: split is -1, expected a whole number of at least 0"):
        read_table("yacht", split=-1)
    with pytest.raises(BadInput, match=r"no\.csv is not a readable \.csv file"):
        read_table(tmp_path / "no.csv")
    with pytest.raises(BadInput, match=r"uci/yacht\.npz is in no known folder"):
        read_table("yacht")


@needs_shared
@pytest.mark.parametrize("name", SETS)
def test_shared_sets(name: str) -> None:
    train, test = (read_table(name, part=part, split=1, root=SHARED) for part in ("train", "test"))
    assert len(train) + len(test) == len(read_table(name, part="all", root=SHARED))
    encoder = TableEncoder.fit(train.x[:500], train.y[:500], classification=train.classification)
    assert encoder.schema.columns[-1].levels is None or train.classification


def test_a_hostile_archive_is_a_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=np.zeros(2))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # says that a member is encrypted
    (tmp_path / "a.npz").write_bytes(bytes(content))
    with pytest.raises(BadInput, match=r"a\.npz is not a readable \.npz file: .* is encrypted"):
        read_table(tmp_path / "a.npz")
    with ZipFile(tmp_path / "b.npz", "w") as file:
        file.writestr("x", b"no array")
    with pytest.raises(BadInput, match=r"b\.npz holds .*, expected x \(rows, features\) and y"):
        read_table(tmp_path / "b.npz")
