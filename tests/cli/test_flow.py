"""inspect flow: of a trained run and of someone else's model, its record, its place in the report, words."""

import json
from pathlib import Path

import pytest

from kernelhead.cli.__main__ import main
from kernelhead.records import CONFIG, FLOW, read_json
from tests.surgery.saved import saved_bert, text
from tests.training.tiny import options, series, write_csv

GROUPS = ["--groups", "first=0:4", "rest=4:"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and two trained runs."""
    folder = tmp_path_factory.mktemp("runs")
    write_csv(folder / "train.csv", series(24))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for attention in ("softmax", "primal"):
            words = options(epochs=1, depth=2, attention=attention)
            assert main(["train", "train.csv", *words, "--out", attention]) == 0
    return folder


def test_flow_of_a_run_goes_to_its_folder_and_its_report(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    capsys.readouterr()
    assert main(["inspect", "flow", "softmax", *GROUPS, "--cases", "6"]) == 0
    out = capsys.readouterr().out
    for word in ("blocks.0.attention", "first", "rest", "uniform", "regrouped", "relative"):
        assert word in out
    assert "inter-modality flow 0." in out
    assert "6 cases of train, at most" in out
    record = read_json(runs / "softmax" / FLOW)
    assert [*record["groups"]] == ["first", "rest"]
    assert record["cases"] == 6
    for layer in record["layers"]:
        assert all(sum(row) == pytest.approx(1) for row in layer["cumulative"])
    assert main(["inspect", "flow", "softmax", *GROUPS, "--cases", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == record
    assert main(["report", "softmax", "--out", "page.html"]) == 0
    page = (runs / "page.html").read_text(encoding="utf-8")
    assert "Flow between groups of points" in page
    assert "first ← rest" in page


def test_primal_runs_are_read_by_magnitudes_and_refused_otherwise(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    assert main(["inspect", "flow", "primal", *GROUPS]) == 2
    said = capsys.readouterr().err
    assert "expected a sum of 1 and none below 0; rows='absolute' takes magnitudes" in " ".join(said.split())
    assert main(["inspect", "flow", "primal", *GROUPS, "--rows", "absolute"]) == 0


def test_flow_of_a_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bert, data = saved_bert(tmp_path / "bert"), text(tmp_path / "text.txt")
    words = ["inspect", "flow", str(bert), str(data), "--cases", "4"]
    groups = ["--groups", "front=1:3", "rest=3:"]
    assert main([*words, *groups, "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "encoder.layer.0.attention.self" in out
    assert "records in" in out
    assert (tmp_path / "out" / CONFIG).exists()
    record = read_json(tmp_path / "out" / FLOW)
    assert len(record["layers"]) == 2
    assert record["layers"][0]["outside"][0] > 0
    assert main([*words, *groups, "--under", "encoder.layer.1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["layers"]) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "model_flow: 0 groups are given, expected two or more"),
        (["--groups", "first=0:4"], "1 groups are given"),
        (["--groups", "first=0:4", "rest"], "named_groups: 'rest' is not a group"),
        (["--groups", "first=0:4", "rest=3:"], "point 3 is in group 'first' and in group 'rest'"),
        (["--groups", "first=0:4", "rest=900:"], "group 'rest' is empty"),
        ([*GROUPS, "--rows", "any"], "unknown rows 'any'"),
    ],
    ids=str,
)
def test_wrong_words_end_in_a_sentence(
    words: list[str],
    sentence: str,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(runs)
    assert main(["inspect", "flow", "softmax", *words]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
