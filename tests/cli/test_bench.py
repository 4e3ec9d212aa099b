"""kernelhead bench: asks the benchmarks of the checkout it stands in, and refuses in one sentence."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import ROOT
from kernelhead.cli.__main__ import main
from kernelhead.records import read_json

TINY = '''"""Is it small?"""

from benchmarks.harness import Bench


def measure(n):
    yield {"twice": 2 * n}


BENCH = Bench(__doc__, ("test_tiny.py",), [{"n": 1}], measure, device="cpu")
'''


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one more question, whose gate is red; the working folder is inside it."""
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")
    (tmp_path / "benchmarks" / "bench_tiny.py").write_text(TINY, encoding="utf-8")
    (tmp_path / "test_tiny.py").write_text("def test_wrong():\n    assert 0\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cor"], "bench: unknown question 'cor', did you mean 'core'? Known: causal, cooccurrence, core,"),
        (["core"], "bench core: needs a CUDA device, and torch sees none"),
        pytest.param(
            ["tiny"],
            "no figures: the gate test_tiny.py is red, FAILED test_tiny.py::test_wrong",
            marks=pytest.mark.plain,
        ),
    ],
    ids=["unknown", "no device", "red gate"],
)
def test_what_is_refused_is_one_sentence(
    checkout: Path, words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words, "--out", "new"]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"kernelhead: {sentence}")
    assert err.count("\n") == 1
    assert not (checkout / "inner" / "new").exists()


def test_figures_without_a_gate_are_marked(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny", "--no-gate", "--out", "new"]) == 0
    record = read_json(checkout / "inner" / "new" / "tiny.json")
    assert record["gated"] is False
    assert record["rows"] == [{"n": 1, "status": "ok", "twice": 2}]


def test_the_list_says_every_question(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1].split() == ["tiny", "Is", "it", "small?"]
    assert lines[0].startswith("core ")


def test_the_list_as_json_alone(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["tiny"] == "Is it small?"
    assert main(["bench", "tiny", "--json"]) == 2
    assert "bench: --json goes with --list; figures are written as JSON into --out" in capfd.readouterr().err


def test_outside_a_checkout_there_is_nothing_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench"]) == 2
    assert capsys.readouterr().err == (
        f"kernelhead: bench: {tmp_path} is not in a checkout of kernelhead, where the benchmarks are\n"
    )
