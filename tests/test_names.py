"""Every public name says what it is, and what each of its arguments means."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import kernelhead

# Words that mean the same wherever they are an argument.
HOUSE = {
    "path": "of a file, to read or to write",
    "root": "folder of data sets",
    "who": "name of the function that complains",
    "mask": "True where a point is real",
    "seed": "of all that is drawn",
    "device": "of torch",
    "dtype": "of torch",
}
OWN = {"self", "cls"}


def exported(module: ModuleType) -> list[str]:
    """What a room offers: its `__all__`, or what a room of one file defines without an underscore."""
    given = getattr(module, "__all__", None)
    if given is not None:
        return [*given]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def public() -> Iterator[tuple[str, Any]]:
    for room in [*kernelhead.__all__, "errors", "shapes", "units"]:
        module = import_module(f"kernelhead.{room}")
        for name in exported(module):
            yield f"{room}.{name}", getattr(module, name)


NAMES = dict(public())
CALLABLE = {name: value for name, value in NAMES.items() if isinstance(value, type | FunctionType)}


def arguments(value: Any) -> set[str]:
    """Names of what it is called with; a class that takes none of its own has none to explain."""
    if isinstance(value, type):
        if is_dataclass(value):
            return {field.name for field in fields(value) if field.init and not field.name.startswith("_")}
        if "__init__" not in vars(value) or getattr(value, "_is_protocol", False):
            return set()
        value = value.__init__  # type: ignore[misc]
    return {name for name in inspect.signature(value).parameters if name not in OWN}


def own_words(value: Any) -> str:
    """Its own docstring, not one that it inherits or that a dataclass makes up."""
    text = value.__doc__ if isinstance(value, FunctionType) else vars(value).get("__doc__")
    made_up = isinstance(value, type) and is_dataclass(value) and str(text).startswith(f"{value.__name__}(")
    return "" if text is None or made_up else str(text)


def words_of(text: str) -> set[str]:
    """The words of a text and of the docstrings that it points to in backticks; without an ending s."""
    found = {*re.findall(r"\w+", text)}
    for name in re.findall(r"`(\w+)`", text):
        for full, value in CALLABLE.items():
            if full.endswith(f".{name}"):
                found |= {*re.findall(r"\w+", own_words(value))}
    return {word.lower().removesuffix("s") for word in found}


def unsaid(value: Any) -> set[str]:
    """Arguments that neither the docstring names, nor one that it points to, nor the house."""
    known = words_of(own_words(value))
    return {name for name in arguments(value) - HOUSE.keys() if name.removesuffix("s") not in known}


def test_there_are_names() -> None:
    assert len(CALLABLE) > 300
    assert {"nn.PrimalAttention", "decomposition.ksvd", "pattern.Factored", "rng.seeded"} <= {*CALLABLE}


@pytest.mark.parametrize("room", [*kernelhead.__all__])
def test_a_room_lists_what_it_offers(room: str) -> None:
    module = import_module(f"kernelhead.{room}")
    names = exported(module)
    assert len(names) == len({*names})
    if Path(str(module.__file__)).name == "__init__.py" and "__getattr__" not in vars(module):
        imported = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and not isinstance(value, ModuleType)
        }
        assert imported == {*names}, "what a room imports and what it offers differ"


@pytest.mark.parametrize("name", CALLABLE)
def test_a_name_says_what_it_is(name: str) -> None:
    first = own_words(CALLABLE[name]).strip().split("\n")[0]
    assert first, f"{name} has no docstring"
    assert first[-1] in ".:!", f"{name}: {first}"


@pytest.mark.parametrize("name", CALLABLE)
def test_every_argument_is_explained(name: str) -> None:
    assert unsaid(CALLABLE[name]) == set()


def bare(one: int, two: int) -> None:
    """Does something with one."""


def pointing(width: int, heads: int) -> None:
    """As `PrimalAttention`."""


def test_an_argument_that_is_not_explained_is_seen() -> None:
    assert unsaid(bare) == {"two"}
    assert unsaid(pointing) == set()
