"""kernelhead inspect: read the attention of a trained run, or of someone else's model."""

from dataclasses import fields
from itertools import permutations

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table
from torch import Tensor

from kernelhead.cli.places import FILE, FOLDER, check_records
from kernelhead.cli.sites import MODEL
from kernelhead.cli.terminal import note, say, say_json, show
from kernelhead.data import read_series
from kernelhead.errors import BadInput, unknown
from kernelhead.inspection import (
    Alignment,
    Flow,
    HeadAlignment,
    LayerMap,
    LayerSpectrum,
    alignment,
    attention_maps,
    flow_record,
    host_sides,
    kpca_record,
    map_record,
    model_flow,
    named_groups,
    plan,
    plan_record,
    spectra,
    spectrum_record,
)
from kernelhead.records import CONFIG, FLOW, KPCA, MAPS, SPECTRUM, write_json
from kernelhead.surgery import is_host, open_host, read_inputs
from kernelhead.training import load_run

HELP = (
    "read the attention of a run or of any model: the spectrum of every head, small pictures of it, whether "
    "it is a kernel PCA, or what flows between groups of points"
)
EXAMPLE = """kernelhead inspect spectrum runs/mine
kernelhead inspect spectrum path/to/saved/bert text.txt --plan 0.2
kernelhead inspect kpca runs/softmax --json
kernelhead inspect flow runs/mine --groups first=0:16 rest=16:
kernelhead inspect maps runs/mine --case 3"""
READINGS = {"spectrum": SPECTRUM, "maps": MAPS, "kpca": KPCA, "flow": FLOW}


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("reading", help="what to read: spectrum, maps, kpca or flow")
    parser.add_argument("run", type=FOLDER, help=f"run folder; or {MODEL}")
    parser.add_argument(
        "data", nargs="?", help="data set or file; the run's own by default; text, .npy or .npz for a model"
    )
    parser.add_argument("--weights", type=FILE, help="of a model: safetensors of timm's or a function's")
    parser.add_argument("--length", type=int, default=128, help="of a model: tokens of a text, at most")
    parser.add_argument("--plan", type=float, help="of a model: which layers can go primal within this error")
    parser.add_argument("--groups", nargs="+", default=[], help="of flow: such as first=0:16 rest=16:")
    parser.add_argument("--rows", default="stochastic", help="of flow: absolute for patterns of any sign")
    parser.add_argument("--under", default="", help="of flow and a model: path of the part to read")
    parser.add_argument("--out", type=FOLDER, help="of a model: folder for the records, which `report` takes")
    parser.add_argument("--split", default="train", help="train or test")
    parser.add_argument("--cases", type=int, default=16, help="cases to read from")
    parser.add_argument("--case", type=int, default=0, help="of maps: the case to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the baselines of kpca")
    parser.add_argument("--root", type=FOLDER, help="folder of data sets; KERNELHEAD_DATA by default")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Load, read, print; the record also goes to the run folder, for the report."""
    if chosen.reading not in READINGS:
        raise unknown("inspect", "reading", chosen.reading, READINGS)
    if is_host(chosen.run):
        return _inspect_host(chosen)
    trained = load_run(chosen.run)
    series = read_series(chosen.data or trained.recipe.data, split=chosen.split, root=chosen.root)
    if chosen.reading == "kpca":
        aligned, record = trained.alignments(series, cases=chosen.cases, seed=chosen.seed)
    elif chosen.reading == "flow":
        groups = named_groups(chosen.groups)
        flow, record = trained.flow(series, groups, cases=chosen.cases, rows=chosen.rows)
    elif chosen.reading == "maps":
        maps, record = trained.maps(series, case=chosen.case)
    else:
        found, record = trained.spectra(series, cases=chosen.cases)
    write_json(chosen.run / READINGS[chosen.reading], record, indent=_indent(chosen.reading))
    if chosen.json:
        say_json(record)
        return 0
    if chosen.reading == "maps":
        _say_maps(maps)
        note(f"case {chosen.case} of {series.name}; {chosen.run / MAPS} is what `report` draws")
        return 0
    read = f"{record['cases']} cases of {series.name}, at most {record['length']} points"
    if chosen.reading == "kpca":
        _say_alignments(aligned, record["skipped"])
        note(f"{read}; baselines from seed {record['seed']}")
    elif chosen.reading == "flow":
        _say_flow(flow)
        note(read)
    else:
        _say_spectra(found)
        note(f"{read}; energy: sum of squares")
    return 0


def _inspect_host(chosen: Namespace) -> int:
    """Open, call once, read, print."""
    if chosen.data is None:
        raise BadInput(f"inspect: {chosen.run} needs something to read: a text, .npy or .npz file")
    if chosen.out is not None:
        check_records("inspect", chosen.out, str(chosen.run))
    host = open_host(str(chosen.run), weights=chosen.weights)
    wanted = 1 + max(chosen.case, 0) if chosen.reading == "maps" else chosen.cases
    batch = read_inputs(host, chosen.data, cases=wanted, length=chosen.length)
    cases = len(batch if isinstance(batch, Tensor) else next(iter(batch.values())))
    if chosen.reading == "kpca":
        sides = host_sides(host.model, batch)
        aligned = {
            path: alignment(s.query, s.key, s.value, mask=s.mask, points=s.points, seed=chosen.seed)
            for path, s in sides.sides.items()
        }
        length = max(each.key.shape[-2] for each in sides.sides.values())
        record = kpca_record(sides, aligned, cases=cases, length=length, seed=chosen.seed)
        if not chosen.json:
            _say_alignments(aligned, record["skipped"])
    elif chosen.reading == "flow":
        groups = named_groups(chosen.groups)
        flow = model_flow(host.model, batch, groups, under=chosen.under, rows=chosen.rows)
        length, record = flow.points, flow_record(flow)
        if not chosen.json:
            _say_flow(flow)
    elif chosen.reading == "maps":
        maps = attention_maps(host.model, batch, case=chosen.case)
        length, record = maps[0].points[0], map_record(maps, data=str(chosen.data), case=chosen.case)
        if not chosen.json:
            _say_maps(maps)
    else:
        found = spectra(host.model, batch)
        length = max(len(layer.heads[0]) for layer in found)
        record = spectrum_record(found, cases=cases, length=length)
        planned = None if chosen.plan is None else plan(host.model, batch, error=chosen.plan)
        if planned is not None:
            record["plan"] = plan_record(planned)
        if not chosen.json:
            _say_spectra(found)
            say("" if planned is None else str(planned))
    if chosen.out is not None:
        write_json(chosen.out / CONFIG, {"name": str(chosen.run), "data": str(chosen.data)})
        write_json(chosen.out / READINGS[chosen.reading], record, indent=_indent(chosen.reading))
    read = f"{cases} cases of {chosen.data}, at most {length} points"
    if chosen.reading == "maps":
        read = f"case {chosen.case} of {chosen.data}, {length} points"
    if chosen.json:
        say_json(record)
    else:
        note(read if chosen.out is None else f"{read}; records in {chosen.out}")
    return 0


def _say_spectra(found: list[LayerSpectrum]) -> None:
    table = Table("layer", "kind", "head", "sigma 1", "effective rank", "90 %", "95 %", "99 % of energy")
    for layer in found:
        for head, values in enumerate(layer.heads):
            ranks = layer.energy_rank_90[head], layer.energy_rank_95[head], layer.energy_rank_99[head]
            first = (layer.path, layer.kind) if head == 0 else ("", "")
            rank = f"{layer.effective_rank[head]:.1f}"
            table.add_row(*first, str(head), f"{values[0]:.4g}", rank, *map(str, ranks))
    show(table)


def _indent(reading: str) -> int | None:
    """Pictures have too many numbers for a line each."""
    return None if reading == "maps" else 2


def _say_maps(found: list[LayerMap]) -> None:
    table = Table("layer", "kind", "head", "points", "cells", "least", "largest mean entry")
    for layer in found:
        for head, rows in enumerate(layer.heads):
            first = (layer.path, layer.kind) if head == 0 else ("", "")
            entries = [each for row in rows for each in row]
            sizes = " × ".join(map(str, layer.points)), f"{len(rows)} × {len(rows[0])}"
            table.add_row(*first, str(head), *sizes, f"{min(entries):.4g}", f"{max(entries):.4g}")
    show(table)


def _say_flow(found: Flow) -> None:
    table = Table(title="flow between groups", title_justify="left")
    for heading in ("layer", "who reads", "from", "alone", "cumulated", "uniform", "regrouped", "relative"):
        table.add_column(heading, justify="left" if heading in ("layer", "who reads", "from") else "right")
    columns = found.single, found.cumulative, found.uniform, found.regrouped, found.relative
    for layer, path in enumerate(found.paths):
        for reader, source in permutations(range(len(found.names)), 2):
            numbers = (f"{float(each[layer, reader, source]):.4f}" for each in columns)
            first = path if (reader, source) == (0, 1) else ""
            table.add_row(first, found.names[reader], found.names[source], *numbers)
    show(table)
    sizes = (f"{name} {size:g}" for name, size in zip(found.names, found.sizes.tolist(), strict=True))
    say(
        f"inter-modality flow {float(found.imf[-1]):.4f}, {float(found.relative_imf[-1]):.3f} of uniform; "
        f"mean points: {', '.join(sizes)}; {found.skipped} cases without a point in every group"
    )


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
    show(table)
    for path, layer in found.items():
        say(f"{path}: {layer.sentence}")
    for path, reason in skipped.items():
        say(f"{path}: not read, for {reason}")
