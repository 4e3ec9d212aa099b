"""kernelhead plan: a budget or a shape in, a plan with its costs and doubts out; one sentence where not."""

import json
from pathlib import Path
from typing import Any

import pytest

from kernelhead.cli.__main__ import main
from kernelhead.cli.plan import count_of


def record(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def test_a_budget_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--params", "85M", "--vocabulary", "1000"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "23 layers of width 552 with 8 heads: 84,264,456 of 85,000,000 weights, and 552,000 of embeddings"
    )
    for words in (
        "near the law: 23.0 layers",
        "not for images, tables or series",
        "Against it",
        "2601.20994",
    ):
        assert words in out


def test_the_record_has_costs_beside_other_depths(capsys: pytest.CaptureFixture[str]) -> None:
    made = record(capsys, "--params", "9.83M", "--context", "256")
    assert (made["depth"], made["budget"], made["regime"]["side"]) == (11, 9_830_000, "near")
    assert made["cost"]["serial"] == 11
    assert [each["depth"] for each in made["others"]] == [5, 6, 22]
    assert made["others"][0]["over"]["train_seconds"] < 1 < made["others"][2]["over"]["train_seconds"]
    assert record(capsys, "--params", "9.8M", "--depth", "4", "--heads", "7")["law"] == "given"
    assert record(capsys, "--params", "9.8M", "--law", "threshold")["depth"] == 5
    assert record(capsys, "--params", "1000")["others"] == []


def test_a_shape_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--depth", "96", "--width", "12288"]) == 0
    out = capsys.readouterr().out
    assert "173,961,535,488 weights without embeddings" in out
    assert "deeper than the law: 80.5 layers" in out
    assert "an extrapolation" in out
    assert "Against it" in out
    assert record(capsys, "--depth", "3", "--width", "768")["regime"]["efficient"] is True


def test_the_figure_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--plot", str(tmp_path / "depth.svg")]) == 0
    assert "drawn in" in capsys.readouterr().out
    drawn = (tmp_path / "depth.svg").read_text()
    assert drawn.startswith("<?xml")
    kept = Path(__file__).parents[2] / "docs" / "depth.svg"
    assert "What one more layer adds" in drawn
    assert "What one more layer adds" in kept.read_text()


def test_best_depths_of_a_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "field": "depth",
        "data": "2.5M",
        "protocol": "clean",
        "seed": 0,
        "recipe_hash": "",
        "status": "done",
    }
    rows = [
        {**row, "variant": str(depth), "figures": {"test_loss": loss}}
        for depth, loss in ((2, 1.4), (4, 1.2), (8, 1.3))
    ]
    path = tmp_path / "depth.json"
    path.write_text(json.dumps({"rows": rows}))
    assert main(["plan", "--ledger", str(path)]) == 0
    assert "2.5M: 4 layers are best, 4.5 by a parabola" in capsys.readouterr().out
    assert record(capsys, "--ledger", str(path))["best"]["2.5M"]["depth"] == 4


@pytest.mark.parametrize(
    ("word", "count"),
    [("85M", 85_000_000), ("1.3b", 1_300_000_000), ("2_000", 2000), ("1,000,000", 1_000_000),
     ("1e6", 1_000_000), ("0.5K", 500)],
)  # fmt: skip
def test_numbers_of_weights(word: str, count: int) -> None:
    assert count_of(word) == count


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "plan: expected --params, or --depth and --width, or --plot, or --ledger"),
        (["--params", "many"], "plan: --params is 'many', expected a number of weights such as 85M or 1.3B"),
        (["--params", "-3M"], "expected"),
        (["--params", "500"], "a budget of 500 weights is too small for 1 layer: width 8"),
        (["--params", "1M", "--width", "8"], "plan: --params asks for a width and --width gives one"),
        (["--width", "8"], "plan: --width is 8, but a shape has a --depth too"),
        (["--params", "1M", "--law", "x"], "unknown law 'x'"),
        (["--depth", "0", "--width", "8"], "depth is 0"),
        (["--plot", "."], "plan: . cannot be written"),
        (["--plot", "/"], "plan: / cannot be written"),
        (["--ledger", "nowhere.json"], "plan: nowhere.json holds no runs of `reproduce depth`"),
    ],
)  # fmt: skip
def test_what_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *words]) == 2
    assert sentence in capsys.readouterr().err
