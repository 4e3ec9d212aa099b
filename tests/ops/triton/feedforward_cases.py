"""A feed-forward in one kernel against the float64 definition, on whatever device runs it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.ops.eager import feedforward as eager
from kernelhead.ops.triton import feedforward_library as library
from tests.inputs import points
from tests.ops.triton.cases import poisoned, times
from tests.tolerance import assert_within

Inputs = list[Tensor]


@dataclass(frozen=True)
class Case:
    """A shape with its options; `single` points are float32 beside products in half precision."""

    n: int = 7
    c: int = 16
    i: int = 32
    dropout: float = 0.0
    single: bool = True
    batched: bool = False

    def inputs(self, kind: torch.dtype, device: str) -> Inputs:
        """Points, and scale, shift and the two layers with their biases; then what dropout hashes."""
        of = torch.float32 if self.single else kind
        shape = (2, self.n, self.c) if self.batched else (self.n, self.c)
        sizes = [(self.c,), (self.c,), (self.i, self.c), (self.i,), (self.c, self.i), (self.c,)]
        weights = [points(*size, seed=seed, dtype=of) for seed, size in enumerate(sizes, 1)]
        for at in (2, 4):
            weights[at] /= (
                sizes[at][1] ** 0.5
            )  # as a network has them: what goes in is as large as what comes out
        return [each.to(device) for each in (points(*shape, dtype=of), *weights)]

    def word(self, device: str) -> Tensor | None:
        """The two words that dropout hashes."""
        return torch.tensor([77, 2**31 - 3], dtype=torch.int32, device=device) if self.dropout else None


CASES = {
    "one point": Case(n=1),
    "few": Case(dropout=0.3),
    "half": Case(n=9, single=False, batched=True),
    "half, thinned": Case(n=33, c=32, i=16, single=False, dropout=0.1),
    "a tile": Case(n=32, c=64, i=128),
    "a tile less one": Case(n=63, c=64, i=32, dropout=0.5),
    "several tiles": Case(n=70, c=64, i=128, batched=True, dropout=0.1),
    "widest": Case(n=40, c=128, i=64),
}
EPSILON = 1e-3


def made(run: object, inputs: Inputs, grad: Tensor, *others: object) -> list[Tensor]:
    """The output and the gradients of all inputs."""
    held = [each.detach().clone().requires_grad_() for each in inputs]
    x, *rest = held
    out = run(x, (*rest[:2],), (*rest[2:4],), (*rest[4:],), *others)  # type: ignore[operator]
    return [out, *torch.autograd.grad(out, held, grad)]


def check(case: Case, kind: torch.dtype, device: str) -> None:
    """Values and gradients by the house's rule, in memory that was NaN before, twice with the same bits."""
    inputs, word = case.inputs(kind, device), case.word(device)
    grad = points(*inputs[0].shape, seed=9, dtype=inputs[0].dtype).to(device)
    how = word, case.dropout, EPSILON
    oracle = made(eager.feed_forward, [each.double() for each in inputs], grad.double(), *how)
    with torch.autocast(device, kind):
        plain = made(eager.feed_forward, inputs, grad, *how)
    with poisoned():
        runs = [made(library.feed_forward, inputs, grad, *how, kind) for _ in range(times(device))]
    assert all(map(torch.equal, runs[0], runs[-1]))
    for actual, eagerly, exact in zip(runs[0], plain, oracle, strict=True):
        assert actual.dtype == inputs[0].dtype
        assert_within(actual, eager=eagerly, oracle=exact)
