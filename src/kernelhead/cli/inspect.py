"""kernelhead inspect: read the attention of a trained run."""

from dataclasses import fields

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from kernelhead.cli.places import FOLDER
from kernelhead.cli.terminal import CONSOLE, say, say_json
from kernelhead.data import read_series
from kernelhead.errors import unknown
from kernelhead.inspection import Alignment, HeadAlignment, LayerSpectrum
from kernelhead.records import KPCA, SPECTRUM, write_json
from kernelhead.training import load_run

HELP = "read the attention of a trained run: the spectrum of every head, or whether it is a kernel PCA"
EXAMPLE = "kernelhead inspect spectrum runs/mine"
READINGS = ("spectrum", "kpca")


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("reading", help="what to read: spectrum or kpca")
    parser.add_argument("run", type=FOLDER, help="run folder")
    parser.add_argument("data", nargs="?", help="data set or file; the run's own by default")
    parser.add_argument("--split", default="train", help="train or test")
    parser.add_argument("--cases", type=int, default=16, help="cases to read from")
    parser.add_argument("--seed", type=int, default=0, help="of the baselines of kpca")
    parser.add_argument("--root", type=FOLDER, help="folder of data sets; KERNELHEAD_DATA by default")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Load, read, print; the record also goes to the run folder, for the report."""
    if chosen.reading not in READINGS:
        raise unknown("inspect", "reading", chosen.reading, READINGS)
    trained = load_run(chosen.run)
    series = read_series(chosen.data or trained.recipe.data, split=chosen.split, root=chosen.root)
    if chosen.reading == "kpca":
        aligned, record = trained.alignments(series, cases=chosen.cases, seed=chosen.seed)
        write_json(chosen.run / KPCA, record)
    else:
        found, record = trained.spectra(series, cases=chosen.cases)
        write_json(chosen.run / SPECTRUM, record)
    if chosen.json:
        say_json(record)
        return 0
    read = f"{record['cases']} cases of {series.name}, at most {record['length']} points"
    if chosen.reading == "kpca":
        _say_alignments(aligned, record["skipped"])
        say(f"{read}; baselines from seed {record['seed']}")
    else:
        _say_spectra(found)
        say(f"{read}; energy: sum of squares")
    return 0


def _say_spectra(found: list[LayerSpectrum]) -> None:
    table = Table("layer", "kind", "head", "sigma 1", "effective rank", "90 %", "95 %", "99 % of energy")
    for layer in found:
        for head, values in enumerate(layer.heads):
            ranks = layer.energy_rank_90[head], layer.energy_rank_95[head], layer.energy_rank_99[head]
            first = (layer.path, layer.kind) if head == 0 else ("", "")
            rank = f"{layer.effective_rank[head]:.1f}"
            table.add_row(*first, str(head), f"{values[0]:.4g}", rank, *map(str, ranks))
    CONSOLE.print(table)


def _say_alignments(found: dict[str, Alignment], skipped: dict[str, str]) -> None:
    table = Table(title="kernel PCA of attention, mean over heads", title_justify="left")
    names = next(iter(found.values())).baselines
    for heading in ("layer", "figure", "values", *names):
        table.add_column(heading, justify="left" if heading in ("layer", "figure") else "right")
    for path, layer in found.items():
        for number, figure in enumerate(fields(HeadAlignment)):
            columns = [layer.heads, *layer.baselines.values()]
            means = [sum(getattr(head, figure.name) for head in heads) / len(heads) for heads in columns]
            first = "" if number else path
            table.add_row(first, figure.name.replace("_", " "), *(f"{mean:.4g}" for mean in means))
        table.add_section()
    CONSOLE.print(table)
    for path, layer in found.items():
        say(f"{path}: {layer.sentence}")
    for path, reason in skipped.items():
        say(f"{path}: not read, for {reason}")
