"""Linear maps of the same points by kernels against the float64 definition, on whatever device runs them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.ops.eager import maps as eager
from kernelhead.ops.triton import maps_library as library
from tests.inputs import points
from tests.ops.triton.cases import poisoned, times
from tests.tolerance import assert_within


@dataclass(frozen=True)
class Case:
    """A shape; weights are float32 unless they are `half`."""

    n: int = 7
    c: int = 16
    e: int = 32
    maps: int = 1
    batched: bool = False
    half: bool = False

    def inputs(self, kind: torch.dtype, device: str) -> list[Tensor]:
        """Points in half precision, then weight and bias of each map."""
        shape = (2, self.n, self.c) if self.batched else (self.n, self.c)
        of = kind if self.half else torch.float32
        sizes = [size for _ in range(self.maps) for size in ((self.e, self.c), (self.e,))]
        parts = [points(*size, seed=seed, dtype=of) for seed, size in enumerate(sizes, 1)]
        for weight in parts[::2]:
            weight /= self.c**0.5  # what goes in is as large as what comes out
        return [each.to(device) for each in (points(*shape, dtype=kind), *parts)]


CASES = {
    "one point": Case(n=1),
    "few": Case(maps=3, half=True),
    "a tile less one": Case(n=63, c=32, e=16, maps=2),
    "a tile": Case(n=64, c=64, e=64, maps=3),
    "a tile and one": Case(n=65, c=16, e=16, maps=3, half=True),
    "several tiles": Case(n=150, c=64, e=64, maps=3, batched=True),
    "queries with keys": Case(n=70, c=64, e=128, batched=True),
    "narrower": Case(n=40, c=128, e=64),
}


def made(run: object, inputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """The outputs and the gradients of all inputs."""
    x, *parts = held = [each.detach().clone().requires_grad_() for each in inputs]
    outs = run(x, list(zip(parts[::2], parts[1::2], strict=True)))  # type: ignore[operator]
    return [*outs, *torch.autograd.grad(outs, held, grads)]


def check(case: Case, kind: torch.dtype, device: str) -> None:
    """Values and gradients by the house's rule, in memory that was NaN before, twice with the same bits."""
    inputs = case.inputs(kind, device)
    shape = *inputs[0].shape[:-1], case.e
    grads = [points(*shape, seed=20 + at, dtype=kind).to(device) for at in range(case.maps)]
    exact = made(eager.linear_maps, [each.double() for each in inputs], [each.double() for each in grads])
    with torch.autocast(device, kind):
        plain = made(eager.linear_maps, inputs, grads)
    with poisoned():
        runs = [made(library.linear_maps, inputs, grads) for _ in range(times(device))]
    assert all(map(torch.equal, runs[0], runs[-1]))
    kinds = [kind] * case.maps + [each.dtype for each in inputs]
    for actual, eagerly, oracle, of in zip(runs[0], plain, exact, kinds, strict=True):
        assert actual.dtype == of
        assert_within(actual, eager=eagerly, oracle=oracle)
