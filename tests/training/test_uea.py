"""The UEA field: its recipe file, its jobs, and one small job of each kind from end to end."""

import os
import sys
from pathlib import Path

import pytest
import torch

from kernelhead.cli.__main__ import main
from kernelhead.errors import BadInput, MissingExtra, UnknownName
from kernelhead.records import read_json
from kernelhead.training import Job, Recipe, jobs_of, reproduce
from kernelhead.training.fields import field_of
from kernelhead.training.resident import scores_of
from kernelhead.training.runs import build
from kernelhead.training.uea import OURS, PEERS, UEA_PAGE, _whole, on_device, read_tables, uea_jobs, uea_run
from tests.training.tiny import series, write_npz

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")
RECIPES = Path(__file__).parents[2] / "recipes" / "uea.toml"
SMALL = """width = 8
depth = 1
heads = 2
epochs = 3
batch = 8
norm = "post"
pooling = "flatten"
position = "learned"
accelerator = "cpu"

[Echo]
softmax.paper = { penalty = 0.0 }
primal.paper = { rank = 2 }
primal.ours = { rank = 3 }
"primal+".paper = { rank = 2 }
"primal+".ours = {}

[Absent]
softmax.paper = {}
primal.paper = {}
"primal+".paper = {}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe file and a data root with a set whose test part is longer than its training part."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "uea.toml").write_text(SMALL, encoding="utf-8")
    (tmp_path / "root" / "uea").mkdir(parents=True)
    write_npz(tmp_path / "root" / "uea" / "Echo.npz", train=series(24), test=series(12, seed=1))
    return tmp_path


def test_sets_that_aeon_would_bring_are_left_out_without_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = here / "recipes" / "uea.toml"
    file.write_text(file.read_text("utf-8").replace("[Absent]", "[BasicMotions]"), encoding="utf-8")
    monkeypatch.setitem(sys.modules, "aeon", None)
    assert {job.data for job in listed(here)} == {"Echo"}


def listed(here: Path, protocol: str = "clean") -> list[Job]:
    return uea_jobs(here / "recipes" / "uea.toml", protocol=protocol, seeds=1, root=here / "root")


def test_the_file_has_all_sets_and_the_published_settings() -> None:
    tables = read_tables(RECIPES)
    assert len(tables) == 18
    assert {*UEA_PAGE.published} <= {*tables}
    assert {*UEA_PAGE.doubtful} <= {*UEA_PAGE.published}
    handwriting, digits = tables["Handwriting"], tables["SpokenArabicDigits"]
    assert [handwriting["primal"][name] for name in ("rank", "penalty", "landmarks")] == [30, 0.2, 150]
    assert [handwriting["primal+"][name] for name in ("rank", "penalty", "landmarks")] == [20, 0.5, 100]
    assert [digits["softmax"][name] for name in ("width", "optimiser", "penalty")] == [512, "adamw", 0.0]
    assert tables["PEMS-SF"]["primal"]["epochs"] == 400
    for table in tables.values():
        assert table["softmax"]["penalty"] == 0
        assert {name.removesuffix("-ours") for name in table} == {"softmax", "primal", "primal+"}
        assert {*table} <= {*UEA_PAGE.variants}


@needs_shared
def test_every_shared_set_has_jobs() -> None:
    jobs = jobs_of("uea", recipes=RECIPES, seeds=3, root=Path(str(SHARED)))
    assert len({job.data for job in jobs}) == 14
    assert {"softmax", "primal", "primal+", *PEERS} <= {job.variant for job in jobs}
    assert len({job.identity for job in jobs}) == len(jobs)


def test_jobs_are_those_of_the_protocol(here: Path) -> None:
    assert [job.variant for job in listed(here)] == [
        "softmax",
        "primal",
        "primal-ours",
        "primal+",
        *OURS,
        *PEERS,
    ]
    assert [job.variant for job in listed(here, "paper")] == ["softmax", "primal", "primal+"]
    assert {job.recipe["activation"] for job in listed(here, "paper")} == {"gelu"}
    assert not any("activation" in job.recipe for job in listed(here, "clean"))
    assert {job.data for job in listed(here)} == {"Echo"}
    assert listed(here)[2].recipe["rank"] == 3


def test_clean_never_shows_the_test_part_to_training(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    outcome = uea_run(listed(here)[1], root=here / "root")
    assert {*outcome.figures} == {"test_accuracy", "test_loss", "valid_accuracy", "best_epoch"}
    assert seen["train"] + seen["valid"] == 24
    assert outcome.parameters is not None
    assert uea_run(listed(here)[1], root=here / "root").figures == outcome.figures


def test_paper_says_that_it_chose_on_the_test_part(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    figures = uea_run(listed(here, "paper")[1], root=here / "root").figures
    assert {*figures} == {"best_test_accuracy", "last_test_accuracy", "best_epoch"}
    assert (seen["train"], seen["valid"]) == (24, 12)
    assert figures["best_test_accuracy"] >= figures["last_test_accuracy"]


def watch(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many cases training was given."""
    from kernelhead.training import uea

    seen: dict[str, int] = {}
    fit = uea.fit

    def noted(model, train, valid, classes, recipe: Recipe, *, fabric):  # type: ignore[no-untyped-def]
        seen.update(train=len(train), valid=len(valid))
        return fit(model, train, valid, classes, recipe, fabric=fabric)

    monkeypatch.setattr(uea, "fit", noted)
    return seen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # aeon divides a number by a tensor
def test_a_peer_learns_from_the_whole_training_part(here: Path) -> None:
    job = next(job for job in listed(here) if job.variant == "QUANT")
    first, second = (uea_run(job, root=here / "root").figures for _ in range(2))
    assert first == second
    assert 0 <= first["test_accuracy"] <= 1


def test_ours_learns_from_the_whole_training_part(here: Path) -> None:
    job = next(job for job in listed(here) if job.variant == "kernelhead")
    first, second = (uea_run(job, root=here / "root").figures for _ in range(2))
    assert first == second
    assert 0.25 < first["test_accuracy"] <= 1


def test_a_peer_without_aeon_names_the_extra(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aeon.classification.interval_based", None)
    with pytest.raises(MissingExtra, match=r"uea/Echo/QUANT/clean/0: needs aeon"):
        uea_run(Job("uea", "Echo", "QUANT", "clean", 0, {}), root=here / "root")


@pytest.mark.slow
def test_the_verb_trains_a_grid_and_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "uea", "--root", "root", "--seeds", "1", "--only", "softmax", "primal"]
    assert main([*words, "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "to do   uea/Echo/softmax/clean/0",
        "to do   uea/Echo/primal/clean/0",
    ]
    assert main([*words, "--workers", "2"]) == 0
    assert "2 of 2 jobs are done; ledger: docs/results/uea.json" in capsys.readouterr().out
    assert "| Echo |" in (here / "docs" / "results" / "uea.md").read_text(encoding="utf-8")
    before = (here / "docs" / "results" / "uea.json").read_bytes()
    assert main(words) == 0
    assert (here / "docs" / "results" / "uea.json").read_bytes() == before
    assert main([*words, "--list"]) == 0
    assert capsys.readouterr().out.count("done    uea/Echo") == 2


@pytest.mark.slow
def test_a_failed_job_is_said_and_the_code_is_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "recipes" / "uea.toml").write_text(SMALL.replace("heads = 2", "heads = 3"), encoding="utf-8")
    assert main(["reproduce", "uea", "--root", "root", "--seeds", "1", "--only", "softmax"]) == 1
    assert "0 of 1 jobs are done" in capsys.readouterr().out
    (row,) = read_json(here / "docs" / "results" / "uea.json")["rows"]
    assert row["status"] == "failed"
    assert "## Failed" in (here / "docs" / "results" / "uea.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_quick_job_on_real_data(tmp_path: Path) -> None:
    text = RECIPES.read_text(encoding="utf-8").replace("width = 512", "width = 32")
    (tmp_path / "quick.toml").write_text(text.replace("epochs = 100", "epochs = 6"), encoding="utf-8")
    chosen = ["JapaneseVowels", "primal"]
    jobs = jobs_of("uea", recipes=tmp_path / "quick.toml", seeds=1, only=chosen)
    (row,) = reproduce("uea", jobs, out=tmp_path)
    assert row["status"] == "done", row["error"]
    assert row["figures"]["test_accuracy"] > 0.5  # of nine classes
    assert "| JapaneseVowels |" in (tmp_path / "uea.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("= 1", "is not a readable TOML file"),
        ("[Echo]\nprimal.paper = {}", r"\[Echo\]: no table softmax.paper"),
        ("[Echo]\nsoftmax.ours = {}", r"\[Echo\]: no table softmax.paper"),
    ],
)
def test_a_broken_file_is_named(text: str, words: str, here: Path) -> None:
    (here / "recipes" / "uea.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=words):
        listed(here)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("primal.ours", "prime.ours", "unknown variant 'prime', did you mean 'primal'"),
        ("primal.ours", "primal.mine", "unknown setting 'mine'"),
        ("primal.ours = { rank", "primal.ours = { rnk", "unknown entry 'rnk', did you mean 'rank'"),
    ],
)
def test_an_unknown_name_in_the_file_is_named(old: str, new: str, words: str, here: Path) -> None:
    (here / "recipes" / "uea.toml").write_text(SMALL.replace(old, new), encoding="utf-8")
    with pytest.raises(UnknownName, match=words):
        listed(here)


def test_what_is_not_here_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match=r"uea: none of Echo, Absent is here; KERNELHEAD_DATA or --root"):
        jobs_of("uea")
    with pytest.raises(BadInput, match=r"nowhere\.toml does not exist; by default it is"):
        jobs_of("uea", recipes=Path("nowhere.toml"))
    with pytest.raises(UnknownName, match="unknown protocol 'papr', did you mean 'paper'"):
        jobs_of("uea", protocol="papr")
    assert main(["reproduce", "uea", "--root", "root", "--seeds", "0"]) == 2
    assert "seeds" in capsys.readouterr().err


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(UnknownName, match="reproduce: unknown field 'uae', did you mean 'uea'"):
        field_of("uae")


def test_with_all_series_on_the_device() -> None:
    train, valid = series(24), series(12, seed=1)
    recipe = Recipe(
        "echo", attention="primal", width=8, heads=2, depth=1, rank=2, epochs=4, batch=8, dropout=0.0, lr=0.01
    )
    made = []
    for _ in range(2):
        model = build(recipe, classes=len(train.classes), channels=train.channels, longest=train.longest)
        made.append(on_device(model, train, valid, train.classes, recipe, torch.device("cpu")))
    assert [row["epoch"] for row in made[0]] == [1, 2, 3, 4]
    assert {row["epoch"]: row["valid_accuracy"] for row in made[0]} == {
        row["epoch"]: row["valid_accuracy"] for row in made[1]
    }
    # The weights of the best epoch are left in the model.
    (x, y) = _whole(valid, train.classes, max(train.longest, valid.longest), torch.device("cpu"))
    accuracy = float((scores_of(model, x).argmax(-1) == y).float().mean())
    assert accuracy == max(row["valid_accuracy"] for row in made[1])
