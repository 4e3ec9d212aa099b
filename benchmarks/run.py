"""Ask one question or all of them: gate, compile side by side, measure, write.

Run: python -m benchmarks.run all --out docs/performance --warm; then python -m benchmarks.page.
"""

import argparse
import ast
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks import ROOT
from benchmarks.harness import Bench, Cell, answer, commit, copy_speed, gate, hurry, machine, versions
from kernelhead.errors import BadInput, KernelheadError, unknown
from kernelhead.records import read_json, write_json
from kernelhead.shapes import check_size

TINY = Path("runs") / "tiny"
ORDER = (
    "core", "layer", "long_range", "padded", "feedforward", "maps", "lookup", "causal", "rpc", "local",
    "cpu", "long_range_cpu", "softmax_cpu", "local_cpu", "ksvd", "rows", "reranking", "cooccurrence",
    "robustness",
)  # fmt: skip
SAME = ("question", "machine", "versions", "commit", "gated", "tiny")
# Processes that compile side by side: those of the longest sequences hold much of the device's memory.
WORKERS, LONG_WORKERS, LONG = 10, 3, 1_000_000


def questions() -> dict[str, str]:
    """The question of every benchmark, by its name; nothing is imported for it."""
    files = {path.stem.removeprefix("bench_"): path for path in (ROOT / "benchmarks").glob("bench_*.py")}
    order = {name: place for place, name in enumerate(ORDER)}
    names = sorted(files, key=lambda name: (order.get(name, len(order)), name))
    return {
        name: ast.get_docstring(ast.parse(files[name].read_text(encoding="utf-8"))) or "" for name in names
    }


def load(name: str) -> Bench:
    """The benchmark of a name.

    Raises:
        UnknownName: there is none.
    """
    if name not in questions():
        raise unknown("bench", "question", name, questions())
    bench: Bench = import_module(f"benchmarks.bench_{name}").BENCH
    return bench


def chosen_benches(name: str, *, tiny: bool = False) -> dict[str, Bench]:
    """The one of that name, or all of performance, for a CUDA device where there is one and else the CPU.

    Args:
        tiny: whether to ask its tiny cells, on any device.

    Raises:
        UnknownName: there is none of that name.
        BadInput: it needs a CUDA device and there is none, or it has no tiny cells.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "all" and not tiny:
        loaded = {each: load(each) for each in questions()}
        fitting = {each: bench for each, bench in loaded.items() if bench.device == device}
        return {each: bench for each, bench in fitting.items() if bench.folder == "performance"}
    bench = load(name)
    if tiny and not bench.tiny:
        raise BadInput(f"bench {name}: has no tiny cells; leave --tiny out")
    if tiny:
        return {name: replace(bench, cells=bench.tiny, device=device)}
    if bench.device == "cuda" and device == "cpu":
        hint = "; --tiny tries it out on any machine" if bench.tiny else ""
        raise BadInput(f"bench {name}: needs a CUDA device, and torch sees none{hint}")
    return {name: bench}


def record_of(
    name: str,
    bench: Bench,
    out: Path,
    *,
    gated: bool,
    tiny: bool = False,
    resume: bool = False,
    named: str | None = None,
    beside: int = 1,
) -> dict[str, Any]:
    """Measure all cells; the record is written anew after each of them.

    Args:
        name: of the question.
        bench: the question.
        out: folder of the record.
        gated: whether tests were green before.
        tiny: whether its cells are the tiny ones.
        resume: whether to keep the good rows of a record that is there.
        named: the commit, where git does not know it.
        beside: processes for the cells that need not run alone.

    Raises:
        BadInput: the record to resume was made elsewhere or of something else.
    """
    record: dict[str, Any] = {
        "name": name,
        "question": bench.question,
        "machine": machine(bench.device),
        "versions": versions(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": named or commit(),
        "gated": gated,
        "tiny": tiny,
        "copy_bytes_a_second": copy_speed() if bench.device == "cuda" else None,
        "seconds": 0.0,
        "rows": [],
    }
    print(f"{name}: {bench.question}", flush=True)
    path = out / f"{name}.json"
    cells = list(bench.cells)
    started = time.perf_counter()
    if resume and path.exists():
        held = _same(read_json(path), record, path)
        record["rows"] = [row for row in held["rows"] if row["status"] == "ok"]
        cells = [cell for cell in cells if not any({**row, **cell} == row for row in record["rows"])]
        started -= held["seconds"]
    for row in _answers(bench, cells, beside):
        record["rows"].append(row)
        record["rows"].sort(key=lambda row: _place(bench, row))
        record["seconds"] = time.perf_counter() - started
        write_json(path, record)
        print(f"{record['seconds']:6.1f} s  {_line(row)}", flush=True)
    return record


def _answers(bench: Bench, cells: Sequence[Cell], beside: int) -> Iterator[dict[str, Any]]:
    """The rows of cells: first those that run alone, then the others as they get ready."""
    together = [cell for cell in cells if beside > 1 and bench.beside is not None and bench.beside(cell)]
    for cell in cells:
        if cell not in together:
            yield answer(bench, cell)
    if together:
        with ProcessPoolExecutor(beside, mp_context=get_context("spawn")) as pool:
            for job in as_completed([pool.submit(answer, bench, cell) for cell in together]):
                yield {**job.result(), "beside": beside}


def _place(bench: Bench, row: Mapping[str, Any]) -> int:
    return next(place for place, cell in enumerate(bench.cells) if {**row, **cell} == row)


def warm(benches: dict[str, Bench]) -> None:
    """Compile everything once, in processes side by side; the timed run finds it in the caches."""
    spawn = get_context("spawn")
    with (
        ProcessPoolExecutor(WORKERS, mp_context=spawn, initializer=_hurry) as most,
        ProcessPoolExecutor(LONG_WORKERS, mp_context=spawn, initializer=_hurry) as long,
    ):
        # The last ones compile longest: they go first.
        jobs = [
            (name, cell, (long if cell.get("n", 0) > LONG else most).submit(_compile, name, cell))
            for name, bench in reversed(benches.items())
            for cell in bench.warm
        ]
        for name, cell, job in jobs:
            status = job.result()
            if status != "ok":
                print(f"warm {name} {dict(cell)}: {status}", flush=True)


def ask(
    name: str,
    *,
    out: Path | None,
    gated: bool,
    warmed: bool = False,
    tiny: bool = False,
    resume: bool = False,
    named: str | None = None,
    beside: int = 1,
) -> None:
    """Measure the benchmarks of a name and write their records, by default into their folder in docs.

    Raises:
        KernelheadError: the name is unknown, the device is not there, or the gate is red.
    """
    check_size("bench", "beside", beside)
    benches = chosen_benches(name, tiny=tiny)
    if out is None and tiny:
        out = TINY
    # The tests of all run beside the compilers.
    gates = dict.fromkeys((bench.device, path) for bench in benches.values() for path in bench.gate)
    waits = [gate([path], device=device) for device, path in gates] if gated else []
    started = time.perf_counter()
    if warmed:
        warm(benches)
        print(f"compiled in {time.perf_counter() - started:.0f} s", flush=True)
    for wait in waits:
        wait()
    if gated:
        print(f"gate green after {time.perf_counter() - started:.0f} s", flush=True)
    for each, bench in benches.items():
        folder = out or ROOT / "docs" / bench.folder
        record_of(each, bench, folder, gated=gated, tiny=tiny, resume=resume, named=named, beside=beside)
        page = "page" if bench.folder == "performance" else f"page_{each}"
        print(f"{each} in {folder}; for the page: python -m benchmarks.{page}")


def main(name: str = "all", argv: Sequence[str] | None = None) -> None:
    """The command line, also of each benchmark alone; ends the process with 2 for what is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    if name == "all":
        parser.add_argument("name", nargs="?", default="all", help=f"all, {', '.join(questions())}")
    parser.add_argument("--list", action="store_true", help="say the questions and stop")
    parser.add_argument("--out", type=Path, help="folder of the records; docs/performance by default")
    parser.add_argument("--no-gate", action="store_true", help="skip the tests; figures are marked ungated")
    parser.add_argument("--tiny", action="store_true", help="few small cells, ungated, on any machine")
    parser.add_argument(
        "--resume", action="store_true", help="keep the good rows of the record that is there"
    )
    parser.add_argument(
        "--beside", type=int, default=1, help="processes for cells that need not run alone: robustness"
    )
    parser.add_argument("--commit", help="what is measured, where the checkout has no git")
    parser.add_argument("--warm", action="store_true", help="first compile everything side by side")
    parser.add_argument("--warm-only", action="store_true", help="compile everything and measure nothing")
    chosen = parser.parse_args(argv)
    name = getattr(chosen, "name", name)
    try:
        if chosen.list:
            print("\n".join(f"{each:12}{question}" for each, question in questions().items()))
        elif chosen.warm_only:
            warm(chosen_benches(name))
        else:
            ask(
                name,
                out=chosen.out,
                gated=not (chosen.no_gate or chosen.tiny),
                warmed=chosen.warm,
                tiny=chosen.tiny,
                resume=chosen.resume,
                named=chosen.commit,
                beside=chosen.beside,
            )
    except KernelheadError as error:
        print(f"kernelhead: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _hurry() -> None:
    hurry()
    from torch._inductor import config

    # The processes themselves keep the cores busy.
    config.compile_threads = 1


def _compile(name: str, cell: Cell) -> str:
    status: str = answer(load(name), cell)["status"]
    return status


def _same(held: dict[str, Any], record: dict[str, Any], path: Path) -> dict[str, Any]:
    """A record that is there, if it may be gone on with."""
    for name in SAME:
        if held.get(name) != record[name]:
            raise BadInput(
                f"bench: {path} cannot be resumed: its {name} is {held.get(name)!r}, now {record[name]!r}"
            )
    return held


def _line(row: dict[str, Any]) -> str:
    """A row for the terminal: its cell, and each figure with the floor it is held against."""
    words = []
    for name, value in row.items():
        if isinstance(value, dict) and "ms" in value:
            floor = row.get(f"{name}_floor_ms")
            beside = f" (floor {floor:.3f})" if floor else ""
            words.append(f"{name} {value['ms']:.3f} ms{beside}")
        elif isinstance(value, float) and not name.endswith("_floor_ms"):
            words.append(f"{name} {value:.4g}")
        elif isinstance(value, str | int):
            words.append(f"{value:,}" if isinstance(value, int) else value)
    return ", ".join(words)


if __name__ == "__main__":
    main()
