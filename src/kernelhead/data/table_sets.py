"""Tables from files and from names, with their fixed splits."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.series import Indices
from kernelhead.data.sources import in_part, read_checked
from kernelhead.errors import BadInput, unknown
from kernelhead.shapes import check_size

WHO = "read_table"
PARTS = ("train", "test", "all")
ABSENT = {"", "?", "na", "nan", "null", "none"}  # cells of a text file that hold nothing, in any case
HELD_OUT = 0.2  # tested, of sets without splits of their own
# First 16 hexadecimal digits of the SHA-256 of every file.
DIGESTS = {
    "uci/bostonHousing.npz": "4ee408358790ecbb",
    "uci/concrete.npz": "9c990948d3062aee",
    "uci/energy.npz": "0858d72d6f1e3fc5",
    "uci/kin8nm.npz": "a142d4dd7d91a3f7",
    "uci/power-plant.npz": "f06d0ae87a5f4f76",
    "uci/protein-tertiary-structure.npz": "7f09bc6ebcbf5017",
    "uci/wine-quality-red.npz": "ba4fa71dfb025ec2",
    "uci/yacht.npz": "b4483dd8dbb29c89",
    "uci/adult.npz": "a6b6e0bd7248d3a2",
    "uci/poker_hand_train.npz": "af018c621e7ac73a",
}


@dataclass(frozen=True, eq=False)
class Cells:
    """Rows of a table as they were read: cells and targets, not yet encoded.

    Shapes: x (r, features), of numbers or of objects with None where a cell is missing; y (r,).

    Args:
        name: of the set.
        x: the cells.
        y: the targets, numbers or classes.
        columns: a name for each feature.
        classification: whether targets are classes.

    Example:
        >>> cells = read_table("breast_cancer")
        >>> len(cells), cells.columns[0], cells.classification
        (456, 'mean radius', True)
    """

    name: str
    x: NDArray[Any]
    y: NDArray[Any]
    columns: tuple[str, ...]
    classification: bool

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.x)

    def take(self, indices: Indices) -> "Cells":
        """The rows at these places, in this order."""
        return replace(self, x=self.x[indices], y=self.y[indices])


def read_table(
    source: str | Path, *, part: str = "train", split: int = 0, root: str | Path | None = None
) -> Cells:
    """Read a table by name or from a file.

    - a regression set of the folder `uci`, such as ``yacht``: one of its fixed splits;
    - ``adult``: its own training and test part, whatever the split; `?` is a missing cell;
    - ``poker_hand``, ``breast_cancer`` (from scikit-learn): a fifth of every class is tested, drawn by
      `split`;
    - ``.npz``: x and y, and maybe test_mask (splits, rows) and the names of `columns`;
    - ``.csv``: a header, then rows; the last column is the target, empty cells, NA and `?` are missing, and
      a column is of numbers where all other cells are. Targets that are no numbers are classes.

    A file without splits is one part and is read whole.

    Args:
        source: name or file.
        part: "train", "test" or "all" rows.
        split: which of the fixed splits, or the seed of the draw.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.

    Raises:
        BadInput: the file is missing or is not what its suffix says, or there is no such split.
        UnknownName: no set has that name, or there is no such part.

    Example:
        >>> [len(read_table("breast_cancer", part=part, split=3)) for part in ("train", "test")]
        [456, 113]
    """
    if part not in PARTS:
        raise unknown(WHO, "part", part, PARTS)
    check_size(WHO, "split", split, least=0)
    path = Path(source)
    if path.suffix.lower() in (".csv", ".npz"):
        read = _read_csv if path.suffix.lower() == ".csv" else _read_npz
        return _parted(*read(path), part, split)
    if str(source) not in _READERS:
        raise unknown(WHO, "data set", str(source), [*_READERS, "FILE.csv", "FILE.npz"])
    return _parted(*_READERS[str(source)](str(source), split, root), part, split)


def _parted(cells: Cells, tested: NDArray[np.bool_] | None, part: str, split: int) -> Cells:
    """The part; `tested` is of one split (r,) or of several (splits, r)."""
    if tested is None or part == "all":
        return cells
    if tested.ndim == 2:
        if split >= len(tested):
            raise BadInput(f"{WHO}: {cells.name} has {len(tested)} splits, but split is {split}")
        tested = tested[split]
    return cells.take(np.flatnonzero(tested if part == "test" else ~tested))


Read = tuple[Cells, NDArray[np.bool_] | None]


def _read_uci(name: str, split: int, root: str | Path | None) -> Read:
    place = f"uci/{name}.npz"
    with np.load(BytesIO(read_checked(WHO, place, DIGESTS[place], root)), allow_pickle=False) as arrays:
        x, y = (arrays[key].astype(np.float64) for key in ("x", "y"))
        return Cells(name, x, y, _numbered(x), False), arrays["test_mask"]


def _read_adult(name: str, split: int, root: str | Path | None) -> Read:
    place = "uci/adult.npz"
    with np.load(BytesIO(read_checked(WHO, place, DIGESTS[place], root)), allow_pickle=False) as arrays:
        parts = []
        for part in ("train", "test"):
            texts = [
                _absent(arrays[f"levels_{column}"][arrays[f"cat_{part}"][:, number]])
                for number, column in enumerate(arrays["cat_names"])
            ]
            parts.append(np.concatenate([arrays[f"num_{part}"].astype(object), np.stack(texts, 1)], 1))
        y = np.concatenate([arrays["y_train"], arrays["y_test"]])
        columns = (*map(str, arrays["num_names"]), *map(str, arrays["cat_names"]))
    classes = np.array(["<=50K", ">50K"])
    tested = np.arange(len(y)) >= len(parts[0])
    return Cells(name, np.concatenate(parts), classes[y], columns, True), tested


def _read_poker(name: str, split: int, root: str | Path | None) -> Read:
    place = "uci/poker_hand_train.npz"
    with np.load(BytesIO(read_checked(WHO, place, DIGESTS[place], root)), allow_pickle=False) as arrays:
        x, y = arrays["x"].astype(str).astype(object), arrays["y"].astype(np.int64)
    columns = tuple(f"{what} {card}" for card in range(1, 6) for what in ("suit", "rank"))
    return Cells(name, x, y, columns, True), _drawn(y, split)


def _read_breast_cancer(name: str, split: int, root: str | Path | None) -> Read:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    y = data.target_names[data.target]
    return Cells(name, data.data, y, tuple(map(str, data.feature_names)), True), _drawn(data.target, split)


_READERS: dict[str, Callable[[str, int, str | Path | None], Read]] = {
    **{place[4:-4]: _read_uci for place in DIGESTS if not place.startswith(("uci/adult", "uci/poker"))},
    "adult": _read_adult,
    "poker_hand": _read_poker,
    "breast_cancer": _read_breast_cancer,
}
SETS = tuple(_READERS)


def _read_npz(path: Path) -> Read:
    try:
        # np.load leaves a file of its own open when the archive is broken.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            # A member that is no array comes as bytes.
            held = {key: np.asarray(arrays[key]) for key in arrays.files}
    except Exception as error:  # a hostile archive can fail anywhere between zip, header and data
        raise BadInput(f"{WHO}: {path} is not a readable .npz file: {error}") from error
    x, y = held.get("x"), held.get("y")
    if x is None or y is None or x.ndim != 2 or y.shape != (len(x),):
        shapes = {key: array.shape for key, array in held.items()}
        raise BadInput(f"{WHO}: {path} holds {shapes}, expected x (rows, features) and y (rows,)")
    tested = held.get("test_mask")
    if tested is not None and (tested.dtype != bool or tested.ndim != 2 or tested.shape[1] != len(x)):
        raise BadInput(
            f"{WHO}: {path}, test_mask is {tested.dtype} {tested.shape}, expected bool (splits, {len(x)})"
        )
    columns = tuple(map(str, held["columns"])) if "columns" in held else _numbered(x)
    return Cells(path.stem, x, y, columns, y.dtype.kind not in "fiu"), tested


def _read_csv(path: Path) -> Read:
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            lines = [line for line in csv.reader(opened, skipinitialspace=True) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{WHO}: {path} is not a readable .csv file: {error}") from error
    if len(lines) < 2 or len(lines[0]) < 2:
        size = f"{len(lines)} lines of {len(lines[0]) if lines else 0} columns"
        raise BadInput(f"{WHO}: {path} has {size}, expected a header, rows, and a feature beside the target")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(lines[0]):
            raise BadInput(
                f"{WHO}: {path}, row {number} has {len(line)} cells, but the header has {len(lines[0])}"
            )
    typed = [_typed(column) for column in zip(*lines[1:], strict=True)]
    *features, y = typed
    if any(each is None for each in y):
        raise BadInput(f"{WHO}: {path}, the target {lines[0][-1]!r} has empty cells, expected one a row")
    classification = isinstance(y[0], str)
    x = np.empty((len(y), len(features)), dtype=object)
    for place, column in enumerate(features):
        x[:, place] = column
    return Cells(path.stem, x, np.array(y), tuple(lines[0][:-1]), classification), None


def _typed(column: Sequence[str]) -> list[str | float | None]:
    """Numbers where all cells are, else texts; None for cells that hold nothing."""
    cells = [None if cell.strip().lower() in ABSENT else cell.strip() for cell in column]
    try:
        return [None if cell is None else float(cell) for cell in cells]
    except ValueError:
        return [*cells]


def _absent(texts: NDArray[Any]) -> NDArray[Any]:
    """Texts as objects, with None for a question mark."""
    cells = texts.astype(object)
    cells[texts == "?"] = None
    return cells


def _drawn(labels: NDArray[Any], split: int) -> NDArray[np.bool_]:
    """Which rows are tested, a share of every class."""
    return in_part(WHO, labels, "validation", validation=HELD_OUT, seed=split)


def _numbered(x: NDArray[Any]) -> tuple[str, ...]:
    return tuple(f"x{place}" for place in range(x.shape[1]))
