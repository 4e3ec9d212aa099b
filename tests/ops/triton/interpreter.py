"""Triton's interpreter: it is chosen when a kernel is defined, so tests of it need a process of their own."""

import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent


def precisions(names: Iterable[str], half: Collection[str]) -> list[Any]:
    """Every case in both precisions; half precision of those that are not in `half` takes `long`."""
    singles = [pytest.param(name, torch.float32, id=name) for name in names]
    return singles + [
        pytest.param(name, torch.float16, id=f"{name}, half", marks=() if name in half else pytest.mark.long)
        for name in names
    ]


def interpreted(file: str, *words: str) -> int:
    """How many tests of a file beside this one pass in the interpreter; none may fail."""
    # Lines are counted by changing code, which the interpreter does not take.
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SLIPCOVER")}
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words, str(HERE / file)],
        cwd=HERE.parents[2],
        env={**mine, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-1000:]
    passed = re.search(r"^(\d+) passed", made.stdout, re.MULTILINE)
    return int(passed[1]) if passed else 0
