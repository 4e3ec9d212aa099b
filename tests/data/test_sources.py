"""Files made once: where they are kept, when they are made anew, and the words where there is no place."""

import os
from pathlib import Path

import pytest

from kernelhead.data.sources import folder_of, made_once, stamp
from kernelhead.errors import BadInput, CheckpointError


def put(path: Path) -> None:
    path.write_text("made")


def never(path: Path) -> None:
    raise AssertionError(path)


def test_a_file_is_made_beside_the_data_and_once(tmp_path: Path) -> None:
    made = made_once(tmp_path, "a.txt", put)
    assert (made, made.read_text()) == (tmp_path / "cache" / "a.txt", "made")
    assert made_once(tmp_path, "a.txt", never) == made


def test_a_folder_that_cannot_be_written_has_its_files_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "set"
    data.mkdir()
    (data / "cache").touch()  # no folder, whoever writes
    monkeypatch.setenv("HOME", str(tmp_path))
    made = made_once(data, "a.txt", put)
    assert made == tmp_path / ".cache" / "kernelhead" / "set" / "a.txt"
    assert made_once(data, "a.txt", never) == made
    monkeypatch.setenv("HOME", str(data / "cache"))
    with pytest.raises(CheckpointError, match=r"cannot write .*c\.txt"):
        made_once(data, "c.txt", put)


def test_a_folder_that_nobody_is_to_write_to_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root could, and does not."""
    data = tmp_path / "set"
    data.mkdir()
    data.chmod(0o555)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = made_once(data, "a.txt", put)
    assert made == tmp_path / ".cache" / "kernelhead" / "set" / "a.txt"
    assert [*data.iterdir()] == []
    data.chmod(0o755)
    (data / "cache").mkdir()
    data.chmod(0o555)
    assert made_once(data, "b.txt", put) == data / "cache" / "b.txt"  # a place for it was made on purpose


def test_what_fails_while_it_is_made_leaves_nothing(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        path.write_text("ma")
        raise BadInput("broken")

    with pytest.raises(BadInput, match="broken"):
        made_once(tmp_path, "a.txt", half)
    assert [*(tmp_path / "cache").iterdir()] == []


def test_another_file_has_another_stamp(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    first = stamp(path)
    assert (len(first), stamp(path)) == (16, first)
    os.utime(path, ns=(0, 0))
    second = stamp(path)
    path.write_text("three")
    os.utime(path, ns=(0, 0))
    assert len({first, second, stamp(path), stamp(path, path)}) == 4


def test_a_folder_is_found_by_root_or_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)
    (tmp_path / "set").mkdir()
    assert folder_of("set") is None
    assert folder_of("set", tmp_path) == tmp_path / "set"
    assert folder_of("other", tmp_path) is None
    monkeypatch.setenv("KERNELHEAD_DATA", str(tmp_path))
    assert folder_of("set") == tmp_path / "set"
