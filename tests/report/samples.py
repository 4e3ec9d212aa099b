"""Run folders with every record that the page shows, of plain numbers and names that try to break out."""

from math import cos, exp
from pathlib import Path
from typing import Any

from kernelhead import records
from kernelhead.report.flows import TABLES
from kernelhead.report.transports import FIGURES

HOSTILE = "<script>hacked = 1</script>'\"><img src=x onerror='hacked = 2'>&amp;"
LAYERS = ("blocks.0.attention", "blocks.1.attention")


def write_runs(folder: Path) -> list[Path]:
    """Two trained runs, one of which has a hostile name, and a folder of trials."""
    runs = [write_run(folder / "first", "primal", slot=0), write_run(folder / "second", HOSTILE, slot=1)]
    records.write_json(folder / "trials" / records.ROBUSTNESS, robustness())
    return [*runs, folder / "trials"]


def write_run(
    folder: Path,
    name: str,
    *,
    slot: int = 0,
    layers: int = 2,
    heads: int = 3,
    epochs: int = 4,
    cells: int = 6,
) -> Path:
    """A run with all its records."""
    config = {"name": name, "data": HOSTILE, "attention": "primal", "epochs": epochs, "rank": 4 + slot}
    records.write_json(folder / records.CONFIG, config | {"width": 64})
    rows = [
        {
            **{"epoch": epoch, "train_loss": 2 / epoch + slot, "valid_loss": 3 / epoch, "seconds": 0.5},
            **{"train_accuracy": 1 - 0.5 / epoch, "valid_accuracy": 1 - 0.6 / epoch, "penalty": 1 / epoch},
            **{"objective_left": 1.0, "objective_right": 2.0, "objective_trace": 3 - 1 / epoch},
        }
        for epoch in range(1, epochs + 1)
    ]
    records.write_lines(folder / records.METRICS, rows)
    result = {
        **{"name": name, "data": "Vowels", "test_accuracy": 0.9 - slot / 10, "test_cases": 100},
        **{"parameters": 90 + 1000 * slot, "best_epoch": epochs, "valid_accuracy": 0.85},
        **{"machine": {"device": HOSTILE}, "versions": {"torch": "2"}, "date": "2026-11-16"},
    }
    records.write_json(folder / records.RESULT, result)
    paths = [f"blocks.{layer}.attention" for layer in range(layers)]
    records.write_json(folder / records.SPECTRUM, {"layers": [spectrum(path, heads) for path in paths]})
    # The second run has one layer less on its maps.
    maps = [map_of(path, heads, cells) for path in paths[: layers - slot]]
    records.write_json(folder / records.MAPS, {"layers": maps, "data": HOSTILE, "case": 0}, indent=None)
    records.write_json(folder / records.KPCA, {"layers": [aligned(path, heads) for path in paths]})
    records.write_json(folder / records.FLOW, flow())
    records.write_json(folder / records.GRAPH, graph(heads))
    records.write_json(folder / records.TRANSPORT, transport())
    return folder


def spectrum(path: str, heads: int) -> dict[str, Any]:
    values = [[exp(-component * (head + 1) / 3) for component in range(12)] for head in range(heads)]
    ranks = dict.fromkeys(("energy_rank_90", "energy_rank_95", "energy_rank_99"), [2] * heads)
    return {
        "path": path,
        "kind": "PrimalAttention",
        "heads": values,
        "effective_rank": [1.5] * heads,
        **ranks,
    }


def map_of(path: str, heads: int, cells: int) -> dict[str, Any]:
    drawn = [
        [[cos(head + row * column) / cells for column in range(cells)] for row in range(cells)]
        for head in range(heads)
    ]
    return {"path": path, "kind": "PrimalAttention", "points": [2 * cells, 2 * cells], "heads": drawn}


def aligned(path: str, heads: int) -> dict[str, Any]:
    figures = {"explained": 0.9, "cosine_mean": 0.8, "span_residual": 0.2, "bessel_rate": 0.5}
    lower = [figures | {"explained": 0.7}] * heads
    baselines = {"permuted": lower, "redrawn": lower}
    return {"path": path, "verdict": "does not hold", "heads": [figures] * heads, "baselines": baselines}


def flow() -> dict[str, Any]:
    table = [[0.75, 0.25], [0.5, 0.5]]
    layers = [
        {"path": path, "imf": 0.375, "uniform_imf": 0.4, **dict.fromkeys(TABLES, table)} for path in LAYERS
    ]
    return {"groups": {"words": 2, HOSTILE: 4}, "layers": layers, "cases": 3, "length": 6}


def graph(heads: int) -> dict[str, Any]:
    drawn = {
        **{"names": [HOSTILE, "b", "c"], "nodes": [0, 1, 2], "marks": [[0, 2, 0], [1, 0, 2], [0, 3, 0]]},
        **{"edges": [{"from": 0, "marks": "o->", "to": 1}], "shared": {"random": 0.5}, "notes": []},
    }
    return {"path": LAYERS[1], "heads": [{"head": head, **drawn} for head in range(heads)]}


def transport() -> dict[str, Any]:
    row = dict.fromkeys(FIGURES, 0.5)
    trace = [{"look": look, **row} for look in (1, 2, 3)]
    nulls = dict.fromkeys(("permutation", "untrained", "straight line"), row)
    return {"layer": "blocks", "points": 9, "looks": 3, "figures": row, "nulls": nulls, "trace": trace}


def robustness() -> dict[str, Any]:
    rows = [
        {
            **{"part": "images", "data": "grey", "row": row, "seed": seed, "status": "ok", "clean": 0.7},
            **{"attacks": {"FGSM 1/255": 0.3 + 0.1 * seed}, "corruptions": {"gaussian_noise": [0.4, 0.2]}},
            **{"dropped": {"25%": 0.6}, "contaminated": {"2%, first layer": 0.5}, "brier": 0.4},
        }
        for row in ("softmax", HOSTILE)
        for seed in (0, 1)
    ]
    words = {"part": "words", "data": "text", "row": "softmax", "status": "ok", "clean": 150.0}
    return {"rows": [*rows, words | {"swapped": {"5% random": 180.0}}], "date": "2026-11-16"}
