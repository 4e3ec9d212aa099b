"""Reranker: the same answers from a seed, what it documents of odd queries."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from kernelhead.data import instance_curves
from kernelhead.errors import BadInput, CheckpointError, ShapeError, UnknownName
from kernelhead.estimators import Reranker
from kernelhead.training.store import load_tensors, save_tensors

TINY: dict[str, Any] = {
    "k": 12,
    "anchors": 10,
    "width": 8,
    "heads": 2,
    "rank": 2,
    "landmarks": 4,
    "steps": 3,
    "batch": 8,
}
DRAWN, NEW = (instance_curves(5, views=6, width=12, seed=seed) for seed in (0, 1))


def fitted(attention: str = "softmax", **options: Any) -> Reranker:
    return Reranker(attention, **{**TINY, **options}).fit(DRAWN.x, DRAWN.labels)


@pytest.mark.parametrize("attention", ["softmax", "primal"])
def test_a_seed_decides_and_a_copy_agrees(attention: str) -> None:
    one, same, other = (fitted(attention, random_state=seed).rerank(NEW.x[:3], NEW.x) for seed in (0, 0, 1))
    assert all(map(np.array_equal, one, same))
    assert not np.array_equal(one[1], other[1])
    copy = pickle.loads(pickle.dumps(fitted(attention)))
    assert all(map(np.array_equal, copy.rerank(NEW.x[:3], NEW.x), one))
    drawn = clone(Reranker(**TINY, random_state=np.random.RandomState(3))).fit(DRAWN.x, DRAWN.labels)
    assert len(drawn.losses_) == 3


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    model, file = fitted("primal", random_state=np.random.RandomState(3)), tmp_path / "mine.safetensors"
    model.save(file)
    again = Reranker.load(file)
    assert all(map(np.array_equal, again.rerank(NEW.x[:3], NEW.x), model.rerank(NEW.x[:3], NEW.x)))
    assert again.losses_ == pytest.approx(model.losses_)
    assert again.n_features_in_ == 12
    fitted(k=np.int64(12), temperature=np.float32(0.5)).save(file)
    assert Reranker.load(file).get_params()["k"] == 12
    tensors, facts = load_tensors(file)
    save_tensors(file, tensors, {**facts, "reranker": {**facts["reranker"], "attention": "none"}})
    with pytest.raises(
        CheckpointError, match=r"describes a model that cannot be made: .* unknown attention 'none'"
    ):
        Reranker.load(file)
    save_tensors(file, tensors, {**facts, "reranker": {**facts["reranker"], "width": 4}})
    with pytest.raises(CheckpointError, match=r"mine\.safetensors does not fit the model"):
        Reranker.load(file)


def test_a_query_need_not_be_in_the_database_and_one_that_is_can_be_left_out() -> None:
    model = fitted(sides="query")
    order, scores = model.rerank(NEW.x[0], NEW.x[1:])
    assert order.shape == scores.shape == (1, 29)
    assert sorted(order[0].tolist()) == [*range(29)]
    again, _ = model.rerank(NEW.x[0], NEW.x, own=0)
    assert np.array_equal(again - 1, order)
    assert model.rerank(NEW.x[0], NEW.x)[0].shape == (1, 30)


def test_a_list_longer_than_the_database_is_all_of_it() -> None:
    model = fitted()
    assert np.array_equal(model.rerank(NEW.x[:2], NEW.x, k=999)[0], model.rerank(NEW.x[:2], NEW.x, k=30)[0])


def test_features_of_another_width_are_ranked_too() -> None:
    other = instance_curves(3, views=5, width=7, seed=2)
    assert fitted().rerank(other.x[:2], other.x)[0].shape == (2, 15)


def test_the_published_form_has_no_expansion() -> None:
    model = fitted(sides="none")
    order, scores = model.rerank(NEW.x[:2], NEW.x, k=5)
    cosines = NEW.x[:2] @ NEW.x.T
    tail = np.take_along_axis(cosines, order, axis=1)[:, 5:]
    assert np.allclose(tail, scores[:, 5:], atol=1e-6)
    assert (np.diff(tail, axis=1) <= 0).all()


def test_what_is_refused() -> None:
    with pytest.raises(BadInput, match="lists_of: no two of 30 items have the same label"):
        Reranker(**TINY).fit(DRAWN.x, np.arange(30))
    with pytest.raises(UnknownName, match="unknown sides 'one'"):
        fitted(sides="one")
    with pytest.raises(NotFittedError, match="not fitted yet"):
        Reranker().rerank(NEW.x, NEW.x)
    model = fitted()
    with pytest.raises(ShapeError, match="axis `d` is 11 in `query` but 12 in `database`"):
        model.rerank(NEW.x[:, 1:], NEW.x)
    with pytest.raises(BadInput, match="rerank: k is 0"):
        model.rerank(NEW.x, NEW.x, k=0)
    with pytest.raises(BadInput, match="`own` does not hold places from 0 to 29"):
        model.rerank(NEW.x[:1], NEW.x, own=30)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64])
def test_places_are_whole_numbers_of_any_size(kind: Any) -> None:
    model, own = fitted(), [0, 1, 2]
    found = model.rerank(NEW.x[:3], NEW.x, own=np.array(own, dtype=kind))
    assert all(map(np.array_equal, found, model.rerank(NEW.x[:3], NEW.x, own=own)))
    with pytest.raises(BadInput, match="`own` does not hold places from 0 to"):
        model.rerank(NEW.x[:3], NEW.x, own=np.ones(3, dtype=bool))
