"""How many times as fast as softmax do the long-range models train on the CPU, with which attention?"""

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench_cpu import seconds, times_as_fast
from benchmarks.bench_long_range import ATTENTIONS, TASKS, cases, loss_of, network
from benchmarks.harness import Bench, host_peak_mib
from benchmarks.run import main

BATCH = {"Image": 8, "ListOps": 4, "Text": 2}
PLAIN = "plain bf16"  # left out: in float32 these are attentions as the others are


def training(task: str, attention: str, *, compiled: bool = False) -> Callable[[], None]:
    """A step in float32 as it is written, which is how training without a GPU runs, or compiled."""
    torch.manual_seed(0)
    model = network(task, attention)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, target = cases(task, BATCH[task], "cpu")

    def loss() -> Tensor:
        return loss_of(model, attention, x, target)

    run = torch.compile(loss, dynamic=False, fullgraph=True) if compiled else loss

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        run().backward()
        optimiser.step()

    return step


def measure(task: str, attention: str) -> Iterator[dict[str, Any]]:
    """Steps with softmax and with the attention, one after the other, the peak memory of the latter, and how
    many times as fast it is when compiled.
    """
    _, n, *_, rank = TASKS[task]
    yield {"n": n, "batch": BATCH[task], "rank": rank}
    theirs, ours = training(task, "softmax"), training(task, attention)
    written = seconds(ours, rounds=5)
    yield times_as_fast(seconds(theirs, rounds=5), written)
    yield {"peak_mib": host_peak_mib(ours)}
    compiled = seconds(training(task, attention, compiled=True), rounds=5)
    yield {"compiled": statistics.median(written) / statistics.median(compiled)}


BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/test_primal.py", "tests/ops/test_linear.py", "tests/ops/test_softmax.py"),
    cells=[
        {"task": task, "attention": attention}
        for task in TASKS
        for attention in ATTENTIONS
        if not attention.endswith(PLAIN)
    ],
    measure=measure,
    device="cpu",
)

if __name__ == "__main__":
    main("long_range_cpu")
