"""Features of items with their ids and labels: their type, their files, and the ranked list that goes out."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.errors import BadInput
from kernelhead.records import write_text

WHO = "read_features"
SUFFIXES = (".npy", ".npz", ".csv")


@dataclass(frozen=True, eq=False)
class Features:
    """Feature vectors of items, an id for each, and labels where they are known.

    Shapes: x (n, d).

    Args:
        x: one row an item; kept as float32.
        ids: of the items, all different; their places from 0 on if left out.
        labels: of the items, equal for items that belong together; or None.
        name: what the set is called.

    Raises:
        BadInput: no finite rows, as many ids or labels as there are not rows, or an id twice.

    Example:
        >>> pair = Features(np.eye(2), labels=("cat", "dog"), name="pair")
        >>> len(pair), pair.ids, pair.place("1")
        (2, ('0', '1'), 1)
    """

    x: NDArray[Any]
    ids: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    name: str = "features"

    def __post_init__(self) -> None:
        who, x = f"Features {self.name!r}", self.x
        if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "fiub":
            raise BadInput(
                f"{who}: `x` is {x.dtype} of shape {x.shape}, expected numbers (n, d), none of them 0"
            )
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            row = int(np.flatnonzero(~np.isfinite(x).all(1))[0])
            raise BadInput(f"{who}: row {row} holds a number that is not finite")
        ids = self.ids or tuple(map(str, range(len(x))))
        for what, entries in (("ids", ids), ("labels", self.labels)):
            if entries is not None and len(entries) != len(x):
                raise BadInput(f"{who}: {len(entries)} {what} for {len(x)} rows")
        seen: dict[str, int] = {}
        for row, each in enumerate(ids):
            if seen.setdefault(each, row) != row:
                raise BadInput(
                    f"{who}: id {each!r} is that of row {seen[each]} and of row {row}, expected it once"
                )
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "ids", ids)

    def __len__(self) -> int:
        """How many items there are."""
        return len(self.x)

    def place(self, item: str) -> int:
        """The row of an id.

        Raises:
            BadInput: no item has it.
        """
        if item not in self.ids:
            raise BadInput(f"Features {self.name!r}: no item has the id {item!r}; it has {len(self)} others")
        return self.ids.index(item)


def read_features(path: str | Path) -> Features:
    """Read features from a file.

    - ``.npy``: numbers (n, d); ids are the places from 0 on.
    - ``.npz``: `x` (n, d), and `ids` (n,) and `labels` (n,) where there are such.
    - ``.csv``: one row an item under a header; `id` and `label` where there are such, and every other column
      is a feature.

    Raises:
        BadInput: the file is missing or is not what its suffix says; an id is there twice.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "two.csv").write_text("id,a,b\\nfirst,1,0\\nsecond,0,1\\n")
        ...     read_features(Path(folder) / "two.csv").ids
        ('first', 'second')
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"{WHO}: {path} has the suffix {path.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise BadInput(f"{WHO}: {path} is not a file")
    return _read_csv(path) if path.suffix.lower() == ".csv" else _read_arrays(path)


def write_ranking(path: str | Path, rows: Iterable[tuple[str, int, str, float]]) -> None:
    """Write a ranked list as CSV, whole or not at all: query, rank from 1 on, id, score.

    Args:
        rows: query, rank, id and score of each.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_ranking(Path(folder) / "ranked.csv", [("a", 1, "b", 0.5)])
        ...     print((Path(folder) / "ranked.csv").read_text(), end="")
        query,rank,id,score
        a,1,b,0.5
    """
    page = StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(["query", "rank", "id", "score"])
    writer.writerows(rows)
    write_text(Path(path), page.getvalue())


def _read_arrays(path: Path) -> Features:
    try:
        # np.load leaves a file of its own open when the archive is broken.
        with path.open("rb") as handle:
            loaded = np.load(handle, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return Features(loaded, name=path.stem)
            # A member that is no array comes as bytes.
            found = {key: np.asarray(loaded[key]) for key in ("x", "ids", "labels") if key in loaded.files}
    except BadInput:
        raise
    except Exception as error:  # a hostile file can fail anywhere between zip, header and data
        raise BadInput(f"{WHO}: {path} is not a readable {path.suffix} file: {error}") from error
    if "x" not in found:
        raise BadInput(f"{WHO}: {path} holds {', '.join(loaded.files) or 'nothing'}, expected x")
    ids, labels = (
        tuple(map(str, np.ravel(found[key]).tolist())) if key in found else None for key in ("ids", "labels")
    )
    return Features(found["x"], ids or (), labels, path.stem)


def _read_csv(path: Path) -> Features:
    try:
        rows = [row for row in csv.reader(StringIO(path.read_text(encoding="utf-8-sig")), strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{WHO}: {path} is not a readable .csv file: {error}") from error
    header = [name.strip() for name in rows[0]] if rows else []
    columns = [place for place, name in enumerate(header) if name not in ("id", "label")]
    if len(rows) < 2 or not columns or len({*header}) < len(header):
        raise BadInput(f"{WHO}: {path} is not a header of different names, one a feature at least, and rows")
    for line, row in enumerate(rows[1:]):
        if len(row) != len(header):
            raise BadInput(f"{WHO}: {path}, row {line + 1} has {len(row)} entries, expected {len(header)}")
    values = np.empty((len(rows) - 1, len(columns)))
    for line, row in enumerate(rows[1:]):
        try:
            values[line] = [float(row[place]) for place in columns]
        except ValueError as error:
            raise BadInput(f"{WHO}: {path}, row {line + 1}: {error}") from None
    ids, labels = (
        tuple(row[header.index(name)].strip() for row in rows[1:]) if name in header else None
        for name in ("id", "label")
    )
    return Features(values, ids or (), labels, path.stem)
