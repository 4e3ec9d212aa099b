"""Estimators with scikit-learn's interface: its own checks, none of them expected to fail, and pickling."""

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from kernelhead.estimators import (
    CooccurrenceEmbedding,
    EventClassifier,
    Reranker,
    TableClassifier,
    TableRegressor,
    TransportClassifier,
)

# A new estimator is added here: quick options under which it still learns what the checks ask for.
CASES: list[BaseEstimator] = [
    TableClassifier(width=4, depth=2, heads=1, lr=3e-2, steps=30),
    TableRegressor(width=8, depth=2, heads=2, lr=1e-2, steps=40),
    TransportClassifier(epochs=15, hidden=(16,)),
    EventClassifier(width=8, time_width=8, heads=2, epochs=20, batch=64, lr=2e-2),
]
# Estimators that rank and do not predict.
RANKING: list[BaseEstimator] = [Reranker(k=12, anchors=10, width=8, heads=2, steps=3, batch=8)]
# Estimators that read texts: of scikit-learn's checks those that fit nothing on a table of numbers.
TEXTS: list[BaseEstimator] = [CooccurrenceEmbedding(width=2, window=2, least=1)]
WITHOUT_TABLES = (
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([*CASES, *RANKING])
def test_scikit_learn_agrees(estimator: BaseEstimator, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("check", WITHOUT_TABLES)
@pytest.mark.parametrize("case", TEXTS, ids=lambda case: type(case).__name__)
def test_scikit_learn_agrees_on_what_reads_texts(case: BaseEstimator, check: str) -> None:
    getattr(estimator_checks, check)(type(case).__name__, clone(case))


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: type(case).__name__)
def test_what_reads_texts_is_fitted_twice_alike_and_copied(case: BaseEstimator) -> None:
    text = ["to be or not to be", "that is the question"] * 2
    one, same = (clone(case).fit(text) for _ in range(2))
    copy = pickle.loads(pickle.dumps(one))
    assert np.array_equal(one.transform(text), same.transform(text))
    assert np.array_equal(one.transform(text), copy.transform(text))
    assert one.get_params() == case.get_params()
    assert not any(name.endswith("_") and not name.startswith("_") for name in vars(clone(one)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_a_copy_of_a_fitted_one_agrees_and_a_clone_is_not_fitted(case: BaseEstimator) -> None:
    x, y = np.random.default_rng(0).random(size=(30, 3)), np.arange(30) % 2
    fitted = clone(case).fit(x, y)
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict(x), fitted.predict(x))
    twin = clone(fitted)
    assert twin.get_params() == case.get_params()
    assert not any(name.endswith("_") and not name.startswith("_") for name in vars(twin))
