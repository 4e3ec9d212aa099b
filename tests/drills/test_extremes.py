"""Numbers at the edges: a finite result or a sentence, from layers, decompositions, estimators and runs."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernelhead import estimators
from kernelhead.data import Events, Series
from kernelhead.decomposition import (
    centred_gram,
    kpca,
    kpca_values,
    ksvd,
    ksvd_dense,
    ksvd_softmax,
    rpca,
)
from kernelhead.errors import BadInput, KernelheadError, NotConverged
from kernelhead.rng import generator
from kernelhead.training import event_recipe_from, fit_events, load_run, train_event_run, train_run
from tests.contracts.test_attentions import MEMBERS, made
from tests.inputs import points
from tests.training import tiny, tiny_events

# Entries up to which results and gradients are finite. Beyond, a product of two entries, or of the few that
# a definition multiplies, is no number of its type.
LARGEST = {torch.float64: 1e100, torch.float32: 1e9, torch.float16: 1e4}
RPC = {torch.float64: 1e15, torch.float16: 1.0}  # products of products
SMALLER: dict[str, dict[torch.dtype, float]] = {
    "scaled_exact": dict.fromkeys(LARGEST, 1.0),  # exponentials of products
    "polynomial": {torch.float16: 1.0},  # cubes of products
    **{name: RPC for name in MEMBERS if name.startswith("rpc")},
}
SMALL_EPSILON = ("normed_query", torch.float16)  # 1e-12 is zero in that type


DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)


def largest(member: str, dtype: torch.dtype) -> float:
    return SMALLER.get(member, {}).get(dtype, LARGEST[dtype])


def extremes(member: str, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Points (b, n, c) that are all zero, equal, huge, tiny, of very different norms, or one."""
    x, about = points(2, 5, 8), torch.finfo(dtype)
    most = largest(member, dtype)
    yield "huge", x * most
    yield "equal", x[:, :1].expand_as(x)
    norms = torch.tensor([most, 1.0, 1 / most, 1.0, about.tiny], dtype=torch.float64)
    yield "mixed", x * norms[:, None]
    yield "one point", x[:, :1]
    yield "one huge point", x[:, :1] * most
    if (member, dtype) != SMALL_EPSILON:
        yield "tiny", x * about.tiny
        yield "denormal", x * about.smallest_normal * 2**-5
        yield "zero", x * 0
        yield "constant", x * 0 + 1


@DTYPES
@pytest.mark.parametrize("member", MEMBERS)
def test_layers_and_their_gradients_are_finite(member: str, dtype: torch.dtype) -> None:
    for name, x in extremes(member, dtype):
        module, x = made(member).to(dtype), x.to(dtype).requires_grad_()
        output = module(x)
        wanted = [x, *(each for each in module.parameters() if each.requires_grad)]
        found = torch.autograd.grad(output.float().tanh().sum(), wanted, allow_unused=True)
        assert output.isfinite().all(), name
        assert all(each is None or bool(each.isfinite().all()) for each in found), name


MATRICES: dict[str, Callable[[], Tensor]] = {
    "zero": lambda: torch.zeros(6, 4),
    "constant": lambda: torch.ones(6, 4),
    "equal rows": lambda: points(1, 4).expand(6, 4),
    "rank one": lambda: points(6, 1) @ points(1, 4, seed=1),
    "huge": lambda: points(6, 4) * 1e100,
    "very huge": lambda: points(6, 4) * 1e200,
    "tiny": lambda: points(6, 4) * 1e-200,
    "denormal": lambda: points(6, 4) * 1e-310,
    "huge and tiny": lambda: points(6, 4) * torch.logspace(-150, 150, 6)[:, None].double(),
    "one row": lambda: points(1, 4),
    "one column": lambda: points(6, 1),
    "one entry": lambda: points(1, 1),
    "one outlier": lambda: torch.diag(torch.tensor([1e12, 0.0, 0.0, 0.0]).double()),
    "not a number": lambda: points(6, 4) * torch.nan,
    "infinite": lambda: points(6, 4) * torch.inf,
}
DECOMPOSITIONS: dict[str, Callable[[Tensor], Any]] = {
    "ksvd": lambda x: ksvd(x, x.flip(0)),
    "ksvd_dense": ksvd_dense,
    "ksvd_softmax": lambda x: ksvd_softmax(x, x.flip(0), rank=1, generator=generator(0)),
    "kpca": lambda x: kpca(x, 1),
    "kpca of landmarks": lambda x: kpca(x, 1, method="nystrom"),
    "kpca_values": lambda x: kpca_values(x, 1),
    "centred_gram": centred_gram,
    "rpca": rpca,
}


def numbers_of(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [each for each in vars(found).values() if isinstance(each, Tensor)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decompositions_are_finite_or_sentences(name: str, matrix: str, dtype: torch.dtype) -> None:
    entries = MATRICES[matrix]().to(dtype)
    with warnings.catch_warnings(action="ignore", category=NotConverged):
        try:
            found = DECOMPOSITIONS[name](entries)
        except KernelheadError:
            return
    for each in numbers_of(found):
        assert each.isfinite().all()


def tables(count: int = 24) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Features (rows, 3) of rows that are drawn once."""
    x = np.random.default_rng(0).normal(size=(count, 3))
    yield "constant", np.ones_like(x)
    yield "one constant", np.where([True, False, False], 7.0, x)
    yield "huge", x * 1e30
    yield "very huge", x * 1e300
    yield "tiny", x * 1e-30
    yield "denormal", x * 1e-310
    yield "mixed", x * np.array([1e30, 1.0, 1e-30])
    yield "one outlier", np.where(np.arange(count)[:, None] == 0, 1e30, x)


LABELS = {
    "two": lambda count: np.arange(count) % 2,
    "one of a kind": lambda count: np.where(np.arange(count) == 0, 2, np.arange(count) % 2),
    "one class": lambda count: np.zeros(count, int),
}
FITTED: dict[str, Callable[[Any, Any], Any]] = {
    "SeriesClassifier": lambda x, y: (
        estimators.SeriesClassifier(width=8, depth=1, heads=2, rank=2, epochs=2, random_state=0)
        .fit(x[:, :, None].transpose(0, 2, 1), y)
        .predict_proba(x[:, :, None].transpose(0, 2, 1))
    ),
    "LandmarkClassifier": lambda x, y: (
        estimators.LandmarkClassifier(marks=2, groups=2, random_state=0)
        .fit(np.repeat(x[:, None], 6, 2), y)
        .predict_proba(np.repeat(x[:, None], 6, 2))
    ),
    "TableClassifier": lambda x, y: (
        estimators.TableClassifier(width=8, depth=2, heads=2, steps=3, random_state=0)
        .fit(x, y)
        .predict_proba(x)
    ),
    "TableRegressor": lambda x, y: (
        estimators.TableRegressor(width=8, depth=2, heads=2, steps=3, random_state=0)
        .fit(x, x[:, 1])
        .predict(x)
    ),
    "TransportClassifier": lambda x, y: (
        estimators.TransportClassifier(epochs=2, random_state=0).fit(x, y).predict_proba(x)
    ),
    "Reranker": lambda x, y: (
        estimators.Reranker(
            k=4, anchors=4, width=8, depth=1, heads=2, neighbours=2, steps=2, batch=2, random_state=0
        )
        .fit(x, y)
        .rerank(x[:3], x)[1]
    ),
    "EventClassifier": lambda x, y: (
        estimators.EventClassifier(width=8, heads=2, epochs=2, random_state=0)
        .fit([(np.sort(np.abs(row)), ["a", "b", "a"]) for row in x], y)
        .predict_proba([(np.sort(np.abs(row)), ["a", "b", "a"]) for row in x])
    ),
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("table", dict(tables()))
@pytest.mark.parametrize("name", FITTED)
@pytest.mark.drill
def test_estimators_are_finite_or_sentences(name: str, table: str, labels: str) -> None:
    x = dict(tables())[table]
    try:
        # numpy and aeon warn of such numbers themselves.
        with warnings.catch_warnings(action="ignore"):
            made = FITTED[name](x, LABELS[labels](len(x)))
    except (KernelheadError, ValueError):  # scikit-learn's own checks are sentences too
        return
    assert np.isfinite(made).all()


def series_of(values: Callable[[int], np.ndarray[Any, Any]], labels: list[str]) -> Series:
    return Series(tuple(values(each) for each in range(len(labels))), tuple(labels), "extreme")


DRAWS = np.random.default_rng(0).normal(size=(40, 9, 2))
SERIES: dict[str, Series] = {
    "one time stamp": series_of(lambda i: DRAWS[i, :1], ["a", "b"] * 12),
    "constant": series_of(lambda i: np.ones((5, 2)), ["a", "b"] * 12),
    "constant channel": series_of(lambda i: DRAWS[i] * [1, 0], ["a", "b"] * 12),
    "huge": series_of(lambda i: DRAWS[i] * 1e30, ["a", "b"] * 12),
    "tiny": series_of(lambda i: DRAWS[i] * 1e-30, ["a", "b"] * 12),
    "denormal": series_of(lambda i: DRAWS[i] * 1e-42, ["a", "b"] * 12),
    "one outlier": series_of(lambda i: DRAWS[i] * (1e30 if i == 0 else 1), ["a", "b"] * 12),
    "a class of one case": series_of(lambda i: DRAWS[i], ["a", "b"] * 12 + ["c"]),
    "two cases of each": series_of(lambda i: DRAWS[i], ["a", "b", "a", "b"]),
    "lengths of one and nine": series_of(lambda i: DRAWS[i, : 1 + 8 * (i % 2)], ["a", "b"] * 12),
}


@pytest.mark.parametrize("attention", ["primal", "softmax"])
@pytest.mark.parametrize("name", SERIES)
def test_runs_are_finite_or_sentences(name: str, attention: str, tmp_path: Path) -> None:
    tiny.write_csv(tmp_path / "train.csv", SERIES[name])
    recipe = tiny.recipe(tmp_path / "train.csv", attention=attention, epochs=2)
    try:
        result = train_run(recipe, tmp_path / "run")
    except KernelheadError:
        return
    assert np.isfinite(result["valid_accuracy"])
    assert load_run(tmp_path / "run").scores(SERIES[name]).isfinite().all()


def test_a_loss_that_is_no_number_is_a_sentence_in_half_precision(tmp_path: Path) -> None:
    tiny.write_csv(tmp_path / "train.csv", SERIES["two cases of each"])
    recipe = tiny.recipe(tmp_path / "train.csv", precision="16-true", lr=1e5, clip=0.0)
    with pytest.raises(KernelheadError, match=r"the (validation )?loss is nan .* a smaller lr"):
        train_run(recipe, tmp_path / "run")


def at_times(scale: float) -> Events:
    drawn = tiny_events.drawn()
    return replace(drawn, times=tuple(times * scale for times in drawn.times), asked=None)


@pytest.mark.parametrize("scale", [0.0, 1e-310, 1e-30, 1e30, 1e300], ids="{:g}".format)
@pytest.mark.parametrize("time", ["bochner", "mercer", "scalar"])
def test_events_at_any_times_are_finite_or_sentences(scale: float, time: str, tmp_path: Path) -> None:
    tiny_events.write(tmp_path / "events.csv", at_times(scale))
    table = {"data": str(tmp_path / "events.csv"), "epochs": 1, "width": 8, "heads": 2, "accelerator": "cpu"}
    try:
        made = event_recipe_from({**table, "events": {"time": time}}, "drill")
        result = train_event_run(made, tmp_path / "run")
    except KernelheadError:
        return
    assert np.isfinite(result["valid_accuracy"])


def test_times_beyond_all_numbers_are_a_sentence(tmp_path: Path) -> None:
    scaled = at_times(1e300)
    table = {"data": "memory", "epochs": 1, "width": 8, "heads": 2, "accelerator": "cpu"}
    with pytest.raises(BadInput, match=r"the validation loss is nan after epoch 1; a smaller lr than 0\.003"):
        fit_events(scaled, scaled, event_recipe_from(table, "drill"))
