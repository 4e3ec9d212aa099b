"""How much faster is a primal layer than softmax attention, and what do a million points take?"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from benchmarks.harness import Bench, milliseconds, peak_mib
from benchmarks.rivals import BACKENDS
from benchmarks.run import main
from kernelhead.nn import PrimalAttention, SoftmaxAttention, ksvd_penalty, record

POINTS, WIDTH, HEADS, RANK = 262_144, 512, 8, 32
LENGTHS = (1024, 65_536)
LONG = 1_048_576
LAYERS = ("primal", *(f"SDPA, {name}" for name in BACKENDS))


def measure(n: int, layer: str, what: str) -> Iterator[dict[str, Any]]:
    """A layer forward in evaluation, or one training step with the KSVD penalty, in bf16."""
    batch = max(POINTS // n, 1)
    module: nn.Module = (
        PrimalAttention(WIDTH, heads=HEADS, rank=RANK, landmarks=10 * RANK)
        if layer == "primal"
        else SoftmaxAttention(WIDTH, heads=HEADS)
    )
    module = module.to("cuda", torch.bfloat16)
    x = torch.randn(batch, n, WIDTH, device="cuda", dtype=torch.bfloat16)
    backend = BACKENDS.get(layer.removeprefix("SDPA, "), [*BACKENDS.values()])
    yield {"points": batch * n}
    with sdpa_kernel(backend):
        yield from _forward(module.eval(), x) if what == "forward" else _step(module, x)


def _forward(module: nn.Module, x: Tensor) -> Iterator[dict[str, Any]]:
    with torch.no_grad():
        yield {"time": milliseconds(lambda: module(x))}
        yield {"peak_gib": peak_mib(lambda: module(x)) / 1024}


def _step(module: nn.Module, x: Tensor) -> Iterator[dict[str, Any]]:
    def step() -> None:
        module.zero_grad()
        with record(module) as tape:
            (module(x).float().square().mean() + ksvd_penalty(tape)).backward()

    yield {"time": milliseconds(step, rounds=3, graph=False)}
    yield {"peak_gib": peak_mib(step) / 1024}


BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/triton",),
    cells=[
        *({"n": n, "layer": layer, "what": "forward"} for n in LENGTHS for layer in LAYERS),
        {"n": LONG, "layer": "primal", "what": "step"},
    ],
    measure=measure,
)

if __name__ == "__main__":
    main("layer")
