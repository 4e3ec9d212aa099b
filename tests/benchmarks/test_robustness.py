"""The robustness comparison: a tiny run of it, its record, and the verdicts of its page by rule."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks import harness, robust_images, robust_words, run
from benchmarks.bench_robustness import BENCH, TEXT_ROWS, cells
from benchmarks.harness import answer
from benchmarks.page_robustness import Figure, leader, robustness, write
from benchmarks.robust_images import augmented
from benchmarks.robust_rows import ROWS, finite
from kernelhead.cli.__main__ import main
from kernelhead.errors import BadInput
from kernelhead.nn import RPCAttention
from kernelhead.records import read_json
from kernelhead.rng import seeded

THREE = ("softmax", "symmetric", "rpc corrected, all layers")
FEW = [{"part": "images", "data": "digits", "row": row, "seed": 0} for row in THREE]
FEW += [{"part": "words", "data": "chain", "row": row, "seed": seed} for seed in (0, 1) for row in THREE]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a tiny run, with one cell that fails."""
    folder = tmp_path_factory.mktemp("results")
    wrong = {"part": "images", "data": "digits", "row": "sofmax", "seed": 0}
    run.record_of("robustness", replace(BENCH, cells=[*FEW, wrong], device="cpu"), folder, gated=False)
    return folder / "robustness.json"


def test_the_grid_is_the_one_that_is_told() -> None:
    grid = [(cell["part"], cell["row"], cell["seed"]) for cell in BENCH.cells]
    assert len(grid) == len({*grid}) == 3 * (len(ROWS) + len(TEXT_ROWS))
    assert {cell["data"] for cell in BENCH.cells} == {"cifar10-gray", "wikitext2"}
    assert {cell["data"] for cell in BENCH.tiny} == {"digits", "chain"}
    assert [cell["seed"] for cell in cells("a", "b", (0, 1))] == [0] * 8 + [1] * 8 + [0] * 5 + [1] * 5


@pytest.mark.parametrize("row", ROWS)
def test_a_model_has_the_layers_of_its_row(row: str) -> None:
    sets, recipe = robust_images.held("digits"), replace(robust_images.RECIPES["digits"], depth=3)
    model = robust_images.build(sets, recipe, row, 0)
    pursuits = [type(block.attention) is RPCAttention for block in model.model.blocks]
    wanted = {"first layer": [True, False, False], "all layers": [True] * 3}
    assert pursuits == wanted.get(row.split(", ")[-1], [False] * 3)
    counts = {each.pursuit.iterations for each in model.modules() if isinstance(each, RPCAttention)}
    assert counts == {"first layer": {4}, "all layers": {2}}.get(row.split(", ")[-1], set())


def test_a_language_model_has_the_iterations_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[nn.Module] = []
    monkeypatch.setattr(robust_words, "train", lambda model, *_: seen.append(model))
    for row, count in (("rpc published, first layer", 4), ("rpc corrected, all layers", 2)):
        figures = robust_words.word_figures("chain", row, 0)
        next(figures), next(figures)
        pursuits = [each.pursuit for each in seen.pop().modules() if isinstance(each, RPCAttention)]
        assert {each.iterations for each in pursuits} == {count}


def test_a_tiny_run_has_every_figure(made: Path) -> None:
    record = read_json(made)
    *rows, failed = record["rows"]
    assert failed["status"] == "KeyError: 'sofmax'"
    assert [row["status"] for row in rows] == ["ok"] * len(FEW)
    image, word = rows[0], rows[-1]
    assert {
        "parameters",
        "seconds",
        "steps_a_second",
        "peak_gib",
        "course",
        "recipe",
    } <= image.keys() & word.keys()
    assert [*image["attacks"]] == ["FGSM 16/255", "PGD 16/255", "SPSA 16/255"]
    assert {len(levels) for levels in image["corruptions"].values()} == {5}
    assert [*image["dropped"]] == ["25%", "50%"]
    assert [*image["contaminated"]] == [
        "2%, first layer",
        "5%, first layer",
        "2%, all layers",
        "5%, all layers",
    ]
    assert 0 <= image["calibration"] <= 1
    assert [*word["swapped"]] == ["5% random", "5% generic", "10% random", "10% generic"]
    assert 1 < word["clean"] < 20
    assert word["swapped"]["10% random"] > word["unswapped"]["10%"]


def test_a_run_repeats_itself(made: Path) -> None:
    clock = {"seconds", "steps_a_second", "evaluation_seconds"}
    for before in (row for row in read_json(made)["rows"] if row["row"] == "symmetric" and row["seed"] == 0):
        cell = {name: before[name] for name in FEW[0]}
        again = answer(BENCH, cell)
        for name in before.keys() - clock - {"recipe"}:
            assert again[name] == before[name], name


def test_good_rows_are_kept_and_the_others_measured(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_json(made)
    bench = replace(BENCH, cells=FEW, device="cpu")
    run.record_of("robustness", bench, made.parent, gated=False, resume=True)
    assert capsys.readouterr().out.count("\n") == 1
    short = {**before, "rows": before["rows"][1 : len(FEW)]}
    folder = made.parent / "short"
    run.write_json(folder / "robustness.json", short)
    after = run.record_of("robustness", bench, folder, gated=False, resume=True)
    assert after["rows"][1:] == short["rows"]
    assert {name: after["rows"][0][name] for name in FEW[0]} == FEW[0]
    assert after["seconds"] > short["seconds"]


def test_a_record_of_something_else_is_not_resumed(made: Path) -> None:
    bench = replace(BENCH, cells=FEW, device="cpu")
    with pytest.raises(BadInput, match=r"robustness.json cannot be resumed: its gated is False, now True"):
        run.record_of("robustness", bench, made.parent, gated=True, resume=True)
    with pytest.raises(BadInput, match=r"cannot be resumed: its commit is .*, now 'abc'"):
        run.record_of("robustness", bench, made.parent, gated=False, resume=True, named="abc")


def test_without_a_gpu_only_the_tiny_form_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=r"bench robustness: needs a CUDA device, .*; --tiny tries it out"):
        run.chosen_benches("robustness")
    assert run.chosen_benches("robustness", tiny=True)["robustness"].cells == BENCH.tiny
    with pytest.raises(BadInput, match="bench core: has no tiny cells; leave --tiny out"):
        run.chosen_benches("core", tiny=True)


def test_the_command_line_hands_its_flags_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "core", "--tiny", "--resume"]) == 2
    assert capfd.readouterr().err == "kernelhead: bench core: has no tiny cells; leave --tiny out\n"


def test_a_checkout_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert harness.commit() is None
    monkeypatch.setenv("PATH", "")
    assert harness.commit() is None


def test_images_are_moved_and_mirrored() -> None:
    x = torch.arange(1.0, 26.0).view(1, 1, 5, 5).expand(200, 1, 5, 5)
    with seeded(0):
        moved = augmented(x, shift=1, mirrored=True)
    assert moved.shape == x.shape
    padded = nn.functional.pad(x[:1], (1, 1, 1, 1))
    windows = [padded[..., i : i + 5, j : j + 5] for i in range(3) for j in range(3)]
    seen = {tuple(each.flatten().tolist()) for each in moved}
    assert seen == {tuple(each.flatten().tolist()) for cut in windows for each in (cut, cut.flip(-1))}
    assert torch.equal(augmented(x, shift=0, mirrored=False), x)


def test_perplexity_counts_the_targets_that_are_not_struck() -> None:
    class Sure(nn.Module):
        """All but certain that the next token is one more."""

        def forward(self, tokens: Tensor) -> Tensor:
            return 10.0 * nn.functional.one_hot((tokens + 1) % 5, 5).float()

    text = np.arange(41) % 5
    clean = robust_words.perplexity(Sure(), text, text, None, 8)
    assert clean == pytest.approx(1 + 4 * np.exp(-10), rel=1e-5)
    wrong, counted = text.copy(), np.ones(41, dtype=bool)
    wrong[7], counted[8] = 0, False  # what follows the wrong token would be the surprise
    assert robust_words.perplexity(Sure(), wrong, text, counted, 8) == pytest.approx(clean)
    assert robust_words.perplexity(Sure(), wrong, text, None, 8) > 1.2


def test_what_json_cannot_hold_is_left_out() -> None:
    assert [finite(number) for number in (1.5, float("inf"), float("nan"))] == [1.5, None, None]


def test_the_page_of_a_tiny_run(made: Path) -> None:
    text = write(made).read_text(encoding="utf-8")
    assert "**ungated**" in text
    assert "## Images: digits" in text
    assert "| attention | clean text | 5% random swapped |" in text
    assert "2% of keys spoilt in first layer" in text
    assert "- `rpc corrected, all layers` against `symmetric` does not help in" in text
    assert text.count("Where a row has one seed only") == 1
    assert text == robustness(read_json(made))


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def record(values: dict[str, list[float]], **changes: Any) -> dict[str, Any]:
    """A record of accuracies under one attack: a value for each seed of a row, all else alike."""
    rows = [
        {
            "part": "images",
            "data": "some",
            "row": name,
            "seed": seed,
            "status": "ok",
            "recipe": {"width": 8, "budgets": [2, 8]},
            "course": {"steps": 5, "seed": seed},
            "clean": 0.9,
            "attacks": {"PGD 8/255": value},
        }
        for name, each in values.items()
        for seed, value in enumerate(each)
    ]
    return {
        "machine": {"device": "Some GPU"},
        "versions": {"torch": "2.11"},
        "date": "2026-01-02",
        "commit": "abc",
        "seconds": 7.0,
        "gated": True,
        "tiny": False,
        "rows": rows,
        **changes,
    }


CLEAR = {"softmax": [0.5, 0.52], "symmetric": [0.4, 0.42], "rpc published, all layers": [0.6, 0.62]}


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-02, Some GPU, torch 2.11, commit abc, 7 s, after green tests.",
        "All rows: width 8, budgets 2 8. Trained with steps 5, seeds 0 1; last weights.",
        "| attention | clean, all | PGD 8/255 |",
        "| softmax | 90.0 ± 0.0 | 51.0 ± 1.4 |",
        "| rpc published, all layers | 90.0 ± 0.0 | **61.0 ± 1.4** |",
        "Some form of the pursuit beats both symmetric and softmax in 1 of 2 figures.",
        "None does in: clean, all.",
    ],
)
def test_the_page_has_the_line(line: str) -> None:
    assert line in robustness(record(CLEAR)).splitlines()


def test_a_difference_within_the_deviation_is_none() -> None:
    text = robustness(record(CLEAR | {"rpc published, all layers": [0.4, 0.82]}))
    assert "**6" not in text
    assert "against `softmax` does not help in 2 of 2: no difference in 2." in text
    assert "in 0 of 2 figures.\nNone does in: clean, all; PGD 8/255." in text


def test_a_gain_and_a_loss_are_told() -> None:
    text = unwrapped(robustness(record(CLEAR)))
    assert "against `softmax` does not help in 1 of 2: better in PGD 8/255, no difference in 1." in text
    text = unwrapped(robustness(record(CLEAR | {"rpc published, all layers": [0.2, 0.22]})))
    assert "against `softmax` does not help in 2 of 2: worse in PGD 8/255, no difference in 1." in text


def test_of_one_seed_nothing_is_said_or_marked() -> None:
    text = robustness(record({name: each[:1] for name, each in CLEAR.items()}, tiny=True, commit=None))
    assert "Where a row has one seed only, nothing is said of it." in text
    assert "**61" not in text
    assert "| softmax | 90.0 | 50.0 |" in text
    assert "**Tiny**" in text
    assert "commit unknown" in text


def test_what_failed_is_listed() -> None:
    made = record(CLEAR)
    made["rows"].append({**FEW[0], "status": "BadInput: the loss is nan"})
    text = robustness(made)
    assert text.endswith("- digits, softmax, seed 0: BadInput: the loss is nan\n")
    assert "## Images: digits" not in text


def test_a_leader_leads_all() -> None:
    figures = {"a": Figure(0.5, 0.01), "b": Figure(0.6, 0.01), "c": Figure(0.605, 0.01)}
    assert leader(figures, least=True) == "a"
    assert leader(figures, least=False) is None
    assert leader({"a": Figure(1.0, 0.0)}, least=True) is None
    assert not Figure(2.0, None).leads(Figure(1.0, 0.0), least=False)


def test_runs_beside_others_tell_no_time(tmp_path: Path) -> None:
    bench = replace(BENCH, cells=FEW[3:], device="cpu")
    made = run.record_of("robustness", bench, tmp_path, gated=False, beside=2)
    assert [{name: row[name] for name in FEW[0]} for row in made["rows"]] == FEW[3:]
    assert [row.get("beside") for row in made["rows"]] == [None] * 3 + [2] * 3
    row = next(line for line in robustness(made).splitlines()[::-1] if line.startswith("| softmax |"))
    assert row.split(" | ")[4] == f"{made['rows'][0]['steps_a_second']:.1f}"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("cell", [cell for cell in BENCH.tiny if cell["seed"] == 0], ids=str)
def test_every_row_is_measured_on_the_gpu(cell: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"images": robust_images, "words": robust_words}[cell["part"]]
    recipe = part.RECIPES[cell["data"]]
    in_bf16 = replace(recipe, course=replace(recipe.course, precision="bf16"))
    monkeypatch.setitem(part.RECIPES, cell["data"], in_bf16)
    row = answer(BENCH, cell)
    assert row["status"] == "ok"
    assert row["peak_gib"] > 0
