"""Is a primal layer ever slower on the CPU than torch's own fused attention layer, and does it grow linearly?

Run: python -m benchmarks.primal_cpu; writes docs/performance_cpu.json and, from it, docs/performance_cpu.md.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelhead.nn import PrimalAttention

LENGTHS = (512, 2048, 8192)
OUT = Path("docs/performance_cpu.json")


def seconds(run: Callable[[], object], rounds: int = 7) -> list[float]:
    """Times of some calls after two that are not counted."""
    times = []
    for count in range(rounds + 2):
        started = time.perf_counter()
        run()
        if count > 1:
            times.append(time.perf_counter() - started)
    return times


def compare(n: int) -> dict[str, Any]:
    """Both layers in evaluation, width 256, 4 heads, batch 4, one after the other in each round."""
    torch.manual_seed(0)
    x = torch.randn(4, n, 256)
    fused = nn.MultiheadAttention(256, 4, batch_first=True).eval()
    ours = PrimalAttention(256, heads=4, rank=32, landmarks=320).eval()
    with torch.inference_mode():
        theirs_times = seconds(lambda: fused(x, x, x, need_weights=False))
        our_times = seconds(lambda: ours(x))
    ratios = [theirs / own for theirs, own in zip(theirs_times, our_times, strict=True)]
    return {
        "n": n,
        "ratio": statistics.median(theirs_times) / statistics.median(our_times),
        "lowest": min(ratios),
        "highest": max(ratios),
        "ours_per_point": statistics.median(our_times) / n,
    }


def page(record: dict[str, Any]) -> str:
    """The figures as Markdown."""
    first = record["rows"][0]["ours_per_point"]
    lines = [
        "# Performance on the CPU",
        "",
        f"Made by `python -m benchmarks.primal_cpu` on {record['date']}: {record['machine']},",
        f"{record['threads']} threads, torch {record['torch']}, float32. How many times as fast as",
        "`nn.MultiheadAttention` in evaluation (its fused path) a primal layer is, width 256, 4 heads,",
        "rank 32, 320 landmarks, batch 4; and its cost for each point, 1 at all n if growth is linear.",
        "",
        "| n | times as fast | lowest and highest of 7 rounds | cost for each point |",
        "|---|---|---|---|",
    ]
    for row in record["rows"]:
        spread = f"{row['lowest']:.1f} to {row['highest']:.1f}"
        lines += [f"| {row['n']:,} | {row['ratio']:.1f} | {spread} | {row['ours_per_point'] / first:.2f} |"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, write."""
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": [compare(n) for n in LENGTHS],
    }
    OUT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    OUT.with_suffix(".md").write_text(page(record), encoding="utf-8")
    print(page(record))


if __name__ == "__main__":
    main()
