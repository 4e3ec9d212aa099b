"""What does softmax attention cost with padded keys: by a mask over all, or by lengths?"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import rivals
from benchmarks.harness import Bench, copy_speed, forward_backward, milliseconds
from benchmarks.run import main
from kernelhead.ops.eager import packed

POINTS, HEADS, WIDTH = 131_072, 2, 32
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def masked(backend: SDPBackend) -> Attention:
    """One of PyTorch's fused kernels, with a mask over all keys."""

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask.unsqueeze(-2))

    return run


RIVALS: dict[str, Attention] = {
    "ours, torch.compile": packed.softmax_attention,
    "mask, cuDNN": masked(SDPBackend.CUDNN_ATTENTION),
    "mask, memory-efficient": masked(SDPBackend.EFFICIENT_ATTENTION),
}


def measure(n: int, share: float, rival: str) -> Iterator[dict[str, Any]]:
    """Sequences in bfloat16 with lengths around a share of the longest, views of one projection each."""
    source, batch = torch.Generator("cuda").manual_seed(0), POINTS // n
    most = min(2 * share, 1.0) * n
    lengths = n if share == 1 else (torch.rand(batch, 1, device="cuda", generator=source) * most).clamp_min(1)
    mask = (torch.arange(n, device="cuda").expand(batch, n) < lengths).unsqueeze(1)
    sides = [
        torch.randn(batch, n, HEADS, WIDTH, device="cuda", generator=source)
        .bfloat16()
        .transpose(1, 2)
        .requires_grad_()
        for _ in range(3)
    ]
    run = rivals.compiled(RIVALS[rival]) if rival.endswith("torch.compile") else RIVALS[rival]
    one = sides[0].numel() * sides[0].element_size() / copy_speed() * 1e3
    with torch.no_grad():
        yield {"forward": milliseconds(lambda: run(*sides, mask), rounds=3), "forward_floor_ms": 4 * one}
    both = forward_backward(lambda: run(*sides, mask), sides)
    yield {"both": milliseconds(both, rounds=3), "both_floor_ms": 12 * one}


CELLS = [
    {"n": n, "share": share, "rival": rival}
    for n in (256, 1024, 4096)
    for share in (0.33, 1.0)
    for rival in RIVALS
]
BENCH = Bench(question=__doc__, gate=("tests/ops/test_packed.py",), cells=CELLS, measure=measure, warm=CELLS)

if __name__ == "__main__":
    main("padded")
