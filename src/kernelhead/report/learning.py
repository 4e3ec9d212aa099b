"""The sections of the page about training: loss and accuracy, and the objective J with its parts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernelhead.report.charts import Line, chart

Rows = Sequence[Mapping[str, Any]]  # one an epoch

PARTS = ("objective_left", "objective_right", "objective_trace")
_LEARNED = (
    ("loss", "loss", 1, "Loss. Solid: validation; dashed, hollow: training."),
    ("accuracy", "accuracy, %", 100, "Accuracy. Solid: validation; dashed, hollow: training."),
)
_OBJECTIVE = (
    ("objective", "J", "J: its left and its right part less its trace; 0 for a kernel SVD."),
    ("objective_left", "left part", "Left part: half the second moments of the left scores, by the values."),
    ("objective_right", "right part", "Right part: the same of the right scores."),
    ("objective_trace", "trace", "Trace of the product of both weights."),
    ("penalty", "penalty", "Penalty: mean of J squared, what training adds to the loss."),
)


def learning_charts(runs: Sequence[Rows]) -> list[tuple[str, str]]:
    """Charts of loss and accuracy over epochs with their captions, those that have a number to show.

    Example:
        >>> learning_charts([[{"epoch": 1}]])
        []
    """
    drawn = []
    for name, unit, scale, caption in _LEARNED:
        lines = [
            Line(slot, x, [scale * value for value in y], dashed=part == "training", name=part)
            for slot, rows in enumerate(runs)
            for key, part in ((f"train_{name}", "training"), (f"valid_{name}", "validation"))
            for x, y in [_curve(rows, key)]
            if not all(map(math.isnan, y))
        ]
        drawn += _drawn(lines, name, unit, caption)
    return drawn


def objective_charts(runs: Sequence[Rows]) -> list[tuple[str, str]]:
    """Charts of J, its three parts and the penalty over epochs with their captions, those that are known.

    Example:
        >>> row = {"epoch": 1, "objective_left": 2.0, "objective_right": 1.0, "objective_trace": 3.0}
        >>> [caption[:10] for _, caption in objective_charts([[row]])]
        ['J: its lef', 'Left part:', 'Right part', 'Trace of t']
    """
    whole = [[{**row, "objective": _objective(row)} for row in rows] for rows in runs]
    drawn = []
    for key, unit, caption in _OBJECTIVE:
        curves = [_curve(rows, key) for rows in whole]
        lines = [
            Line(slot, *curve) for slot, curve in enumerate(curves) if not all(map(math.isnan, curve[1]))
        ]
        drawn += _drawn(lines, key.replace("_", "-"), unit, caption)
    return drawn


def _objective(row: Mapping[str, Any]) -> float | None:
    left, right, trace = (row.get(key) for key in PARTS)
    return None if left is None or right is None or trace is None else float(left + right - trace)


def _drawn(lines: Sequence[Line], name: str, unit: str, caption: str) -> list[tuple[str, str]]:
    if not lines:
        return []
    label = f"Line chart: {name.replace('-', ' ')} by epoch; runs: {len({line.slot for line in lines})}"
    return [(chart(lines, name=name, label=label, axes=("epoch", unit)), caption)]


def _curve(rows: Rows, key: str) -> tuple[list[float], list[float]]:
    """Epochs and values of one metric; what is missing or not finite is a gap."""
    values = [math.nan if row.get(key) is None else float(row[key]) for row in rows]
    return [row["epoch"] for row in rows], [v if math.isfinite(v) else math.nan for v in values]
