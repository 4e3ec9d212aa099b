"""TableClassifier and TableRegressor: data frames, missing cells, who sees whom, seeds, and their words."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score

from kernelhead.errors import BadInput, UnknownName, UnseenLevel
from kernelhead.estimators import TableClassifier, TableRegressor

SMALL: dict[str, Any] = {"width": 8, "depth": 2, "heads": 2, "lr": 1e-2, "steps": 60}


def frame(rows: int, *, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Mixed columns with missing cells; the class is the colour, but for a tenth."""
    draws = np.random.default_rng(seed)
    red = draws.random(rows) < 0.5
    size = draws.normal(size=rows)
    cells = pd.DataFrame(
        {
            "colour": pd.Categorical(np.where(red, "red", "blue")),
            "size": np.where(draws.random(rows) < 0.2, np.nan, size),
            "shape": np.where(draws.random(rows) < 0.1, None, "round"),
            "new": draws.random(rows) < 0.5,
        }
    )
    return cells, np.where(red ^ (draws.random(rows) < 0.05), "yes", "no")


def line(rows: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(rows, 2))
    return x, 3 * x[:, 0] - x[:, 1] + 10


def test_a_data_frame_of_all_kinds() -> None:
    (x, y), (new, truth) = frame(120), frame(100, seed=1)
    model = TableClassifier(**SMALL).fit(x, y)
    assert model.score(new, truth) > 0.85
    assert [*model.feature_names_in_] == ["colour", "size", "shape", "new"]
    assert (model.n_features_in_, [*model.classes_]) == (4, ["no", "yes"])
    shares = model.predict_proba(new)
    assert np.allclose(shares.sum(1), 1)
    assert np.array_equal(model.classes_[shares.argmax(1)], model.predict(new))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(new.rename(columns={"new": "old"}))


def test_an_unseen_level_is_missing_with_a_warning() -> None:
    x, y = frame(40)
    model = TableClassifier(**SMALL).fit(x, y)
    strange, absent = x[:2].copy(), x[:2].copy()
    strange["colour"], absent["colour"] = ["green", "red"], pd.Categorical([None, "red"])
    with pytest.warns(UnseenLevel, match="column 'colour' has 'green'"):
        found = model.predict_proba(strange)
    assert np.array_equal(found, model.predict_proba(absent))


def test_columns_that_say_nothing() -> None:
    x, y = line(40)
    wide = np.column_stack([x, np.full(40, np.nan), np.ones(40)])
    model = TableRegressor(**SMALL).fit(wide, y)
    other = np.column_stack([x, np.arange(40.0), np.full(40, 7.0)])
    assert np.array_equal(model.predict(wide), model.predict(other))


def test_numbers_as_categories() -> None:
    codes = np.random.default_rng(0).integers(0, 3, (60, 1))
    y = np.array([5.0, -5.0, 1.0])[codes[:, 0]]
    model = TableRegressor(**SMALL, categorical=[0]).fit(codes, y)
    assert model.encoder_.schema.columns[0].levels == ("0", "1", "2")
    assert model.score(codes, y) > 0.9


def test_the_training_table_is_kept_and_seen() -> None:
    x, y = line(50)
    model = TableRegressor(**SMALL).fit(x, y)
    assert len(model.fitted_.context) == 50
    assert not model.fitted_.context.missing.any()
    before = model.predict(x[:5])
    model.fitted_ = model.fitted_.corrupted(0)
    assert not np.allclose(before, model.predict(x[:5]))
    alone = TableRegressor("self", **SMALL).fit(x, y)
    before = alone.predict(x[:5])
    alone.fitted_ = alone.fitted_.corrupted(0)
    assert np.array_equal(before, alone.predict(x[:5]))


def test_an_answer_does_not_depend_on_who_else_is_asked_about() -> None:
    x, y = line(50)
    model = TableRegressor(**SMALL).fit(x, y)
    new, _ = line(9, seed=1)
    together = model.predict(new)
    assert np.allclose(together, [model.predict(row[None])[0] for row in new], rtol=1e-12, atol=1e-12)
    assert np.allclose(together[::-1], model.predict(new[::-1]), rtol=1e-12, atol=1e-12)


def test_transductive_by_name() -> None:
    x, y = line(40)
    new, _ = line(9, seed=1)
    model = TableRegressor(**SMALL, evaluation="transductive").fit(x, y, unlabelled=new)
    together, alone = model.predict(new), np.array([model.predict(row[None])[0] for row in new])
    assert np.abs(together - alone).max() > 1e-6
    without = TableRegressor(**SMALL, evaluation="transductive").fit(x, y)
    assert not np.array_equal(without.predict(new), together)
    with pytest.raises(BadInput, match="unlabelled rows are given, but the evaluation is inductive"):
        TableRegressor(**SMALL).fit(x, y, unlabelled=new)


def test_a_sample_of_rows_is_seen_where_there_are_more() -> None:
    x, y = line(80)
    model = TableRegressor(**SMALL, batch=32, context=20).fit(x, y)
    assert len(model.fitted_.context) == 20
    assert model.score(x, y) > 0.5


@pytest.mark.parametrize(
    ("attention", "preset"), [("inducing", "norm_all"), ("primal", "norm_all"), ("softmax", "published")]
)
def test_other_row_attentions(attention: str, preset: str) -> None:
    x, y = line(60)
    model = TableRegressor(attention, preset=preset, **SMALL, inducing=8, rank=4, context=0).fit(x, y)
    assert model.score(x, y) > 0.5


def test_the_same_state_gives_the_same_answers_and_no_generator_moves() -> None:
    x, y = frame(30)
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()
    one, two, zero, other = (
        TableClassifier(**{**SMALL, "steps": 15}, random_state=state).fit(x, y).predict_proba(x)
        for state in (None, 0, 0, 1)
    )
    assert np.array_equal(one, two)
    assert np.array_equal(two, zero)
    assert not np.array_equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numbers)


def test_cross_validation_and_probabilities_on_real_rows() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    x, y = x[:200, :5], y[:200]
    assert cross_val_score(TableClassifier(**SMALL), x, y, cv=2).mean() > 0.8


def test_auto_counts_rows() -> None:
    x, y = line(12)
    model = TableRegressor(width=4, depth=2, heads=1).fit(x, y)
    assert 15 * 2 <= model.fitted_.fitted.steps <= 100
    assert TableRegressor(width=4, depth=2, heads=1, steps=7).fit(x, y).fitted_.fitted.steps == 7


def test_what_is_refused() -> None:
    x, y = line(20)
    with pytest.raises(BadInput, match="TableClassifier: y has one class, 1, expected two or more"):
        TableClassifier(**SMALL).fit(x, np.ones(20, int))
    with pytest.raises(BadInput, match="TableRegressor: steps is 0, expected a whole number of at least 1"):
        TableRegressor(**{**SMALL, "steps": 0}).fit(x, y)
    with pytest.raises(BadInput, match="requires y to be passed, but the target y is None"):
        TableRegressor(**SMALL).fit(x, None)
    with pytest.raises(UnknownName, match="unknown evaluation 'inductiv', did you mean 'inductive'"):
        TableRegressor(**SMALL, evaluation="inductiv").fit(x, y)
    with pytest.raises(UnknownName, match="unknown attention 'sofmax', did you mean 'softmax'"):
        TableRegressor("sofmax", **SMALL).fit(x, y)
    with pytest.raises(ValueError, match="infinity"):
        TableRegressor(**SMALL).fit(np.where(x > 1, np.inf, x), y)
    model = TableRegressor(**SMALL).fit(x, y)
    with pytest.raises(BadInput, match="column 'x0', row 0 holds 'one', expected a number"):
        model.predict(np.array([["one", 2.0]], dtype=object))
