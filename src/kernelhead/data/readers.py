"""Series from files and from names, and predictions back into a file."""

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.rows import csv_rows
from kernelhead.data.series import Series
from kernelhead.errors import BadInput, ShapeError, missing_extra, unknown
from kernelhead.records import write_text

SPLITS = ("train", "test")
ROOT = "KERNELHEAD_DATA"
# What aeon's wheel holds with class labels, in a train and a test part.
BUNDLED = (
    "ACSF1",
    "ArrowHead",
    "BasicMotions",
    "Covid3Month_disc",
    "GunPoint",
    "ItalyPowerDemand",
    "JapaneseVowels",
    "OSULeaf",
    "PickupGestureWiimoteZ",
)


def read_series(source: str | Path, *, split: str = "train", root: Path | None = None) -> Series:
    """Read labelled series from a file, a folder or a known name.

    - ``.ts``: the format of the UEA and UCR archives; needs the extra `ts`. A folder, or a path
      without suffix, stands for its NAME_TRAIN.ts or NAME_TEST.ts.
    - ``.npz``: x_train (cases, time, dims), y_train as integers into classes, len_train where
      lengths differ, and the same for test; or x with optional y, classes and length.
    - ``.csv``: one row a time stamp under a header. `case` names the series, an optional `time`
      orders it, an optional `label` is its class, and every other column is a channel.
    - a name such as ``JapaneseVowels`` or ``japanese-vowels``: ROOT/uea/NAME.npz if there is one,
      else a set inside aeon's wheel. A name comes before a path; ``./NAME`` is always a path.

    A ``.ts`` or ``.csv`` file is one part and is read whole, whatever the split.

    Args:
        source: a file, a folder or a known name.
        split: train or test.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.

    Raises:
        BadInput: the file is missing or is not what its suffix says; the sentence has the place.
        UnknownName: no set has that name, or there is no such split.
        MissingExtra: aeon is needed and not installed.

    Example:
        >>> vowels = read_series("japanese-vowels")
        >>> len(vowels), vowels.channels, vowels.longest, len(vowels.classes)
        (270, 12, 26, 9)
    """
    if split not in SPLITS:
        raise unknown("read_series", "split", split, SPLITS)
    path = Path(source).expanduser()
    if path.suffix.lower() in _READERS:
        return _read(path, split)
    bare = path.name == str(source)
    part = (_named(path.name, split, root) if bare else None) or _part(path, split)
    if part is not None:
        return _read(part, split)
    if bare and not path.exists():
        raise unknown("read_series", "data set", str(source), {*BUNDLED, *_in_root(root)})
    if path.is_dir():
        raise BadInput(f"read_series: {path} does not hold one file NAME_{split.upper()}.ts")
    if path.exists():
        raise BadInput(
            f"read_series: {path} has the suffix {path.suffix!r}, expected one of {', '.join(_READERS)}"
        )
    raise BadInput(f"read_series: {path} does not exist")


def has_test_part(source: str | Path, *, root: Path | None = None) -> bool:
    """Whether a source has a test part of its own, apart from its training part.

    A single ``.ts`` or ``.csv`` file never has one, nor has an ``.npz`` without `x_test`.

    Example:
        >>> has_test_part("JapaneseVowels"), has_test_part("series.csv")
        (True, False)
    """
    path = Path(source).expanduser()
    bare = path.name == str(source)
    if path.suffix.lower() not in _READERS:
        found = (_named(path.name, "test", root) if bare else None) or _part(path, "test")
        if found is None or found.suffix == ".ts":
            return found is not None
        path = found
    if path.suffix.lower() != ".npz":
        return False
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            return "x_test" in arrays.files
    except Exception:  # a hostile archive can fail anywhere between zip, header and data
        return False


def known_sets() -> tuple[str, ...]:
    """Names of the data sets that come with the extra `ts` and need no download.

    Example:
        >>> "JapaneseVowels" in known_sets()
        True
    """
    return BUNDLED


def write_predictions(
    path: str | Path,
    cases: Sequence[object],
    labels: Sequence[str],
    probabilities: NDArray[np.floating[Any]],
    classes: Sequence[str],
) -> None:
    """Write a CSV of predictions, whole or not at all: case, label, and a column for each class.

    Shapes: probabilities (cases, classes).

    Args:
        cases: one name or number a row, such as `Series.ids`.
        labels: the predicted class of each.
        classes: the class of each column, headed ``probability_CLASS``.

    Raises:
        ShapeError: the sizes do not agree.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "predictions.csv"
        ...     write_predictions(path, ["first"], ["no"], np.array([[0.75, 0.25]]), ["no", "yes"])
        ...     print(path.read_text(), end="")
        case,label,probability_no,probability_yes
        first,no,0.75,0.25
    """
    expected = (len(cases), len(classes))
    if probabilities.shape != expected or len(labels) != len(cases):
        raise ShapeError(
            f"write_predictions: {len(labels)} labels and probabilities {probabilities.shape}, "
            f"expected {len(cases)} and {expected} for {len(cases)} cases of {len(classes)} classes"
        )
    page = StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(["case", "label", *(f"probability_{name}" for name in classes)])
    writer.writerows(
        [case, label, *row] for case, label, row in zip(cases, labels, probabilities, strict=True)
    )
    write_text(Path(path), page.getvalue())


def _read(path: Path, split: str) -> Series:
    if not path.exists():
        raise BadInput(f"read_series: {path} does not exist")
    try:
        return _READERS[path.suffix.lower()](path, split)
    except OSError as error:
        raise BadInput(f"read_series: {path} cannot be read: {error.strerror or error}") from error


def _part(path: Path, split: str) -> Path | None:
    """The .ts file that a folder or a path without suffix stands for."""
    ending = f"_{split.upper()}.ts"
    if path.is_dir():
        named, found = path / f"{path.resolve().name}{ending}", list(path.glob(f"*{ending}"))
        return named if named in found else found[0] if len(found) == 1 else None
    beside = path.parent / f"{path.name}{ending}"
    return beside if beside.exists() else None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def _named(name: str, split: str, root: Path | None) -> Path | None:
    """The file of a known set; the root comes before the wheel."""
    in_root = {_plain(known): path for known, path in _in_root(root).items()}
    in_wheel = {_plain(known): known for known in BUNDLED}
    if _plain(name) in in_root:
        return in_root[_plain(name)]
    return _in_wheel(in_wheel[_plain(name)], split) if _plain(name) in in_wheel else None


def _in_root(root: Path | None) -> dict[str, Path]:
    folder = root or (Path(os.environ[ROOT]) if os.environ.get(ROOT) else None)
    if folder is None:
        return {}
    if not folder.is_dir():
        raise BadInput(f"read_series: the data root {folder} is not a folder; see the variable {ROOT}")
    return {path.stem: path for path in sorted((folder / "uea").glob("*.npz"))}


def _in_wheel(name: str, split: str) -> Path:
    try:
        import aeon
    except ImportError:
        raise missing_extra("read_series", "aeon", "ts") from None
    return Path(aeon.__file__).parent / "datasets" / "data" / name / f"{name}_{split.upper()}.ts"


def _read_ts(path: Path, split: str) -> Series:
    try:
        from aeon.datasets import load_from_ts_file
    except ImportError:
        raise missing_extra("read_series", "aeon", "ts") from None
    names = _ts_classes(path)
    try:
        data, labels, about = load_from_ts_file(str(path), return_meta_data=True)
    except Exception as error:  # a broken file ends in whatever its first bad line leads to
        raise BadInput(f"read_series: {path} is not a readable .ts file: {error}") from error
    if about["targetlabel"]:
        raise BadInput(f"read_series: {path} has numbers to predict (@targetLabel), expected class labels")
    if about["timestamps"]:
        # aeon drops the sign of such values.
        raise BadInput(f"read_series: {path} has time stamps (@timeStamps), expected bare values")
    cases = tuple(np.asarray(case).T for case in data)  # aeon's (a, t) to (t, a)
    known = tuple(names.get(str(label).strip().lower(), str(label).strip()) for label in labels)
    name = path.stem.removesuffix("_TRAIN").removesuffix("_TEST")
    return Series(cases, known if about["classlabel"] else None, name)


def _ts_classes(path: Path) -> dict[str, str]:
    """Class names as the header spells them, by what is left of them in lower case, which aeon gives."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if words and words[0].lower() == "@data":
                break
            if words and words[0].lower() == "@classlabel":
                names = {word.lower(): word for word in words[2:]}
                if len(names) != len(set(words[2:])):
                    raise BadInput(
                        f"read_series: {path} has classes that differ by case alone: {' '.join(words[2:])}"
                    )
                return names
    return {}


def _read_npz(path: Path, split: str) -> Series:
    try:
        # np.load leaves a file of its own open when the archive is broken.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            shared = not {"x_train", "x_test"}.isdisjoint(file.files)
            keys = {"x": "x", "y": "y", "length": "length", "classes": "classes"}
            if shared:
                keys |= {"x": f"x_{split}", "y": f"y_{split}", "length": f"len_{split}"}
            found = {name: _decoded(np.asarray(file[key])) for name, key in keys.items() if key in file.files}
            held = ", ".join(file.files) or "nothing"
    except Exception as error:  # a hostile archive can fail anywhere between zip, header and data
        raise BadInput(f"read_series: {path} is not a readable .npz file: {error}") from error
    if "x" not in found:
        raise BadInput(f"read_series: {path} has no {keys['x']}; it holds {held}")
    x, y, length, classes = found["x"], found.get("y"), found.get("length"), found.get("classes")
    if x.ndim != 3 or x.dtype.kind not in "fiub":
        raise BadInput(
            f"read_series: {path}: {keys['x']} is {x.dtype} of shape {x.shape}, "
            "expected numbers (cases, time, dims)"
        )
    for name, entries in (("y", y), ("length", length)):
        if entries is not None and entries.shape != x.shape[:1]:
            shape = entries.shape
            raise BadInput(
                f"read_series: {path}: {keys[name]} has shape {shape}, expected ({len(x)},), one entry a case"
            )
    if length is not None:
        _check_range(f"{path}: {keys['length']}", length, 1, x.shape[1])
        cases = tuple(case[:end] for case, end in zip(x, length, strict=True))
    else:
        cases = tuple(x)
    if y is not None and classes is not None:
        _check_range(f"{path}: {keys['y']}", y, 0, classes.size - 1)
        y = classes.reshape(-1)[y]
    return Series(cases, None if y is None else tuple(y.astype(str).tolist()), path.stem)


def _decoded(array: NDArray[Any]) -> NDArray[Any]:
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _check_range(what: str, entries: NDArray[Any], least: int, most: int) -> None:
    if entries.dtype.kind not in "iu":
        raise BadInput(f"read_series: {what} is {entries.dtype}, expected whole numbers")
    wrong = entries[(entries < least) | (entries > most)]
    if len(wrong):
        raise BadInput(f"read_series: {what} holds {wrong[0]}, expected {least} to {most}")


@dataclass
class _Case:
    label: str | None
    rows: dict[float, list[float]] = field(default_factory=dict)  # time to one value a channel


def _read_csv(path: Path, split: str) -> Series:
    found: dict[str, _Case] = {}
    columns: tuple[str, ...] = ()
    for where, row in csv_rows("read_series", path, _check_header):
        columns = columns or tuple(name for name in row if name not in ("case", "time", "label"))
        name, label = row.pop("case"), row.pop("label", None)
        if not name or label == "":
            raise BadInput(f"{where}: the {'label' if name else 'case'} is empty")
        case = found.setdefault(name, _Case(label))
        if label != case.label:
            raise BadInput(f"{where}: the label is {label!r}, but case {name!r} began with {case.label!r}")
        time = _number(where, "time", row.pop("time")) if "time" in row else len(case.rows)
        if time in case.rows:
            raise BadInput(f"{where}: case {name!r} has time {time:g} twice")
        case.rows[time] = [_number(where, column, text) for column, text in row.items()]
    if not found:
        raise BadInput(f"read_series: {path}, line 2: no row follows the header")
    cases = tuple(np.array([case.rows[time] for time in sorted(case.rows)]) for case in found.values())
    labels = tuple(case.label for case in found.values() if case.label is not None)
    return Series(cases, labels or None, path.stem, ids=tuple(found), columns=columns)


def _check_header(where: str, header: list[str]) -> None:
    if not any(header):
        raise BadInput(f"{where}: the file is empty, expected a header")
    if len(set(header)) != len(header) or "" in header:
        raise BadInput(f"{where}: a column has no name or another's in {','.join(header)}")
    if "case" not in header:
        raise BadInput(f"{where}: no column `case` in {','.join(header)}")
    if not set(header) - {"case", "time", "label"}:
        raise BadInput(f"{where}: no channel beside {','.join(header)}")


def _number(where: str, column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise BadInput(f"{where}: column {column!r} holds {text!r}, expected a finite number")
    return number


_READERS: dict[str, Callable[[Path, str], Series]] = {".ts": _read_ts, ".npz": _read_npz, ".csv": _read_csv}
