"""How long does a training step of the paper's long-range models take, with which attention?"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import rivals
from benchmarks.harness import Bench, milliseconds, peak_mib
from benchmarks.run import main
from kernelhead.models import SequenceClassifier
from kernelhead.nn import ksvd_penalty, record

ATTENTIONS = (
    "primal", "primal+", "softmax", "linear", "linear, plain bf16", "nystrom", "nystrom, plain bf16",
    "performer", "performer, plain bf16", "convolution", "none",
)  # fmt: skip
# Batch, points, vocabulary, classes, rank.
TASKS = {"Image": (256, 1024, 256, 10, 30), "ListOps": (32, 2048, 32, 10, 20), "Text": (32, 4096, 512, 2, 20)}
FEATURES = 111  # of a head of Performer, as many as `nn.PerformerAttention` draws


class Nothing(nn.Module):
    """No attention at all: what the rest of the model costs."""

    width = 64

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return x


class Plain(nn.Module):
    """An attention as its rivals write it: one projection, nothing in float32."""

    width, heads = 64, 2

    def __init__(self, mix: Callable[..., Tensor], features: int = 0) -> None:
        super().__init__()
        self.mix, self.sides, self.out = mix, nn.Linear(64, 192), nn.Linear(64, 64)
        self.register_buffer("frequencies", torch.randn(features, 64 // self.heads) if features else None)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        query, key, value = self.sides(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        drawn = () if self.frequencies is None else (self.frequencies.to(query.dtype),)
        output: Tensor = self.out(self.mix(query, key, value, *drawn).transpose(1, 2).flatten(-2))
        return output


REPLACED: dict[str, Callable[[], nn.Module]] = {
    "none": Nothing,
    "linear, plain bf16": partial(Plain, rivals.linear),
    "nystrom, plain bf16": partial(Plain, rivals.nystrom),
    "performer, plain bf16": partial(Plain, rivals.performer, FEATURES),
}
# What a model is built with where its attention's name does not say it.
BUILT: dict[str, dict[str, Any]] = {
    **{name: {"attention": "linear"} for name in REPLACED},
    "convolution": {"attention": "none", "window": 15},
}


def network(task: str, attention: str) -> SequenceClassifier:
    """Two layers of width 64 for a task, with an attention."""
    _, n, vocabulary, classes, rank = TASKS[task]
    model = SequenceClassifier(
        classes,
        vocabulary=vocabulary,
        width=64,
        heads=2,
        inner=128,
        rank=rank,
        landmarks=64 if attention == "nystrom" else 10 * rank,
        position="learned",
        longest=n,
        dropout=0.1,
        init="published",
        **BUILT.get(attention, {"attention": attention}),
    )
    if attention in REPLACED:
        for block in model.blocks:
            block.attention = REPLACED[attention]()
    return model


def cases(task: str, batch: int, device: str) -> tuple[Tensor, Tensor]:
    """Drawn tokens (batch, n) and classes (batch,)."""
    _, n, vocabulary, classes, _ = TASKS[task]
    x = torch.randint(1, vocabulary, (batch, n), device=device)
    return x, torch.randint(classes, (batch,), device=device)


def loss_of(model: nn.Module, attention: str, x: Tensor, target: Tensor) -> Tensor:
    """What a step makes smaller, with the KSVD term where the attention has one."""
    if not attention.startswith("primal"):
        return nn.functional.cross_entropy(model(x), target)
    with record(model) as tape:
        scores = model(x)
    return nn.functional.cross_entropy(scores, target) + 0.1 * ksvd_penalty(tape, reduction="batch")


def training_step(task: str, attention: str) -> Callable[[], None]:
    """A step, compiled, in bf16 by autocast, made three times."""
    model = network(task, attention).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)
    x, target = cases(task, TASKS[task][0], "cuda")

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return loss_of(model, attention, x, target)

    run = torch.compile(loss, dynamic=False, fullgraph=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        run().backward()
        optimiser.step()

    for _ in range(3):
        step()
    return step


def measure(task: str, attention: str) -> Iterator[dict[str, Any]]:
    """A step, captured as a graph."""
    batch, n, *_, rank = TASKS[task]
    step = training_step(task, attention)
    yield {"n": n, "batch": batch, "rank": rank}
    yield {"peak_gib": peak_mib(step) / 1024}
    yield {"time": milliseconds(step, rounds=3)}


CELLS = [{"task": task, "attention": attention} for task in TASKS for attention in ATTENTIONS]
BENCH = Bench(question=__doc__, gate=("tests/ops/triton",), cells=CELLS, measure=measure, warm=CELLS)

if __name__ == "__main__":
    main("long_range")
