"""Tables of mixed types with missing cells, encoded as numbers beside a mask of what is not known."""

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.series import Indices
from kernelhead.errors import BadInput, ShapeError, UnseenLevel
from kernelhead.shapes import check_size

CLAMP = 6.0
LEVELS = 256
TARGET = "target"
# How types begin, in the words of numpy, pandas and polars.
CATEGORIES = ("category", "categorical", "enum")
NEITHER = ("datetime", "timedelta", "date", "duration", "period", "interval", "complex")


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers, or categories with their levels.

    Args:
        name: of the column.
        levels: of a categorical column, in the order of their encoding; None for numbers.

    Example:
        >>> Column("age").width, Column("colour", ("blue", "red")).width
        (1, 2)
    """

    name: str
    levels: tuple[str, ...] | None = None

    @property
    def width(self) -> int:
        """Numbers that encode an entry: one for each level, or the number itself."""
        return 1 if self.levels is None else len(self.levels)


@dataclass(frozen=True)
class Schema:
    """The columns of a table, and which of them is the target.

    Args:
        columns: in order, the target among them.
        target: place of the target.

    Raises:
        BadInput: the target is no place of a column.

    Example:
        >>> schema = Schema((Column("age"), Column("colour", ("blue", "red"))), target=1)
        >>> schema.widths, schema.categorical, schema.starts
        ((1, 2), (False, True), (0, 1, 3))
    """

    columns: tuple[Column, ...]
    target: int

    def __post_init__(self) -> None:
        if check_size("Schema", "target", self.target, least=0) >= len(self.columns):
            raise BadInput(f"Schema: target is {self.target}, expected one of {len(self.columns)} columns")

    @property
    def widths(self) -> tuple[int, ...]:
        """Encoding width of every column."""
        return tuple(column.width for column in self.columns)

    @property
    def categorical(self) -> tuple[bool, ...]:
        """Which columns are categories."""
        return tuple(column.levels is not None for column in self.columns)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the encoding of every column begins, and behind them where the last ends."""
        return (0, *accumulate(self.widths))


@dataclass(frozen=True, eq=False)
class Table:
    """Encoded rows: columns side by side, zero where an entry is missing, and a mask of what is.

    Shapes: values (r, sum of widths) in float32; missing (r, a), True where an entry is not known.

    Raises:
        ShapeError: the arrays do not have the schema's widths, or not the same rows.

    Example:
        >>> schema = Schema((Column("age"), Column("colour", ("blue", "red"))), target=0)
        >>> table = Table(schema, np.zeros((4, 3)), np.zeros((4, 2), bool))
        >>> len(table), table.entries(1).shape, len(table.take([2, 0]))
        (4, (4, 2), 2)
    """

    schema: Schema
    values: NDArray[np.float32]
    missing: NDArray[np.bool_]

    def __post_init__(self) -> None:
        rows, (columns, width) = len(self.values), (len(self.schema.columns), self.schema.starts[-1])
        for name, array, size in (("values", self.values, width), ("missing", self.missing, columns)):
            if array.shape != (rows, size):
                raise ShapeError(
                    f"Table: `{name}` has shape {array.shape}, expected {(rows, size)} for {columns} columns"
                )
        object.__setattr__(self, "values", np.asarray(self.values, np.float32))
        object.__setattr__(self, "missing", np.asarray(self.missing, bool))

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.values)

    def entries(self, column: int) -> NDArray[np.float32]:
        """The encoded entries of a column, (r, its width)."""
        return self.values[:, slice(*self.schema.starts[column : column + 2])]

    def take(self, indices: Indices) -> "Table":
        """The rows at these places, in this order."""
        return replace(self, values=self.values[indices], missing=self.missing[indices])

    def joined(self, other: "Table") -> "Table":
        """These rows, then those of another table of the same schema.

        Raises:
            BadInput: the schemas differ.
        """
        if self.schema != other.schema:
            raise BadInput("Table.joined: the two tables have different columns, expected the same schema")
        values, missing = (self.values, other.values), (self.missing, other.missing)
        return Table(self.schema, np.concatenate(values), np.concatenate(missing))


@dataclass(frozen=True, eq=False)
class TableEncoder:
    r"""From cells of a table to numbers, as its training rows have it: mean, deviation and levels.

    A number x becomes $(x - m) / s$, clamped to ±6 but for the target; a category is one-hot over its
    training levels. What is missing (None, NaN, NA) has zeros and its mark in `missing`; nothing is
    imputed. A level that training lacks is missing too, with a warning. A column that is all missing in
    training stays missing and one that is constant there stays zero, whatever comes later. Of a column
    with more than 256 levels the most frequent stay, and the others are missing.

    Data frames keep their categories, texts and booleans as categories, and so do arrays of objects unless
    all entries of a column are numbers.

    Shapes: mean (a,), deviation (a,), both with the target, which is the last column.

    Args:
        schema: of features and target.
        mean: of numbers; 0 for categories, NaN where nothing is known.
        deviation: likewise; 1 for categories, infinite for constant features.

    Example:
        >>> cells = np.array([[1.0, "red"], [3.0, "blue"], [None, "red"]], dtype=object)
        >>> encoder = TableEncoder.fit(cells, np.array([0.5, 1.5, 1.0]))
        >>> [column.levels for column in encoder.schema.columns]
        [None, ('blue', 'red'), None]
        >>> table = encoder.transform(cells)
        >>> table.values.tolist()[0], table.missing.tolist()[2]
        ([-1.0, 0.0, 1.0, 0.0], [True, False, True])
    """

    schema: Schema
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def fit(
        cls,
        x: Any,
        y: Any,
        *,
        classification: bool = False,
        categorical: Iterable[int | str] = (),
        levels: int = LEVELS,
    ) -> "TableEncoder":
        """Learn columns, means, deviations and levels from training rows.

        Args:
            x: a data frame, or an array of numbers or of objects, (rows, features).
            y: the targets, (rows,); None or NaN where one is not known.
            classification: whether targets are classes, else numbers.
            categorical: names or places of further columns to take as categories.
            levels: most levels of a column.

        Raises:
            BadInput: no rows, a target for another number of rows, no known target, an infinite number,
                dates or other cells that are neither numbers nor categories, or no such column.
        """
        check_size("TableEncoder", "levels", levels, least=2)
        named = _columns(x)
        chosen = _chosen(categorical, [name for name, _, _ in named])
        goal = np.asarray(y)
        if goal.shape != (len(named[0][1]),):
            raise BadInput(
                f"TableEncoder: {len(named[0][1])} rows and targets of shape {goal.shape}, expected one a row"
            )
        fitted = [
            _fitted(name, cells, kind or place in chosen, levels)
            for place, (name, cells, kind) in enumerate(named)
        ]
        fitted.append(_fitted(TARGET, goal, classification, len(goal) + 1))
        if np.isnan(fitted[-1][1]):
            raise BadInput(f"TableEncoder: none of {len(goal)} targets is known, expected at least one")
        columns, means, deviations = zip(*fitted, strict=True)
        if np.isinf(deviations[-1]):
            deviations = (*deviations[:-1], 1.0)
        return cls(Schema(columns, len(named)), np.array(means), np.array(deviations))

    def transform(self, x: Any, y: Any = None) -> Table:
        """Encode rows; targets that are not given are missing.

        Raises:
            BadInput: other columns than those of training, or cells that are no numbers where these
                are expected.
        """
        named, features = _columns(x), self.schema.columns[:-1]
        if len(named) != len(features):
            raise BadInput(f"TableEncoder: {len(named)} columns, expected the {len(features)} of training")
        rows = len(named[0][1])
        goal = np.full(rows, None) if y is None else np.asarray(y)
        if goal.shape != (rows,):
            raise BadInput(f"TableEncoder: {rows} rows and targets of shape {goal.shape}, expected one a row")
        given = [*(cells for _, cells, _ in named), goal]
        parts, missing, strange = [], np.zeros((rows, len(given)), bool), {}
        for place, (column, cells) in enumerate(zip(self.schema.columns, given, strict=True)):
            if np.isnan(self.mean[place]):
                part, missing[:, place] = np.zeros((rows, 1)), True
            elif column.levels is None:
                part = (_numbers(column.name, cells) - self.mean[place])[:, None] / self.deviation[place]
                missing[:, place] = np.isnan(part[:, 0])
                part = np.nan_to_num(part if place == self.schema.target else part.clip(-CLAMP, CLAMP))
            else:
                part, unseen = _one_hot(column.levels, cells)
                missing[:, place] = ~part.any(1)
                if unseen:
                    strange[column.name] = unseen
            parts.append(part)
        if strange:
            _warn(strange)
        return Table(self.schema, np.concatenate(parts, 1).astype(np.float32), missing)

    def ordinal(self, x: Any) -> NDArray[np.float64]:
        """Features as trees take them, (r, features): numbers as they are, places of levels, NaN if missing.

        Raises:
            BadInput: as `transform`.

        Example:
            >>> cells = np.array([[100.0, "red"], [300.0, "blue"], [None, "red"]], dtype=object)
            >>> TableEncoder.fit(cells, np.zeros(3)).ordinal(cells).tolist()
            [[100.0, 1.0], [300.0, 0.0], [nan, 1.0]]
        """
        table, named = self.transform(x), _columns(x)
        made = np.full((len(table), len(named)), np.nan)
        for place, column in enumerate(self.schema.columns[:-1]):
            if column.levels is not None:
                made[:, place] = table.entries(place).argmax(1)
            elif not np.isnan(self.mean[place]):
                made[:, place] = _numbers(column.name, named[place][1])
        return np.where(table.missing[:, :-1], np.nan, made)

    def restored(self, numbers: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Encoded numbers of the target as they were given: times the deviation, plus the mean.

        Example:
            >>> encoder = TableEncoder.fit(np.eye(2), [1.0, 3.0])
            >>> encoder.restored(np.array([-1.0, 0.0])).tolist()
            [1.0, 2.0]
        """
        return np.asarray(numbers, np.float64) * self.deviation[-1] + self.mean[-1]


def _columns(x: Any) -> list[tuple[str, NDArray[Any], bool]]:
    """Name, cells, and whether they are categories by their type, of every column."""
    if hasattr(x, "columns") and hasattr(x, "dtypes"):
        whole = [x.iloc[:, place] if hasattr(x, "iloc") else x[:, place] for place in range(len(x.columns))]
        typed = [(str(name), each, str(each.dtype)) for name, each in zip(x.columns, whole, strict=True)]
    else:
        array = np.asarray(x, dtype=object if isinstance(x, list | tuple) else None)
        if array.ndim != 2:
            raise BadInput(f"TableEncoder: a table of shape {array.shape}, expected (rows, features)")
        typed = [(f"x{place}", array[:, place], str(array.dtype)) for place in range(array.shape[1])]
    if not typed or not len(typed[0][1]):
        rows = len(typed[0][1]) if typed else 0
        raise BadInput(f"TableEncoder: {rows} rows and {len(typed)} columns, expected some of both")
    for name, _, kind in typed:
        if kind.lower().startswith(NEITHER):
            raise BadInput(f"TableEncoder: column {name!r} is {kind}, expected numbers or categories")
    return [(name, np.asarray(cells), kind.lower().startswith(CATEGORIES)) for name, cells, kind in typed]


def _chosen(categorical: Iterable[int | str], names: Sequence[int | str]) -> set[int]:
    """Places of columns that are named by either."""
    places = set()
    for each in categorical:
        place = names.index(each) if each in names else each
        if not isinstance(place, str) and 0 <= place < len(names):
            places.add(int(place))
        else:
            raise BadInput(f"TableEncoder: categorical names {each!r}, expected a column or its place")
    return places


def _fitted(name: str, cells: NDArray[Any], category: bool, levels: int) -> tuple[Column, float, float]:
    """A column with its mean and deviation; a mean of NaN says that nothing is known."""
    known = ~_missing(cells)
    if not known.any():
        return Column(name), np.nan, 1.0
    if category or (cells.dtype.kind not in "fiu" and not all(map(_is_number, cells[known]))):
        counts = Counter(map(_text, cells[known]))
        kept = sorted(counts, key=lambda level: (-counts[level], _by_number(level)))[:levels]
        return Column(name, tuple(sorted(kept, key=_by_number))), 0.0, 1.0
    numbers = _numbers(name, cells)[known]
    mean, deviation = float(numbers.mean()), float(numbers.std())
    # A deviation of rounding errors is none.
    return Column(name), mean, deviation if deviation > 1e-12 * abs(mean) else np.inf


def _missing(cells: NDArray[Any]) -> NDArray[np.bool_]:
    if cells.dtype.kind == "f":
        return np.isnan(cells)
    if cells.dtype.kind != "O":
        return np.zeros(len(cells), bool)
    return np.fromiter(map(_is_missing, cells), bool, len(cells))


def _is_missing(cell: object) -> bool:
    """None, NaN of any kind, or what pandas has for them."""
    if cell is None or isinstance(cell, str):
        return cell is None
    return type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, Real) and bool(cell != cell))


def _is_number(cell: object) -> bool:
    return isinstance(cell, Real) and not isinstance(cell, bool | np.bool_)


def _numbers(name: str, cells: NDArray[Any]) -> NDArray[np.float64]:
    """The cells as numbers, NaN where missing."""
    if cells.dtype.kind in "fiu":
        numbers = cells.astype(np.float64)
    else:
        absent = _missing(cells)
        for row, cell in enumerate(cells):
            if not absent[row] and not _is_number(cell):
                raise BadInput(f"TableEncoder: column {name!r}, row {row} holds {cell!r}, expected a number")
        numbers = np.where(absent, np.nan, cells).astype(np.float64)
    if np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
        raise BadInput(
            f"TableEncoder: column {name!r}, row {row} holds infinity, expected a finite number or none"
        )
    return numbers


def _one_hot(levels: tuple[str, ...], cells: NDArray[Any]) -> tuple[NDArray[np.float64], list[str]]:
    """Zeros where a cell is missing or of no level, and the texts that are of none."""
    place = {level: number for number, level in enumerate(levels)}
    made, absent = np.zeros((len(cells), len(levels))), _missing(cells)
    unseen: dict[str, None] = {}
    for row, cell in enumerate(cells):
        if not absent[row]:
            text = _text(cell)
            if text in place:
                made[row, place[text]] = 1.0
            else:
                unseen[text] = None
    return made, [*unseen]


def _text(cell: object) -> str:
    """The name of a level: whole numbers are the same in any type."""
    if isinstance(cell, str):
        return str(cell)
    if isinstance(cell, Real) and _is_number(cell) and float(cell).is_integer():
        return str(int(float(cell)))
    return str(cell)


def _by_number(level: str) -> tuple[bool, float, str]:
    """Numbers by size and before words."""
    try:
        return False, float(level), level
    except ValueError:
        return True, 0.0, level


def _warn(strange: dict[str, list[str]]) -> None:
    told = "; ".join(
        f"column {name!r} has {', '.join(map(repr, levels[:3]))}" + (", ..." if len(levels) > 3 else "")
        for name, levels in strange.items()
    )
    warnings.warn(
        f"TableEncoder: levels that it does not know are taken as missing: {told}", UnseenLevel, stacklevel=3
    )
