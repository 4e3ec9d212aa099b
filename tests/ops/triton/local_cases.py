"""Mixing of neighbours by kernels against the float64 definition, on whatever device runs them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.ops.eager import local as eager
from kernelhead.ops.triton import local as kernels
from tests.inputs import points
from tests.ops.triton.cases import poisoned
from tests.tolerance import assert_within


@dataclass(frozen=True)
class Case:
    """A shape with its options."""

    batch: int = 2
    n: int = 7
    width: int = 5
    taps: int = 3
    dilation: int = 1
    causal: bool = False
    strided: bool = False

    def inputs(self, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Points, weight and bias."""
        x = points(self.batch, self.n, self.width, dtype=dtype)
        if self.strided:
            x = points(self.n, self.batch, 2 * self.width, dtype=dtype).transpose(0, 1)[..., : self.width]
        small = points(self.taps, self.width, seed=1, dtype=dtype), points(self.width, seed=2, dtype=dtype)
        return [each.to(device) for each in (x, *small)]


CASES = {
    "one point": Case(n=1),
    "one tap": Case(taps=1),
    "ragged": Case(n=33, width=70, taps=5),
    "tile": Case(n=32, width=64, taps=4, causal=True),
    "far apart": Case(n=40, taps=7, dilation=8),
    "beyond both ends": Case(n=5, taps=9, dilation=3, causal=True),
    "strided": Case(n=37, width=16, strided=True, dilation=2),
    "several chunks": Case(batch=1, n=530, width=3, taps=2),
}


def with_gradients(case: Case, inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
    """Output and gradients by the plain writing, in the precision of the inputs."""
    inputs = [each.detach().clone().requires_grad_() for each in inputs]
    made = eager.local_mix(*inputs, case.dilation, case.causal)
    return [made, *torch.autograd.grad(made, inputs, grad.to(made.dtype))]


def check(case: Case, dtype: torch.dtype, device: str) -> None:
    """Values and gradients by the house's rule, in memory that was NaN before; two runs are the same."""
    inputs = case.inputs(dtype, device)
    grad = points(*inputs[0].shape, seed=7, dtype=dtype).to(device)
    oracle = with_gradients(case, [each.double() for each in inputs], grad.double())
    plain = with_gradients(case, inputs, grad)
    centre = eager.centre_of(case.taps, case.causal)
    held = [each.detach().requires_grad_() for each in inputs]
    with poisoned():
        runs = []
        for _ in range(2):
            made = kernels.local_mix(*held, case.dilation, centre)
            runs.append([made, *torch.autograd.grad(made, held, grad)])
    assert all(map(torch.equal, *runs))
    for actual, eagerly, exact in zip(runs[0], plain, oracle, strict=True):
        assert actual.dtype == dtype
        assert_within(actual, eager=eagerly, oracle=exact)
