"""Bars of robustness: means over seeds, their lengths, folders of their own, records that are none."""

from pathlib import Path
from typing import Any

import pytest

from kernelhead import records
from kernelhead.errors import BadInput
from kernelhead.report import summary, write_report
from kernelhead.report.robustness import Bar, check_robustness, robustness_bars
from tests.report.samples import robustness, write_run

ROW: dict[str, Any] = {"part": "images", "data": "grey", "row": "softmax", "status": "ok", "clean": 0.5}


def test_bars_are_means_over_seeds() -> None:
    found = {(group, trial): bars for group, trial, bars in robustness_bars(robustness())}
    softmax, other = found["grey: attacked, accuracy in %", "FGSM 1/255"]
    assert (softmax.name, softmax.slot, other.slot) == ("softmax", 0, 1)
    assert softmax.value == pytest.approx(35)
    assert softmax.deviation == pytest.approx(10 / 2**0.5)
    assert (softmax.words, softmax.spread, softmax.full) == ("35.0", "7.1", 100)
    [noise, _] = found["grey: corrupted, mean accuracy of five severities in %", "gaussian noise"]
    assert noise.value == pytest.approx(30)
    [clean] = found["text: perplexity, lower is better", "clean"]
    assert (clean.words, clean.spread, clean.deviation, clean.share) == ("150.0", "", None, 100)
    [brier, _] = found["grey: calibration, lower is better", "Brier score"]
    assert brier.words == "0.400"


def test_a_bar_stays_inside_its_track() -> None:
    for value, spread in ((50, 10), (99, 10), (0.5, 3), (0, 0)):
        bar = Bar("a", 0, value, spread, 100)
        start, length = bar.whisker
        assert 0 <= bar.share <= 100
        assert 0 <= start <= start + length <= 100
    assert Bar("a", 0, 0, None, 0).share == 0


def test_rows_that_failed_are_left_out() -> None:
    rows = [ROW, ROW | {"row": "primal", "status": "out of memory", "clean": 0.9}]
    [(_, trial, bars)] = robustness_bars({"rows": rows})
    assert trial == "clean, all cases"
    assert [bar.name for bar in bars] == ["softmax"]


def test_a_folder_of_trials_may_stand_alone_or_beside_runs(tmp_path: Path) -> None:
    run, alone = write_run(tmp_path / "run", "a"), tmp_path / "trials"
    records.write_json(
        alone / records.ROBUSTNESS, robustness() | {"tiny": True, "machine": {"device": "abacus"}}
    )
    assert [row["run"] for row in summary([run, alone])] == ["a"]
    text = write_report([alone], tmp_path / "page.html").read_text("utf-8")
    assert "trials/robustness.json, 2026-11-16, abacus, a trial of the code on few cases" in text
    assert '<h2 id="summary">' not in text
    both = write_report([run, alone], tmp_path / "page.html").read_text("utf-8")
    assert '<h2 id="summary">' in both
    assert '<h2 id="robustness">' in both
    assert '<h2 id="robustness">' not in write_report([run], tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize(
    "broken",
    [
        {"question": "why"},
        {"rows": 3},
        {"rows": [{}]},
        {"rows": [ROW | {"row": 3}]},
        {"rows": [ROW | {"clean": "all"}]},
        {"rows": [ROW | {"attacks": {"FGSM": float("nan")}}]},
        {"rows": [ROW | {"attacks": [1]}]},
        {"rows": [ROW | {"corruptions": {"blur": []}}]},
    ],
    ids=str,
)
def test_a_broken_record_is_named(broken: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"r.json: expected rows, each with part, data, row and status, and fig"
    ):
        check_robustness(broken, "r.json")


def test_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / records.ROBUSTNESS).write_text('{"rows": [{}]}')
    with pytest.raises(BadInput, match=r"robustness.json: expected rows"):
        summary([tmp_path])
