"""TableEncoder: mixed types and missing cells as numbers and a mask, and the words for what is refused."""

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Column, Schema, Table, TableEncoder
from kernelhead.errors import BadInput, ShapeError, UnseenLevel

MIXED = Schema((Column("age"), Column("colour", ("blue", "red")), Column("target")), target=2)


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "kind": pd.Categorical([3, 1, 3, None]),
            "word": ["b", None, "a", "b"],
            "flag": [True, False, True, True],
            "count": pd.array([1, None, 3, 5], dtype="Int64"),
            "size": np.array([1.0, 2.0, np.nan, 6.0], dtype=np.float32),
        }
    )


def test_a_data_frame_keeps_its_types() -> None:
    encoder = TableEncoder.fit(frame(), [0.0, 1.0, 2.0, 3.0])
    levels = {column.name: column.levels for column in encoder.schema.columns}
    assert levels == {
        "kind": ("1", "3"),
        "word": ("a", "b"),
        "flag": ("False", "True"),
        "count": None,
        "size": None,
        "target": None,
    }
    table = encoder.transform(frame())
    expected = [[False] * 5, [False, True, False, True, False], [False] * 4 + [True], [True] + [False] * 4]
    assert table.missing[:, :-1].tolist() == expected
    assert table.missing[:, -1].all()
    assert table.entries(0).tolist() == [[0, 1], [1, 0], [0, 1], [0, 0]]
    assert np.allclose(table.entries(4)[:, 0], np.array([-2, -1, 0, 3]) / np.sqrt(14 / 3))
    assert (table.values[np.repeat(table.missing, table.schema.widths, axis=1)] == 0).all()


def test_arrays_of_objects_are_numbers_where_all_cells_are() -> None:
    cells = np.array([[1, "1", True], [2.5, 2, False], [np.nan, None, None]], dtype=object)
    encoder = TableEncoder.fit(cells, np.arange(3.0))
    assert [column.levels for column in encoder.schema.columns[:-1]] == [None, ("1", "2"), ("False", "True")]
    assert encoder.transform(cells).missing[2].all()


def test_lists_and_texts() -> None:
    encoder = TableEncoder.fit([[1, "a"], [2, "b"]], [0, 1])
    assert [column.levels for column in encoder.schema.columns[:-1]] == [None, ("a", "b")]
    assert TableEncoder.fit(np.array([["1"], ["2"]]), [0, 1]).schema.columns[0].levels == ("1", "2")


def test_numbers_as_categories_by_name_and_by_place() -> None:
    x = np.array([[1.0, 7.0], [2.0, 10.0], [2.0, 7.0]])
    assert TableEncoder.fit(x, [0, 1, 2], categorical=[1]).schema.categorical == (False, True, False)
    encoder = TableEncoder.fit(pd.DataFrame(x, columns=["a", "b"]), [0, 1, 2], categorical=["b"])
    assert encoder.schema.columns[1] == Column("b", ("7", "10"))
    for wrong in ("c", 2, -1):
        with pytest.raises(BadInput, match=f"categorical names {wrong!r}, expected a column or its place"):
            TableEncoder.fit(x, [0, 1, 2], categorical=[wrong])


def test_numbers_are_standardised_and_clamped_but_for_the_target() -> None:
    x = np.append(np.zeros(99), 1000.0)[:, None]
    table = TableEncoder.fit(x, x[:, 0]).transform(x, x[:, 0])
    assert table.values[-1].tolist() == pytest.approx([6.0, 99**0.5])


def test_classes_and_numbers_as_targets() -> None:
    x = np.eye(4)
    labelled = TableEncoder.fit(x, ["10", "9", None, "9"], classification=True)
    assert labelled.schema.columns[-1] == Column("target", ("9", "10"))
    table = labelled.transform(x, ["10", "9", None, "9"])
    assert table.missing[:, -1].tolist() == [False, False, True, False]
    assert table.entries(4)[:, 1].tolist() == [1, 0, 0, 0]
    numbers = TableEncoder.fit(x, [1.0, 3.0, np.nan, 5.0])
    encoded = numbers.transform(x, [1.0, 3.0, np.nan, 5.0]).entries(4)[:, 0]
    assert np.allclose(numbers.restored(encoded), [1, 3, 3, 5])


def test_columns_without_a_value_or_with_one() -> None:
    cells = np.array([[None, 5.0, 1.0], [None, 5.0, 2.0]], dtype=object)
    encoder = TableEncoder.fit(cells, [3.0, 3.0])
    later = np.array([["anything", 7.0, 1.5]], dtype=object)
    table = encoder.transform(later, [4.0])
    assert table.missing.tolist() == [[True, False, False, False]]
    assert table.values.tolist() == [[0, 0, 0, 1]]


def test_unseen_levels_are_missing_with_one_warning() -> None:
    encoder = TableEncoder.fit(np.array([["a", "x"], ["b", "y"]], dtype=object), [0, 1])
    sentence = r"taken as missing: column 'x0' has 'c'; column 'x1' has 'p', 'q', 'r', \.\.\."
    with pytest.warns(UnseenLevel, match=sentence) as told:
        made = encoder.transform(np.array([["c", "p"], ["a", "q"], ["c", "r"], ["b", "s"]], dtype=object))
    assert len(told) == 1
    assert made.missing[:, :2].tolist() == [[True, True], [False, True], [True, True], [False, True]]


def test_the_most_frequent_levels_stay() -> None:
    cells = np.array([["a"], ["b"], ["c"], ["c"], ["b"]], dtype=object)
    encoder = TableEncoder.fit(cells, np.zeros(5), levels=2)
    assert encoder.schema.columns[0].levels == ("b", "c")
    with pytest.warns(UnseenLevel, match="column 'x0' has 'a'"):
        encoder.transform(cells)


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-99, 99)), min_size=1, max_size=20))
def test_a_cell_is_zero_where_it_is_missing_and_bounded_elsewhere(cells: list[Any]) -> None:
    x = np.array(cells, dtype=object)[:, None]
    table = TableEncoder.fit(x, np.zeros(len(x))).transform(x)
    assert table.missing[:, 0].tolist() == [cell is None for cell in cells]
    assert (table.values[table.missing[:, 0], 0] == 0).all()
    assert np.abs(table.values).max() <= 6


@given(st.permutations(range(6)))
def test_the_order_of_rows_is_kept(order: list[int]) -> None:
    cells = np.array([[1, "a"], [2, None], [None, "b"], [3, "b"], [4, "a"], [9, "c"]], dtype=object)
    encoder = TableEncoder.fit(cells, np.arange(6.0))
    whole, moved = encoder.transform(cells), encoder.transform(cells[order])
    assert np.array_equal(whole.take(order).values, moved.values)
    assert np.array_equal(whole.take(order).missing, moved.missing)


def test_trees_take_numbers_as_they_are_and_places_of_levels() -> None:
    cells = np.array([[None, 1e9, "b"], [None, 2.0, None], [None, None, "a"]], dtype=object)
    made = TableEncoder.fit(cells, np.zeros(3)).ordinal(cells)
    expected = [[np.nan, 1e9, 1], [np.nan, 2, np.nan], [np.nan, np.nan, 0]]
    assert np.array_equal(made, expected, equal_nan=True)


def test_joined() -> None:
    table = Table(
        MIXED, np.array([[1, 0, 1, 2], [0, 0, 0, 3.0]]), np.array([[False] * 3, [True, True, False]])
    )
    both = table.joined(table.take([1]))
    assert (len(both), both.missing.shape) == (3, (3, 3))
    other = Schema(MIXED.columns, target=0)
    with pytest.raises(BadInput, match=r"Table\.joined: the two tables have different columns"):
        table.joined(Table(other, table.values, table.missing))


def test_a_pickled_encoder_encodes_the_same() -> None:
    encoder = TableEncoder.fit(frame(), [0.0, 1.0, 2.0, 3.0])
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy.schema == encoder.schema
    assert np.array_equal(copy.transform(frame()).values, encoder.transform(frame()).values)


def test_known_levels_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TableEncoder.fit(frame(), np.zeros(4)).transform(frame())


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.zeros(3), r"a table of shape \(3,\), expected \(rows, features\)"),
        (np.zeros((0, 2)), "0 rows and 2 columns, expected some of both"),
        (np.zeros((2, 0)), "0 rows and 0 columns, expected some of both"),
        (np.array([[1.0], [np.inf]]), "column 'x0', row 1 holds infinity, expected a finite number"),
        (pd.DataFrame({"day": pd.to_datetime(["2020-01-01"] * 2)}), "column 'day' is datetime64"),
        (np.zeros((2, 1), dtype=complex), "column 'x0' is complex128, expected numbers or categories"),
        (np.zeros((3, 1)), r"3 rows and targets of shape \(2,\), expected one a row"),
    ],
)
def test_tables_that_are_refused(x: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=f"TableEncoder: {sentence}"):
        TableEncoder.fit(x, [0.0, 1.0])


def test_later_tables_that_are_refused() -> None:
    encoder = TableEncoder.fit(np.eye(3), np.arange(3.0))
    with pytest.raises(BadInput, match="TableEncoder: 2 columns, expected the 3 of training"):
        encoder.transform(np.eye(2))
    with pytest.raises(BadInput, match="column 'x1', row 0 holds 'two', expected a number"):
        encoder.transform(np.array([[1, "two", 3]], dtype=object))
    with pytest.raises(BadInput, match=r"3 rows and targets of shape \(2,\), expected one a row"):
        encoder.transform(np.eye(3), [1.0, 2.0])


def test_targets_that_are_refused() -> None:
    with pytest.raises(BadInput, match="none of 3 targets is known, expected at least one"):
        TableEncoder.fit(np.eye(3), [None, None, None])
    with pytest.raises(BadInput, match="TableEncoder: levels is 1, expected a whole number of at least 2"):
        TableEncoder.fit(np.eye(3), [1, 2, 3], levels=1)


def test_shapes_and_places_that_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"Table: `missing` has shape \(2, 4\), expected \(2, 3\) for 3"):
        Table(MIXED, np.zeros((2, 4)), np.zeros((2, 4), bool))
    with pytest.raises(ShapeError, match=r"Table: `values` has shape \(2, 3\), expected \(2, 4\) for 3"):
        Table(MIXED, np.zeros((2, 3)), np.zeros((2, 3), bool))
    with pytest.raises(BadInput, match="Schema: target is 3, expected one of 3 columns"):
        Schema(MIXED.columns, target=3)
