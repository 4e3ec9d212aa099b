"""What does RPC-Attention with four iterations cost beside four plain calls of softmax attention?"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.nn.attention import sdpa_kernel

from benchmarks.harness import Bench, core_figures, drawn
from benchmarks.rivals import BACKENDS, sdpa
from benchmarks.run import main
from kernelhead.ops import Pursuit, rpc_attention

POINTS, HEADS, HEAD, ITERATIONS = 65_536, 8, 64, 4
LENGTHS = (1024, 4096, 16_384)
OURS, PLAIN = "RPC, ours", "SDPA calls"
PURSUIT = Pursuit.published(ITERATIONS)


def measure(n: int, rival: str, backend: str) -> Iterator[dict[str, Any]]:
    """The symmetric form, where keys attend to keys, with one fused kernel of torch inside both."""
    batch = POINTS // n
    inputs = [drawn(batch, HEADS, n, HEAD, seed=seed) for seed in range(2)]
    plain = sdpa(backend, calls=ITERATIONS)

    def run(key: Tensor, value: Tensor) -> Tensor:
        if rival == PLAIN:
            return plain(key, key, value)
        with sdpa_kernel(BACKENDS[backend]):
            return rpc_attention(key, value, pursuit=PURSUIT)

    yield {"points": batch * n, "calls": ITERATIONS}
    yield from core_figures(run, inputs)


BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/triton/test_rpc.py",),
    cells=[
        {"n": n, "rival": rival, "backend": backend}
        for n in LENGTHS
        for backend in BACKENDS
        for rival in (OURS, PLAIN)
    ],
    measure=measure,
    warm=[{"n": LENGTHS[0], "rival": OURS, "backend": "flash"}],
)

if __name__ == "__main__":
    main("rpc")
