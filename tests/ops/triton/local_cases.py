"""Mixing of neighbours against the float64 definition, on whatever device runs it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.ops.eager import local as eager
from kernelhead.ops.triton import local_library as library
from tests.inputs import points
from tests.ops.triton.cases import poisoned, times
from tests.tolerance import assert_within


@dataclass(frozen=True)
class Case:
    """A shape with its options; strided points are every second block of features."""

    batch: int = 2
    n: int = 7
    c: int = 5
    taps: int = 3
    dilation: int = 1
    causal: bool = False
    strided: bool = False

    def inputs(self, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Points, weights and bias; weights are float32, as under autocast."""
        x = points(self.batch, self.n, 2 * self.c, dtype=dtype).to(device)
        x = x[..., : self.c] if self.strided else x[..., : self.c].contiguous()
        weight, bias = points(self.taps, self.c, seed=1), points(self.c, seed=2)
        return [x, weight.float().to(device), bias.float().to(device)]


CASES = {
    "one point": Case(n=1, c=1, taps=1),
    "few": Case(dilation=2),
    "causal": Case(n=9, taps=4, causal=True),
    "even taps": Case(n=9, taps=4, dilation=3),
    "taps beyond the ends": Case(n=5, taps=15, dilation=4),
    "several tiles": Case(n=67, c=70, taps=5, dilation=16, strided=True),
    "a tile": Case(batch=1, n=32, c=64, taps=15),
    "two groups of taps": Case(n=20, c=6, taps=17, causal=True),
    "many sequences": Case(batch=40, n=70, c=3, taps=2, causal=True),
}


def mixed(run: object, inputs: list[Tensor], case: Case, grad: Tensor) -> list[Tensor]:
    """The output and the gradients of all inputs."""
    held = [each.detach().clone().requires_grad_() for each in inputs]
    if case.strided:
        held[0] = inputs[0].detach().requires_grad_()
    made = run(*held, case.dilation, case.causal)  # type: ignore[operator]
    return [made, *torch.autograd.grad(made, held, grad)]


def check(case: Case, dtype: torch.dtype, device: str) -> None:
    """Values and gradients by the house's rule, in memory that was NaN before, twice with the same bits."""
    inputs = case.inputs(dtype, device)
    grad = points(case.batch, case.n, case.c, seed=7, dtype=dtype).to(device)
    oracle = mixed(eager.local_mix, [each.double() for each in inputs], case, grad.double())
    plain = mixed(eager.local_mix, inputs, case, grad)
    with poisoned():
        runs = [mixed(library.local_mix, inputs, case, grad) for _ in range(times(device))]
    assert all(map(torch.equal, runs[0], runs[-1]))
    for actual, eagerly, exact in zip(runs[0], plain, oracle, strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)
