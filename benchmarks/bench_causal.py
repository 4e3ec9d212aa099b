"""What do both causal forms of Primal-Attention cost beside causal softmax and causal linear attention?"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks import rivals
from benchmarks.harness import Bench, core_figures, drawn
from benchmarks.rivals import compiled
from benchmarks.run import main
from kernelhead.ops import prefix_scores, primal_attention

POINTS, HEADS, HEAD, RANK = 262_144, 8, 64, 32
LENGTHS = (1024, 16_384, 65_536)
PARTS = 6  # processes that compile fla's settings side by side

FREE, DATA = "primal, ours, data-independent", "primal, ours, data-dependent"
CHUNKS, FLA = "linear (elu), chunks, torch.compile", "linear, fla, neither features nor normaliser"
SOFTMAX = {f"SDPA, {name}": name for name in rivals.BACKENDS}


def free_weights(query: Tensor, key: Tensor, left: Tensor, right: Tensor, *join: Tensor) -> Tensor:
    """The primal core on running means of queries and keys."""
    return primal_attention(query, key, left, right, *join, causal=True)


def data_weights(
    query: Tensor, key: Tensor, rows: Tensor, left: Tensor, right: Tensor, join: Tensor, bias: Tensor
) -> Tensor:
    """Scores with weights built from each point's prefix, joined."""
    return torch.cat(prefix_scores(query, key, rows, left, right), -1) @ join.mT + bias


def measure(n: int, rival: str, part: int | None = None) -> Iterator[dict[str, Any]]:
    """One causal core on sequences of n points, all points in one batch."""
    batch = POINTS // n
    shape = (batch, n, HEADS, HEAD) if rival == FLA else (batch, HEADS, n, HEAD)
    sides = [drawn(*shape, seed=seed) for seed in range(2 if rival == FREE else 3)]
    join = [drawn(HEAD, 2 * RANK, seed=5), drawn(HEAD, seed=6)]
    if part is not None:
        rivals.share_fla(part, PARTS)
    yield {"points": batch * n}
    if rival == FREE:
        weights = [drawn(HEADS, HEAD, RANK, seed=seed) for seed in (3, 4)]
        yield from core_figures(free_weights, [*sides, *weights, *join], moved=(3, 8))
    elif rival == DATA:
        weights = [drawn(HEADS, 10 * RANK, RANK, seed=seed) for seed in (3, 4)]
        yield from core_figures(data_weights, [*sides, *weights, *join], moved=(4, 11))
    elif rival in SOFTMAX:
        yield from core_figures(rivals.sdpa(SOFTMAX[rival], causal=True), sides, moved=(4, 11))
    else:
        run = rivals.fla_linear if rival == FLA else compiled(rivals.causal_linear)
        yield from core_figures(run, sides, moved=(4, 11))


BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/triton",),
    cells=[{"n": n, "rival": rival} for n in LENGTHS for rival in (FREE, DATA, CHUNKS, FLA, *SOFTMAX)],
    measure=measure,
    warm=[
        *({"n": LENGTHS[0], "rival": FLA, "part": part} for part in range(PARTS)),
        *({"n": n, "rival": rival} for n in LENGTHS for rival in (FREE, DATA, CHUNKS)),
    ],
)

if __name__ == "__main__":
    main("causal")
