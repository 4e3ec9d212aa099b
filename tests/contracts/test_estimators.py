"""Estimators with scikit-learn's interface: its own checks, none of them expected to fail, and pickling."""

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from kernelhead.estimators import EventClassifier, Reranker, TableClassifier, TableRegressor

# A new estimator is added here: quick options under which it still learns what the checks ask for.
CASES: list[BaseEstimator] = [
    TableClassifier(width=4, depth=2, heads=1, lr=3e-2, steps=30),
    TableRegressor(width=8, depth=2, heads=2, lr=1e-2, steps=40),
    EventClassifier(width=8, time_width=8, heads=2, epochs=20, batch=64, lr=2e-2),
]
# Estimators that rank and do not predict.
RANKING: list[BaseEstimator] = [Reranker(k=12, anchors=10, width=8, heads=2, steps=3, batch=8)]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([*CASES, *RANKING])
def test_scikit_learn_agrees(estimator: BaseEstimator, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_a_copy_of_a_fitted_one_agrees_and_a_clone_is_not_fitted(case: BaseEstimator) -> None:
    x, y = np.random.default_rng(0).random(size=(30, 3)), np.arange(30) % 2
    fitted = clone(case).fit(x, y)
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict(x), fitted.predict(x))
    twin = clone(fitted)
    assert twin.get_params() == case.get_params()
    assert not any(name.endswith("_") and not name.startswith("_") for name in vars(twin))
