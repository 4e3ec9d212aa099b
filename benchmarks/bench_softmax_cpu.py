"""How many times as fast is softmax attention of few points in bfloat16 on the CPU as PyTorch's own?"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench_cpu import seconds, times_as_fast
from benchmarks.harness import Bench
from benchmarks.run import main
from kernelhead.ops import softmax_attention

POINTS, HEADS = 8192, 4
CELLS = [{"n": n, "width": width} for n in (32, 64, 128) for width in (16, 64)]


def measure(n: int, width: int) -> Iterator[dict[str, Any]]:
    """Both on the same 8,192 points, forward and backward to queries, keys and values."""
    torch.manual_seed(0)
    shape = (POINTS // n, HEADS, n, width)
    sides = [torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    back = torch.randn(*shape, dtype=torch.bfloat16)

    def step(attend: Callable[..., Tensor]) -> None:
        torch.autograd.grad(attend(*sides), sides, back)

    theirs = seconds(lambda: step(F.scaled_dot_product_attention))
    yield times_as_fast(theirs, seconds(lambda: step(softmax_attention)))


BENCH = Bench(
    question=__doc__, gate=("tests/ops/test_softmax.py",), cells=CELLS, measure=measure, device="cpu"
)

if __name__ == "__main__":
    main("softmax_cpu")
