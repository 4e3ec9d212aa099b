"""Benchmarks: a failing rival is a status, a red test stops the figures, a record says what it is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import ROOT, harness, run
from benchmarks.harness import Bench, answer, gate
from kernelhead.errors import BadInput, UnknownName
from kernelhead.records import read_json


def measure(n: int) -> Iterator[dict[str, Any]]:
    yield {"points": 2 * n}
    if n > 1:
        raise RuntimeError("no kernel fits\nand more lines")
    yield {"seconds": 0.5}


TINY = Bench("Is it small?", (), [{"n": 1}, {"n": 2}], measure, device="cpu")


def test_a_failing_rival_keeps_its_first_figures() -> None:
    assert answer(TINY, {"n": 1}) == {"n": 1, "status": "ok", "points": 2, "seconds": 0.5}
    assert answer(TINY, {"n": 2}) == {"n": 2, "status": "RuntimeError: no kernel fits", "points": 4}


def test_a_device_that_a_rival_broke_is_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", broken)
    assert answer(TINY, {"n": 2})["status"] == "RuntimeError: no kernel fits"


def test_a_record_says_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.record_of("tiny", TINY, tmp_path / "new", gated=False)
    record = read_json(tmp_path / "new" / "tiny.json")
    assert record["question"] == "Is it small?"
    assert record["versions"]["torch"] == torch.__version__
    assert record["gated"] is False
    assert [row["status"] for row in record["rows"]] == ["ok", "RuntimeError: no kernel fits"]
    assert "1, ok, 2, seconds 0.5" in capsys.readouterr().out


def test_every_question_is_a_bench_with_cells_and_a_gate() -> None:
    assert {*run.ORDER} == {*run.questions()}
    for name, question in run.questions().items():
        bench = run.load(name)
        assert bench.question == question
        assert question.endswith("?")
        assert bench.cells
        assert all((ROOT / path).exists() for path in bench.gate)


def test_a_question_nobody_asks_is_named() -> None:
    with pytest.raises(UnknownName, match=r"bench: unknown question 'cor', did you mean 'core'\?"):
        run.chosen_benches("cor")


def test_a_question_for_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="bench core: needs a CUDA device, and torch sees none"):
        run.chosen_benches("core")
    # Rows of a table are asked about on whichever device there is.
    assert {*run.chosen_benches("all")} - {"rows"} == {
        "cpu",
        "long_range_cpu",
        "softmax_cpu",
        "local_cpu",
        "ksvd",
        "reranking",
        "cooccurrence",
    }


@pytest.mark.plain
def test_a_red_test_stops_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    (tmp_path / "test_it.py").write_text("def test_right():\n    assert 1\n", encoding="utf-8")
    gate(["test_it.py"], device="cpu")()
    (tmp_path / "test_it.py").write_text("def test_wrong():\n    assert 0\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"no figures: the gate test_it.py is red, FAILED .*::test_wrong"):
        gate(["test_it.py"], device="cpu")()
    with pytest.raises(BadInput, match=r"the gate nowhere.py is red, ERROR: .*not found: nowhere.py"):
        gate(["nowhere.py"], device="cpu")()
    (tmp_path / "test_it.py").write_text("", encoding="utf-8")
    with pytest.raises(BadInput, match=r"the gate test_it.py is red, no test ran"):
        gate(["test_it.py"], device="cpu")()


def test_fewer_than_one_process_is_refused() -> None:
    with pytest.raises(BadInput, match="bench: beside is 0, expected a whole number of at least 1"):
        run.ask("cpu", out=None, gated=False, beside=0)
