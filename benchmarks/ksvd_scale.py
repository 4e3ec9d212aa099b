"""How far does exact and matrix-free kernel SVD reach on this machine, and how good is it there?

Run: python -m benchmarks.ksvd_scale; writes docs/measured.json and, from it, the table docs/measured.md.
"""

import argparse
import json
import platform
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelhead.decomposition import ksvd, ksvd_softmax


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
        "n": n,
        "seconds": seconds,
        "input_mib": inputs,
        "peak_growth_mib": _peak() - before,
        "objective_over_trace": float(result.objective.abs() / result.trace),
        "residual": float(max(result.left_residual, result.right_residual)),
    }


def softmax(n: int, seed: int, exact: bool) -> dict[str, Any]:
    """The top 32 of softmax attention, matrix-free."""
    q, k = attention_points(n, seed)
    with Largest() as largest:
        started = time.perf_counter()
        result = ksvd_softmax(q, k, rank=32, generator=torch.Generator().manual_seed(seed))
        seconds = time.perf_counter() - started
    row = {
        "n": n,
        "seconds": seconds,
        "largest_tensor_over_n2": largest.elements / n**2,
        "sigma": [float(result.values[i]) for i in (0, 1, 31)],
        "residual": float(max(result.left_residual, result.right_residual)),
    }
    if exact:
        entries = (q.double() @ k.double().mT / 8).softmax(-1)
        true = torch.linalg.svdvals(entries)[:32]
        row["largest_error"] = float(((result.values.double() - true).abs() / true).max())
    return row


def _alone(measure: Any, *arguments: Any) -> dict[str, Any]:
    """Measure in a fresh process: peak memory never falls within one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        made: dict[str, Any] = pool.submit(measure, *arguments).result()
        return made


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def table(record: dict[str, Any]) -> str:
    """The figures as Markdown."""
    machine = record["machine"]
    where = (
        f"{machine['system']} {machine['machine']}, {machine['threads']} threads, torch {machine['torch']}"
    )
    lines = [
        "# Measured: kernel SVD",
        "",
        f"Made by `python -m benchmarks.ksvd_scale` on {record['date']}, {where},",
        f"float32, seed {record['seed']}, one run each in a process of its own.",
        "",
        "Exact, from 64 features on both sides, rank 32:",
        "",
        "| n | seconds | inputs, MiB | peak above start, MiB | J over trace | largest residual |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["features"]:
        cost = f"{row['seconds']:.2f} | {row['input_mib']:.0f} | {row['peak_growth_mib']:.0f}"
        lines += [f"| {row['n']:,} | {cost} | {row['objective_over_trace']:.1e} | {row['residual']:.1e} |"]
    lines += [
        "",
        "Softmax attention, 64 features, top 32, matrix-free, against a float64 SVD of all entries:",
        "",
        "| n | seconds | largest tensor over n^2 | sigma 1, 2, 32 | largest residual | largest error |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["softmax"]:
        sigma = ", ".join(f"{value:.4g}" for value in row["sigma"])
        error = f"{row['largest_error']:.2%}" if "largest_error" in row else "not computed"
        cost = f"{row['seconds']:.1f} | {row['largest_tensor_over_n2']:.4f}"
        lines += [f"| {row['n']:,} | {cost} | {sigma} | {row['residual']:.1e} | {error} |"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measured.json"))
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "seed": chosen.seed,
        "machine": {
            "system": platform.system(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "features": [_alone(features, n, chosen.seed) for n in (250_000, 500_000, 1_000_000)],
        "softmax": [_alone(softmax, n, chosen.seed, n <= 2048) for n in (2048, 16_384)],
    }
    chosen.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    chosen.out.with_suffix(".md").write_text(table(record), encoding="utf-8")
    print(table(record))


if __name__ == "__main__":
    main()
