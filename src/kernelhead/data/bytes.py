"""Corpora as bytes, for language models without a vocabulary: known texts, installed sources, any files."""

import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.sources import check_part, read_checked
from kernelhead.data.text import BYTES, DIGESTS, read_bytes
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

PYTHON, WIKITEXT = "python", "wikitext2"
TWENTIETHS = {"train": (0, 18), "validation": (18, 19), "test": (19, 20)}


def read_corpus(
    name: str | Path, *, split: str = "train", root: str | Path | None = None, most: int | None = None
) -> NDArray[np.uint8]:
    """Read a corpus as bytes.

    - ``tinyshakespeare``, ``imdb``: as `read_bytes` has them.
    - ``wikitext2``: its three files as they are, 10.8, 1.1 and 1.3 million bytes.
    - ``python``: sources of the Python that runs, standard library first, then installed packages. These
      differ from machine to machine.
    - a folder: all its text files (.txt, .md, .py, .rst), in the order of their names.
    - a file: its first eighteen twentieths train, the next one validates, the last one tests.

    Of several files each nineteenth of twenty validates and each twentieth tests, and all are joined.

    Shapes: returns (n,).

    Args:
        name: one of these names, or a path.
        split: train, validation or test.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.
        most: bytes to stop at; all if None.

    Raises:
        BadInput: a file is missing or is another one, or the corpus is empty.
        UnknownName: there is no such split.

    Example:
        >>> read_corpus("python", most=1000).shape
        (1000,)
    """
    who = "read_corpus"
    check_part(who, split)
    if most is not None:
        check_size(who, "most", most)
    if name in BYTES:
        return read_bytes(str(name), split=split, root=root)[:most]
    if name == WIKITEXT:
        place = f"{WIKITEXT}/{'valid' if split == 'validation' else split}.txt.xz"
        return np.frombuffer(lzma.decompress(read_checked(who, place, DIGESTS[place], root)), np.uint8)[:most]
    if Path(name).is_file():
        found = _cut(Path(name).read_bytes(), split)
    else:
        found = _joined(_files(who, name), split, most)
    if not found:
        raise BadInput(f"{who}: the {split} part of {name} is empty, expected a byte or more")
    return np.frombuffer(found, np.uint8)[:most]


def _cut(whole: bytes, split: str) -> bytes:
    first, last = (len(whole) * cut // 20 for cut in TWENTIETHS[split])
    return whole[first:last]


def _files(who: str, name: str | Path) -> Iterator[Path]:
    if name == PYTHON:
        folders, endings = [Path(get_path("stdlib")), Path(get_path("purelib"))], {".py"}
    elif Path(name).is_dir():
        folders, endings = [Path(name)], {".txt", ".md", ".py", ".rst"}
    else:
        known = ", ".join((*BYTES, WIKITEXT, PYTHON))
        raise BadInput(f"{who}: {name} is no file, no folder and none of {known}")
    seen: set[Path] = set()
    for folder in folders:
        for place, inside, names in os.walk(folder):
            inside.sort()
            for path in (Path(place) / each for each in sorted(names)):
                if path.suffix in endings and path not in seen:
                    seen.add(path)
                    yield path


def _joined(files: Iterator[Path], split: str, most: int | None) -> bytes:
    """The files of a part; reading ends with the one that reaches `most`."""
    kept, total = [], 0
    first, last = TWENTIETHS[split]
    for place, path in enumerate(files):
        if first <= place % 20 < last:
            kept.append(path.read_bytes())
            total += len(kept[-1])
            if most is not None and total >= most:
                break
    return b"\n".join(kept)
