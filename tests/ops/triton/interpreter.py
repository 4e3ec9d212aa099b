"""Triton's interpreter: it is chosen when a kernel is defined, so tests of it need a process of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def interpreted(file: str) -> int:
    """How many tests of a file beside this one pass in the interpreter; none may fail."""
    # Lines are counted by changing code, which the interpreter does not take.
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SLIPCOVER")}
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(HERE / file)],
        cwd=HERE.parents[2],
        env={**mine, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-1000:]
    passed = re.search(r"^(\d+) passed", made.stdout, re.MULTILINE)
    return int(passed[1]) if passed else 0
