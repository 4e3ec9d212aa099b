"""How to measure: a question and its cells, medians of device events, peak memory, a gate of green tests."""

import gc
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from benchmarks import ROOT
from kernelhead.errors import BadInput

Cell = Mapping[str, Any]
GATE_SHARES = 12
SLOW = 20.0  # milliseconds from which a few single calls are enough

_hurry = False


@dataclass(frozen=True)
class Bench:
    """One question, the tests that must be green before it is asked, and the cells of its answer.

    Args:
        question: what the figures answer.
        gate: paths of tests; red tests, no number.
        cells: the arguments of each row.
        measure: from a cell to its figures, piece by piece, so that a late failure keeps early ones.
        warm: cells to run once beforehand, side by side, for the compilers' caches.
        device: "cuda" or "cpu".
        folder: of the record, in docs; those of "performance" are asked together.
        tiny: cells that every machine answers in seconds, to try the question out.
        beside: whether a cell may run beside others: no time of its row is then used.
    """

    question: str
    gate: tuple[str, ...]
    cells: Sequence[Cell]
    measure: Callable[..., Iterator[dict[str, Any]]]
    warm: Sequence[Cell] = ()
    device: str = "cuda"
    folder: str = "performance"
    tiny: Sequence[Cell] = ()
    beside: Callable[[Cell], bool] | None = None


def answer(bench: Bench, cell: Cell) -> dict[str, Any]:
    """One row: the cell, its status and its figures; a rival that fails is a status and not a crash."""
    row: dict[str, Any] = {**cell, "status": "ok"}
    try:
        for figures in bench.measure(**cell):
            row |= figures
    except Exception as error:
        said = str(error).strip().splitlines() or [""]
        row["status"] = f"{type(error).__name__}: {said[0]}"[:200]
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # of a device that the cell broke, which its status tells of
            torch.cuda.empty_cache()
    return row


def gate(paths: Sequence[str], *, device: str) -> Callable[[], None]:
    """Start the tests of what is measured; the call that comes back waits and refuses if they are red."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-x", "-p", "no:cacheprovider"]
    # Most of the time of kernels' tests is compiling: they run side by side.
    shares = GATE_SHARES if device == "cuda" else 1
    chosen = ["-m", "gpu"] if device == "cuda" else []
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    tests = [
        subprocess.Popen(
            [*command, *chosen, *([f"--share={place + 1}/{shares}"] if shares > 1 else []), *paths],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for place in range(shares)
    ]

    def wait() -> None:
        said = [line for each in tests for line in each.communicate()[0].split("\n")]
        codes = {each.returncode for each in tests}
        # 5 is a share without a test; that all are empty is no proof of anything.
        if codes - {0, 5} or 0 not in codes:
            red = [line.split(" - ")[0] for line in said if line.startswith(("FAILED ", "ERROR"))]
            raise BadInput(f"no figures: the gate {' '.join(paths)} is red, {(red or ['no test ran'])[0]}")

    return wait


def hurry() -> None:
    """From now on in this process run everything once and time nothing: only the caches are filled."""
    global _hurry
    _hurry = True


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """The call as a CUDA graph, so that what is timed is the device's work and not Python's."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def milliseconds(run: Callable[[], object], *, rounds: int = 5, graph: bool = True) -> dict[str, float]:
    """Median over rounds of the median time of a call, captured as a graph, and the spread of the rounds.

    The cache is emptied between calls. Of a slow call three are timed.
    """
    if _hurry:
        run()
        torch.cuda.synchronize()
        return {"ms": 1.0, "lowest": 1.0, "highest": 1.0}
    from triton.testing import do_bench

    timed = captured(run) if graph else run
    _once(timed)
    if _once(timed) > SLOW:
        times = [_once(timed) for _ in range(3)]
    else:
        times = [do_bench(timed, warmup=5, rep=25, return_mode="median") for _ in range(rounds)]
    return {"ms": statistics.median(times), "lowest": min(times), "highest": max(times)}


def peak_mib(run: Callable[[], object]) -> float:
    """Most device memory above what was in use before the call."""
    if _hurry:
        return 1.0
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del made
    return peak / 2**20


def host_peak_mib(run: Callable[[], object]) -> float:
    """Most memory of tensors on the CPU above what was in use before the call, by the profiler's account."""
    from torch.profiler import ProfilerActivity, profile

    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20


@cache
def copy_speed() -> float:
    """Bytes a second of a device-to-device copy of 1 GiB, read and write counted; taken once a process."""
    if _hurry:
        return 1.0
    source = torch.empty(2**29, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    # Not as a graph: there a copy goes through the copy engine, which is slower than a kernel.
    seconds = milliseconds(lambda: target.copy_(source), graph=False)["ms"] / 1e3
    return 2 * source.numel() * source.element_size() / seconds


def forward_backward(
    run: Callable[[], Tensor | tuple[Tensor, ...]], inputs: list[Tensor]
) -> Callable[[], object]:
    """A call that runs forward and gives gradients of all inputs for a fixed gradient of the output."""
    made = run()
    outputs = list(made) if isinstance(made, tuple) else [made]
    grads = [torch.randn_like(output) for output in outputs]
    del made, outputs

    def both() -> object:
        made = run()
        return torch.autograd.grad(made, inputs, grads)

    return both


def core_figures(
    run: Callable[..., Any], inputs: list[Tensor], *, moved: tuple[int, int] | None = None
) -> Iterator[dict[str, Any]]:
    """Times of a core forward and with backward, and its peak memory in tensors of the first input's size.

    Args:
        run: the core.
        inputs: what it is called with, and what gradients are taken of.
        moved: how many such tensors it must at least read or write, forward and in all: its floors.
    """
    one = inputs[0].numel() * inputs[0].element_size()
    floors = [count * one / copy_speed() * 1e3 for count in moved] if moved else [None, None]
    with torch.no_grad():
        forward = milliseconds(lambda: run(*inputs))
    yield {"forward": forward, "forward_floor_ms": floors[0]}
    both = forward_backward(lambda: run(*inputs), inputs)
    yield {"both": milliseconds(both, rounds=3), "both_floor_ms": floors[1]}
    peak = peak_mib(both)
    gradients = sum(each.numel() * each.element_size() for each in inputs)
    yield {
        "peak_mib": peak,
        "peak_over_q": peak * 2**20 / one,
        "gradients_over_q": gradients / one,
    }


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in bf16 on the device, as a leaf that takes a gradient."""
    source = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=source).requires_grad_()


def machine(device: str) -> dict[str, Any]:
    """Where the figures were taken."""
    if device == "cuda":
        return {"device": torch.cuda.get_device_name()}
    return {"device": f"{platform.system()} {platform.machine()}", "threads": torch.get_num_threads()}


def versions() -> dict[str, str]:
    """Of all that the figures depend on and that is installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "fla-core"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    if torch.version.cuda:
        found |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    return found


def commit() -> str | None:
    """The commit of the checkout, marked where files differ from it; None where git does not know."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def _once(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)
