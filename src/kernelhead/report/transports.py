"""The section of the page about training as transport: its record, its charts and its rows."""

import math
from collections.abc import Mapping
from typing import Any

from kernelhead.errors import BadInput
from kernelhead.report.charts import Line, chart

FIGURES = {
    "optimality": "Optimality",
    "normalised_optimality": "Normalised",
    "matching": "Matching",
    "efficiency": "Efficiency",
    "thesis_efficiency": "Thesis efficiency",
    "monge_gap": "Monge gap",
    "cost_gap": "Gap of costs",
    "centred_gap": "Centred gap",
}
TRACED = {"optimality": "permutation", "matching": "untrained", "efficiency": "straight line"}


def check_transport(record: Mapping[str, Any], where: str) -> None:
    """Refuse a record that is not one of transport; an empty one is none.

    Raises:
        BadInput: it lacks something, or a number is not finite.

    Example:
        >>> check_transport({}, "transport.json")
    """
    if not record:
        return
    try:
        rows = [record["figures"], *record["nulls"].values(), *record["trace"]]
        numbers = [row[key] for row in rows for key in FIGURES] + [row["look"] for row in record["trace"]]
        whole = record["points"], record["looks"]
        if not isinstance(record["layer"], str) or not all(map(math.isfinite, [*numbers, *whole])):
            raise TypeError
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        expected = f"layer, points, looks, and figures, nulls and a trace with {', '.join(FIGURES)}"
        raise BadInput(f"{where}: expected {expected}, all finite") from error


def transport_charts(found: Mapping[int, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """A chart and a caption for each figure that is traced, beside the null that matters most for it.

    Args:
        found: records by the slot of their run.

    Example:
        >>> transport_charts({})
        []
    """
    drawn = []
    for key, null in TRACED.items():
        lines = []
        for slot, record in found.items():
            looks = [float(row["look"]) for row in record["trace"]]
            if looks:
                lines.append(Line(slot, looks, [row[key] for row in record["trace"]], name="training"))
                if null in record["nulls"]:
                    flat = [record["nulls"][null][key]] * len(looks)
                    lines.append(Line(slot, looks, flat, dashed=True, name=null))
        if lines:
            runs = len({line.slot for line in lines})
            label = f"Line chart: {key} of transport by look; runs: {runs}"
            svg = chart(lines, name=f"transport-{key}", label=label, axes=("look", key))
            drawn.append((svg, f"{FIGURES[key]} so far. Dashed, hollow: {null}."))
    return drawn


def transport_rows(record: Mapping[str, Any]) -> list[tuple[str, list[float]]]:
    """Figures of the training and below them those of every null, each with a name.

    Example:
        >>> row = dict.fromkeys(FIGURES, 1.0)
        >>> [name for name, _ in transport_rows({"figures": row, "nulls": {"permutation": row}})]
        ['training', 'permutation']
    """
    rows = {"training": record["figures"], **record["nulls"]}
    return [(name, [row[key] for key in FIGURES]) for name, row in rows.items()]
