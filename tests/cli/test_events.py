"""kernelhead train, evaluate, predict and report on files of events."""

import csv
from pathlib import Path

import pytest

from kernelhead.cli.__main__ import main
from kernelhead.records import CONFIG, MAPS, METRICS, REPORT, RESULT, SPECTRUM, WEIGHTS, read_json
from tests.training.tiny_events import drawn, in_turn, write

TINY = ["--width", "8", "--heads", "2", "--epochs", "2", "--events.time_width", "8", "--accelerator", "cpu"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "train.csv", drawn())
    write(tmp_path / "test.csv", drawn(10, 1))
    write(tmp_path / "turns.csv", in_turn(), labels=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)
    return tmp_path


def test_labels_from_a_file_to_predictions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "train.csv", "--test", "test.csv", *TINY, "--events.unit", "hours"]
    assert main([*words, "--out", "run"]) == 0
    files = {CONFIG, METRICS, RESULT, SPECTRUM, MAPS, WEIGHTS, REPORT}
    assert {path.name for path in (here / "run").iterdir()} == files
    assert "softmax, bochner: epoch 1, loss" in capsys.readouterr().out
    assert read_json(here / "run" / CONFIG)["events"]["unit"] == "hours"
    assert main(["evaluate", "run"]) == 0
    assert "test, 10 cases: accuracy" in capsys.readouterr().out
    assert main(["evaluate", "run", "--split", "train", "--json"]) == 0
    assert '"cases": 40' in capsys.readouterr().out
    assert main(["predict", "run", "turns.csv"]) == 2
    assert "sequence 0 has type 'a', expected one of 0, 1, 2" in capsys.readouterr().err
    assert main(["predict", "run", "test.csv", "--out", "p.csv"]) == 0
    with (here / "p.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 10
    assert rows[3]["case"] == "s3"
    assert main(["report", "run", "--out", "page.html"]) == 0
    assert "softmax, bochner" in (here / "page.html").read_text(encoding="utf-8")
    assert main(["inspect", "spectrum", "run"]) == 2
    assert "run holds a run on events" in capsys.readouterr().err
    assert main([*words, "--out", "run"]) == 0
    assert "is kept as it is" in capsys.readouterr().out
    assert main(["train", "--config", f"run/{CONFIG}", "--out", "again"]) == 0
    assert (here / "again" / WEIGHTS).read_bytes() == (here / "run" / WEIGHTS).read_bytes()


def test_next_types_by_default(here: Path) -> None:
    assert main(["train", "turns.csv", *TINY, "--events.time", "scalar"]) == 0
    assert read_json(here / "runs" / "turns-scalar" / RESULT)["classes"] == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["turns.csv", "--events.unit", "moons"], "unknown unit 'moons'"),
        (["turns.csv", "--pooling", "last"], "pooling is 'last', which a run on events does not heed"),
        (["turns.csv", "--events.target", "label"], "turns: has no labels"),
        (["turns.csv", "--events.time", "mercer", "--events.time_width", "32"], "expected a multiple of 11"),
        (
            ["JapaneseVowels", "--events.unit", "days"],
            "options of events were given, but the data is no file of events",
        ),
    ],
)
def test_words(here: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words, "--out", "run"]) == 2
    assert sentence in capsys.readouterr().err
    assert not [*here.glob("run/*")]
