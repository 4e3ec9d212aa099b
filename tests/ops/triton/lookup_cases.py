"""Gradients of a table that tokens looked up against their definition, on whatever device runs them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.ops.triton import lookup
from kernelhead.ops.triton import lookup_library as library
from tests.inputs import points
from tests.ops.triton.cases import poisoned, times
from tests.tolerance import assert_within


@dataclass(frozen=True)
class Case:
    """So many rows of c features, of a vocabulary; `same` of them are of one token."""

    rows: int = 7
    c: int = 5
    vocabulary: int = 3
    same: float = 0.0
    dtype: torch.dtype = torch.int64

    def tokens(self, device: str) -> Tensor:
        """Two sequences of them, where their number is even."""
        source = torch.Generator().manual_seed(0)
        drawn = torch.randint(self.vocabulary, (self.rows,), generator=source)
        drawn[torch.rand(self.rows, generator=source) < self.same] = self.vocabulary - 1
        return drawn.to(device, self.dtype).view(2 - self.rows % 2, -1)


CASES = {
    "one row": Case(rows=1, c=1, vocabulary=1),
    "few": Case(),
    "mostly one token": Case(rows=130, c=64, vocabulary=20, same=0.9),
    "a tile less one": Case(rows=63, c=16, vocabulary=16, dtype=torch.int32),
    "a tile": Case(rows=64, c=128, vocabulary=17),
    "blocks of tokens": Case(rows=65, c=3, vocabulary=513),
}


def check(case: Case, dtype: torch.dtype, device: str) -> None:
    """Values as torch has them, gradients by the rule, in memory that was NaN, twice with the same bits."""
    tokens = case.tokens(device)
    table = points(case.vocabulary, case.c, dtype=dtype).to(device).requires_grad_()
    grad = points(*tokens.shape, case.c, seed=1, dtype=dtype).to(device)

    def summed(kind: torch.dtype) -> Tensor:
        total = torch.zeros(case.vocabulary, case.c, dtype=kind, device=device)
        return total.index_add_(0, tokens.flatten(), grad.flatten(0, 1).to(kind))

    with poisoned():
        looked = library.look_up(table, tokens)
        runs = [torch.autograd.grad(looked, table, grad, retain_graph=True)[0] for _ in range(times(device))]
    assert torch.equal(looked, table[tokens])
    assert torch.equal(runs[0], runs[-1])
    assert runs[0].dtype == dtype
    assert_within(runs[0], eager=summed(dtype), oracle=summed(torch.float64))
    sums = lookup.gathered(tokens, grad, case.vocabulary)
    assert_within(sums, eager=summed(torch.float32), oracle=summed(torch.float64))
