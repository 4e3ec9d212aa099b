"""read_series from every kind of file, and the words for every kind of broken one."""

import csv
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Series, has_test_part, known_sets, read_series, write_predictions
from kernelhead.errors import BadInput, MissingExtra, ShapeError, UnknownName

SHARED = os.environ.get("KERNELHEAD_DATA")
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")


@pytest.fixture(autouse=True)
def _no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)


def same(left: Series, right: Series) -> bool:
    return left.labels == right.labels and all(map(np.array_equal, left.cases, right.cases))


def test_japanese_vowels_are_bundled() -> None:
    train, test = read_series("JapaneseVowels"), read_series("JapaneseVowels", split="test")
    assert (len(train), len(test), train.channels, test.channels) == (270, 370, 12, 12)
    lengths = [len(case) for case in train.cases + test.cases]
    assert (min(lengths), max(lengths)) == (7, 29)
    assert train.classes == test.classes == tuple("123456789")
    assert train.name == "JapaneseVowels"


@pytest.mark.parametrize("name", ["japanese-vowels", "JAPANESEVOWELS", "Japanese_Vowels", "japanese vowels"])
def test_spelling_does_not_matter(name: str) -> None:
    assert read_series(name).name == "JapaneseVowels"


@pytest.mark.parametrize("name", known_sets())
def test_every_known_set_is_read(name: str) -> None:
    train, test = read_series(name), read_series(name, split="test")
    assert train.channels == test.channels
    assert train.classes == test.classes
    assert len(train.classes) > 1


def test_class_names_keep_their_capitals() -> None:
    assert read_series("basic-motions").classes == ("Badminton", "Running", "Standing", "Walking")


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown data set 'JapanesVowel', did you mean 'JapaneseVowels'"):
        read_series("JapanesVowel")


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(UnknownName, match="read_series: unknown split 'tests', did you mean 'test'"):
        read_series("JapaneseVowels", split="tests")


def test_the_root_comes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uea").mkdir()
    np.savez(tmp_path / "uea" / "GunPoint.npz", x_train=np.ones((1, 2, 3)))
    np.savez(tmp_path / "uea" / "MyOwn.npz", x_train=np.ones((4, 2, 3)))
    assert len(read_series("gunpoint", root=tmp_path)) == 1
    monkeypatch.setenv("KERNELHEAD_DATA", str(tmp_path))
    assert len(read_series("my-own")) == 4
    assert len(read_series("ArrowHead")) == 36
    with pytest.raises(UnknownName, match="did you mean 'MyOwn'"):
        read_series("MyOwnn")


def test_a_root_that_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"the data root .*nowhere is not a folder; see the variable KERNELHEAD_DATA"
    ):
        read_series("GunPoint", root=tmp_path / "nowhere")


@pytest.mark.parametrize("module", ["aeon", "aeon.datasets"])
def test_a_missing_extra_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r'read_series: needs aeon.*pip install "kernelhead\[ts\]"'):
        read_series("GunPoint")


def test_importing_the_room_imports_neither_torch_nor_aeon() -> None:
    code = "import sys, kernelhead.data; sys.exit(bool({'torch', 'aeon'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@needs_shared
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", ["JapaneseVowels", "BasicMotions"])
def test_the_shared_sets_are_those_of_aeon(name: str, split: str) -> None:
    assert same(read_series(name, split=split, root=Path(SHARED)), read_series(name, split=split))


@needs_shared
def test_every_shared_set_is_read() -> None:
    for path in sorted((Path(SHARED) / "uea").glob("*.npz")):
        train, test = read_series(path), read_series(path.stem, split="test", root=Path(SHARED))
        assert train.channels == test.channels
        assert train.classes == test.classes


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    for name in ("no.csv", "no.npz", "no.ts", "no"):
        with pytest.raises(BadInput, match=rf"{name} does not exist"):
            read_series(tmp_path / name)


def test_a_strange_suffix_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(BadInput, match=r"a.txt has the suffix '.txt', expected one of .ts, .npz, .csv"):
        read_series(tmp_path / "a.txt")


def test_a_folder_instead_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(BadInput, match=r"a.csv cannot be read: Is a directory"):
        read_series(tmp_path / "a.csv")


TS = "@problemName Small\n@univariate false\n@equalLength false\n@classLabel true Left right\n@data\n"


def small_ts(path: Path, text: str = "1,2,3:4,5,6:left\n7,8:9,-1.5:right\n") -> Path:
    path.write_text(TS + text)
    return path


def test_a_ts_file_is_turned_to_time_by_channels(tmp_path: Path) -> None:
    small = read_series(small_ts(tmp_path / "Small_TRAIN.ts"))
    assert [case.tolist() for case in small.cases] == [[[1, 4], [2, 5], [3, 6]], [[7, 9], [8, -1.5]]]
    assert (small.labels, small.name) == (("Left", "right"), "Small")


def test_a_ts_file_without_labels(tmp_path: Path) -> None:
    (tmp_path / "a.ts").write_text("@classLabel false\n@data\n1,2,3\n")
    assert read_series(tmp_path / "a.ts").labels is None


def test_a_folder_or_a_stem_picks_by_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Small"
    folder.mkdir()
    small_ts(folder / "Small_TRAIN.ts")
    small_ts(folder / "Small_TEST.ts", "1:2:left\n")
    small_ts(folder / "Small_eq_TEST.ts")
    monkeypatch.chdir(tmp_path)
    for source in (folder, folder / "Small", "Small", "./Small"):
        assert len(read_series(source)) == 2
        assert len(read_series(source, split="test")) == 1
    folder.rename(tmp_path / "other")
    assert len(read_series("./other")) == 2
    with pytest.raises(BadInput, match=r"other does not hold one file NAME_TEST.ts"):
        read_series("./other", split="test")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            TS + "1,2:3,4:left\n1:left\n",
            "a.ts is not a readable .ts file: Inconsistent number of dimensions in case 2",
        ),
        (TS + "1,x:3,4:left\n", "a.ts is not a readable .ts file: could not convert string to float"),
        (TS + "1,?:3,4:left\n", "case 0 holds nan at time 1, channel 0"),
        (TS, "Series 'a': has no case"),
        (TS.replace("right", "left"), "a.ts has classes that differ by case alone: Left left"),
        ("@targetLabel true\n@data\n1,2:0.5\n", r"a.ts has numbers to predict \(@targetLabel\)"),
        (
            "@timeStamps true\n@classLabel true a\n@data\n(0,-1.5):a\n",
            r"a.ts has time stamps \(@timeStamps\)",
        ),
    ],
)
def test_a_broken_ts_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.ts").write_text(text)
    with pytest.raises(BadInput, match=words):
        read_series(tmp_path / "a.ts")


def test_the_shared_layout_is_cut_to_its_lengths(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    np.savez(
        tmp_path / "a.npz",
        **{"x_train": x, "y_train": np.array([1, 0], np.uint8), "classes": np.array(["no", "yes"])},
        **{"len_train": np.array([2, 4], np.int16), "x_test": x[:1]},
    )
    train, test = read_series(tmp_path / "a.npz"), read_series(tmp_path / "a.npz", split="test")
    assert (train.labels, [len(case) for case in train.cases]) == (("yes", "no"), [2, 4])
    assert np.array_equal(train.cases[0], x[0, :2])
    assert (test.labels, len(test), test.longest, test.name) == (None, 1, 4, "a")


@pytest.mark.parametrize("y", [np.array([3, 12]), np.array(["3", "12"]), np.array([b"3", b"12"])], ids=str)
def test_plain_keys_are_read(tmp_path: Path, y: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 4, 3)), y=y, length=np.array([4, 1]))
    plain = read_series(tmp_path / "a.npz", split="test")
    assert (plain.labels, [len(case) for case in plain.cases]) == (("3", "12"), [4, 1])


X = np.ones((2, 4, 3))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"z": X}, "a.npz has no x; it holds z"),
        ({"x_test": X}, "a.npz has no x_train; it holds x_test"),
        (
            {"x": np.ones((2, 4))},
            r"a.npz: x is float64 of shape \(2, 4\), expected numbers \(cases, time, dims\)",
        ),
        ({"x": np.full((1, 1, 1), "a")}, r"a.npz: x is <U1 of shape \(1, 1, 1\), expected numbers"),
        ({"x": X, "y": np.zeros(3, int)}, r"a.npz: y has shape \(3,\), expected \(2,\), one entry a case"),
        ({"x": X, "length": np.array([4])}, r"a.npz: length has shape \(1,\), expected \(2,\)"),
        ({"x": X, "length": np.array([4, 5])}, "a.npz: length holds 5, expected 1 to 4"),
        ({"x": X, "length": np.array([0, 4])}, "a.npz: length holds 0, expected 1 to 4"),
        ({"x": X, "length": np.array([1.0, 4.0])}, "a.npz: length is float64, expected whole numbers"),
        (
            {"x": X, "y": np.array([0, 2]), "classes": np.array(["a", "b"])},
            "a.npz: y holds 2, expected 0 to 1",
        ),
        (
            {"x": X, "y": np.array([None, 1])},
            "a.npz is not a readable .npz file: Object arrays cannot be loaded",
        ),
        ({"x": X * np.nan}, "Series 'a': case 0 holds nan at time 0, channel 0"),
        ({"x": X[:0]}, "Series 'a': has no case"),
    ],
)
def test_a_broken_npz_is_named(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(BadInput, match=words):
        read_series(tmp_path / "a.npz")


@given(place=st.integers(0, 10**6), byte=st.integers(0, 255), keep=st.floats(0, 1))
def test_a_damaged_npz_is_read_or_named(
    place: int, byte: int, keep: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    np.savez_compressed(path, x=X, y=np.array(["a", "b"]))
    raw = bytearray(path.read_bytes())
    raw[place % len(raw)] = byte
    path.write_bytes(raw[: max(1, int(len(raw) * keep))])
    with suppress(BadInput):
        read_series(path)


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04", b"not an archive", b"\x80\x04\x95."], ids=repr)
def test_a_file_that_is_no_archive_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(BadInput, match=r"a.npz is not a readable .npz file"):
        read_series(tmp_path / "a.npz")


def test_a_single_array_is_no_archive(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(BadInput, match=r"a.npz is not a readable .npz file"):
        read_series(tmp_path / "a.npz")


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_rows_are_gathered_by_case_and_sorted_by_time(tmp_path: Path) -> None:
    text = "\ufeffcase,time,label,x,y\nb,2,no,3,4\na,0,yes,5,6\nb,-1,no,1,2\n\n"
    read = read_series(written(tmp_path / "walk.csv", text))
    assert (read.ids, read.labels, read.name) == (("b", "a"), ("no", "yes"), "walk")
    assert [case.tolist() for case in read.cases] == [[[1, 2], [3, 4]], [[5, 6]]]


def test_without_time_rows_keep_their_order(tmp_path: Path) -> None:
    read = read_series(written(tmp_path / "a.csv", 'case, x\r\n"1",2\r\n2,9\r\n1,1e0\r\n'))
    assert [case.tolist() for case in read.cases] == [[[2], [1]], [[9]]]
    assert read.labels is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: the file is empty, expected a header"),
        ("\n", "line 1: the file is empty, expected a header"),
        ("case,x\n", "line 2: no row follows the header"),
        ("id,x\n1,2\n", "line 1: no column `case` in id,x"),
        ("case,x,x\n1,2,3\n", "line 1: a column has no name or another's in case,x,x"),
        (",case,x\n0,1,2\n", "line 1: a column has no name or another's in ,case,x"),
        ("case,time,label\n1,2,a\n", "line 1: no channel beside case,time,label"),
        ("case,x,y\n1,2,3\n1,2\n", "line 3: 2 fields, expected 3 as in the header"),
        ("case,x\n1,2\n1,2,3\n", "line 3: 3 fields, expected 2 as in the header"),
        ("case,x\n1,2\n\n1,two\n", "line 4: column 'x' holds 'two', expected a finite number"),
        ("case,x\n1,\n", "line 2: column 'x' holds '', expected a finite number"),
        ("case,x\n1,nan\n", "line 2: column 'x' holds 'nan', expected a finite number"),
        ("case,time,x\n1,today,3\n", "line 2: column 'time' holds 'today', expected a finite number"),
        ("case,time,x\n1,5,3\n2,5,3\n1,5.0,4\n", "line 4: case '1' has time 5 twice"),
        ("case,label,x\n1,a,3\n1,b,3\n", "line 3: the label is 'b', but case '1' began with 'a'"),
        ("case,label,x\n1,a,3\n2,,3\n", "line 3: the label is empty"),
        ("case,x\n ,3\n", "line 2: the case is empty"),
        ('case,x\n1,"2\n', "line 2: unexpected end of data"),
        ("case,x\n1,1e300\n", "case 0 holds inf at time 0, channel 0"),
    ],
)
def test_a_broken_csv_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        read_series(written(tmp_path / "bad.csv", text))
    assert "bad" in str(caught.value)


def test_a_csv_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes("case,x\n1,2\ncafé,3\n".encode("latin-1"))
    with pytest.raises(BadInput, match=r"bad.csv, line 3: invalid continuation byte in UTF-8"):
        read_series(tmp_path / "bad.csv")


@given(values=st.lists(st.lists(FLOATS, min_size=1), min_size=1))
def test_a_csv_gives_back_what_was_written(
    values: list[list[float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("round") / "a.csv"
    rows = [f"{case},{value}" for case, column in enumerate(values) for value in column]
    read = read_series(written(path, "\n".join(["case,x", *rows])))
    assert [case[:, 0].tolist() for case in read.cases] == values


def test_predictions_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "predictions.csv"
    probabilities = np.array([[0.1, 0.9], [1.0, 0.0]], dtype=np.float32)
    write_predictions(path, ("one, two", 7), ("b", "a"), probabilities, ("a", "b"))
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["case", "label", "probability_a", "probability_b"]
    assert [row[:2] for row in rows[1:]] == [["one, two", "b"], ["7", "a"]]
    assert np.array_equal(np.array([row[2:] for row in rows[1:]], dtype=np.float32), probabilities)
    assert rows[1][2] == "0.1"
    assert os.listdir(path.parent) == ["predictions.csv"]


def test_predictions_that_do_not_fit_are_named(tmp_path: Path) -> None:
    words = r"1 labels and probabilities \(2, 3\), expected 2 and \(2, 2\) for 2 cases of 2 classes"
    with pytest.raises(ShapeError, match=words):
        write_predictions(tmp_path / "a.csv", ["0", "1"], ["a"], np.zeros((2, 3)), ["a", "b"])


def test_a_hostile_archive_has_no_test_part(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=np.zeros((2, 3, 1)))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(b"PK\x01\x02") + 30] = 255  # the length of what follows a name
    (tmp_path / "a.npz").write_bytes(bytes(content))
    assert not has_test_part(tmp_path / "a.npz")
