"""The section of the page about attention itself: its record, and heat maps as bytes for the script."""

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.errors import BadInput

CELLS = 500_000  # of all maps of a page together: more are drawn coarser


def check_maps(record: Mapping[str, Any], where: str) -> None:
    """Refuse a record that is not one of maps; an empty one is none.

    Raises:
        BadInput: it lacks something, or a number is not finite.

    Example:
        >>> check_maps({}, "maps.json")
    """
    try:
        for layer in record["layers"] if record else []:
            (n, m), heads = layer["points"], [_matrix(head) for head in layer["heads"]]
            if not all(isinstance(layer[key], str) for key in ("path", "kind")):
                raise TypeError
            for head in heads:
                if not (1 <= head.shape[0] <= n and 1 <= head.shape[1] <= m and np.isfinite(head).all()):
                    raise TypeError
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        expected = "a path, a kind, points and heads, which are rows of finite numbers, no more than points"
        raise BadInput(f"{where}: expected layers, each with {expected}") from error


def drawable(records: Sequence[Mapping[str, Any]], *, most: int = CELLS) -> list[list[dict[str, Any]]]:
    """For each record its layers, each head's cells as one byte between its least and its largest value.

    Args:
        records: of maps, one a run; an empty one has no layers.
        most: cells of all heads of all records; beyond it neighbours are drawn as one.

    Example:
        >>> layer = {"path": "a", "kind": "b", "points": [2, 2], "heads": [[[0.0, 1.0], [0.5, 0.0]]]}
        >>> drawable([{"layers": [layer]}])[0][0]["heads"]
        [{'low': 0.0, 'high': 1.0, 'cells': 'AP+AAA=='}]
    """
    layers_of = [each.get("layers", []) for each in records]
    read = [[(layer, [*map(_matrix, layer["heads"])]) for layer in layers] for layers in layers_of]
    cells = sum(head.size for layers in read for _, heads in layers for head in heads)
    step = max(1, math.ceil(math.sqrt(cells / most)))
    return [
        [
            {
                **{key: layer[key] for key in ("path", "kind", "points")},
                "shape": [-(-size // step) for size in heads[0].shape] if heads else [0, 0],
                "heads": [_bytes(_coarser(head, step)) for head in heads],
            }
            for layer, heads in layers
        ]
        for layers in read
    ]


def _matrix(rows: Any) -> NDArray[np.float64]:
    matrix = np.asarray(rows, dtype=np.float64)
    if matrix.ndim != 2:
        raise TypeError
    return matrix


def _coarser(cells: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    """Means of so many neighbours on both sides."""
    for axis in (0, 1):
        starts = np.arange(0, cells.shape[axis], step)
        counts = np.diff([*starts, cells.shape[axis]])
        cells = np.add.reduceat(cells, starts, axis) / np.expand_dims(counts, 1 - axis)
    return cells


def _bytes(cells: NDArray[np.float64]) -> dict[str, Any]:
    low, high = float(cells.min()), float(cells.max())
    steps = np.zeros(cells.shape) if low == high else 255 * (cells - low) / (high - low)
    return {
        "low": float(f"{low:.4g}"),
        "high": float(f"{high:.4g}"),
        "cells": b64encode(steps.round().astype(np.uint8).tobytes()).decode("ascii"),
    }
