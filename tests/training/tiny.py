"""Runs that take a moment: small series, as files too, a small recipe, and the command line."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kernelhead.data import Series, echo_series, padded
from kernelhead.training import Recipe

SIZES: dict[str, Any] = {"width": 8, "depth": 1, "heads": 2, "rank": 2, "batch": 8, "accelerator": "cpu"}


def series(cases: int = 24, *, seed: int = 0, classes: int = 2, channels: int = 2) -> Series:
    """Echoes of at most 18 time stamps."""
    return echo_series(cases, length=18, channels=channels, classes=classes, seed=seed)


def recipe(data: object = "memory", **changes: Any) -> Recipe:
    """A recipe of three epochs of a very small model."""
    return Recipe(**{"data": str(data), "epochs": 3, **SIZES, **changes})


def write_csv(path: Path, held: Series, *, labels: bool = True) -> Path:
    """The series as a CSV file."""
    lines = [",".join(["case", "time", *(["label"] * labels), *(f"c{a}" for a in range(held.channels))])]
    for number, case in enumerate(held.cases):
        label = [held.labels[number]] if labels and held.labels is not None else []
        lines += [
            ",".join([held.ids[number], str(time), *label, *map(repr, map(float, row))])
            for time, row in enumerate(case)
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_npz(path: Path, **parts: Series) -> Path:
    """The series as an archive, one part a name: train, test, or the empty name for a whole."""
    arrays: dict[str, Any] = {}
    for part, held in parts.items():
        values, mask = padded(held, range(len(held)))
        ending = "" if part == "whole" else f"_{part}"
        arrays |= {f"x{ending}": values, f"{'length' if not ending else f'len{ending}'}": mask.sum(1)}
        arrays |= {} if held.labels is None else {f"y{ending}": np.array(held.labels)}
    np.savez(path, **arrays)
    return path


def options(**changes: Any) -> list[str]:
    """The small recipe as options of the command line."""
    return [word for name, value in {**SIZES, **changes}.items() for word in (f"--{name}", str(value))]


def start(*words: object, cwd: Path) -> "subprocess.Popen[str]":
    """The command line in a process, and a process group, of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "kernelhead.cli", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def call(*words: object, cwd: Path, code: int = 0) -> tuple[str, str]:
    """Run it to its end and return what it wrote to both streams."""
    process = start(*words, cwd=cwd)
    out, err = process.communicate(timeout=120)
    if process.returncode != code:
        raise AssertionError(f"exit code {process.returncode}, expected {code}: {out}{err}")
    return out, err
