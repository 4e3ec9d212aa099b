"""The section of the page about robustness: the record of `kernelhead bench robustness`, as bars."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from kernelhead.errors import BadInput

_CALIBRATION = {
    "likelihood": "negative log-likelihood",
    "brier": "Brier score",
    "calibration": "calibration error",
    "calibration_corrupted": "calibration error, corrupted",
}
_SHARES = ("clean", "chosen")


@dataclass(frozen=True)
class Bar:
    """One attention in one trial: mean over seeds, deviation if there are several, both over the full width.

    Example:
        >>> Bar("softmax", 0, 70.0, 1.5, 100.0).share
        70.0
    """

    name: str
    slot: int
    value: float
    deviation: float | None
    full: float

    @property
    def words(self) -> str:
        """The mean, as it is written."""
        return self._written(self.value)

    @property
    def spread(self) -> str:
        """The deviation, as it is written; empty where it is not known."""
        return "" if self.deviation is None else self._written(self.deviation)

    def _written(self, value: float) -> str:
        return f"{value:.1f}" if self.full >= 10 else f"{value:.3f}"

    @property
    def share(self) -> float:
        """Length of the bar, % of the full width."""
        return 100 * max(0.0, min(1.0, self.value / self.full)) if self.full else 0.0

    @property
    def whisker(self) -> tuple[float, float]:
        """Where the whisker starts, and how long it is, % of the full width."""
        spread, full = self.deviation or 0.0, self.full or 1.0
        start, end = (max(0.0, min(1.0, each / full)) for each in (self.value - spread, self.value + spread))
        return 100 * start, 100 * (end - start)


def check_robustness(record: Mapping[str, Any], where: str) -> None:
    """Refuse a record that is not one of robustness; an empty one is none.

    Raises:
        BadInput: it lacks something, or a figure is no number.

    Example:
        >>> check_robustness({}, "robustness.json")
    """
    try:
        for row in record["rows"] if record else []:
            if not all(isinstance(row[key], str) for key in ("part", "data", "row", "status")):
                raise TypeError
            if not all(math.isfinite(each) for each in _figures(row).values()):
                raise TypeError
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        expected = "part, data, row and status, and figures that are finite numbers"
        raise BadInput(f"{where}: expected rows, each with {expected}") from error


def robustness_bars(record: Mapping[str, Any]) -> list[tuple[str, str, list[Bar]]]:
    """What was tried, in which trial, and a bar for every attention, in the order of the record.

    Rows that were not measured to the end are left out. Shares go up to 100, other bars up to the longest of
    their trial.

    Example:
        >>> row = {"part": "words", "data": "text", "row": "softmax", "status": "ok", "clean": 8.0}
        >>> robustness_bars({"rows": [row, row | {"clean": 6.0}]})[0][:2]
        ('text: perplexity, lower is better', 'clean')
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in record.get("rows", []):
        if row["status"] == "ok":
            for place, value in _figures(row).items():
                found.setdefault(place, {}).setdefault(row["row"], []).append(float(value))
    names = [*dict.fromkeys(name for rows in found.values() for name in rows)]
    bars = []
    for (group, trial), rows in found.items():
        means = {name: mean(values) for name, values in rows.items()}
        full = 100.0 if group.endswith("%") else max(means.values())
        each = [
            Bar(name, names.index(name), means[name], stdev(values) if len(values) > 1 else None, full)
            for name, values in rows.items()
        ]
        bars.append((group, trial, each))
    return bars


def _figures(row: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Figures of a row by what was tried and in which trial."""
    data = row["data"]
    if row["part"] == "words":
        under = f"{data}: perplexity, lower is better"
        clean = {(under, "clean"): row["clean"]} if "clean" in row else {}
        return clean | {(under, name): value for name, value in row.get("swapped", {}).items()}
    attacks = {key: row[key] for key in _SHARES if key in row} | {**row.get("attacks", {})}
    corrupted = {name: _mean(levels) for name, levels in row.get("corruptions", {}).items()}
    parts: Sequence[tuple[str, Mapping[str, float]]] = (
        ("attacked, accuracy in %", attacks),
        ("corrupted, mean accuracy of five severities in %", corrupted),
        ("patches dropped, accuracy in %", row.get("dropped", {})),
        ("keys spoilt, accuracy in %", row.get("contaminated", {})),
    )
    shares = {
        (f"{data}: {title}", _NAMES.get(name, name.replace("_", " "))): 100 * value
        for title, figures in parts
        for name, value in figures.items()
    }
    lower = f"{data}: calibration, lower is better"
    return shares | {(lower, title): row[key] for key, title in _CALIBRATION.items() if key in row}


_NAMES = {"clean": "clean, all cases", "chosen": "clean, those attacked"}


def _mean(levels: Sequence[float]) -> float:
    return sum(levels) / len(levels) if levels else math.nan
