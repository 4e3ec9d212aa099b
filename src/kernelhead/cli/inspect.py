"""kernelhead inspect: read the attention of a trained run."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from kernelhead.cli.terminal import CONSOLE, say, say_json
from kernelhead.data import read_series
from kernelhead.errors import unknown
from kernelhead.records import SPECTRUM, write_json
from kernelhead.training import load_run

HELP = "read the attention of a trained run: the spectrum of every layer and head"
EXAMPLE = "kernelhead inspect spectrum runs/mine"
READINGS = ("spectrum",)


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("reading", help="what to read: spectrum")
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("data", nargs="?", help="data set or file; the run's own by default")
    parser.add_argument("--split", default="train", help="train or test")
    parser.add_argument("--cases", type=int, default=16, help="cases to read from")
    parser.add_argument("--root", type=Path, help="folder of data sets; KERNELHEAD_DATA by default")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Load, read, print; the record also goes to the run folder, for the report."""
    if chosen.reading not in READINGS:
        raise unknown("inspect", "reading", chosen.reading, READINGS)
    trained = load_run(chosen.run)
    series = read_series(chosen.data or trained.recipe.data, split=chosen.split, root=chosen.root)
    found, record = trained.spectra(series, cases=chosen.cases)
    write_json(chosen.run / SPECTRUM, record)
    if chosen.json:
        say_json(record)
        return 0
    table = Table("layer", "kind", "head", "sigma 1", "effective rank", "90 %", "95 %", "99 % of energy")
    for layer in found:
        for head, values in enumerate(layer.heads):
            ranks = layer.energy_rank_90[head], layer.energy_rank_95[head], layer.energy_rank_99[head]
            first = (layer.path, layer.kind) if head == 0 else ("", "")
            rank = f"{layer.effective_rank[head]:.1f}"
            table.add_row(*first, str(head), f"{values[0]:.4g}", rank, *map(str, ranks))
    CONSOLE.print(table)
    say(
        f"{record['cases']} cases of {series.name}, at most {record['length']} points; energy: sum of squares"
    )
    return 0
