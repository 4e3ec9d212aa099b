"""The section of the page about flow between groups of points: its record, its chart and its rows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernelhead.errors import BadInput
from kernelhead.report.charts import Line, chart

TABLES = ("single", "cumulative", "uniform", "regrouped")  # of a layer, from each group to each


def check_flow(record: Mapping[str, Any], where: str) -> None:
    """Refuse a record that is not one of flow; an empty one is none.

    Raises:
        BadInput: it lacks something, or a number is not finite.

    Example:
        >>> check_flow({}, "flow.json")
    """
    try:
        for layer in record["layers"] if record else []:
            tables = [layer[key] for key in TABLES]
            numbers = [
                layer["imf"],
                layer["uniform_imf"],
                *(n for table in tables for row in table for n in row),
            ]
            lengths = {len(rows) for table in tables for rows in (table, *table)}
            if not isinstance(layer["path"], str) or lengths != {len(record["groups"])}:
                raise TypeError
            if not all(map(math.isfinite, numbers)):
                raise TypeError
    except (KeyError, TypeError, OverflowError) as error:
        expected = f"a path, imf, uniform_imf and {', '.join(TABLES)} from each group to each"
        raise BadInput(f"{where}: expected groups and layers, each with {expected}") from error


def flow_chart(flows: Mapping[int, Mapping[str, Any]]) -> str:
    """Flow between groups by layer, beside that of uniform attention; empty where there is none.

    Args:
        flows: records by the slot of their run.

    Example:
        >>> flow_chart({})
        ''
    """
    lines = [
        Line(slot, [*range(1, len(layers) + 1)], [layer[key] for layer in layers], dashed=dashed, name=name)
        for slot, record in flows.items()
        if (layers := record["layers"])
        for key, name, dashed in (("imf", "attention", False), ("uniform_imf", "uniform", True))
    ]
    label = f"Line chart: flow between groups by layer; runs: {len(lines) // 2}"
    return chart(lines, name="flow", label=label, axes=("layers", "from other groups")) if lines else ""


def flow_rows(record: Mapping[str, Any]) -> list[tuple[str, str, Sequence[float | None]]]:
    """For every layer and pair of groups the layer, who reads from whom, and how much.

    Example:
        >>> table = [[0.75, 0.25], [0.5, 0.5]]
        >>> layer = {"path": "0", **dict.fromkeys(TABLES, table)}
        >>> flow_rows({"groups": {"words": 2, "image": 4}, "layers": [layer]})[0]
        ('0', 'words ← image', [0.25, 0.25, 0.25, 0.25, 1.0])
    """
    rows: list[tuple[str, str, Sequence[float | None]]] = []
    for layer in record["layers"]:
        for place, reader in enumerate(record["groups"]):
            for other, source in enumerate(record["groups"]):
                if place != other:
                    found = [layer[key][place][other] for key in TABLES]
                    _, cumulated, uniform, _ = found
                    relative = cumulated / uniform if uniform else None
                    rows.append((layer["path"], f"{reader} ← {source}", [*found, relative]))
    return rows
