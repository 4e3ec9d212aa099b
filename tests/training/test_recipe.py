"""Recipe: what it checks, how tables and TOML files fill it, and its words."""

import math
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, UnknownName
from kernelhead.training import FIELDS, Recipe, read_recipes, recipe_from
from kernelhead.training.recipe import checked_entries

NAMES = [field.name for field in fields(Recipe)]


def test_a_table_round_trip() -> None:
    made = Recipe(data="JapaneseVowels", attention="primal+", lr=0.01, seed=3)
    assert recipe_from(made.to_dict(), "test") == made
    assert list(made.to_dict()) == NAMES


def test_the_title_is_the_name_or_the_attention() -> None:
    assert Recipe(data="x", attention="softmax").title == "softmax"
    assert Recipe(data="x", attention="softmax", name="mine").title == "mine"


def test_a_recipe_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Recipe(data="x").lr = 1.0  # type: ignore[misc]


@given(lr=st.floats(1e-9, 1e3), seed=st.integers(0, 2**40), depth=st.integers(1, 9))
def test_changes_replace_and_nothing_else(lr: float, seed: int, depth: int) -> None:
    before = Recipe(data="x", attention="linear")
    after = before.changed({"lr": lr, "seed": seed, "depth": depth})
    assert after.to_dict() == {**before.to_dict(), "lr": lr, "seed": seed, "depth": depth}


@pytest.mark.parametrize("name", ["width", "depth", "heads", "rank", "epochs", "batch", "devices"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_one_or_more(name: str, value: int) -> None:
    with pytest.raises(BadInput, match=f"Recipe: {name} is {value}, expected a whole number of at least 1"):
        Recipe(data="x", **{name: value})


@pytest.mark.parametrize("name", ["landmarks", "inner", "seed", "save_steps"])
def test_others_are_zero_or_more(name: str) -> None:
    assert getattr(Recipe(data="x", **{name: 0}), name) == 0
    with pytest.raises(BadInput, match=f"Recipe: {name} is -1, expected a whole number of at least 0"):
        Recipe(data="x", **{name: -1})


@pytest.mark.parametrize("name", ["penalty", "decay", "clip"])
@pytest.mark.parametrize("value", [-0.5, math.nan])
def test_weights_are_zero_or_more(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"Recipe: {name} is {value}, expected 0 or more"):
        Recipe(data="x", **{name: value})


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_the_learning_rate_is_above_zero(value: float) -> None:
    with pytest.raises(BadInput, match=f"Recipe: lr is {value}, expected above 0"):
        Recipe(data="x", lr=value)


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_dropout_is_a_share(value: float) -> None:
    with pytest.raises(BadInput, match=f"Recipe: dropout is {value}, expected from 0 to below 1"):
        Recipe(data="x", dropout=value)


def test_unknown_choices_suggest_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Recipe: unknown optimiser 'admw', did you mean 'adamw'"):
        Recipe(data="x", optimiser="admw")
    with pytest.raises(UnknownName, match="Recipe: unknown schedule 'cosin', did you mean 'cosine'"):
        Recipe(data="x", schedule="cosin")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("width", 8.0, "a whole number"),
        ("width", "8", "a whole number"),
        ("width", True, "a whole number"),
        ("lr", "fast", "a number"),
        ("lr", True, "a number"),
        ("attention", 3, "a text"),
        ("attention", ["primal", "softmax"], "a text"),
        ("data", 3, "a text"),
    ],
    ids=str,
)
def test_an_entry_of_the_wrong_type_is_named(name: str, value: Any, expected: str) -> None:
    with pytest.raises(BadInput, match=rf"file, \[run\]: {name} is .*, expected {expected}"):
        recipe_from({"data": "x", name: value}, "file, [run]")


def test_a_whole_number_serves_as_a_number() -> None:
    made = recipe_from({"data": "x", "lr": 1, "dropout": 0}, "test")
    assert (type(made.lr), type(made.dropout)) == (float, float)


def test_an_unknown_entry_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="file: unknown entry 'atention', did you mean 'attention'"):
        recipe_from({"data": "x", "atention": "primal"}, "file")
    with pytest.raises(UnknownName, match=r"Recipe.changed: unknown entry 'epoch', did you mean 'epochs'"):
        Recipe(data="x").changed({"epoch": 3})


def test_data_is_needed() -> None:
    with pytest.raises(BadInput, match="file: no entry `data`, expected the name of a data set or a file"):
        recipe_from({"lr": 0.1}, "file")


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_shared_entries_hold_for_every_table(tmp_path: Path) -> None:
    text = 'data = "x"\nwidth = 8\nlr = 1\n\n[one]\nattention = "primal"\n\n[two]\nname = "Two"\nwidth = 16\n'
    assert read_recipes(written(tmp_path, text)) == {
        "one": Recipe(data="x", width=8, lr=1.0, name="one", attention="primal"),
        "two": Recipe(data="x", width=16, lr=1.0, name="Two"),
    }


def test_a_file_without_tables_is_one_run(tmp_path: Path) -> None:
    found = read_recipes(written(tmp_path, 'data = "x"\n'))
    assert found == {"mine": Recipe(data="x", name="mine")}


def test_the_recipes_of_the_house_are_read() -> None:
    # Those of fields are grids, and have tests of their own.
    paths = [
        path for path in (Path(__file__).parents[2] / "recipes").glob("*.toml") if path.stem not in FIELDS
    ]
    assert paths
    assert all(map(read_recipes, paths))


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("data = ", BadInput, r"mine\.toml is not a readable TOML file: "),
        ("lr = 1\n", BadInput, r"mine\.toml, \[mine\]: no entry `data`"),
        ('[one]\ndata = "x"\n[two]\nlr = 1\n', BadInput, r"mine\.toml, \[two\]: no entry `data`"),
        (
            'data = "x"\n[one]\nwidht = 3\n',
            UnknownName,
            r"\[one\]: unknown entry 'widht', did you mean 'width'",
        ),
        ('data = "x"\n[one]\nwidth = 3.5\n', BadInput, r"\[one\]: width is 3\.5, expected a whole number"),
        ('data = "x"\n[one.more]\nwidth = 3\n', UnknownName, r"\[one\]: unknown entry 'more'"),
        ('data = "x"\n[one]\nlr = -1\n', BadInput, r"lr is -1\.0, expected above 0"),
        ("", BadInput, r"\[mine\]: no entry `data`"),
    ],
    ids=repr,
)
def test_what_is_wrong_in_a_file_is_named(
    tmp_path: Path, text: str, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        read_recipes(written(tmp_path, text))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.toml does not exist"):
        read_recipes(tmp_path / "none.toml")
    with pytest.raises(BadInput, match="is not a readable TOML file"):
        read_recipes(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"bytes\.toml is not a readable TOML file"):
        read_recipes(tmp_path / "bytes.toml")


@pytest.mark.parametrize("table", [None, 3, "words", [1]], ids=repr)
def test_what_is_no_table_is_a_sentence(table: Any) -> None:
    with pytest.raises(BadInput, match="example: expected a table of entries, got "):
        checked_entries(Recipe, table, "example")


def test_lists_too_deep_and_numbers_too_long_are_sentences(tmp_path: Path) -> None:
    for text in ("a = " + "[" * 5000, "a = " + "9" * 5000):
        (tmp_path / "a.toml").write_text(text)
        with pytest.raises(BadInput, match=r"a\.toml is not a readable TOML file: "):
            read_recipes(tmp_path / "a.toml")
