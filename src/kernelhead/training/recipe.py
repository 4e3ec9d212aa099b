"""A run in one flat table: what the command line, a TOML file and Python all fill in."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from kernelhead.errors import BadInput, unknown
from kernelhead.shapes import check_size

OPTIMISERS = ("adamw", "radam")
SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a run computes.

    Args:
        data: name of a data set, or a file (.ts, .npz, .csv) or folder.
        test: file to test on, where `data` is one file without a test part.
        name: of the run, for tables; the attention by default.
        attention: of all layers ("primal"), of the last ("primal+"), or one a layer, joined by commas.
        width: of the model.
        depth: number of layers.
        heads: of each attention.
        rank: singular components of primal layers.
        landmarks: of primal layers; 0 for ten times the rank, at most the longest series.
        inner: middle width of the feed-forward; 0 for four times the width.
        norm: "pre" or "post".
        pooling: "mean", "max", "last", "cls" or "flatten".
        activation: of the features that are pooled, "none" or "gelu".
        position: "sinusoidal", "learned" or "none".
        init: of primal weights, "orthonormal" or "published".
        dropout: of positions, blocks and the head.
        penalty: weight of the KSVD penalty; 0 leaves it out.
        reduction: of the penalty, "sample" or "batch".
        epochs: passes over the training part.
        batch: cases a step, over all processes.
        lr: learning rate.
        decay: weight decay.
        clip: largest norm of the gradient; 0 for none.
        optimiser: "adamw" or "radam".
        schedule: of the learning rate, "constant" or "cosine" to zero.
        validation: share of the training part that is held out to choose the best epoch.
        seed: of the split, the weights, the order and the dropout.
        precision: as lightning-fabric names it, such as "32-true" or "bf16-mixed".
        accelerator: "auto", "cpu" or "cuda".
        devices: processes to train with.
        save_steps: write a checkpoint every so many steps, beside the one after each epoch; 0 for none.

    Example:
        >>> Recipe(data="JapaneseVowels", attention="primal+").title
        'primal+'
    """

    data: str
    test: str = ""
    name: str = ""
    attention: str = "primal"
    width: int = 64
    depth: int = 2
    heads: int = 4
    rank: int = 16
    landmarks: int = 0
    inner: int = 0
    norm: str = "pre"
    pooling: str = "mean"
    activation: str = "none"
    position: str = "sinusoidal"
    init: str = "orthonormal"
    dropout: float = 0.1
    penalty: float = 0.1
    reduction: str = "sample"
    epochs: int = 50
    batch: int = 16
    lr: float = 1e-3
    decay: float = 0.01
    clip: float = 4.0
    optimiser: str = "adamw"
    schedule: str = "cosine"
    validation: float = 0.2
    seed: int = 0
    precision: str = "32-true"
    accelerator: str = "auto"
    devices: int = 1
    save_steps: int = 0

    def __post_init__(self) -> None:
        for name in ("width", "depth", "heads", "rank", "epochs", "batch", "devices"):
            check_size("Recipe", name, getattr(self, name))
        for name in ("landmarks", "inner", "seed", "save_steps"):
            check_size("Recipe", name, getattr(self, name), least=0)
        for name in ("penalty", "decay", "clip"):
            if not getattr(self, name) >= 0:
                raise BadInput(f"Recipe: {name} is {getattr(self, name)!r}, expected 0 or more")
        if not self.lr > 0:
            raise BadInput(f"Recipe: lr is {self.lr!r}, expected above 0")
        if not 0 <= self.dropout < 1:
            raise BadInput(f"Recipe: dropout is {self.dropout!r}, expected from 0 to below 1")
        if self.optimiser not in OPTIMISERS:
            raise unknown("Recipe", "optimiser", self.optimiser, OPTIMISERS)
        if self.schedule not in SCHEDULES:
            raise unknown("Recipe", "schedule", self.schedule, SCHEDULES)

    @property
    def title(self) -> str:
        """The run's name in tables."""
        return self.name or self.attention

    def to_dict(self) -> dict[str, Any]:
        """As a flat table."""
        return asdict(self)

    def changed(self, changes: dict[str, Any]) -> "Recipe":
        """The recipe with some entries replaced.

        Raises:
            UnknownName: an entry that no recipe has.
        """
        return recipe_from({**self.to_dict(), **changes}, "Recipe.changed")


def checked_entries(kind: type[Any], table: Mapping[str, Any], who: str) -> dict[str, Any]:
    """The entries of a table, each of the type that the default of its field in a dataclass has.

    Whole numbers become real ones where those are expected; a field that is None by default takes
    a real number or None, and one without a default takes a text.

    Raises:
        UnknownName: an entry that the dataclass does not have.
        BadInput: an entry of the wrong type, or no table.

    Example:
        >>> checked_entries(Recipe, {"lr": 1}, "example")
        {'lr': 1.0}
    """
    if not isinstance(table, Mapping):
        raise BadInput(f"{who}: expected a table of entries, got {table!r}")
    kinds = {field.name: _KIND_OF.get(field.default, type(field.default)) for field in fields(kind)}
    nothing = [(None, field.name) for field in fields(kind) if field.default is None]
    checked: dict[str, Any] = {}
    for name, value in table.items():
        if name not in kinds:
            raise unknown(who, "entry", name, kinds)
        if kinds[name] is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kinds[name] and (value, name) not in nothing:
            raise BadInput(f"{who}: {name} is {value!r}, expected {_KINDS[kinds[name]]}")
        checked[name] = value
    return checked


def recipe_from(table: dict[str, Any], who: str) -> Recipe:
    """A recipe from a flat table, with each entry's type checked.

    Raises:
        UnknownName: an entry that no recipe has.
        BadInput: an entry of the wrong type, or no `data`.

    Example:
        >>> recipe_from({"data": "JapaneseVowels", "lr": 1}, "example").lr
        1.0
    """
    checked = checked_entries(Recipe, table, who)
    if "data" not in checked:
        raise BadInput(f"{who}: no entry `data`, expected the name of a data set or a file")
    return replace(Recipe(data=checked["data"]), **checked)


def read_recipes(path: Path) -> dict[str, Recipe]:
    """The recipes of a TOML file: entries before the first table hold for all, each table is a run.

    A file without tables is one run, named after the file.

    Raises:
        BadInput: the file is missing or is not TOML, or an entry is wrong.
        UnknownName: an entry that no recipe has.
    """
    shared, tables = parted(read_toml(path))
    return {
        name: recipe_from({"name": name, **shared, **table}, f"{path}, [{name}]")
        for name, table in (tables or {path.stem: {}}).items()
    }


def read_toml(path: Path, hint: str = "") -> dict[str, Any]:
    """A TOML file as a table.

    Args:
        path: of the file.
        hint: what to say after that it does not exist.

    Raises:
        BadInput: the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist{hint}") from None
    except (OSError, ValueError, RecursionError) as error:  # numbers can be too long, and lists too deep
        raise BadInput(f"{path} is not a readable TOML file: {error}") from error


def parted(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The plain entries of a table, and the tables in it.

    Example:
        >>> parted({"lr": 1, "one": {"rank": 2}})
        ({'lr': 1}, {'one': {'rank': 2}})
    """
    plain = {name: value for name, value in table.items() if not isinstance(value, dict)}
    return plain, {name: value for name, value in table.items() if isinstance(value, dict)}


_KINDS: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
_KIND_OF: dict[Any, type] = {MISSING: str, None: float}
