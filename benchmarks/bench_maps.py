"""How long do queries, keys and values take, and the gradients of what made them, beside torch's layers?"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import rivals
from benchmarks.harness import Bench, core_figures, drawn
from benchmarks.run import main
from kernelhead.ops import linear_maps

POINTS, WIDTH = 262_144, 64
# How many maps, and features that each makes.
SHAPES = {"three of 64": (3, 64), "one of 128": (1, 128), "one of 64": (1, 64)}
OURS, LAYERS, JOINED = "ours", "torch.compile", "torch.compile, one product"


def layers(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """A layer each."""
    return tuple(F.linear(x, *pair) for pair in zip(weights[::2], weights[1::2], strict=True))


def joined(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """One layer for all, which is cut apart."""
    return F.linear(x, torch.cat(weights[::2]), torch.cat(weights[1::2])).chunk(len(weights) // 2, dim=-1)


def writing(rival: str) -> Callable[..., tuple[Tensor, ...]]:
    """The rival on points in bf16 beside weights in float32, by autocast."""
    if rival == OURS:
        return lambda x, *weights: linear_maps(x, list(zip(weights[::2], weights[1::2], strict=True)))
    return rivals.compiled({LAYERS: layers, JOINED: joined}[rival])


def measure(maps: str, rival: str) -> Iterator[dict[str, Any]]:
    """Points of the long-range models, with gradients of them and of all weights."""
    count, width = SHAPES[maps]
    x = drawn(POINTS, WIDTH)
    sizes = [size for _ in range(count) for size in ((width, WIDTH), (width,))]
    parts = [drawn(*size, seed=seed).detach().float() / WIDTH**0.5 for seed, size in enumerate(sizes, 1)]
    run = writing(rival)

    def halved(*given: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            return run(*given)

    # In tensors of the points' size: what comes out; the points once more, and gradients of both.
    out = count * width // WIDTH
    moved = 1 + out, 3 + 2 * out
    yield from core_figures(halved, [x, *(each.requires_grad_() for each in parts)], moved=moved)


CELLS = [
    {"maps": maps, "rival": rival}
    for maps, (count, _) in SHAPES.items()
    for rival in (OURS, LAYERS, JOINED)
    if count > 1 or rival != JOINED
]
BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/triton/test_maps.py",),
    cells=CELLS,
    measure=measure,
    warm=CELLS,
)

if __name__ == "__main__":
    main("maps")
