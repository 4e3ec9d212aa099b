"""How many times as fast is mixing neighbours on the CPU as plain writings of it, with gradients?"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import rivals
from benchmarks.bench_cpu import seconds, times_as_fast
from benchmarks.harness import Bench
from benchmarks.run import main
from kernelhead.ops import local_mix

BATCH, TAPS, WIDTH = 8, 15, 64
LENGTHS, DILATIONS = (1024, 4096), (1, 32)
RIVALS = {
    "conv1d, points as rows": rivals.depthwise_rows,
    "shifted sums, compiled": rivals.shifted,
}


def measure(n: int, dilation: int, rival: str) -> Iterator[dict[str, Any]]:
    """Ours and a rival in float32, forward and backward to points, weights and bias, one after the other."""
    torch.manual_seed(0)
    inputs = [
        torch.randn(*shape, requires_grad=True) for shape in ((BATCH, n, WIDTH), (TAPS, WIDTH), (WIDTH,))
    ]
    back = torch.randn(BATCH, n, WIDTH)

    def step(mix: Callable[..., Tensor]) -> None:
        torch.autograd.grad(mix(*inputs), inputs, back)

    theirs = partial(RIVALS[rival], dilation=dilation)
    if "compiled" in rival:
        theirs = rivals.compiled(theirs)
    their_times = seconds(lambda: step(theirs))
    our_times = seconds(lambda: step(partial(local_mix, dilation=dilation)))
    yield times_as_fast(their_times, our_times)


BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/test_local.py",),
    cells=[
        {"n": n, "dilation": dilation, "rival": rival}
        for n in LENGTHS
        for dilation in DILATIONS
        for rival in RIVALS
    ],
    measure=measure,
    device="cpu",
)

if __name__ == "__main__":
    main("local_cpu")
