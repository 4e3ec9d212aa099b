"""A disk that is full: one sentence, exit code 2, and what was there before is there still."""

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelhead.cli.__main__ import main
from kernelhead.records import REPORT, RESULT
from tests.disks import no_file_above
from tests.drills.crashes import check_whole, held_by
from tests.training import tiny_events
from tests.training.tiny import options, series, write_csv

Tell = Callable[[str, object], None]
SEED = 9


@contextmanager
def disk_of(folder: Path, size: int) -> Iterator[None]:
    """A disk of so many bytes at a folder, where this user may have one."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("a small disk cannot be mounted by this user")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_csv(folder / "train.csv", series())
    tiny_events.write(folder / "events.csv", tiny_events.drawn())
    assert main(train(folder, "series", folder / "series")) == 0
    assert main(train(folder, "events", folder / "events")) == 0
    return folder


def train(files: Path, kind: str, out: Path, *more: str) -> list[str]:
    if kind == "series":
        words = [str(files / "train.csv"), *options(epochs=2)]
    else:
        words = [str(files / "events.csv"), "--epochs", "2", "--width", "8", "--accelerator", "cpu"]
    return ["train", *words, "--out", str(out), *more]


def check_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("kernelhead: cannot write "), said


KINDS = pytest.mark.parametrize("kind", ["series", "events"])


@KINDS
def test_a_run_on_a_full_disk_stops_and_goes_on_when_there_is_room(
    kind: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with no_file_above(2000):
        check_refused(train(files, kind, out), capsys)
    check_whole(out)
    assert [each.name for each in out.iterdir() if each.name.startswith(".")] == []
    assert not (out / RESULT).exists()
    assert main(train(files, kind, out)) == 0
    assert held_by(out) == held_by(files / kind)


def test_a_report_on_a_full_disk_leaves_the_old_one(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / REPORT
    out.write_text("<html>old</html>")
    with no_file_above(5000):
        check_refused(["report", str(files / "series"), "--out", str(out)], capsys)
    assert out.read_text() == "<html>old</html>"
    assert [*tmp_path.iterdir()] == [out]


@pytest.mark.drill
@KINDS
def test_a_run_on_a_small_disk_stops_where_it_is_full_and_goes_on(
    kind: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], record_property: Tell
) -> None:
    """A real file system, with room for none, some or all of the files."""
    draws, refused, done = random.Random(SEED), 0, 0
    expected = held_by(files / kind)
    disk = tmp_path / "disk"
    disk.mkdir()
    for _ in range(25):
        with disk_of(disk, 4096 * draws.randrange(2, 60)):
            out = disk / "run"
            capsys.readouterr()
            code = main(train(files, kind, out))
            said = capsys.readouterr().err.strip().splitlines()
            check_whole(disk)
            assert code in (0, 2)
            if code == 2:
                assert len(said) == 1, said
                assert "No space left on device" in said[0]
                refused += 1
            shutil.rmtree(tmp_path / "moved", ignore_errors=True)
            if out.exists():
                shutil.copytree(out, tmp_path / "moved")
        done += code == 0
        assert main(train(files, kind, tmp_path / "moved")) == 0
        assert held_by(tmp_path / "moved") == expected
    assert refused
    assert done
    record_property("disks", f"{refused + done} ({refused} full)")
