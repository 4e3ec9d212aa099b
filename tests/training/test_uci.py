"""The field of tables: its recipe file, jobs of models and peers, and its words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelhead.data import Cells
from kernelhead.errors import BadInput, UnknownName
from kernelhead.training import jobs_of, markdown
from kernelhead.training.grid import Job
from kernelhead.training.uci import PEERS, TABLES_PAGE, table_jobs, table_run

RECIPES = Path(__file__).parents[2] / "recipes" / "tables.toml"
SMALL: dict[str, Any] = {"width": 8, "depth": 2, "heads": 2, "lr": 1e-2, "steps": 40}


def drawn(source: str, *, part: str, split: int, root: Path | None) -> Cells:
    """A number and a category with missing cells, whose sum or sign is the target."""
    draws = np.random.default_rng([split, part == "test"])
    x = np.empty((60, 2), dtype=object)
    x[:, 0], x[:, 1] = draws.normal(size=60), draws.choice(["a", "b", None], 60)
    y = x[:, 0].astype(float) + (x[:, 1] == "a")
    classification = source == "adult"
    return Cells(
        source, x, np.where(y > 0, "up", "down") if classification else y, ("n", "c"), classification
    )


@pytest.fixture(autouse=True)
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelhead.training.uci.read_table", drawn)


def test_the_file_of_the_house() -> None:
    jobs = jobs_of("tables", recipes=RECIPES, seeds=6)
    sets = {job.data for job in jobs}
    assert len(sets) == 11
    assert {job.variant for job in jobs} == {"softmax", "self", "published", "inducing", *PEERS}
    assert {job.seed for job in jobs if job.data == "protein-tertiary-structure"} == set(range(5))
    assert {job.seed for job in jobs if job.data == "yacht"} == set(range(6))
    chosen = {(job.data, job.variant): job.recipe for job in jobs}
    assert chosen["poker_hand", "inducing"]["context"] == 0
    assert chosen["yacht", "HistGradientBoosting"] == {}


def test_transductive_by_name_and_without_peers() -> None:
    jobs = table_jobs(RECIPES, protocol="transductive", seeds=1)
    assert {job.recipe["evaluation"] for job in jobs} == {"transductive"}
    assert not {job.variant for job in jobs} & {*PEERS}
    job = Job("tables", "yacht", "softmax", "transductive", 0, {**SMALL, "evaluation": "transductive"})
    assert table_run(job).figures["test_error"] < 100


@pytest.mark.parametrize("data", ["yacht", "adult"])
def test_jobs_of_models(data: str) -> None:
    job = Job("tables", data, "softmax", "clean", 0, SMALL)
    made = table_run(job)
    assert table_run(job).figures["test_error"] == made.figures["test_error"]
    assert made.figures["test_error"] < (40 if data == "adult" else 80)
    assert made.figures["steps"] == 40
    assert ("test_rmse" in made.figures, "calibration_error" in made.figures) == (
        data == "yacht",
        data == "adult",
    )
    alone = table_run(replace(job, variant="self", recipe={**SMALL, "attention": "self"}))
    assert alone.figures["corrupted_error"] == pytest.approx(alone.figures["test_error"])


@pytest.mark.parametrize("data", ["yacht", "adult"])
@pytest.mark.parametrize("name", PEERS)
def test_jobs_of_peers(name: str, data: str) -> None:
    made = table_run(Job("tables", data, name, "clean", 0, PEERS[name][2]))
    assert made.figures["test_error"] < (40 if data == "adult" else 80)


def test_the_page() -> None:
    rows = [
        {
            "data": "yacht",
            "variant": name,
            "protocol": "clean",
            "seed": seed,
            "status": "done",
            "figures": {"test_error": 5.0 + place + seed / 10, "test_rmse": 0.7, "corrupted_error": 9.0},
        }
        for place, name in enumerate(("softmax", "self", "HistGradientBoosting"))
        for seed in range(3)
    ]
    made = markdown(TABLES_PAGE, rows)
    assert "| Seeing other rows helps | yacht | +1.0 |" in made
    assert "rows by softmax against HistGradientBoosting of this ledger: met" in made


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("[boats.softmax]", UnknownName, "unknown set 'boats'"),
        ("[yacht.softmax]\nwidths = 3", UnknownName, "unknown entry 'widths'"),
        ("[yacht.softmax]\nwidth = 'a'", BadInput, "width is 'a', expected a whole number"),
    ],
)
def test_files_that_are_refused(text: str, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=sentence):
        table_jobs(path, protocol="clean", seeds=1)


def test_a_protocol_that_is_not_there() -> None:
    with pytest.raises(UnknownName, match="tables: unknown protocol 'paper'"):
        table_jobs(RECIPES, protocol="paper", seeds=1)
