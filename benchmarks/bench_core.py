"""How near is the primal core to the memory floor and to its rivals, from 1,024 to 1,048,576 points?"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from benchmarks import rivals
from benchmarks.harness import Bench, core_figures, drawn
from benchmarks.rivals import compiled
from benchmarks.run import main
from kernelhead.ops import primal_attention, primal_attention_moments

POINTS, HEADS, HEAD, RANK, FEATURES = 262_144, 8, 64, 32, 64
LENGTHS = (1024, 16_384, 65_536)
LONG = 1_048_576

PRIMAL = {
    "primal, ours": lambda: primal_attention,
    "primal, ours, with J": lambda: primal_attention_moments,
    "primal, torch.compile, with J": lambda: compiled(rivals.primal_moments),
}
LINEAR = {
    "linear (elu), torch.compile": lambda: compiled(rivals.linear),
    "Performer (64 features), torch.compile": lambda: compiled(rivals.performer),
    "Nystrom (64 landmarks), torch.compile": lambda: compiled(rivals.nystrom),
}
SOFTMAX = {f"SDPA, {name}": lambda name=name: rivals.sdpa(name) for name in rivals.BACKENDS}
RIVALS = PRIMAL | LINEAR | SOFTMAX

CELLS = [
    *({"n": n, "rival": rival} for n in LENGTHS for rival in RIVALS),
    *({"n": LONG, "rival": rival} for rival in PRIMAL | LINEAR),
]


def measure(n: int, rival: str) -> Iterator[dict[str, Any]]:
    """One core on sequences of n points, all points in one batch."""
    batch = max(POINTS // n, 1)
    sides = [drawn(batch, HEADS, n, HEAD, seed=seed) for seed in range(2)]
    inputs: list[Tensor]
    if rival in PRIMAL:
        weights = [drawn(batch, HEADS, HEAD, RANK, seed=seed) for seed in (2, 3)]
        inputs = [*sides, *weights, drawn(HEAD, 2 * RANK, seed=4), drawn(HEAD, seed=5)]
    else:
        inputs = [*sides, drawn(batch, HEADS, n, HEAD, seed=2)]
    if rival.startswith("Performer"):
        inputs.append(drawn(FEATURES, HEAD, seed=3))
    # Two or three sides in and one out; with backward also the gradient in, the sides again, theirs out.
    moved = (3, 8) if rival in PRIMAL else (4, 11)
    yield {"points": batch * n}
    yield from core_figures(RIVALS[rival](), inputs, moved=moved)


BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/triton",),
    cells=CELLS,
    measure=measure,
    warm=[cell for cell in CELLS if cell["rival"] not in SOFTMAX],
)

if __name__ == "__main__":
    main("core")
