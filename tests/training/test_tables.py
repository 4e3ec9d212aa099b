"""fit_table: what it keeps, who sees whom, its temperature, its seeds, and the words for what is wrong."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Column, Schema, Table, TableEncoder
from kernelhead.errors import BadInput, UnknownName
from kernelhead.training import FittedTable, TableSettings, best_temperature, fit_table
from kernelhead.training.tables import target_scores

SMALL: dict[str, Any] = {"width": 8, "depth": 2, "heads": 2, "lr": 1e-2, "steps": 60, "dropout": 0.0}


def numbers(rows: int, *, seed: int = 0) -> Table:
    x = np.random.default_rng(seed).normal(size=(rows, 2))
    return TableEncoder.fit(x, x[:, 0] - x[:, 1]).transform(x, x[:, 0] - x[:, 1])


def classes(rows: int, *, seed: int = 0) -> Table:
    x = np.random.default_rng(seed).normal(size=(rows, 2))
    return TableEncoder.fit(x, x[:, 0] > 0, classification=True).transform(x, x[:, 0] > 0)


def fitted(table: Table, **changes: Any) -> FittedTable:
    return fit_table(table, TableSettings(**{**SMALL, **changes}))


def test_it_learns_numbers_and_classes() -> None:
    table = numbers(60)
    error = fitted(table).scores(table)[:, 0] - table.entries(2)[:, 0]
    assert np.sqrt(np.mean(error**2)) < 0.5
    table = classes(60)
    made = fitted(table)
    assert (made.scores(table).argmax(1) == table.entries(2).argmax(1)).mean() > 0.85
    assert 0.1 <= made.temperature <= 10
    assert np.allclose(
        made.scores(table) * made.temperature, FittedTable(made.model, made.context).scores(table)
    )


def test_the_target_of_a_row_that_is_predicted_is_never_seen() -> None:
    table = numbers(40)
    made = fitted(table)
    values = table.values.copy()
    values[:, -1] = 99
    assert np.array_equal(made.scores(table), made.scores(Table(table.schema, values, table.missing)))


@given(order=st.permutations(range(12)))
def test_moving_rows_of_the_context_changes_nothing(order: list[int]) -> None:
    table = numbers(12)
    made = FittedTable(TableSettings(**SMALL).model(table).eval(), table)
    moved = FittedTable(made.model, table.take(order))
    assert np.allclose(made.scores(table), moved.scores(table), rtol=1e-10, atol=1e-12)


def test_rows_see_each_other_by_name_alone() -> None:
    table = numbers(20)
    model = TableSettings(**SMALL).model(table).eval()
    for transductive in (False, True):
        made = FittedTable(model, table, transductive=transductive)
        whole, part = made.scores(table)[:3], made.scores(table.take([0, 1, 2]))
        assert np.allclose(whole, part, rtol=1e-10) is not transductive


def test_many_rows_are_predicted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = numbers(20)
    made = FittedTable(TableSettings(**SMALL).model(table).eval(), table)
    whole = made.scores(table)
    monkeypatch.setattr("kernelhead.training.tables.PART", 7)
    assert np.allclose(made.scores(table), whole, rtol=1e-10)


def test_a_corrupted_context_has_the_same_columns_in_other_orders() -> None:
    table = classes(30)
    made = FittedTable(TableSettings(**SMALL).model(table).eval(), table)
    shuffled = made.corrupted(1).context
    for column in range(3):
        before, after = (np.sort(each.entries(column), axis=0) for each in (table, shuffled))
        assert np.array_equal(before, after)
    assert not np.array_equal(table.values[:, 0], shuffled.values[:, 0])
    rows = {tuple(row) for row in table.values}
    assert sum(tuple(row) in rows for row in shuffled.values) < 5


def test_rows_without_a_target_teach_and_are_not_seen() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = np.where(np.arange(40) < 30, x[:, 0], np.nan)
    table = TableEncoder.fit(x, y).transform(x, y)
    made = fitted(table, features=0.2)
    assert len(made.context) == 30
    assert made.scores(table).shape == (40, 1)


def test_few_rows_hold_none_out() -> None:
    made = fitted(numbers(9))
    assert made.fitted is not None
    assert made.fitted.watched == []
    assert fitted(numbers(1)).scores(numbers(1)).shape == (1, 1)
    assert fitted(classes(12), validation=0.0).temperature == 1.0


def test_patience_ends_a_course() -> None:
    made = fitted(numbers(40), lr=1e-12, patience=3, every=2)
    assert made.fitted is not None
    assert made.fitted.steps < 60


def test_the_same_seed_gives_the_same_bits() -> None:
    table, settings = classes(40), TableSettings(**SMALL, batch=16, context=10)
    one, same, other = (fit_table(table, settings, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.scores(table), same.scores(table))
    assert np.array_equal(one.context.values, same.context.values)
    assert not np.array_equal(one.context.values, other.context.values)


def test_features_of_later_rows_are_part_of_the_table() -> None:
    table, later = numbers(40), numbers(10, seed=1)
    settings = TableSettings(**SMALL, evaluation="transductive")
    with_rows, without = (fit_table(table, settings, unlabelled=each).scores(later) for each in (later, None))
    assert not np.array_equal(with_rows, without)
    hidden = Table(later.schema, later.values * [1, 1, 7], later.missing)
    assert np.array_equal(with_rows, fit_table(table, settings, unlabelled=hidden).scores(later))


@given(scale=st.floats(0.2, 5), seed=st.integers(0, 99))
def test_the_temperature_makes_up_for_a_scale(scale: float, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(400, 3, generator=draws, dtype=torch.float64)
    y = torch.multinomial(scores.softmax(1), 1, generator=draws)[:, 0]
    one, scaled = best_temperature(scores, y), best_temperature(scores * scale, y)
    # The grid has 401 places from 0.1 to 10 at even ratios.
    assert abs(np.log(scaled / one / scale)) < 0.013
    assert abs(np.log(one)) < 0.3


def test_few_cases_that_are_all_right_are_not_certain() -> None:
    scores, y = torch.tensor([[1.0, -1.0]] * 9, dtype=torch.float64), torch.zeros(9, dtype=torch.int64)
    share = (scores / best_temperature(scores, y)).softmax(1)[0, 0]
    assert share == pytest.approx(10 / 11, abs=0.005)


def test_steps_of_the_optimiser() -> None:
    assert TableSettings(steps=7).steps_for(1000) == 7


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"validation": 1.0}, "validation is 1.0, expected from 0 to below 1"),
        ({"dropout": -0.1}, "dropout is -0.1, expected from 0 to below 1"),
        ({"steps": -1}, "steps is -1, expected a whole number of at least 0"),
        ({"batch": 0}, "batch is 0, expected a whole number of at least 1"),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"TableSettings: {sentence}"):
        TableSettings(**changes)


def test_what_is_refused() -> None:
    with pytest.raises(UnknownName, match="TableSettings: unknown evaluation 'both'"):
        TableSettings(evaluation="both")
    with pytest.raises(BadInput, match="Masking: targets is 2, expected from 0 to 1"):
        TableSettings(targets=2)
    table = numbers(12)
    hidden = Table(table.schema, table.values, np.ones((12, 3), bool))
    with pytest.raises(BadInput, match="fit_table: none of 12 targets is known, expected at least one"):
        fitted(hidden)
    with pytest.raises(BadInput, match="unlabelled rows are given, but the evaluation is inductive"):
        fit_table(table, TableSettings(**SMALL), unlabelled=table)
    if not torch.cuda.is_available():
        with pytest.raises(BadInput, match="fit_table: device is 'cuda', but there is no CUDA device"):
            fit_table(table, TableSettings(**SMALL), device="cuda")
    other = Table(Schema((Column("a"),), 0), np.zeros((2, 1)), np.zeros((2, 1), bool))
    with pytest.raises(BadInput, match="FittedTable: the table has other columns than those of training"):
        fitted(table).scores(other)


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"features": 0.15}, {"batch": 32, "attention": "inducing"}], ids=str)
def test_a_step_is_a_graph(changes: dict[str, Any]) -> None:
    table = classes(100)
    made = fit_table(table, TableSettings(**{**SMALL, **changes, "steps": 150}), device="cuda")
    right = made.scores(table, device="cuda").argmax(1) == table.entries(2).argmax(1)
    assert right.mean() > 0.8
    assert np.allclose(made.scores(table), made.scores(table, device="cuda"), rtol=1e-8, atol=1e-8)
    assert target_scores(made.model, table, table, torch.device("cpu")).shape == (100, 2)
