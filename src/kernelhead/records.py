"""What a run leaves behind: JSON written whole or not at all, and metrics one line an epoch."""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from shutil import rmtree
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from kernelhead.errors import BadInput, CheckpointError

CONFIG = "config.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
SPECTRUM = "spectrum.json"
KPCA = "kpca.json"
MAPS = "maps.json"
ROBUSTNESS = "robustness.json"
FLOW = "flow.json"
GRAPH = "graph.json"
DOT = "graph.dot"
TRANSPORT = "transport.json"
WEIGHTS = "weights.safetensors"
CHECKPOINT = "checkpoint.safetensors"
REPORT = "report.html"
DEAD_AFTER = 3600.0  # seconds without a word, after which a writer is taken for dead


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write to a temporary file in the same folder, then rename it over `path`.

    A reader, or a run killed in between, sees the old file or the new one, never a part. What a killed
    writer of the same file left an hour ago or more is taken away.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{escape(path.name)}.*"):
            with suppress(OSError):  # it was alive and is done
                if left.stat().st_mtime < time.time() - DEAD_AFTER:
                    take_away(left)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as handle:
            temporary = Path(handle.name)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def take_away(left: Path) -> None:
    """Remove what a writer that was killed left: a temporary file, or a folder with one."""
    if left.is_dir():
        rmtree(left, ignore_errors=True)
    else:
        left.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_json(path: Path, record: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write one JSON object, sorted as given and readable; whole or not at all. One line without indent.

    Args:
        record: the object.
    """
    write_text(path, _json(path, record, indent=indent, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        BadInput: the file is missing, or is not a JSON object.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:  # numbers can be too long, and lists too deep
        raise BadInput(f"{path} is not a readable JSON file: {error}") from error
    if not isinstance(record, dict):
        raise BadInput(f"{path} holds a {type(record).__name__}, expected a JSON object")
    return record


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON lines, whole or not at all: metrics stay small, so each epoch rewrites them."""
    write_text(path, "".join(_json(path, row) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a missing file has none.

    Raises:
        BadInput: the file cannot be read, or a line is not JSON, named by its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadInput(f"{path}, line {number} holds a {type(row).__name__}, expected a JSON object")
        rows.append(row)
    return rows


def plain(value: object) -> Any:
    """What JSON holds in place of a number of numpy's.

    Args:
        value: that JSON does not hold as it is.

    Raises:
        TypeError: nor is it such a number.

    Example:
        >>> json.dumps({"rank": np.int64(3)}, default=plain)
        '{"rank": 3}'
    """
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}, which JSON does not hold")


def _json(path: Path, record: Mapping[str, Any], **form: Any) -> str:
    try:
        return json.dumps(record, allow_nan=False, default=plain, **form)
    except ValueError as error:
        raise BadInput(f"{path} is not written, a number in it is not finite: {error}") from error
