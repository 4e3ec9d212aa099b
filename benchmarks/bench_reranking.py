"""Does the time to re-rank a list grow linearly with primal attention, up to 4,096 candidates?"""

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.harness import Bench
from benchmarks.run import main
from kernelhead.models import RerankerModel
from kernelhead.rng import seeded

CANDIDATES = (512, 1024, 2048, 4096)
ROUNDS = 7


def measure(attention: str, k: int) -> Iterator[dict[str, Any]]:
    """Processor time of four lists in evaluation: 64 anchors, width 64, two layers, 4 heads."""
    with seeded(0):
        model = RerankerModel(64, width=64, heads=4, attention=attention, rank=16, landmarks=32).eval()
        affinity = torch.rand(4, k + 1, 64)
    times = []
    with torch.inference_mode():
        for count in range(ROUNDS + 2):
            # By the processor's clock, so that other work on the machine adds little.
            started = time.process_time()
            model(affinity)
            if count > 1:
                times.append(time.process_time() - started)
    median = statistics.median(times)
    yield {
        "seconds": median,
        "lowest": min(times),
        "highest": max(times),
        "microseconds_an_item": 1e6 * median / k,
    }


BENCH = Bench(
    question=__doc__,
    gate=("tests/models/test_reranker.py",),
    cells=[{"attention": name, "k": k} for name in ("primal", "softmax") for k in CANDIDATES],
    measure=measure,
    device="cpu",
    tiny=[{"attention": "primal", "k": 16}],
)

if __name__ == "__main__":
    main("reranking")
