"""docs/performance.md and its plot from the records in docs/performance: no figure there is typed by hand.

Run: python -m benchmarks.page
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from kernelhead.records import read_json, write_atomically, write_text

Record = dict[str, Any]
Row = dict[str, Any]

FORWARD_FLOOR, BOTH_FLOOR, EXTRA = 1.15, 1.6, 3.0  # of the primal core
LAYER = {1024: 2.0, 65_536: 70.0}  # times as fast as softmax attention
STEP, MEMORY = 5.0, 0.5  # times as fast as the released step, share of its memory
CALLS = 1.15  # times the plain calls of softmax attention

HEAD = """# Performance

Made by `python -m benchmarks.page` from `docs/performance/*.json`, which `kernelhead bench` writes. Times on
the GPU are medians of replayed CUDA graphs in bf16 with the cache emptied between calls; all rivals of a
table ran in one process. A goal stands in brackets beside the figure that is held against it, with pass or
missed.
"""


@dataclass(frozen=True)
class Section:
    """A record on the page: its heading, its sizes in words, and its lines from it and the other records."""

    title: str
    sizes: str
    lines: Callable[[Record, dict[str, Record]], list[str]]


def performance(records: dict[str, Record]) -> str:
    """The page: a section for each record that is there."""
    lines = [HEAD]
    if "core" in records:
        lines += ["![Time and memory of a point over the length of the sequence](performance.svg)", ""]
    for name, section in SECTIONS.items():
        if name in records:
            record = records[name]
            lines += [f"## {section.title}", "", *_made(record, section.sizes), ""]
            lines += [*section.lines(record, records), *_left_out(record), ""]
    return "\n".join(lines).rstrip() + "\n"


def judged(value: float, goal: float, *, least: bool = False, digits: int = 2) -> str:
    """A figure with its goal and whether it was reached.

    Example:
        >>> judged(1.2, 1.15), judged(80, 70, least=True, digits=0)
        ('1.20 (at most 1.15: missed)', '80 (at least 70: pass)')
    """
    reached = value >= goal if least else value <= goal
    word = "at least" if least else "at most"
    return f"{value:.{digits}f} ({word} {goal:g}: {'pass' if reached else 'missed'})"


def _core(record: Record, _: dict[str, Record]) -> list[str]:
    rows = [
        [
            f"{row['n']:,}",
            row["rival"],
            *_over(row, "forward", FORWARD_FLOOR if row["rival"] == "primal, ours" else None),
            *_over(row, "both", BOTH_FLOOR if row["rival"] == "primal, ours, with J" else None),
            _extra(row, EXTRA if row["rival"].startswith("primal, ours") else None),
        ]
        for row in _good(record)
    ]
    speed = f"{record['copy_bytes_a_second'] / 1e12:.2f} TB/s"
    return [
        f"The floor is the fewest bytes to move at the speed of a plain copy, {speed}: for the primal core",
        "three tensors of q's size forward and eight with backward, for the others four and eleven. Memory",
        "is what forward and backward need above their inputs and beyond the gradients, in tensors of q.",
        "",
        *_table("n | rival | forward, ms | over floor | with backward, ms | over floor | memory", rows),
    ]


def _causal(record: Record, _: dict[str, Record]) -> list[str]:
    rows = [
        [f"{row['n']:,}", row["rival"], *_over(row, "forward"), *_over(row, "both"), _extra(row)]
        for row in _good(record)
    ]
    return [
        "Floors and memory as above; data-dependent weights read a third side, and so count as the others.",
        "",
        *_table("n | rival | forward, ms | over floor | with backward, ms | over floor | memory", rows),
    ]


def _layer(record: Record, _: dict[str, Record]) -> list[str]:
    forward = [row for row in _good(record) if row["what"] == "forward"]
    ours = {row["n"]: row["time"]["ms"] for row in forward if row["layer"] == "primal"}
    rows = []
    for row in forward:
        ratio = ""
        if row["layer"] != "primal" and row["n"] in ours:
            ratio = judged(row["time"]["ms"] / ours[row["n"]], LAYER[row["n"]], least=True, digits=1)
        rows.append([f"{row['n']:,}", row["layer"], _ms(row, "time"), ratio])
    lines = _table("n | layer | ms | times the primal layer", rows)
    for row in _good(record):
        if row["what"] == "step":
            peak = f" and {row['peak_gib']:.1f} GiB" if "peak_gib" in row else ""
            lines += [
                "",
                "One training step of the primal layer with the KSVD penalty on one sequence of",
                f"{row['n']:,} points takes {row['time']['ms']:.1f} ms{peak}.",
            ]
    return lines


def _long_range(record: Record, records: dict[str, Record]) -> list[str]:
    released = records.get("released", {"rows": [], "source": "nothing is recorded of the released code"})
    before = {(row["task"], row["attention"]): row for row in released["rows"]}
    found = {(row["task"], row["attention"]): row for row in _good(record)}
    rows = []
    for (task, attention), row in found.items():
        theirs = before.get((task, attention), {})
        cells = [task, attention, _ms(row, "time"), _number(row, "peak_gib")]
        cells += [_number(theirs, "ms", 1), _number(theirs, "peak_gib")]
        rows.append(cells + (_verdicts(found, task, theirs) if attention == "primal" else [""] * 3))
    columns = "task | attention | ms | peak, GiB | released, ms | released, GiB"
    goals = "released over ours | ours over released, memory | ours over the fastest rival"
    return [f"Beside them {released['source']}.", "", *_table(f"{columns} | {goals}", rows)]


NO_RIVALS = ("primal", "primal+", "convolution", "none")  # of a primal step


def _verdicts(found: dict[tuple[str, str], Row], task: str, theirs: Row) -> list[str]:
    """Of the primal step: against the released step, its memory, and the fastest rival."""
    ours = found[task, "primal"]
    time = ours["time"]["ms"]
    rivals = [found[task, name]["time"]["ms"] for (of, name) in found if of == task and name not in NO_RIVALS]
    return [
        judged(theirs["ms"] / time, STEP, least=True, digits=1) if "ms" in theirs else "-",
        judged(ours["peak_gib"] / theirs["peak_gib"], MEMORY) if "peak_gib" in theirs else "-",
        judged(time / min(rivals), 1.0) if rivals else "-",
    ]


def _rpc(record: Record, _: dict[str, Record]) -> list[str]:
    plain = {(row["n"], row["backend"]): row for row in _good(record) if row["rival"] != "RPC, ours"}
    rows = []
    for row in _good(record):
        calls = plain.get((row["n"], row["backend"]), {})
        forward, both = "", ""
        if row["rival"] == "RPC, ours" and calls:
            forward = judged(row["forward"]["ms"] / calls["forward"]["ms"], CALLS)
            if "both" in row and "both" in calls:
                both = f"{row['both']['ms'] / calls['both']['ms']:.2f}"
        times = [_ms(row, "forward"), forward, _ms(row, "both"), both]
        rows.append([f"{row['n']:,}", row["rival"], row["backend"], *times])
    return _table("n | what | kernel | forward, ms | over plain | with backward, ms | over plain", rows)


def _beside(
    record: Record, names: Sequence[str], times: Sequence[str], *, shown: Callable[[Any], str] = str
) -> list[list[str]]:
    """A row a cell: what it is of, the rival, and times over their floors; ours over the fastest rival's."""
    good = _good(record)
    rows = []
    for row in good:
        cells = [shown(row[name]) for name in names] + [row["rival"]]
        beside = [each for each in good if all(each[name] == row[name] for name in names)]
        for name in times:
            others = [each[name]["ms"] for each in beside if name in each and not _is_ours(each)]
            held = _is_ours(row) and name in row and others
            cells += [*_over(row, name), judged(row[name]["ms"] / min(others), 1.0) if held else ""]
        rows.append(cells)
    return rows


def _is_ours(row: Row) -> bool:
    return str(row["rival"]).startswith("ours")


FORWARD = "forward, ms | over floor | over the fastest rival"
BOTH = FORWARD.replace("forward", "with backward", 1)


def _local(record: Record, _: dict[str, Record]) -> list[str]:
    rows = _beside(record, ("n", "dilation"), ("forward", "both"), shown="{:,}".format)
    return [
        "The floor is points and outputs once forward, and with backward both gradients and both sides of",
        "the weights' gradient, at the speed of a plain copy. Rivals are compiled; one takes columns.",
        "",
        *_table(f"n | dilation | what | {FORWARD} | {BOTH}", rows),
    ]


def _feedforward(record: Record, _: dict[str, Record]) -> list[str]:
    rows = _beside(record, ("inner", "dropout"), ("forward", "both"))
    return [
        "Points are float32, products bf16 by autocast. The floor is points and outputs once forward, and",
        "with backward the points once more and both gradients, at the speed of a plain copy.",
        "",
        *_table(f"inner width | dropout | what | {FORWARD} | {BOTH}", rows),
    ]


def _maps(record: Record, _: dict[str, Record]) -> list[str]:
    rows = _beside(record, ("maps",), ("forward", "both"))
    return [
        "Points are bf16, weights float32, products bf16 by autocast. The floor is points and outputs once",
        "forward, and with backward the points once more and both gradients, at the speed of a plain copy.",
        "",
        *_table(f"maps | what | {FORWARD} | {BOTH}", rows),
    ]


def _lookup(record: Record, _: dict[str, Record]) -> list[str]:
    rows = _beside(record, ("same",), ("both",), shown="{:.0%}".format)
    return [
        "Looked up and the gradient of the table; ours uncompiled where nothing else is said. The floor is",
        "rows written and their gradients read, at the speed of a plain copy.",
        "",
        *_table(f"tokens that are one | what | {BOTH}", rows),
    ]


def _padded(record: Record, _: dict[str, Record]) -> list[str]:
    rows = _beside(record, ("n", "share"), ("forward", "both"), shown="{:,}".format)
    return [
        "Lengths are drawn from 1 to twice that share of n at most; 1.0 is a mask that hides nothing. Layers",
        "take lengths from 512 keys and 2^27 pairs on. Flex attention is left out: two runs with its",
        "compiled block masks ended in an illegal memory access, as in pytorch issue 160018, and none",
        "without. The floor is what is read and written once, gradients too, at the speed of a plain copy.",
        "",
        *_table(f"n | share of real keys | what | {FORWARD} | {BOTH}", rows),
    ]


def _faster(row: Row) -> list[str]:
    """How many times as fast, and the lowest and highest of its rounds."""
    return [
        judged(row["ratio"], 1.0, least=True, digits=1),
        f"{row['lowest']:.1f} to {row['highest']:.1f}",
    ]


def _cpu(record: Record, _: dict[str, Record]) -> list[str]:
    good = _good(record)
    rows = [
        [
            f"{row['n']:,}",
            *_faster(row),
            f"{row['ours_per_point'] / good[0]['ours_per_point']:.2f}",
        ]
        for row in good
    ]
    return [
        "How many times as fast as `nn.MultiheadAttention` in evaluation, its fused path, a primal layer is,",
        "and its cost for each point, 1 at all n if growth is linear.",
        "",
        *_table("n | times as fast | lowest and highest of 7 rounds | cost for each point", rows),
    ]


def _long_range_cpu(record: Record, _: dict[str, Record]) -> list[str]:
    found = {(row["task"], row["attention"]): row for row in _good(record)}
    rows = []
    for (task, attention), row in found.items():
        rivals = [
            each["ratio"] * max(each["compiled"], 1.0)
            for (of, name), each in found.items()
            if of == task and name not in NO_RIVALS
        ]
        held = attention == "primal" and rivals
        rows.append(
            [
                task,
                attention,
                f"{row['ratio']:.2f}",
                f"{row['lowest']:.2f} to {row['highest']:.2f}",
                f"{row['compiled']:.2f}",
                judged(row["ratio"] / max(rivals), 1.0, least=True) if held else "",
                f"{row['peak_mib']:.0f}",
            ]
        )
    sizes = {row["task"]: row["batch"] for row in found.values()}
    batches = ", ".join(f"{batch} ({task})" for task, batch in sizes.items())
    columns = "lowest and highest of 5 rounds | compiled | over the fastest rival | peak, MiB"
    return [
        "How many times as fast as with softmax a step is, uncompiled as training on a CPU is; `compiled`",
        "is how many times as fast as that it is under torch.compile: of a rival the faster counts. Batches",
        f"are {batches}; primal layers have their KSVD term. Memory is of tensors beyond weights and state.",
        "",
        *_table(f"task | attention | times as fast as softmax | {columns}", rows),
    ]


def _softmax_cpu(record: Record, _: dict[str, Record]) -> list[str]:
    rows = [
        [
            f"{row['n']:,}",
            f"{row['width']}",
            *_faster(row),
        ]
        for row in _good(record)
    ]
    return [
        "How many times as fast `softmax_attention` is, which takes so few points in float32, as PyTorch's",
        "fused kernel in bfloat16, forward and backward.",
        "",
        *_table("n | width of a head | times as fast | lowest and highest of 7 rounds", rows),
    ]


def _local_cpu(record: Record, _: dict[str, Record]) -> list[str]:
    rows = [
        [
            f"{row['n']:,}",
            f"{row['dilation']}",
            row["rival"],
            *_faster(row),
        ]
        for row in _good(record)
    ]
    return [
        "How many times as fast as other writings `local_mix` is, forward and backward to points, weights",
        "and bias.",
        "",
        *_table("n | dilation | beside | times as fast | lowest and highest of 7 rounds", rows),
    ]


def _rows(record: Record, _: dict[str, Record]) -> list[str]:
    good = _good(record)
    twin = {(row["what"], row["rows"]): row for row in good if row["attention"] == "self"}
    rows = []
    for row in good:
        alone = twin.get((row["what"], row["rows"]))
        over = f"{row['time']['ms'] / alone['time']['ms']:.1f}" if alone else "-"
        cells = [f"{row['rows']:,}", row["what"], row["attention"], f"{row['time']['ms'] / 1e3:.3g}", over]
        rows.append([*cells, _number(row, "peak_mib", 0)])
    return [
        "All predictions of one table, and a training step on hidden entries. Under `self` a row sees itself",
        "only: what is left is the cost of all but looking at other rows. Memory is above that of the start.",
        "On the CPU times are of one thread by the processor's clock.",
        "",
        *_table("rows | what | between rows | seconds | over self | peak, MiB", rows),
    ]


SECTIONS = {
    "core": Section(
        "Cores", "8 heads of 64, rank 32, weights of each sequence, 262,144 points or one row", _core
    ),
    "causal": Section("Causal cores", "8 heads of 64, rank 32, 320 slots, 262,144 points", _causal),
    "layer": Section(
        "Whole layers", "width 512, 8 heads, rank 32, 320 landmarks, forward of 262,144 points", _layer
    ),
    "long_range": Section(
        "Training steps of the long-range models",
        "two layers of width 64, two heads, compiled and captured as one graph",
        _long_range,
    ),
    "rpc": Section(
        "RPC-Attention", "four iterations and four plain calls, 8 heads of 64, 65,536 points", _rpc
    ),
    "feedforward": Section(
        "Feed-forwards",
        "with norm, GELU, dropout and residual; width 64, 262,144 points",
        _feedforward,
    ),
    "maps": Section("Linear maps of the same points", "64 features, 262,144 points", _maps),
    "lookup": Section(
        "Tables that tokens look up", "256 tokens of 64 features in float32, 262,144 points", _lookup
    ),
    "padded": Section(
        "Softmax attention with padded keys", "2 heads of 32 in bfloat16, 131,072 points", _padded
    ),
    "local": Section("Mixing of neighbours", "15 taps, 128 features, 262,144 or 131,072 points", _local),
    "rows": Section(
        "Attention between rows of a table",
        "8 numeric columns of 16 features, depth 4, 4 heads, rank 16, 64 learned points, float32",
        _rows,
    ),
    "cpu": Section("On the CPU", "float32, width 256, 4 heads, rank 32, 320 landmarks, batch 4", _cpu),
    "long_range_cpu": Section(
        "Training steps of the long-range models on the CPU",
        "float32, two layers of width 64, two heads",
        _long_range_cpu,
    ),
    "softmax_cpu": Section("Softmax attention in bfloat16 on the CPU", "4 heads, 8,192 points", _softmax_cpu),
    "local_cpu": Section(
        "Mixing of neighbours on the CPU", "float32, 15 taps, 64 features, batch 8", _local_cpu
    ),
}


def kernel_svd(record: Record) -> str:
    """The page of the kernel SVD."""
    exact = [
        [
            f"{row['n']:,}",
            f"{row['seconds']:.2f}",
            f"{row['input_mib']:.0f}",
            f"{row['peak_growth_mib']:.0f}",
            f"{row['objective_over_trace']:.1e}",
            f"{row['residual']:.1e}",
        ]
        for row in _good(record)
        if row["what"] == "features"
    ]
    softmax = [
        [
            f"{row['n']:,}",
            f"{row['seconds']:.1f}",
            f"{row['largest_tensor_over_n2']:.4f}",
            ", ".join(f"{value:.4g}" for value in row["sigma"]),
            f"{row['residual']:.1e}",
            f"{row['largest_error']:.2%}" if "largest_error" in row else "not computed",
        ]
        for row in _good(record)
        if row["what"] == "softmax"
    ]
    both = "n | seconds | {} | largest residual"
    lines = [
        "# Measured: kernel SVD",
        "",
        "Made by `python -m benchmarks.page` from what `kernelhead bench ksvd` wrote.",
        *_made(record, "float32, one run each in a process of its own"),
        "",
        "Exact, from 64 features on both sides, rank 32:",
        "",
        *_table(both.format("inputs, MiB | peak above start, MiB | J over trace"), exact),
        "",
        "Softmax attention, 64 features, top 32, matrix-free, against a float64 SVD of all entries:",
        "",
        *_table(both.format("largest tensor over n^2 | sigma 1, 2, 32") + " | largest error", softmax),
        *_left_out(record),
    ]
    return "\n".join(lines) + "\n"


def plot(core: Record, path: Path) -> None:
    """Time and memory of a point over the length, with backward; the same bytes for the same rows."""
    from matplotlib import style
    from matplotlib.figure import Figure

    rows = [row for row in _good(core) if "peak_mib" in row]
    panels: dict[str, Callable[[Row], float]] = {
        "forward and backward, ns a point": lambda row: row["both"]["ms"] * 1e6 / row["points"],
        "peak memory, KiB a point": lambda row: row["peak_mib"] * 1024 / row["points"],
    }
    look = {"svg.hashsalt": "kernelhead", "svg.fonttype": "none", "font.size": 9, "axes.grid": True}
    with style.context(["default", look | {"grid.alpha": 0.3}]):
        figure = Figure(figsize=(9, 4), layout="constrained")
        for axes, (label, height) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            for marker, rival in zip("os^Dv<>P", dict.fromkeys(row["rival"] for row in rows), strict=False):
                points = sorted((row["n"], height(row)) for row in rows if row["rival"] == rival)
                width = 2.2 if ", ours" in rival else 1.1
                axes.plot(*zip(*points, strict=True), marker=marker, ms=4, lw=width, label=rival)
            axes.set(xscale="log", yscale="log", xlabel="points in a sequence", ylabel=label)
            axes.minorticks_off()
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        write_atomically(path, lambda file: figure.savefig(file, format="svg", metadata={"Date": None}))


def write(folder: Path) -> list[Path]:
    """Read all records of a folder; write the pages and the plot beside it."""
    records = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
    written = [folder.with_suffix(".md")]
    write_text(written[0], performance(records))
    if "core" in records:
        written.append(folder.with_suffix(".svg"))
        plot(records["core"], written[-1])
    if "ksvd" in records:
        written.append(folder.with_name("measured.md"))
        write_text(written[-1], kernel_svd(records["ksvd"]))
    return written


def main() -> None:
    """Read, write, say what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "docs" / "performance", help="of records"
    )
    for path in write(parser.parse_args().folder):
        print(path)


def _made(record: Record, sizes: str) -> list[str]:
    """When, where, with what, after which tests, of which sizes, and how far rounds differ."""
    machine, versions = record["machine"], record["versions"]
    where = [machine["device"], *([f"{machine['threads']} threads"] if "threads" in machine else [])]
    kinds = [f"{name} {versions[name]}" for name in ("torch", "triton", "fla-core") if name in versions]
    tests = "after green tests" if record["gated"] else "**ungated**: no tests ran before these figures"
    sha, *changed = (record.get("commit") or "").split("-")
    commit = f"commit {'-'.join([sha[:7], *changed])}, " if sha else ""
    lines = [f"{record['date']}, {commit}{', '.join([*where, *kinds])}, {tests};", f"{sizes}."]
    times = [value for row in record["rows"] for value in row.values() if isinstance(value, dict)]
    if times:
        widest = max((time["highest"] - time["lowest"]) / time["ms"] for time in times)
        lines.append(f"Rounds of one figure lie within {widest:.0%} of each other.")
    return lines


def _good(record: Record) -> list[Row]:
    """Rows with a figure, also those whose rival failed after its first one."""
    return [row for row in record["rows"] if row["status"] == "ok" or {"forward", "time"} & row.keys()]


def _left_out(record: Record) -> list[str]:
    """What failed, and why."""
    cell = ("task", "n", "dilation", "rival", "layer", "attention", "backend", "what")
    failed = [
        f"- {', '.join(str(row[name]) for name in cell if name in row)}: {row['status']}"
        for row in record["rows"]
        if row["status"] != "ok"
    ]
    return ["", "Not measured, or not wholly:", "", *failed] if failed else []


def _table(heading: str, rows: list[list[str]]) -> list[str]:
    line = "|---" * (heading.count("|") + 1) + "|"
    return [f"| {heading} |", line, *(f"| {' | '.join(row)} |" for row in rows)]


def _number(row: Row, name: str, digits: int = 2) -> str:
    return f"{row[name]:.{digits}f}" if name in row else "-"


def _ms(row: Row, name: str) -> str:
    return f"{row[name]['ms']:.3f}" if name in row else "-"


def _over(row: Row, name: str, goal: float | None = None) -> list[str]:
    """A time, and how many times its floor it is."""
    if name not in row:
        return ["-", "-"]
    over = row[name]["ms"] / row[f"{name}_floor_ms"]
    return [_ms(row, name), f"{over:.2f}" if goal is None else judged(over, goal)]


def _extra(row: Row, goal: float | None = None) -> str:
    """Peak memory beyond the gradients, in tensors of q's size."""
    if "peak_over_q" not in row:
        return "-"
    extra = row["peak_over_q"] - row["gradients_over_q"]
    return f"{extra:.2f}" if goal is None else judged(extra, goal)


if __name__ == "__main__":
    main()
