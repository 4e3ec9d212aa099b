"""Benchmarks: one question a file, outside the package, of the checkout they stand in."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What is measured is this checkout, installed or not.
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))
