"""Is a primal layer on the CPU ever slower than torch's fused attention layer, and does it grow linearly?"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Bench
from benchmarks.run import main
from kernelhead.nn import PrimalAttention

LENGTHS = (512, 2048, 8192)


def seconds(run: Callable[[], object], rounds: int = 7) -> list[float]:
    """Times of some calls after two that are not counted."""
    times = []
    for count in range(rounds + 2):
        started = time.perf_counter()
        run()
        if count > 1:
            times.append(time.perf_counter() - started)
    return times


def times_as_fast(theirs: list[float], ours: list[float]) -> dict[str, float]:
    """Ratio of the medians, and the lowest and highest of single rounds."""
    ratios = [their / own for their, own in zip(theirs, ours, strict=True)]
    ratio = statistics.median(theirs) / statistics.median(ours)
    return {"ratio": ratio, "lowest": min(ratios), "highest": max(ratios)}


def measure(n: int) -> Iterator[dict[str, Any]]:
    """Both layers in evaluation, width 256, 4 heads, batch 4, one after the other."""
    torch.manual_seed(0)
    x = torch.randn(4, n, 256)
    fused = nn.MultiheadAttention(256, 4, batch_first=True).eval()
    ours = PrimalAttention(256, heads=4, rank=32, landmarks=320).eval()
    with torch.inference_mode():
        theirs_times = seconds(lambda: fused(x, x, x, need_weights=False))
        our_times = seconds(lambda: ours(x))
    yield {
        **times_as_fast(theirs_times, our_times),
        "ours_per_point": statistics.median(our_times) / n,
    }


BENCH = Bench(
    question=__doc__,
    gate=("tests/nn/test_primal.py",),
    cells=[{"n": n} for n in LENGTHS],
    measure=measure,
    device="cpu",
)

if __name__ == "__main__":
    main("cpu")
