"""What readers of known sets share: checked files, files made from them once, and a part held out."""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.readers import ROOT
from kernelhead.errors import BadInput, CheckpointError, unknown
from kernelhead.records import write_atomically
from kernelhead.shapes import check_size

CACHE = Path("~/.cache/kernelhead")
WRITABLE = 0o222  # by whom ever
PARTS = ("train", "validation", "test")


def root_of(who: str, place: str, root: str | Path | None) -> Path:
    """The folder of data sets, in which `place` is looked for.

    Args:
        who: name of the function that complains.
        place: path inside the folder.
        root: the folder; the environment variable KERNELHEAD_DATA if left out.

    Raises:
        BadInput: none is named, or it is not there.
    """
    root = root or os.environ.get(ROOT)
    if not root:
        raise BadInput(f"{who}: {place} is in no known folder; give `root` or set the variable {ROOT}")
    if not Path(root).is_dir():
        raise BadInput(f"{who}: the data root {root} is not a folder; see the variable {ROOT}")
    return Path(root)


def folder_of(name: str, root: str | Path | None = None) -> Path | None:
    """The folder of a set that users bring along, or None where it is not there.

    Args:
        name: of the folder.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.

    Example:
        >>> folder_of("imagenet1k", "nowhere") is None
        True
    """
    root = root or os.environ.get(ROOT)
    return Path(root) / name if root and (Path(root) / name).is_dir() else None


def read_checked(who: str, place: str, digest: str, root: str | Path | None) -> bytes:
    """The bytes of a file in the folder of data sets.

    Args:
        who: name of the function that complains.
        place: path inside the folder.
        digest: first 16 hexadecimal digits of the SHA-256 that the file must have.
        root: the folder; the environment variable KERNELHEAD_DATA if left out.

    Raises:
        BadInput: there is no folder or no such file, or the file is another one.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "a.txt").write_text("abc")
        ...     read_checked("f", "a.txt", "ba7816bf8f01cfea", folder)
        b'abc'
    """
    path = root_of(who, place, root) / place
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{who}: {path} cannot be read: {error.strerror or error}") from error
    found = sha256(content).hexdigest()[: len(digest)]
    if found != digest:
        raise BadInput(f"{who}: {path} has the SHA-256 {found}, expected {digest}; the file is another one")
    return content


def made_once(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    """A file that is made from the data of a folder when it is first asked for.

    It is kept in FOLDER/cache, or, where nothing can be written there or the folder is marked as one that
    nobody writes to, which binds root too, in a folder of the same name in ~/.cache/kernelhead.

    Args:
        folder: of the data.
        name: of the file; see `stamp` for one that changes with the data.
        write: makes the file at a path, which is renamed when it is whole.

    Raises:
        CheckpointError: neither place can be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     made_once(Path(folder), "a.txt", lambda path: path.touch()).relative_to(folder).as_posix()
        'cache/a.txt'
    """
    beside = folder / "cache" / name
    elsewhere = CACHE.expanduser() / folder.name / name
    for place in (beside, elsewhere):
        if place.is_file():
            return place
    held = next(place for place in beside.parents if place.exists())
    if held.stat().st_mode & WRITABLE:
        try:
            write_atomically(beside, write)
        except CheckpointError:
            pass
        else:
            return beside
    write_atomically(elsewhere, write)
    return elsewhere


def stamp(*paths: Path) -> str:
    """Sixteen hexadecimal digits of the names, sizes and times of files: another file has others."""
    seen = [(path.name, (about := path.stat()).st_size, about.st_mtime_ns) for path in paths]
    return sha256(repr(seen).encode()).hexdigest()[:16]


def in_part(
    who: str, labels: NDArray[np.int64], part: str, *, validation: float, seed: int
) -> NDArray[np.bool_]:
    """Which cases are in a part: of training cases a share of every class validates, test cases all test.

    Every class keeps a case for training, and a class of two cases or more gives one up at least.

    Shapes: labels (n,); returns (n,).

    Args:
        who: name of the function that complains.
        validation: the share; with 0 all cases are in the training part.
        seed: names the draw.

    Raises:
        BadInput: the share is not in [0, 1), or it leaves no validation part that was asked for.

    Example:
        >>> labels = np.array([0, 0, 0, 0, 1, 1])
        >>> int(in_part("f", labels, "validation", validation=0.5, seed=0).sum())
        3
    """
    if not 0 <= validation < 1:
        raise BadInput(f"{who}: validation is {validation!r}, expected a number in [0, 1)")
    draws = np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels) if validation and part != "test" else ():
        members = np.flatnonzero(labels == label)
        count = min(max(round(validation * len(members)), 1), len(members) - 1)
        held_out[draws.permutation(members)[:count]] = True
    if part == "validation" and not held_out.any():
        raise BadInput(f"{who}: a validation share of {validation!r} holds out none of {len(labels)} cases")
    return held_out if part == "validation" else ~held_out


def check_part(who: str, part: str) -> str:
    """Check that a part is train, validation or test, and return the one it is cut from.

    Raises:
        UnknownName: it is none of them.

    Example:
        >>> check_part("f", "validation")
        'train'
    """
    if part not in PARTS:
        raise unknown(who, "split", part, PARTS)
    return "test" if part == "test" else "train"
