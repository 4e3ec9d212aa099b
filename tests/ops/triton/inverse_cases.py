"""The iterated inverse in one kernel against the float64 definition, on whatever device runs it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.ops.eager import linear as eager
from kernelhead.ops.triton import inverse_library as library
from tests.inputs import points
from tests.ops.triton.cases import poisoned, times
from tests.tolerance import assert_within


@dataclass(frozen=True)
class Case:
    """A softmax among s landmarks, the more alike the smaller `spread` is; where columns tie all are one."""

    s: int
    batch: tuple[int, ...] = (2, 3)
    iterations: int = 6
    spread: float = 1.0
    strided: bool = False

    def matrix(self, device: str) -> Tensor:
        """Positive, rows sum to one."""
        left, right = (points(*self.batch, self.s, 8, seed=seed, dtype=torch.float32) for seed in range(2))
        made = (self.spread * left @ right.mT).softmax(-1).to(device)
        return made.mT.contiguous().mT if self.strided else made


CASES = {
    "one landmark": Case(1),
    "two": Case(2, batch=()),
    "few": Case(5),
    "a block less one": Case(15, batch=(3,)),
    "a block": Case(16, strided=True),
    "a block and one": Case(17, batch=(2, 1, 2)),
    "ragged": Case(33, spread=0.3),
    "widest": Case(64),
    "widest, alike": Case(64, batch=(2,), spread=0.1),
    "widest, apart": Case(64, batch=(2,), spread=3.0),
    "one step": Case(33, batch=(2,), iterations=1),
    "equal columns": Case(5, spread=0.0),
}


def made(run: Callable[[Tensor, int], Tensor], matrix: Tensor, grad: Tensor, iterations: int) -> list[Tensor]:
    """The inverse and the gradient of the matrix."""
    held = matrix.detach().clone().requires_grad_()
    inverse = run(held, iterations)
    return [inverse.detach(), *torch.autograd.grad(inverse, held, grad)]


def check(case: Case, device: str) -> None:
    """Values and gradients by the house's rule, in memory that was NaN before, twice with the same bits."""
    matrix = case.matrix(device)
    grad = points(*matrix.shape, seed=7, dtype=torch.float32).to(device)
    oracle = made(eager.iterated_inverse, matrix.double(), grad.double(), case.iterations)
    plain = made(eager.iterated_inverse, matrix, grad, case.iterations)
    with poisoned():
        runs = [made(library.iterated_inverse, matrix, grad, case.iterations) for _ in range(times(device))]
        with torch.no_grad():
            alone = library.iterated_inverse(matrix, case.iterations)
    assert all(map(torch.equal, runs[0], runs[-1]))
    assert torch.equal(alone, runs[0][0])
    for actual, eagerly, exact in zip(runs[0], plain, oracle, strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)
