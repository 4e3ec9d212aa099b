"""The field of causal graphs: its model, its recipes, and every reading at toy size."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelhead.errors import UnknownName
from kernelhead.rng import seeded
from kernelhead.training import FIELDS, Job
from kernelhead.training.causal import (
    CAUSAL_PAGE,
    GRAPHS,
    READINGS,
    ItemModel,
    causal_jobs,
    causal_run,
    hidden_loss,
)
from kernelhead.training.table import markdown

ROOT = Path(__file__).parents[2]
TINY = {
    "cases": 4, "items": 12, "length": 5, "train": 32, "width": 8, "heads": 2, "depth": 1, "explained": 3,
    "steps": 3, "batch": 16, "neighbours": 3.0, "n": 0,
}  # fmt: skip


def job(data: str, reading: str, seed: int = 0, **more: Any) -> Job:
    return Job("causal", data, reading, "clean", seed, {**TINY, "reading": reading, **more})


def test_the_recipe_file_lists_every_reading() -> None:
    listed = causal_jobs(ROOT / "recipes" / "causal.toml", protocol="clean", seeds=3)
    assert {each.data for each in listed} == {"linear", "dense", "cascades", "no positions"}
    assert {each.variant for each in listed} == {*READINGS} == {*CAUSAL_PAGE.variants}
    assert all(each.variant == each.recipe["reading"] for each in listed)
    assert FIELDS["causal"].page is CAUSAL_PAGE


@pytest.mark.parametrize("reading", [each for each in READINGS if each not in ("pc", "fci")])
def test_a_trained_model_is_read(reading: str) -> None:
    found = causal_run(job("cascades", reading))
    assert found.figures.keys() >= {*CAUSAL_PAGE.beside} - {"graph_ms"}
    assert 0 <= found.figures["test_f1"] <= 1
    assert found.parameters == sum(each.numel() for each in tiny().parameters())
    again = causal_run(job("cascades", reading))
    assert {**again.figures, "fit_seconds": 0} == {**found.figures, "fit_seconds": 0}


def test_baselines_have_the_edges_of_the_graph() -> None:
    edges = [causal_run(job("cascades", reading)).figures["edges"] for reading in ("icd", "attention")]
    assert edges[0] == edges[1]


def test_positions_may_be_left_out_and_flat_attention_is_an_empty_graph() -> None:
    assert causal_run(job("no positions", "icd", positions="none")).figures["edges"] >= 0
    flat = causal_run(job("no positions", "icd", positions="none", lr=1e-9, steps=1, items=5)).figures
    assert flat["test_f1"] >= 0


@pytest.mark.parametrize("reading", ["icd", "attention", "random"])
def test_known_attention_is_read(reading: str) -> None:
    found = causal_run(job("linear", reading, n=768, nodes=5, cases=6, neighbours=1.5)).figures
    assert found["test_f1"] > (0.2 if reading == "random" else 0.9)


def test_a_page_has_a_verdict() -> None:
    rows = [
        {**job("linear", reading, seed).head(), "status": "done", "figures": {"test_f1": f1 + 0.01 * seed}}
        for reading, f1 in (("icd", 0.92), ("attention", 0.77), ("random", 0.3))
        for seed in range(3)
    ]
    blank = dict.fromkeys(("parameters", "seconds", "peak_memory_mib", "machine", "seconds_per_epoch"))
    page = markdown(CAUSAL_PAGE, [{**blank, **row} for row in rows])
    assert "A graph finds more than the largest attention" in page


def test_an_unknown_reading_is_named() -> None:
    with pytest.raises(UnknownName, match="unknown reading 'ges'"):
        causal_run(job("linear", "ges"))
    assert {*GRAPHS} < {*READINGS}


def test_only_hidden_items_are_learned() -> None:
    model, tokens = tiny(), torch.tensor([[0, 3, 2, 1, 4]])
    with seeded(0):
        assert not hidden_loss(0.0)(model, tokens, tokens).any()
        loss = hidden_loss(1.0)(model, tokens, tokens)
    scores = model(torch.full((1, 5), 12))[0]
    assert torch.allclose(loss, torch.nn.functional.cross_entropy(scores, tokens[0]))


def tiny() -> ItemModel:
    with seeded(0):
        return ItemModel(12, length=5, width=8, depth=1, heads=2)
