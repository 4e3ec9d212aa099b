"""SeriesClassifier: aeon's own checks, the same answers from a seed, and accuracy above chance."""

import pickle
import sys
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from aeon.testing.estimator_checking import parametrize_with_checks
from sklearn.base import clone

import kernelhead.estimators
from kernelhead.data import Series, read_series
from kernelhead.errors import BadInput, KernelheadError, MissingExtra, UnknownName
from kernelhead.estimators import SeriesClassifier
from tests.training.tiny import series

SMALL: dict[str, Any] = {"width": 8, "depth": 1, "heads": 2, "rank": 2, "epochs": 2}


@parametrize_with_checks([SeriesClassifier])
def test_aeon_agrees(check: Any) -> None:
    check()


def arrays(held: Series) -> tuple[list[np.ndarray], np.ndarray]:
    """As aeon holds them: channels before time."""
    return [case.T for case in held.cases], np.array(held.labels)


def test_a_collection_of_unequal_lengths() -> None:
    x, y = arrays(series(16))
    assert len({case.shape for case in x}) > 1
    model = SeriesClassifier(**SMALL).fit(x, y)
    shares = model.predict_proba(x)
    assert shares.shape == (16, 2)
    assert np.allclose(shares.sum(1), 1)
    assert set(model.predict(x)) <= {"0", "1"}
    assert np.array_equal(model.classes_[shares.argmax(1)], model.predict(x))


def test_an_array_of_equal_lengths_and_one_channel() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(12, 1, 9)), np.array([0, 1, 2] * 4)
    model = SeriesClassifier(**SMALL).fit(x, y)
    assert model.predict(x).dtype == y.dtype
    assert np.array_equal(model.predict_proba(x), model.predict_proba(x[:, 0]))


def test_longer_series_than_those_of_the_fit() -> None:
    x, y = arrays(series(16))
    model = SeriesClassifier(**SMALL).fit(x, y)
    assert model.predict([np.concatenate([x[0], x[1]], axis=1)]).shape == (1,)


@pytest.mark.parametrize("labels", [["b", "a"], [7, -3], [True, False]], ids=str)
def test_classes_come_back_as_they_were_given(labels: list[Any]) -> None:
    x, y = arrays(series(12))
    given = np.array([labels[int(label)] for label in y])
    model = SeriesClassifier(**SMALL).fit(x, given)
    assert list(model.classes_) == sorted(labels)
    assert set(model.predict(x)) <= set(labels)


def test_the_same_state_gives_the_same_answers() -> None:
    x, y = arrays(series(16))
    one, two = (SeriesClassifier(**SMALL, random_state=3).fit(x, y).predict_proba(x) for _ in range(2))
    assert np.array_equal(one, two)
    other = SeriesClassifier(**SMALL, random_state=4).fit(x, y).predict_proba(x)
    assert not np.array_equal(one, other)


def test_none_stands_for_zero_and_a_generator_is_drawn_from() -> None:
    x, y = arrays(series(16))
    none, zero = (SeriesClassifier(**SMALL, random_state=s).fit(x, y).predict_proba(x) for s in (None, 0))
    assert np.array_equal(none, zero)
    drawn = [
        SeriesClassifier(**SMALL, random_state=np.random.RandomState(5)).fit(x, y).predict_proba(x)
        for _ in range(2)
    ]
    assert np.array_equal(*drawn)


def test_the_global_generators_stay_where_they_are() -> None:
    x, y = arrays(series(16))
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()
    SeriesClassifier(**SMALL).fit(x, y).predict(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numbers)


def test_a_pickled_model_gives_equal_answers() -> None:
    x, y = arrays(series(16))
    model = SeriesClassifier(**SMALL).fit(x, y)
    twin = pickle.loads(pickle.dumps(model))
    assert np.array_equal(model.predict_proba(x), twin.predict_proba(x))
    assert np.array_equal(model.predict(x), twin.predict(x))


def test_a_clone_is_unfitted_and_has_the_same_options() -> None:
    x, y = arrays(series(12))
    model = SeriesClassifier("primal+", **{**SMALL, "depth": 2}).fit(x, y)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert not hasattr(twin, "model_")


def test_options_reach_the_model() -> None:
    x, y = arrays(series(12))
    model = SeriesClassifier("softmax,primal", **{**SMALL, "depth": 2}, landmarks=4, penalty=0.0).fit(x, y)
    kinds = [type(block.attention).__name__ for block in model.model_.model.blocks]
    assert kinds == ["SoftmaxAttention", "PrimalAttention"]
    assert model.model_.model.blocks[1].attention.landmarks == 4
    assert len(model.rows_) == 2
    assert "penalty" not in model.rows_[0]


def test_a_class_of_a_single_case_stays_in_training() -> None:
    x, y = arrays(series(12))
    y[0] = "9"
    model = SeriesClassifier(**SMALL).fit(x, y)
    assert list(model.classes_) == ["0", "1", "9"]


def test_accuracy_is_clearly_above_chance() -> None:
    (x, y), (new, truth) = arrays(series(80, classes=3)), arrays(series(90, seed=1, classes=3))
    sizes = {"width": 16, "depth": 1, "heads": 2, "rank": 4, "epochs": 30, "lr": 5e-3, "batch": 16}
    scores = [SeriesClassifier(**sizes, random_state=seed).fit(x, y).score(new, truth) for seed in range(3)]
    # Guessing among three has a mean of a third and a deviation of 0.05 over 90 cases, of each seed.
    assert sum(scores) / 3 > 1 / 3 + 6 * 0.05 / sqrt(3)


@pytest.mark.slow
def test_japanese_vowels() -> None:
    (x, y), (new, truth) = (arrays(read_series("JapaneseVowels", split=part)) for part in ("train", "test"))
    model = SeriesClassifier("primal+", width=32, rank=8, epochs=12, lr=3e-3).fit(x, y)
    assert model.score(new, truth) > 0.8


def test_wrong_options_are_sentences() -> None:
    x, y = arrays(series(12))
    with pytest.raises(UnknownName, match="unknown attention 'prmal', did you mean 'primal'"):
        SeriesClassifier("prmal", **SMALL).fit(x, y)
    with pytest.raises(BadInput, match="split: fraction is 2, expected a number between 0 and 1"):
        SeriesClassifier(**SMALL, validation=2).fit(x, y)
    with pytest.raises(KernelheadError, match="width is 0"):
        SeriesClassifier(**{**SMALL, "width": 0}).fit(x, y)


def test_other_channels_are_named() -> None:
    x, y = arrays(series(12))
    model = SeriesClassifier(**SMALL).fit(x, y)
    with pytest.raises(ValueError, match="channels"):
        model.predict([case[:1] for case in x])


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kernelhead.estimators.series")
    monkeypatch.setitem(sys.modules, "aeon.classification.base", None)
    with pytest.raises(MissingExtra, match=r"SeriesClassifier: needs aeon.*kernelhead\[ts\]"):
        _ = kernelhead.estimators.SeriesClassifier


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match=r"module 'kernelhead\.estimators' has no attribute 'Series'"):
        _ = kernelhead.estimators.Series
