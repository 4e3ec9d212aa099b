"""How far does exact and matrix-free kernel SVD reach on this machine, and how good is it there?"""

import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.harness import Bench
from benchmarks.run import main
from kernelhead.decomposition import ksvd, ksvd_softmax

SEED = 0


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return made


def attention_points(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of 64 features whose softmax has a few strong directions and a long tail."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=source) @ torch.randn(16, 64, generator=source) / 4
    x = x + 0.5 * torch.randn(n, 64, generator=source)
    maps = [torch.randn(64, 64, generator=source) / 8 * 1.5 for _ in range(2)]
    return x @ maps[0], x @ maps[1]


def measure(what: str, n: int) -> Iterator[dict[str, Any]]:
    """Measure in a fresh process: peak memory never falls within one."""
    run = {"features": features, "softmax": softmax}[what]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool.submit(run, n, SEED).result()


def features(n: int, seed: int) -> dict[str, Any]:
    """Exact, from features."""
    source = torch.Generator().manual_seed(seed)
    left = torch.randn(n, 64, generator=source)
    right = left @ torch.randn(64, 64, generator=source)
    before = _peak()
    started = time.perf_counter()
    result = ksvd(left, right, rank=32)
    seconds = time.perf_counter() - started
    inputs = 2 * left.numel() * left.element_size() / 2**20
    return {
        "seconds": seconds,
        "input_mib": inputs,
        "peak_growth_mib": _peak() - before,
        "objective_over_trace": float(result.objective.abs() / result.trace),
        "residual": float(max(result.left_residual, result.right_residual)),
    }


def softmax(n: int, seed: int) -> dict[str, Any]:
    """The top 32 of softmax attention, matrix-free."""
    q, k = attention_points(n, seed)
    with Largest() as largest:
        started = time.perf_counter()
        result = ksvd_softmax(q, k, rank=32, generator=torch.Generator().manual_seed(seed))
        seconds = time.perf_counter() - started
    row = {
        "seconds": seconds,
        "largest_tensor_over_n2": largest.elements / n**2,
        "sigma": [float(result.values[i]) for i in (0, 1, 31)],
        "residual": float(max(result.left_residual, result.right_residual)),
    }
    if n <= 2048:
        entries = (q.double() @ k.double().mT / 8).softmax(-1)
        true = torch.linalg.svdvals(entries)[:32]
        row["largest_error"] = float(((result.values.double() - true).abs() / true).max())
    return row


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


BENCH = Bench(
    question=__doc__,
    gate=("tests/decomposition",),
    cells=[
        *({"what": "features", "n": n} for n in (250_000, 500_000, 1_000_000)),
        *({"what": "softmax", "n": n} for n in (2048, 16_384)),
    ],
    measure=measure,
    device="cpu",
)

if __name__ == "__main__":
    main("ksvd")
