"""Ask one question or all of them: gate, compile side by side, measure, write.

Run: python -m benchmarks.run all --out docs/performance --warm; then python -m benchmarks.page.
"""

import argparse
import ast
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks import ROOT
from benchmarks.harness import Bench, Cell, answer, copy_speed, gate, hurry, machine, versions
from kernelhead.errors import BadInput, KernelheadError, unknown
from kernelhead.records import write_json

OUT = ROOT / "docs" / "performance"
ORDER = ("core", "layer", "long_range", "causal", "rpc", "cpu", "ksvd")
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


def chosen_benches(name: str) -> dict[str, Bench]:
    """The one of that name, or all for a CUDA device where there is one and else all for the CPU.

    Raises:
        UnknownName: there is none of that name.
        BadInput: it needs a CUDA device and there is none.
    """
    if name == "all":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        loaded = {each: load(each) for each in questions()}
        return {each: bench for each, bench in loaded.items() if bench.device == device}
    bench = load(name)
    if bench.device == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"bench {name}: needs a CUDA device, and torch sees none")
    return {name: bench}


def record_of(name: str, bench: Bench, out: Path, *, gated: bool) -> dict[str, Any]:
    """Measure all cells; the record is written anew after each of them."""
    record: dict[str, Any] = {
        "name": name,
        "question": bench.question,
        "machine": machine(bench.device),
        "versions": versions(),
        "date": datetime.now(UTC).date().isoformat(),
        "gated": gated,
        "copy_bytes_a_second": copy_speed() if bench.device == "cuda" else None,
        "seconds": 0.0,
        "rows": [],
    }
    print(f"{name}: {bench.question}", flush=True)
    started = time.perf_counter()
    for cell in bench.cells:
        row = answer(bench, cell)
        record["rows"].append(row)
        record["seconds"] = time.perf_counter() - started
        write_json(out / f"{name}.json", record)
        print(f"{record['seconds']:6.1f} s  {_line(row)}", flush=True)
    return record


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


def ask(name: str, *, out: Path, gated: bool, warmed: bool = False) -> None:
    """Measure the benchmarks of a name and write their records.

    Raises:
        KernelheadError: the name is unknown, the device is not there, or the gate is red.
    """
    benches = chosen_benches(name)
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
        record_of(each, bench, out, gated=gated)
    print(f"{', '.join(benches)} in {out}; for the page: python -m benchmarks.page")


def main(name: str = "all", argv: Sequence[str] | None = None) -> None:
    """The command line, also of each benchmark alone; ends the process with 2 for what is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    if name == "all":
        parser.add_argument("name", nargs="?", default="all", help=f"all, {', '.join(questions())}")
    parser.add_argument("--list", action="store_true", help="say the questions and stop")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the records")
    parser.add_argument("--no-gate", action="store_true", help="skip the tests; figures are marked ungated")
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
            ask(name, out=chosen.out, gated=not chosen.no_gate, warmed=chosen.warm)
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


def _line(row: dict[str, Any]) -> str:
    """A row for the terminal: its cell, and each figure with the floor it is held against."""
    words = []
    for name, value in row.items():
        if isinstance(value, dict):
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
