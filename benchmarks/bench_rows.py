"""What does attention between the rows of a table cost from 1,000 to 100,000 rows?"""

import resource
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.harness import Bench, milliseconds, peak_mib
from benchmarks.run import main
from kernelhead.models import TableModel
from kernelhead.training import Masking, masked_loss

COLUMNS, WIDTH, DEPTH, HEADS, RANK, INDUCING = 8, 16, 4, 4, 16, 64
ATTENTIONS = ("softmax", "primal", "inducing", "self")
ROWS = (1000, 10_000, 100_000)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SLOW = 5.0  # seconds from which one call is enough


def measure(rows: int, attention: str, what: str) -> Iterator[dict[str, Any]]:
    """A whole model in float32: all predictions of a table, or a training step on hidden entries.

    On the CPU in a fresh process: peak memory never falls within one.
    """
    if DEVICE == "cpu":
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            yield pool.submit(on_the_cpu, rows, attention, what).result()
        return
    run = made(rows, attention, what, "cuda")
    yield {"time": milliseconds(run, rounds=3, graph=False)}
    yield {"peak_mib": peak_mib(run)}


def made(rows: int, attention: str, what: str, device: str) -> Callable[[], object]:
    """The call that is measured, for a table of standard normal numbers."""
    torch.manual_seed(0)
    options = {"width": WIDTH, "depth": DEPTH, "heads": HEADS, "rank": RANK, "inducing": INDUCING}
    model = TableModel([1] * COLUMNS, categorical=[False] * COLUMNS, attention=attention, **options).to(
        device
    )
    values = torch.randn(1, rows, COLUMNS, device=device)
    missing = torch.zeros(1, rows, COLUMNS, dtype=torch.bool, device=device)

    def predict() -> object:
        with torch.no_grad():
            return model(values, missing)

    def step() -> None:
        model.zero_grad()
        masked_loss(model, values, missing, COLUMNS - 1, masking=Masking(), tradeoff=0.5).backward()

    return predict if what == "predict" else step


def on_the_cpu(rows: int, attention: str, what: str) -> dict[str, Any]:
    """Times of up to five calls after one that is not counted, and the memory above that of the start.

    On one thread and by the processor's clock: other work on the machine adds little.
    """
    torch.set_num_threads(1)
    run = made(rows, attention, what, "cpu")
    before, times = _peak(), []
    for _ in range(6):
        started = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - started))
        if times[-1] > 1e3 * SLOW:
            break
    times = times[1:] or times
    return {
        "time": {"ms": statistics.median(times), "lowest": min(times), "highest": max(times)},
        "peak_mib": _peak() - before,
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


BENCH = Bench(
    question=__doc__,
    gate=("tests/models/test_tabular.py",),
    cells=[
        {"rows": rows, "attention": attention, "what": what}
        for what in ("predict", "step")
        for rows in (ROWS if DEVICE == "cuda" or what == "predict" else ROWS[:2])
        for attention in ATTENTIONS
    ],
    measure=measure,
    device=DEVICE,
    tiny=[{"rows": 100, "attention": name, "what": "step"} for name in ATTENTIONS],
)

if __name__ == "__main__":
    main("rows")
