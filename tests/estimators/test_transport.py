"""TransportClassifier: what it learns, dummies, instances, seeds, and its words."""

from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kernelhead.data import gaussian_clouds
from kernelhead.errors import BadInput, UnknownName
from kernelhead.estimators import TransportClassifier

DRAWN = gaussian_clouds(3, 3, seed=0)
X, Y, _ = DRAWN.part("train").points()
NEW, TRUTH, OWNERS = DRAWN.part("test").points()
QUICK: dict[str, Any] = {"epochs": 20}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"match": "random"},
        {"match": "mean"},
        {"dummies": "class_means"},
        {"dummies": np.array([[9.0, 0.0], [-9.0, 9.0], [0.0, -9.0]])},
        {"matching_batch": 50},
        {"standardise": False},
    ],
    ids=str,
)
def test_it_learns_points_and_instances(options: dict[str, Any]) -> None:
    model = TransportClassifier(**QUICK, **options).fit(X, Y)
    assert model.score(NEW, TRUTH) > 0.9
    answers = model.predict_instances(NEW, OWNERS)
    assert np.array_equal(answers, DRAWN.part("test").y)
    shares = model.predict_proba(NEW)
    assert np.allclose(shares.sum(1), 1)
    assert np.allclose(np.log(shares), model.predict_log_proba(NEW))
    assert model.transform(NEW).shape == NEW.shape


def test_points_are_carried_to_the_dummies_of_their_class() -> None:
    model = TransportClassifier(**QUICK).fit(X, Y)
    anchors = model.fitted_.model.anchors.numpy()
    assert np.allclose(np.linalg.norm(anchors, axis=1), 9)
    near = np.linalg.norm(model.transform(NEW)[:, None] - anchors, axis=2).argmin(1)
    assert np.array_equal(model.classes_[near], model.predict(NEW))


def test_a_seed_decides() -> None:
    one, same, other = (
        TransportClassifier(epochs=3, random_state=seed).fit(X, Y).transform(NEW[:9]) for seed in (0, 0, 1)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_the_scale_is_that_of_training() -> None:
    model = TransportClassifier(**QUICK).fit(X, Y)
    scaled = TransportClassifier(**QUICK).fit(100 * X + 7, Y)
    assert np.array_equal(scaled.predict(100 * NEW + 7), model.predict(NEW))
    # A row has the same answer in any company.
    assert np.allclose(model.transform(NEW)[:1], model.transform(NEW[:1]), rtol=1e-12)


def test_one_feature_and_a_constant_one() -> None:
    x = np.linspace(-1, 1, 40)[:, None]
    y = (x[:, 0] > 0).astype(int)
    assert TransportClassifier(**QUICK).fit(x, y).score(x, y) > 0.9
    wide = np.column_stack([x, np.ones(40)])
    assert TransportClassifier(**QUICK).fit(wide, y).score(wide, y) > 0.9


def test_in_a_pipeline_it_transforms() -> None:
    pipe = make_pipeline(StandardScaler(), TransportClassifier(**QUICK)).fit(X, Y)
    assert pipe.score(NEW, TRUTH) > 0.9


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"dummies": "rings"}, UnknownName, "unknown dummies 'rings', did you mean 'ring'"),
        ({"match": "best"}, UnknownName, "unknown match 'best'"),
        ({"radius": 0.0}, BadInput, r"TransportClassifier: radius is 0\.0, expected a number above 0"),
        ({"lr": 0.0}, BadInput, r"lr 0\.0"),
        ({"epochs": 0}, BadInput, "epochs is 0"),
        ({"dummies": np.zeros((2, 2))}, BadInput, r"dummies of shape \(2, 2\), expected \(3, 2\)"),
    ],
    ids=str,
)
def test_words(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TransportClassifier(**options).fit(X, Y)


def test_words_of_classes_and_instances() -> None:
    with pytest.raises(BadInput, match="TransportClassifier: y has one class, 0, expected two or more"):
        TransportClassifier().fit(X, np.zeros(len(X)).astype(int))
    model = TransportClassifier(epochs=1).fit(X, Y)
    with pytest.raises(BadInput, match=r"instances have shape \(3,\), expected \(900,\)"):
        model.predict_instances(NEW, [0, 1, 2])
