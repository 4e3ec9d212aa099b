"""kernelhead graph: causal graphs of the attention of a run, of someone else's model, or of a matrix."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from kernelhead.cli.places import FILE, FOLDER, check_records
from kernelhead.cli.sites import MODEL
from kernelhead.cli.terminal import note, say, say_json, show
from kernelhead.data import read_series
from kernelhead.errors import BadInput
from kernelhead.inspection import (
    HeadGraph,
    HeadPatterns,
    busiest_points,
    graph_record,
    head_graphs,
    head_patterns,
)
from kernelhead.inspection.head_graphs import EACH, MEAN
from kernelhead.records import CONFIG, DOT, GRAPH, write_json, write_text
from kernelhead.surgery import Host, is_host, open_host, read_inputs
from kernelhead.training import is_event_run, load_event_run, load_run

HELP = "graphs of causes among the points that a model attends to, beside graphs that need no causes"
EXAMPLE = """kernelhead graph runs/mine --case 3 --head mean
kernelhead graph path/to/saved/bert text.txt --nodes whale,largest --json
kernelhead graph attention.npy --n 64 --out graphs/mine"""


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument(
        "run", type=FOLDER, help=f"run folder; .npy of attention, (n n) or (h n n); or {MODEL}"
    )
    parser.add_argument(
        "data", nargs="?", help="data set or file; the run's own by default; text, .npy or .npz for a model"
    )
    parser.add_argument("--layer", type=int, default=-1, help="number of the attention, -1 for the last")
    parser.add_argument("--head", default=EACH, help="each, mean, or the number of one")
    parser.add_argument("--case", type=int, default=0, help="series, sequence or line to read")
    parser.add_argument("--nodes", help="points of the graph, such as 2,5,7 or whale,largest")
    parser.add_argument("--most", type=int, default=12, help="points, if not named: those attended to most")
    parser.add_argument("--n", type=int, help="samples that a correlation counts for; the layer's width")
    parser.add_argument("--alpha", type=float, default=0.01, help="p-value from which on is independent")
    parser.add_argument("--method", default="icd", help="icd; or pc or fci of causal-learn")
    parser.add_argument("--largest", type=int, default=3, help="points given in a test, at most")
    parser.add_argument("--ridge", type=float, default=0.0, help="for rows that are nearly the same")
    parser.add_argument("--covariance", action="store_true", help="count the covariance of the values in")
    parser.add_argument("--seed", type=int, default=0, help="of the random baseline")
    parser.add_argument("--out", type=FOLDER, help="folder for graph.json and graph.dot; the run by default")
    parser.add_argument("--weights", type=FILE, help="of a model: safetensors of timm's or a function's")
    parser.add_argument("--length", type=int, default=128, help="of a model: tokens of a text, at most")
    parser.add_argument("--split", default="train", help="of a run: train or test")
    parser.add_argument("--root", type=FOLDER, help="folder of data sets; KERNELHEAD_DATA by default")
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Namespace, given: list[str]) -> int:
    """Read, find the graphs, print; the records also go to a folder, for the report."""
    theirs = is_host(chosen.run) or chosen.run.suffix == ".npy"
    if chosen.out is not None and (theirs or chosen.out != chosen.run):
        check_records("graph", chosen.out, str(chosen.run))
    read, names, plain = _read(chosen)
    names = [f"{name}@{place}" if names.count(name) > 1 else name for place, name in enumerate(names)]
    nodes = _nodes(chosen, read, names, plain)
    head = chosen.head if chosen.head in (EACH, MEAN) else _number("--head", chosen.head)
    found = head_graphs(
        read,
        head=head,
        n=chosen.n,
        alpha=chosen.alpha,
        covariance=chosen.covariance,
        nodes=nodes,
        method=chosen.method,
        largest=chosen.largest,
        ridge=chosen.ridge,
        seed=chosen.seed,
    )
    facts = {
        "data": None if chosen.data is None else str(chosen.data),
        "case": chosen.case,
        "points": len(names),
        "n": chosen.n or read.width,
        **{name: chosen[name] for name in ("alpha", "largest", "ridge", "covariance", "seed")},
    }
    record = graph_record(read, found, names=names, facts=facts)
    out = chosen.out or (None if theirs else chosen.run)
    if out is not None:
        if theirs:
            write_json(out / CONFIG, {"name": str(chosen.run), "data": str(chosen.data or chosen.run)})
        write_json(out / GRAPH, record)
        dots = [
            each.graph.to_dot(names, f"{read.path}, {_called(each)}")
            for each in found
            if each.graph is not None
        ]
        write_text(out / DOT, "\n".join(dots))
    if chosen.json:
        say_json(record)
        return 0
    _say(found, names)
    where = "" if out is None else f"; {GRAPH} and {DOT} in {out}"
    note(f"{read.path}, {len(nodes)} of {len(names)} points, n = {facts['n']}, alpha = {chosen.alpha}{where}")
    return 0


def _read(chosen: Namespace) -> tuple[HeadPatterns, list[str], list[int]]:
    """The patterns, the names of their points, and those that are not special tokens."""
    if chosen.run.suffix == ".npy":
        held = read_inputs(Host(torch.nn.Identity()), chosen.run)
        entries = held if isinstance(held, torch.Tensor) and held.dim() == 3 else torch.as_tensor(held)[None]
        if entries.dim() != 3 or not entries.is_floating_point():
            raise BadInput(
                f"graph: {chosen.run} has shape {tuple(entries.shape[1:])}, expected (n n) or (h n n)"
            )
        return _numbered(HeadPatterns(chosen.run.stem, entries))
    if is_host(chosen.run):
        return _of_host(chosen)
    if is_event_run(chosen.run):
        run = load_event_run(chosen.run)
        events = run.read(chosen.data, split=chosen.split, root=chosen.root)
        read, names = run.patterns(events, layer=chosen.layer, case=chosen.case)
    else:
        trained = load_run(chosen.run)
        series = read_series(chosen.data or trained.recipe.data, split=chosen.split, root=chosen.root)
        read, names = trained.patterns(series, layer=chosen.layer, case=chosen.case)
    return read, names, [*range(len(names))]


def _of_host(chosen: Namespace) -> tuple[HeadPatterns, list[str], list[int]]:
    if chosen.data is None:
        raise BadInput(f"graph: {chosen.run} needs something to read: a text, .npy or .npz file")
    host = open_host(str(chosen.run), weights=chosen.weights)
    batch: Any = read_inputs(host, chosen.data, cases=chosen.case + 1, length=chosen.length)
    count = len(batch if isinstance(batch, torch.Tensor) else next(iter(batch.values())))
    if not 0 <= chosen.case < count:
        raise BadInput(f"graph: case is {chosen.case}, expected one of {count} of {chosen.data}")
    one = slice(chosen.case, chosen.case + 1)
    batch = (
        batch[one] if isinstance(batch, torch.Tensor) else {name: each[one] for name, each in batch.items()}
    )
    read = head_patterns(host.model, batch, layer=chosen.layer)
    if host.tokenizer is None or Path(chosen.data).suffix in (".npy", ".npz"):
        return _numbered(read)
    tokens = batch["input_ids"][batch["attention_mask"].bool()].tolist()
    names = [str(each) for each in host.tokenizer.convert_ids_to_tokens(tokens)]
    special = {*host.tokenizer.all_special_ids}
    if len(names) != read.entries.shape[-2]:  # an attention between other points than tokens
        return _numbered(read)
    plain = [place for place, token in enumerate(tokens) if token not in special]
    return read, names, plain or [*range(len(names))]


def _numbered(read: HeadPatterns) -> tuple[HeadPatterns, list[str], list[int]]:
    places = range(read.entries.shape[-2])
    return read, [str(place) for place in places], [*places]


def _nodes(chosen: Namespace, read: HeadPatterns, names: Sequence[str], plain: Sequence[int]) -> list[int]:
    """The points of the graph: those that are named, or of plain ones those that are attended to most."""
    if chosen.nodes is None:
        if read.entries.shape[-1] != len(names):
            return [*plain][: chosen.most]
        return [plain[each] for each in busiest_points(read.entries[..., plain], chosen.most)]
    return [
        names.index(word) if word in names else _number("--nodes", word) for word in chosen.nodes.split(",")
    ]


def _number(option: str, word: str) -> int:
    if not word.strip().isdecimal():
        raise BadInput(f"graph: {option} has {word!r}, which is neither a number nor a name of a point")
    return int(word)


def _called(each: HeadGraph) -> str:
    return "mean of heads" if each.head is None else f"head {each.head}"


def _say(found: Sequence[HeadGraph], names: Sequence[str]) -> None:
    table = Table(
        "graph",
        "edges",
        "tests",
        "condition",
        *(f"F1 to {name}" for name in ("attention", "correlation", "random")),
    )
    for each in found:
        if each.graph is None:
            table.add_row(_called(each), "none", *["-"] * 5)
            continue
        edges = "  ".join(f"{names[a]} {marks} {names[b]}" for a, marks, b in each.graph.edges())
        shared = [
            f"{each.shared[name]:.2f}" if each.shared else "-"
            for name in ("attention", "correlation", "random")
        ]
        table.add_row(
            _called(each), edges or "no edge", str(each.graph.tests), f"{each.graph.condition:.1e}", *shared
        )
    show(table)
    for each in found:
        for remark in [each.reason] if each.graph is None else each.graph.notes:
            say(f"{_called(each)}: {remark}")
    note("marks: o open, > no cause of the other, - a cause; baselines have as many edges as the graph")
