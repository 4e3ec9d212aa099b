"""How to measure: medians of device events, peak memory, the copy speed, and a gate of green tests."""

import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import torch
import triton
from torch import Tensor


def gate(*paths: str) -> None:
    """Refuse to measure what is not right: run the tests of what is measured."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-x", *paths]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"no figures: the gate {' '.join(paths)} is red\n{made.stdout[-2000:]}")


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

    The cache is emptied between calls.
    """
    timed = captured(run) if graph else run
    medians = [triton.testing.do_bench(timed, warmup=5, rep=25, return_mode="median") for _ in range(rounds)]
    return {"ms": statistics.median(medians), "lowest": min(medians), "highest": max(medians)}


def peak_mib(run: Callable[[], object]) -> float:
    """Most device memory above what was in use before the call."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del made
    return peak / 2**20


def copy_speed() -> float:
    """Bytes a second of a device-to-device copy of 1 GiB, read and write counted."""
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


def machine() -> dict[str, Any]:
    """Where and when the figures were taken."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }
