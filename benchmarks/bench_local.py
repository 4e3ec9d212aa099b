"""How long does mixing neighbours take, beside a depthwise convolution and a sum of shifted points?"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from benchmarks import rivals
from benchmarks.harness import Bench, core_figures, drawn
from benchmarks.run import main
from kernelhead.ops import local_mix

TAPS, WIDTH = 15, 128
SHAPES = {1024: 256, 4096: 32}  # sequences of so many points, as in Image and Text
DILATIONS = (1, 16)
OURS, ROWS, COLUMNS, SHIFTED = "ours", "conv1d, points as rows", "conv1d, points as columns", "shifted sums"
MOVED = 2, 6  # points and outputs; their gradients, and both once more for that of the weights


def writing(rival: str, dilation: int) -> Callable[..., Tensor]:
    """The rival, for points as rows but where its name says otherwise."""
    plain = {ROWS: rivals.depthwise_rows, COLUMNS: rivals.depthwise, SHIFTED: rivals.shifted}
    if rival == OURS:
        return partial(local_mix, dilation=dilation)
    return rivals.compiled(partial(plain[rival], dilation=dilation))


def measure(n: int, dilation: int, rival: str) -> Iterator[dict[str, Any]]:
    """Points of 128 features, weights and bias, with gradients of all."""
    batch = SHAPES[n]
    shape = (batch, WIDTH, n) if rival == COLUMNS else (batch, n, WIDTH)
    inputs = [drawn(*shape), drawn(TAPS, WIDTH, seed=1), drawn(WIDTH, seed=2)]
    yield {"points": batch * n}
    yield from core_figures(writing(rival, dilation), inputs, moved=MOVED)


BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/triton/test_local.py",),
    cells=[
        {"n": n, "dilation": dilation, "rival": rival}
        for n in SHAPES
        for dilation in DILATIONS
        for rival in (OURS, ROWS, COLUMNS, SHIFTED)
    ],
    measure=measure,
    warm=[{"n": 1024, "dilation": 1, "rival": rival} for rival in (OURS, ROWS, COLUMNS, SHIFTED)],
)

if __name__ == "__main__":
    main("local")
