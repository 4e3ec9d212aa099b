"""Which cut of the points is fastest for a kernel? Times of many, the fastest first; nothing is changed.

Run: python -m benchmarks.plans [KERNEL ...], on a machine with a CUDA device. What is found goes into `plan`
of kernelhead.ops.triton.primal and the sizes of local, feedforward, features, maps and lookup there by hand,
for all shapes alike.
"""

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import torch
import triton

from benchmarks.bench_maps import SHAPES as MAPS
from benchmarks.harness import drawn, hurry, milliseconds

Cell = dict[str, Any]
# Batch, heads, points, features, components: of the arena's Image and of long sequences in `bench core`.
SHAPES = {"Image": (256, 2, 1024, 32, 30), "long": (4, 8, 65_536, 64, 32)}
WORKERS = 12
ROWS = 262_144  # points of the arena's Image


def primal_cells(kernel: str) -> list[Cell]:
    """Tiles with 16 or 32 points for a warp, deep pipelines and none, few registers and many."""
    cuts = ((16, 1), (32, 1), (32, 2), (64, 2), (64, 4), (128, 8))
    return [
        {
            "kernel": kernel,
            "shape": shape,
            "tile": tile,
            "warps": warps,
            "stages": stages,
            "registers": most,
            "share": share,
        }
        for shape in SHAPES
        for (tile, warps), stages, most, share in product(cuts, (1, 3), (None, 128), (1, 2, 4))
    ]


def mix_cells(kernel: str) -> list[Cell]:
    """Tiles of outputs."""
    return [{"kernel": kernel, "tile": tile, "dilation": d} for tile in (16, 32, 64, 128) for d in (1, 16)]


def weigh_cells(kernel: str) -> list[Cell]:
    """Points whose products are summed at a time, and programs that share them."""
    return [
        {"kernel": kernel, "step": step, "programs": programs}
        for step, programs in product((4, 8, 16), (528, 1056, 2112))
    ]


def feed_cells(kernel: str) -> list[Cell]:
    """Tiles of few points and many; programs that fill a multiprocessor by themselves or beside others."""
    cuts: tuple[tuple[int, ...], ...]
    if kernel == "feed":
        cuts, most = ((32, 4, 1056), (32, 8, 528), (32, 4, 528), (16, 4, 1056), (64, 8, 528)), None
    else:
        cuts, most = ((64, 8, 132), (32, 8, 132), (32, 8, 264), (16, 8, 264), (16, 4, 264)), 255
    return [
        {
            "kernel": kernel,
            "tile": tile,
            "warps": warps,
            "programs": programs,
            "stages": stages,
            "registers": 128 if warps == 8 and programs > 132 else most,
        }
        for (tile, warps, programs), stages in product(cuts, (1, 2, 3))
    ]


def maps_cells(kernel: str) -> list[Cell]:
    """Three maps as of queries, keys and values, or one of both; tiles for one group of warps and for two."""
    cuts: tuple[tuple[int, ...], ...]
    if kernel == "maps":
        cuts = (64, 4, 1056), (64, 4, 528), (128, 4, 528), (128, 8, 528), (32, 4, 1056)
    else:
        cuts = (64, 4, 264), (64, 8, 132), (64, 8, 264), (128, 8, 132), (32, 4, 264)
    return [
        {
            "kernel": kernel,
            "shape": shape,
            "tile": tile,
            "warps": warps,
            "programs": programs,
            "stages": stages,
        }
        for shape in MAPS
        for (tile, warps, programs), stages in product(cuts, (1, 2, 3))
    ]


def gather_cells(kernel: str) -> list[Cell]:
    """Rows that are added at a time, programs that share them, and their warps."""
    return [
        {"kernel": kernel, "tile": tile, "programs": programs, "warps": warps}
        for tile, programs, warps in product((32, 64, 128), (132, 264), (4, 8))
    ]


def query_cells(kernel: str) -> list[Cell]:
    """Programs of one warp and of many, and how many of them a multiprocessor holds; few features and many.

    Many leave no choice of registers.
    """
    cuts: dict[str, tuple[tuple[int | None, ...], ...]] = {
        "elu": (
            (64, 4, 1, 128), (64, 4, 2, 128), (64, 4, 2, None), (64, 4, 3, None), (32, 2, 2, 128),
            (32, 2, 3, 128), (32, 2, 2, None), (16, 1, 2, 128), (16, 1, 2, None),
            (128, 8, 2, 128), (128, 8, 2, None),
        ),
        "drawn": (
            (64, 4, 1, None), (64, 4, 2, None), (64, 4, 3, None), (64, 8, 2, None), (128, 8, 1, None),
            (128, 8, 2, None), (128, 8, 3, None), (32, 4, 2, None),
        ),
    }  # fmt: skip
    return [
        {"kernel": kernel, "shape": shape, "tile": tile, "warps": warps, "stages": stages, "registers": most}
        for shape, each in cuts.items()
        for tile, warps, stages, most in each
    ]


def primal_time(cell: Cell) -> float:
    """Of data-dependent primal attention with its moments.

    By `share` fewer sequences, and then a smaller part of one, are left to a program.
    """
    from kernelhead.ops.triton import primal

    batch, heads, n, d, s = SHAPES[cell["shape"]]
    sides = [drawn(batch, heads, n, d, seed=seed) for seed in range(2)]
    weights = [drawn(batch, heads, d, s, seed=seed) for seed in (2, 3)]
    join, bias = drawn(d, 2 * s, seed=4), drawn(d, seed=5)
    back = cell["kernel"] == "backward"
    base = primal.plan(n, d, s, sequences=batch * heads, size=2, backward=back)
    tile, share = cell["tile"], cell["share"]
    chunk = triton.cdiv(triton.cdiv(base.chunk, max(share // base.group, 1)), tile) * tile
    layout = replace(
        base,
        tile=tile,
        chunk=chunk,
        splits=triton.cdiv(n, chunk),
        warps=cell["warps"],
        stages=cell["stages"],
        registers=cell["registers"],
        group=max(base.group // share, 1),
    )
    if not back:
        return milliseconds(
            lambda: primal.forward(*sides, *weights, join, bias, None, True, False, layout), rounds=1
        )["ms"]
    pulls = [drawn(batch, heads, s, seed=seed).float() for seed in (6, 7)]
    grad = drawn(batch, heads, n, d, seed=8)
    return milliseconds(
        lambda: primal.backward(*sides, *weights, join, bias, None, grad, *pulls, False, layout), rounds=1
    )["ms"]


def mix_time(cell: Cell) -> float:
    """Of 15 taps on 262,144 points of 128 features."""
    from kernelhead.ops.triton import local

    x, weight, bias = drawn(256, 1024, 128), drawn(15, 128, seed=1), drawn(128, seed=2)
    with patch.object(local, "TILE", cell["tile"]):
        return milliseconds(lambda: local.mix(x, weight, bias, cell["dilation"], 7, False), rounds=1)["ms"]


def weigh_time(cell: Cell) -> float:
    """Of the gradients of as many."""
    from kernelhead.ops.triton import local

    x = drawn(256, 1024, 128)
    with patch.object(local, "STEP", cell["step"]), patch.object(local, "PROGRAMS", cell["programs"]):
        return milliseconds(lambda: local.weigh(x, x, 15, 1, 7), rounds=1)["ms"]


def feed_time(cell: Cell) -> float:
    """Of rows of 64 features in float32 with 128 in the middle, products in bf16, and dropout."""
    from kernelhead.ops.triton import feedforward
    from kernelhead.ops.triton.parts import Cut

    shapes = (ROWS, 64), (64,), (64,), (128, 64), (128,), (64, 128), (64,)
    x, *weights = (drawn(*shape, seed=seed).float() for seed, shape in enumerate(shapes))
    norm, enter, leave = (tuple(weights[at : at + 2]) for at in (0, 2, 4))
    word = torch.tensor([77, 99], dtype=torch.int32, device="cuda")
    cut = Cut(**{name: cell[name] for name in ("tile", "programs", "warps", "stages", "registers")})
    how = word, 0.1, 1e-5, torch.bfloat16
    with patch.object(feedforward, "FORWARD" if cell["kernel"] == "feed" else "BACKWARD", cut):
        if cell["kernel"] == "feed":
            return milliseconds(lambda: feedforward.forward(x, norm, enter, leave, *how), rounds=1)["ms"]
        given = x, norm, enter, leave[0], word, x, *how[1:]
        return milliseconds(lambda: feedforward.backward(*given), rounds=1)["ms"]


def maps_time(cell: Cell) -> float:
    """Of points of 64 features in bf16."""
    from kernelhead.ops.triton import maps
    from kernelhead.ops.triton.parts import Cut

    count, e = MAPS[cell["shape"]]
    x, grad = drawn(ROWS, 64), drawn(ROWS, e, seed=1)
    given = [(drawn(e, 64, seed=2).float(), drawn(e, seed=3).float())] * count
    cut = Cut(**{name: cell[name] for name in ("tile", "programs", "warps", "stages")})
    with patch.object(maps, "cuts", lambda *_: (cut, cut)):
        if cell["kernel"] == "maps":
            return milliseconds(lambda: maps.forward(x, given), rounds=1)["ms"]
        grads, weights = [grad.clone() for _ in given], [weight for weight, _ in given]
        return milliseconds(lambda: maps.backward(x, weights, grads), rounds=1)["ms"]


def query_time(cell: Cell) -> float:
    """Of the gradients of queries in attention through features: elu + 1, or exponentials of 111 products."""
    from kernelhead.ops.triton import features
    from kernelhead.ops.triton.parts import Cut

    batch, heads, n, d, _ = SHAPES["Image"]
    # Heads lie inside points, as a projection leaves them.
    query, key, value, grad = (drawn(batch, n, heads, d, seed=seed).transpose(1, 2) for seed in range(4))
    frequencies = drawn(111, d, seed=4).float() if cell["shape"] == "drawn" else None
    _, sums, totals, peaks, _ = features.forward(query, key, value, frequencies, None)
    names = "tile", "warps", "stages", "registers"
    cut = Cut(programs=batch * heads, **{name: cell[name] for name in names})
    given = query, frequencies, sums, totals, peaks, grad
    with patch.object(features, "QUERY_GRADIENTS", cut):
        return milliseconds(lambda: features.query_gradients(*given), rounds=1)["ms"]


def gather_time(cell: Cell) -> float:
    """Of rows of 64 features in float32 and 256 tokens."""
    from kernelhead.ops.triton import lookup

    rows, tokens = drawn(ROWS, 64).float(), torch.arange(ROWS, device="cuda") * 40_503 % 256
    cut = {"TILE": cell["tile"], "PROGRAMS": cell["programs"], "WARPS": cell["warps"]}
    with patch.multiple(lookup, **cut):
        return milliseconds(lambda: lookup.gathered(tokens, rows, 256), rounds=1)["ms"]


KERNELS: dict[str, tuple[Callable[[str], list[Cell]], Callable[[Cell], float]]] = {
    "forward": (primal_cells, primal_time),
    "backward": (primal_cells, primal_time),
    "mix": (mix_cells, mix_time),
    "weigh": (weigh_cells, weigh_time),
    "feed": (feed_cells, feed_time),
    "feed-back": (feed_cells, feed_time),
    "maps": (maps_cells, maps_time),
    "maps-back": (maps_cells, maps_time),
    "query-back": (query_cells, query_time),
    "gather": (gather_cells, gather_time),
}


def time_of(cell: Cell) -> float:
    """Milliseconds, or infinity where the plan does not fit the device; what else goes wrong is said."""
    try:
        return KERNELS[cell["kernel"]][1](cell)
    except triton.runtime.errors.OutOfResources:
        return float("inf")
    except RuntimeError as error:
        print(f"plans: {cell}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        return float("inf")


def main() -> int:
    """2 where there is no such kernel or no device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", nargs="*", default=[], help=", ".join(KERNELS))
    asked = parser.parse_args().kernels or list(KERNELS)
    unknown = [name for name in asked if name not in KERNELS]
    if unknown or not torch.cuda.is_available():
        said = f"no kernel {unknown[0]!r}, there are {', '.join(KERNELS)}" if unknown else "no CUDA device"
        print(f"plans: {said}", file=sys.stderr)
        return 2
    cells = [cell for name in asked for cell in KERNELS[name][0](name)]
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"), initializer=hurry) as pool:
        list(pool.map(time_of, cells))  # compiles
    for kernel, shape in dict.fromkeys((cell["kernel"], cell.get("shape")) for cell in cells):
        mine = [cell for cell in cells if (cell["kernel"], cell.get("shape")) == (kernel, shape)]
        # In a process of their own: after some errors a device answers no more calls of a process.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as one:
            rows = list(zip(mine, one.map(time_of, mine), strict=True))
        print(f"{kernel} {shape or ''}")
        for cell, took in sorted(rows, key=lambda row: row[1])[:8]:
            shown = {k: v for k, v in cell.items() if v is not None and k not in ("kernel", "shape")}
            print(f"  {took:.4f} ms  {', '.join(f'{k} {v}' for k, v in shown.items())}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
