"""Rows of finished jobs: one JSON file a field, whole at any moment, however many write to it."""

import fcntl
import json
import os
import platform
import resource
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from kernelhead.errors import BadInput
from kernelhead.records import read_json, write_text
from kernelhead.training.places import machine_of

Row = dict[str, Any]
CELL = ("data", "variant", "protocol")
IDENTITY = (*CELL, "seed", "recipe_hash")
DONE, FAILED = "done", "failed"
PACKAGES = ("kernelhead", "torch", "numpy", "triton", "aeon", "ray")


@dataclass(frozen=True)
class Ledger:
    """The rows of one field in a JSON file, one row a line, sorted by data set, variant, protocol and seed.

    A row is written under a lock and by renaming: a process killed at any time leaves the file as it
    was or with the row, and two processes that write to one ledger lose nothing.

    Args:
        path: the file; it and its folder are made with the first row.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> row = {"data": "a", "variant": "b", "protocol": "clean", "recipe_hash": "0", "status": "done"}
        >>> with TemporaryDirectory() as folder:
        ...     ledger = Ledger(Path(folder) / "tiny.json")
        ...     for seed in (1, 0, 1):
        ...         ledger.add({**row, "seed": seed})
        ...     print([row["seed"] for row in ledger.rows()])
        [0, 1]
    """

    path: Path

    def rows(self) -> list[Row]:
        """All rows; none where there is no file yet.

        Raises:
            BadInput: the file is not a ledger.
        """
        if not self.path.exists():
            return []
        rows = read_json(self.path).get("rows")
        if not isinstance(rows, list) or not all(
            isinstance(row, dict) and {*IDENTITY} <= {*row} for row in rows
        ):
            raise BadInput(f"{self.path} is not a ledger, expected rows with {', '.join(IDENTITY)}")
        return rows

    def add(self, row: Row) -> None:
        """Write a row, in place of an older one of the same job.

        Rows of the same data set, variant and protocol under another recipe go, so that a mean over
        seeds is never one over recipes.

        Raises:
            BadInput: the file is not a ledger.
            CheckpointError: it cannot be written.
        """
        with _locked(self.path.parent):
            for left in self.path.parent.glob(f".{self.path.name}.*"):  # by a writer that was killed
                left.unlink(missing_ok=True)
            kept = [old for old in self.rows() if _stands_beside(old, row)]
            rows = sorted([*kept, row], key=lambda each: (*(each[name] for name in CELL), each["seed"]))
            lines = ",\n".join(json.dumps(each, allow_nan=False, ensure_ascii=False) for each in rows)
            write_text(self.path, f'{{"field": {json.dumps(self.path.stem)}, "rows": [\n{lines}\n]}}\n')

    def by_job(self) -> dict[tuple[Any, ...], Row]:
        """All rows by the identity of their jobs."""
        return {tuple(row[name] for name in IDENTITY): row for row in self.rows()}


def digest(table: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that stand for a table, whatever the order of its entries.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})
        True
    """
    return sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


def machine() -> dict[str, str]:
    """Where this process computes: system, GPU if it used one or processor, threads."""
    return machine_of(torch.device("cuda" if _used_gpu() else "cpu"))


def versions() -> dict[str, str]:
    """Of all that figures depend on and that is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit() -> str | None:
    """The commit of this source, marked where the source differs from it; None outside a checkout."""
    here = Path(__file__).parent.parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=False)
        return "" if done.returncode else done.stdout.strip()

    with suppress(OSError):
        if git("ls-files", "__init__.py"):
            return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "-s", ".") else "")
    return None


def peak_mib() -> float:
    """Most memory this process has had in use: of the GPU where it used one, else its own."""
    if _used_gpu():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    if status.exists():
        # The figure of getrusage counts what the parent held when it started this process.
        lines = status.read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM")), 0.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _used_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0


def _stands_beside(old: Row, row: Row) -> bool:
    if any(old[name] != row[name] for name in CELL):
        return True
    return bool(old["seed"] != row["seed"] and old["recipe_hash"] == row["recipe_hash"])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone with a folder; the lock is the system's, so a process that is killed lets go of it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
