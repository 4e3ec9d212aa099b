"""LandmarkClassifier: aeon's own checks, the same answers from a seed, and accuracy above chance."""

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from aeon.testing.estimator_checking import parametrize_with_checks

import kernelhead.estimators
from kernelhead.data import Series, echo_series
from kernelhead.errors import BadInput, MissingExtra
from kernelhead.estimators import LandmarkClassifier
from kernelhead.training import LandmarkRidge
from tests.training.tiny import series


@parametrize_with_checks([LandmarkClassifier])
def test_aeon_agrees(check: Any) -> None:
    check()


def arrays(held: Series) -> tuple[list[np.ndarray], np.ndarray]:
    """As aeon holds them: channels before time."""
    return [case.T for case in held.cases], np.array(held.labels)


def test_unequal_lengths_and_longer_series_than_those_of_the_fit() -> None:
    x, y = arrays(series(16))
    assert len({case.shape for case in x}) > 1
    model = LandmarkClassifier(groups=1).fit(x, y)
    shares = model.predict_proba(x)
    assert np.allclose(shares.sum(1), 1)
    assert np.array_equal(model.classes_[shares.argmax(1)], model.predict(x))
    assert model.predict([np.concatenate([x[0], x[1]], axis=1)]).shape == (1,)


def test_more_classes_than_digits_come_back_as_they_were_given() -> None:
    made = echo_series(48, length=72, channels=2, classes=12, seed=0)
    x, y = arrays(made)
    model = LandmarkClassifier(groups=2).fit(x, y)
    assert (model.predict(x) == y).mean() > 0.9


def test_a_seed_decides_and_a_copy_agrees() -> None:
    x, y = arrays(series(16))
    one, same, other = (
        LandmarkClassifier(groups=1, random_state=seed).fit(x, y).predict_proba(x) for seed in (0, 0, 1)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    copy = pickle.loads(pickle.dumps(LandmarkClassifier(groups=1).fit(x, y)))
    assert np.array_equal(copy.predict_proba(x), one)


def test_it_learns_what_is_there() -> None:
    made = echo_series(120, length=40, channels=2, classes=2, seed=0)
    x, y = arrays(made)
    model = LandmarkClassifier().fit(x[:80], y[:80])
    assert (model.predict(x[80:]) == y[80:]).mean() > 0.6


def test_what_is_refused() -> None:
    cases = tuple(np.ones((5, 1)) for _ in range(3))
    for labels in (None, ("a", "a", "a")):
        with pytest.raises(BadInput, match="LandmarkRidge: 'few' has labels of fewer than two classes"):
            LandmarkRidge.fit(Series(cases, labels, "few"), seed=0)


def test_without_aeon_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kernelhead.estimators.landmarks")
    monkeypatch.setitem(sys.modules, "aeon.classification.base", None)
    with pytest.raises(MissingExtra, match="LandmarkClassifier"):
        kernelhead.estimators.LandmarkClassifier  # noqa: B018
