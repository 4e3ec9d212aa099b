"""The field of transport: its recipe file, a job of every kind at toy size, its page, and its words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelhead.errors import BadInput, UnknownName
from kernelhead.training import jobs_of, markdown
from kernelhead.training.grid import Job
from kernelhead.training.transport import TRANSPORT_PAGE, TransportRecipe, transport_jobs, transport_run
from kernelhead.training.transport_parts import SIMULATIONS, TABLES, parts_of

RECIPES = Path(__file__).parents[2] / "recipes" / "transport.toml"
TINY: dict[str, Any] = {
    "steps": 4,
    "heads": 2,
    "head_width": 4,
    "epochs": 3,
    "permutations": 2,
    "tracked": 10,
}
NULLS = ("permuted", "untrained", "straight")


def job(data: str, variant: str, **options: Any) -> Job:
    return Job("transport", data, variant, "clean", 0, {**TINY, **options})


def test_the_file_of_the_house() -> None:
    jobs = jobs_of("transport", recipes=RECIPES, seeds=5)
    assert {each.data for each in jobs} == {*SIMULATIONS, *TABLES}
    assert {each.seed for each in jobs} == set(range(5))
    for data in (*SIMULATIONS, *TABLES):
        variants = {each.variant for each in jobs if each.data == data}
        assert {"transformer", "ot", "random", "mean", "logistic", "boosting"} <= variants


def test_the_same_job_gives_the_same_figures() -> None:
    one, same = (dict(transport_run(job("2 classes, 1", "transformer")).figures) for _ in range(2))
    del one["fit_seconds"], same["fit_seconds"]
    assert one == same


@pytest.mark.parametrize(
    ("data", "head"),
    [("iris", "learned"), ("3 classes, 2", "ring"), ("iris", "means"), ("3 classes, 2", "rotated")],
)
def test_jobs_of_transformers(data: str, head: str) -> None:
    made = transport_run(job(data, "transformer", head=head))
    for null in NULLS:
        assert f"{null}_matching" in made.figures
    assert made.figures["straight_efficiency"] == pytest.approx(1)
    assert made.figures["permuted_normalised_optimality"] == pytest.approx(0, abs=1e-9)
    assert made.figures["optimality"] <= 1
    assert {*map(len, made.curves.values())} == {len(made.curves["look"])}
    assert made.parameters is not None


@pytest.mark.parametrize("match", ["ot", "random", "mean"])
def test_jobs_of_maps(match: str) -> None:
    made = transport_run(job("2 classes, 4", match, model="map", match=match, epochs=20))
    assert made.figures["test_accuracy"] > 0.9
    assert made.figures["instance_accuracy"] == 1
    assert not any("efficiency" in name for name in made.figures)


@pytest.mark.parametrize("model", ["logistic", "boosting"])
@pytest.mark.parametrize("data", ["2 classes, 4", "wine"])
def test_jobs_of_peers(data: str, model: str) -> None:
    assert transport_run(job(data, model, model=model)).figures["test_accuracy"] > 0.85


def test_parts_are_on_the_scale_of_training() -> None:
    parts = parts_of("breast_cancer", 1)
    assert np.allclose(parts.x.mean((0, 1)), 0, atol=2e-2)  # far cells are clamped
    assert parts.x.shape[1:] == (1, 30)
    assert 0.28 < len(parts.truth) / (len(parts.truth) + len(parts.y)) < 0.32
    assert not np.array_equal(parts.new[:20], parts_of("breast_cancer", 2).new[:20])


def test_the_page() -> None:
    rows = [
        {
            "data": "3 classes, 2",
            "variant": name,
            "protocol": "clean",
            "seed": seed,
            "status": "done",
            "figures": {"test_accuracy": 0.8 + place / 100 + seed / 1000, "matching": 0.5},
        }
        for place, name in enumerate(("ot", "random", "transformer"))
        for seed in range(3)
    ]
    made = markdown(TRANSPORT_PAGE, rows)
    assert "| Least-cost pairing classifies better than random pairing | 3 classes, 2 | -1.0 |" in made
    assert "| The transformer beats the map | 3 classes, 2 | +2.0 | 0.2 | holds |" in made


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ('["4 classes, 1".ot]', UnknownName, "unknown set '4 classes, 1'"),
        ("[iris.forest]", UnknownName, "unknown variant 'forest'"),
        ("[iris.ot]\nwidth = 3", UnknownName, "unknown entry 'width'"),
        ("[iris.ot]\nmodel = 'tree'", UnknownName, "unknown model 'tree'"),
        ("[iris.ot]\nsteps = 'a'", BadInput, "steps is 'a', expected a whole number"),
    ],
)
def test_files_that_are_refused(text: str, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=sentence):
        transport_jobs(path, protocol="clean", seeds=1)


def test_words() -> None:
    with pytest.raises(UnknownName, match="transport: unknown protocol 'paper'"):
        transport_jobs(RECIPES, protocol="paper", seeds=1)
    with pytest.raises(UnknownName, match="TransportRecipe: unknown head 'line'"):
        TransportRecipe(head="line")
    with pytest.raises(UnknownName, match="transport: unknown set 'irises', did you mean 'iris'"):
        parts_of("irises", 0)


@pytest.mark.gpu
def test_a_step_of_a_transformer_is_a_graph() -> None:
    made = transport_run(job("2 classes, 4", "transformer", steps=60, heads=4, head_width=8))
    assert made.figures["test_accuracy"] > 0.8
    assert made.figures["optimality"] <= 1
