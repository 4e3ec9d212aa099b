"""A folder with data and one trained run, made once, and a copy of it to work in."""

import shutil
from pathlib import Path

import pytest

from kernelhead.cli.__main__ import main
from tests.training.tiny import options, series, write_csv


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and one trained run."""
    folder = tmp_path_factory.mktemp("made")
    write_csv(folder / "train.csv", series(24))
    write_csv(folder / "test.csv", series(12, seed=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ["train", "train.csv", "--test", "test.csv", *options(epochs=2), "--out", "run"]
        assert main(words) == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a copy of all that."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)
    return tmp_path
