"""How long does a feed-forward with norm, dropout and residual take, beside what a compiler makes of it?"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import rivals
from benchmarks.harness import Bench, core_figures, drawn
from benchmarks.run import main
from kernelhead.ops import feed_forward
from kernelhead.ops.thinning import thinned

POINTS, WIDTH = 262_144, 64
INNER, DROPOUT = (64, 128), (0.0, 0.1)
OURS, DROPPED, HASHED = "ours", "torch.compile", "torch.compile, hashed dropout"
MOVED = 2, 5  # points and what comes out; the points once more, and both gradients


def plain(drop: Callable[[Tensor, float], Tensor], p: float) -> Callable[..., Tensor]:
    """The same as one writes it."""

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        middle = F.gelu(F.linear(F.layer_norm(x, (WIDTH,), *weights[:2]), *weights[2:4]))
        if not p:
            return x + F.linear(middle, *weights[4:])
        return x + drop(F.linear(drop(middle, p), *weights[4:]), p)

    return run


def writing(rival: str, p: float) -> Callable[..., Tensor]:
    """The rival on points in float32, with products in bf16 by autocast."""
    compiled = {DROPPED: F.dropout, HASHED: thinned}
    if rival == OURS:
        return lambda x, *weights: feed_forward(x, weights[:2], weights[2:4], weights[4:], dropout=p)
    return rivals.compiled(plain(compiled[rival], p))


def measure(inner: int, dropout: float, rival: str) -> Iterator[dict[str, Any]]:
    """Points of the long-range models, with gradients of them and of all weights."""
    shapes = (POINTS, WIDTH), (WIDTH,), (WIDTH,), (inner, WIDTH), (inner,), (WIDTH, inner), (WIDTH,)
    inputs = [drawn(*shape, seed=seed).detach().float() for seed, shape in enumerate(shapes)]
    for weight in (inputs[3], inputs[5]):
        weight /= weight.shape[1] ** 0.5
    run = writing(rival, dropout)

    def halved(*given: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return run(*given)

    yield from core_figures(halved, [each.requires_grad_() for each in inputs], moved=MOVED)


CELLS = [
    {"inner": inner, "dropout": p, "rival": rival}
    for inner in INNER
    for p in DROPOUT
    for rival in (OURS, DROPPED, HASHED)
    if p or rival != HASHED
]
BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/triton/test_feedforward.py",),
    cells=CELLS,
    measure=measure,
    warm=CELLS,
)

if __name__ == "__main__":
    main("feedforward")
