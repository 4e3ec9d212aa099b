"""How much the command line says: results always, remarks unless it is quiet, details where it is verbose."""

import json
import math
import sys
from dataclasses import dataclass
from typing import Any


@dataclass
class Voice:
    """What --quiet and --verbose ask for."""

    quiet: bool = False
    verbose: bool = False


VOICE = Voice()


def complain(text: str) -> None:
    """One line on the error stream."""
    print(f"kernelhead: {text}", file=sys.stderr)


def detail(text: str) -> None:
    """One line on the error stream, for those who asked for more."""
    if VOICE.verbose:
        complain(text)


def say_json(record: dict[str, Any]) -> None:
    """A record for another program: JSON that every reader takes, on one stream and alone there."""
    print(json.dumps(finite(record), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """The same with None for every number that JSON cannot write.

    Example:
        >>> finite({"loss": float("nan"), "shape": (1, 2)})
        {'loss': None, 'shape': [1, 2]}
    """
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
