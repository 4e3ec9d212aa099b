"""How long does the gradient of a table take that tokens looked up, where many are the same and where not?"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import rivals
from benchmarks.harness import Bench, copy_speed, forward_backward, milliseconds
from benchmarks.run import main
from kernelhead.ops import look_up

ROWS, WIDTH, VOCABULARY = 262_144, 64, 256
SAME = (0.0, 0.9)  # the share of tokens that are one, as black pixels are
RIVALS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ours": look_up,
    "ours, torch.compile": look_up,  # as a compiled model has it
    "torch": lambda table, tokens: F.embedding(tokens, table),
    "torch.compile": lambda table, tokens: F.embedding(tokens, table),
}


def measure(same: float, rival: str) -> Iterator[dict[str, Any]]:
    """Rows in float32, looked up and their gradients summed."""
    source = torch.Generator("cuda").manual_seed(0)
    tokens = torch.randint(VOCABULARY, (ROWS,), device="cuda", generator=source)
    tokens[torch.rand(ROWS, device="cuda", generator=source) < same] = 0
    table = torch.randn(VOCABULARY, WIDTH, device="cuda", generator=source).requires_grad_()
    run = rivals.compiled(RIVALS[rival]) if rival.endswith("torch.compile") else RIVALS[rival]
    one = ROWS * WIDTH * table.element_size()
    yield {"both": milliseconds(forward_backward(lambda: run(table, tokens), [table]), rounds=3)}
    yield {"both_floor_ms": 2 * one / copy_speed() * 1e3}


CELLS = [{"same": same, "rival": rival} for same in SAME for rival in RIVALS]
BENCH = Bench(
    question=__doc__,
    gate=("tests/ops/triton/test_feedforward.py",),
    cells=CELLS,
    measure=measure,
    warm=CELLS,
)

if __name__ == "__main__":
    main("lookup")
