"""docs/performance.md from docs/performance.json: no figure in that page is typed by hand.

Run: python -m benchmarks.page
"""

import json
from pathlib import Path
from typing import Any

SOURCE = Path("docs/performance.json")


def page(record: dict[str, Any]) -> str:
    """The figures as Markdown."""
    machine, speed = record["machine"], record["copy_bytes_a_second"]
    where = f"{machine['device']}, torch {machine['torch']}, Triton {machine['triton']}, bf16"
    lines = [
        "# Performance on the GPU",
        "",
        f"Made by `python -m benchmarks.primal_gpu` and `-m benchmarks.page` on {machine['date']}: {where}.",
        "Times are medians of replayed CUDA graphs with the cache emptied between calls.",
        "",
        *record.get("notes", []),
        "",
        f"The floor is the fewest bytes to move at the speed of a plain copy, {speed / 1e12:.2f} TB/s:",
        "for the primal core three tensors of q's size forward and eight forward and backward.",
        "",
        "## Core: 262,144 points in all, 8 heads of 64, rank 32, weights of each batch row",
        "",
        "| n | rival | forward, ms | over floor | with backward, ms | over floor | peak, tensors of q |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["core"]:
        primal = row["rival"].startswith("primal")
        size = 262_144 * 8 * 64 * 2
        forward, both = row["forward"]["ms"], row["both"]["ms"]
        floors = [moved * size / speed * 1e3 for moved in ((3, 8) if primal else (4, 0))]
        second = f"{both / floors[1]:.2f}" if primal else ""
        first = f"{forward:.3f} | {forward / floors[0]:.2f}"
        last = f"{both:.3f} | {second} | {row['both_peak_over_q']:.2f}"
        lines += [f"| {row['n']:,} | {row['rival']} | {first} | {last} |"]
    lines += ["", "Peak counts what forward and backward need above their inputs, gradients included.", ""]
    lines += [
        "## Whole layers of width 512, forward, 320 landmarks",
        "",
        "| n | layer | ms | ratio |",
        "|---|---|---|---|",
    ]
    for first, second in zip(record["layers"][::2], record["layers"][1::2], strict=True):
        ours, theirs = first["forward"]["ms"], second["forward"]["ms"]
        lines.append(f"| {first['n']:,} | {first['layer']} | {ours:.3f} | |")
        lines.append(f"| {second['n']:,} | {second['layer']} | {theirs:.3f} | {theirs / ours:.1f} |")
    million = record["million"]
    lines += [
        "",
        f"One training step of the primal layer on one sequence of {million['n']:,} points takes "
        f"{million['step']['ms']:.1f} ms and {million['peak_gib']:.1f} GiB.",
        "",
        "## Training step of the long-range models: two layers of width 64",
        "",
        "| task | attention | ms | peak, GiB |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['task']} | {row['attention']} | {row['step']['ms']:.2f} | {row['peak_gib']:.2f} |"
        for row in record["long_range"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read, write."""
    record = json.loads(SOURCE.read_text(encoding="utf-8"))
    SOURCE.with_suffix(".md").write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()
