"""Records: what is written comes back, and a write that fails leaves the old file and nothing else."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead import records
from kernelhead.errors import BadInput, CheckpointError
from kernelhead.records import read_json, read_lines, write_atomically, write_json, write_lines, write_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=6)
RECORDS = st.dictionaries(TEXT, VALUES, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@given(record=RECORDS)
def test_a_record_comes_back_in_its_order(folder: Path, record: dict[str, Any]) -> None:
    write_json(folder / "record.json", record)
    assert list(read_json(folder / "record.json").items()) == list(record.items())


@given(rows=st.lists(RECORDS, max_size=4))
def test_lines_come_back(folder: Path, rows: list[dict[str, Any]]) -> None:
    write_lines(folder / "rows.jsonl", rows)
    assert read_lines(folder / "rows.jsonl") == rows
    assert (folder / "rows.jsonl").read_text(encoding="utf-8").count("\n") == len(rows)


@given(text=TEXT)
def test_text_comes_back(folder: Path, text: str) -> None:
    write_text(folder / "text", text)
    assert (folder / "text").read_bytes() == text.encode()


def test_a_record_can_be_read_by_people(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"größe": 1, "b": [2]})
    expected = '{\n  "größe": 1,\n  "b": [\n    2\n  ]\n}\n'
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == expected


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_json(tmp_path / "deep" / "er" / "a.json", {})
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "er", "a.json"]
    assert (tmp_path / "deep" / "er" / "a.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError], ids=lambda stop: stop.__name__)
def test_a_write_that_stops_halfway_leaves_the_old_file(tmp_path: Path, stop: type[BaseException]) -> None:
    def halfway(temporary: Path) -> None:
        temporary.write_text("new, but only")
        raise stop("on purpose")

    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(stop, match="on purpose"):
        write_atomically(path, halfway)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path: Path) -> None:
    seen = []

    def write(temporary: Path) -> None:
        temporary.write_text("new")
        seen.append((tmp_path / "a.txt").read_text())

    write_text(tmp_path / "a.txt", "old")
    write_atomically(tmp_path / "a.txt", write)
    assert (seen, (tmp_path / "a.txt").read_text()) == (["old"], "new")


def test_a_reader_of_the_old_file_keeps_it(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with (tmp_path / "a.txt").open() as reader:
        write_text(tmp_path / "a.txt", "new")
        assert reader.read() == "old"


@pytest.mark.parametrize("number", [float("nan"), float("inf")], ids=str)
def test_a_number_json_does_not_know_is_refused(tmp_path: Path, number: float) -> None:
    write_json(tmp_path / "a.json", {"loss": 1.0})
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": number})
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        write_lines(tmp_path / "a.json", [{"loss": number}])
    assert read_json(tmp_path / "a.json") == {"loss": 1.0}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "a.json"
    with pytest.raises(CheckpointError, match=re.escape(f"cannot write {path}: ")):
        write_json(path, {})


def test_a_target_that_cannot_be_replaced_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.mkdir()
    with pytest.raises(CheckpointError, match=re.escape(f"cannot write {path}: Is a directory")):
        write_json(path, {})
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=re.escape(f"{tmp_path / 'a.json'} does not exist")):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe"], ids=["empty", "cut off", "not text"])
def test_a_record_that_is_not_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=re.escape(f"{path} is not a readable JSON file: ")):
        read_json(path)


def test_a_folder_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=re.escape(f"{tmp_path} is not a readable JSON file: ")):
        read_json(tmp_path)


def test_a_record_that_is_no_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(BadInput, match=r"a\.json holds a list, expected a JSON object"):
        read_json(tmp_path / "a.json")


def test_missing_lines_are_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "rows.jsonl") == []


@pytest.mark.parametrize("tail", ['{"a": ', ""], ids=["cut off", "blank"])
def test_a_line_that_is_not_json_is_numbered(tmp_path: Path, tail: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n' + tail + "\n")
    with pytest.raises(BadInput, match=r"rows\.jsonl, line 2 is not JSON: "):
        read_lines(tmp_path / "rows.jsonl")


def test_a_line_that_is_no_object_is_numbered(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n3\n')
    with pytest.raises(BadInput, match=r"rows\.jsonl, line 2"):
        read_lines(tmp_path / "rows.jsonl")


def test_lines_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"rows\.jsonl cannot be read: 'utf-8' codec"):
        read_lines(tmp_path / "rows.jsonl")
    with pytest.raises(BadInput, match=re.escape(f"{tmp_path} cannot be read: ")):
        read_lines(tmp_path)


def test_the_files_of_a_run_have_their_own_names() -> None:
    names = [
        records.CONFIG, records.METRICS, records.RESULT, records.SPECTRUM, records.KPCA,
        records.MAPS, records.ROBUSTNESS, records.FLOW, records.GRAPH, records.DOT, records.TRANSPORT,
        records.WEIGHTS, records.CHECKPOINT, records.REPORT,
    ]  # fmt: skip
    assert len({*names}) == len(names)


def test_what_a_killed_writer_left_is_taken_away_after_an_hour(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (".a[1].json.old", ".a[1].json.new", ".b.json.old"))
    for left in (old, new, other):
        left.write_text("half")
    folder = tmp_path / ".a[1].json.old.folder"
    folder.mkdir()
    (folder / ".tmp").write_text("half")
    for left in (old, other, folder):
        os.utime(left, (0, 0))
    write_json(tmp_path / "a[1].json", {})
    assert sorted(each.name for each in tmp_path.iterdir()) == [".a[1].json.new", ".b.json.old", "a[1].json"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}"], ids=["deep", "long"])
def test_lists_too_deep_and_numbers_too_long_are_sentences(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadInput, match=r"a\.json is not a readable JSON file: "):
        read_json(tmp_path / "a.json")
    with pytest.raises(BadInput, match=r"a\.json, line 1 is not JSON: "):
        read_lines(tmp_path / "a.json")


def test_a_number_that_is_not_finite_is_a_sentence_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"a\.json is not written, a number in it is not finite"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert [*tmp_path.iterdir()] == []


def test_numbers_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"rank": np.int64(3), "share": np.float32(0.5), "held": np.True_})
    assert read_json(tmp_path / "a.json") == {"rank": 3, "share": 0.5, "held": True}
    with pytest.raises(TypeError, match=r"is a Path|PosixPath, which JSON does not hold"):
        write_json(tmp_path / "a.json", {"where": tmp_path})
