"""Kernels of the pursuit's update against the float64 definition, on whatever device runs them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.ops.eager.rpc import bounds, definition, scale_of
from kernelhead.ops.pursuit import Pursuit
from kernelhead.ops.triton import rpc as kernels
from kernelhead.ops.triton.rpc_library import is_apart
from tests.inputs import points
from tests.ops.triton.cases import poisoned, times
from tests.tolerance import assert_within


@dataclass(frozen=True)
class Case:
    """A shape with its options; `tile` is what the sizes around a block are chosen from."""

    batch: int = 2
    heads: int = 2
    n: int = 7
    d: int = 16
    first: bool = False
    preprint: bool = True
    last: bool = False
    prefix: bool = False
    strided: bool = False
    written: bool = True
    tile: int | None = None

    def inputs(self, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Key, then state and low-rank part unless it is the first update, and the bound."""
        shape = (self.batch, self.heads, self.n, self.d)
        kinds = [dtype] if self.first else [dtype, torch.float32 if self.preprint else dtype, dtype]
        made = [points(*shape, seed=i, dtype=kind).to(device) for i, kind in enumerate(kinds)]
        if not self.written:
            del made[1]
        if self.strided:
            made = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in made]
        bound = points(*shape[:2], self.n if self.prefix else 1, 1, seed=3, dtype=torch.float32).abs() + 0.3
        return [*made, bound.to(device)]


CASES = {
    "one point": Case(n=1),
    "first": Case(n=7, first=True),
    "first, journal": Case(n=7, first=True, preprint=False),
    "ragged": Case(n=7, d=20),
    "journal": Case(n=33, d=5, preprint=False),
    "last": Case(n=33, last=True),
    "a bound for each point": Case(n=33, prefix=True),
    "first with a bound for each point": Case(n=33, first=True, prefix=True, last=True),
    "fused projection": Case(n=33, strided=True, prefix=True),
    "block - 1": Case(n=31, tile=16),
    "block": Case(n=32, tile=16, strided=True),
    "block + 1": Case(n=33, tile=16, preprint=False),
    "one feature": Case(n=9, d=1),
}

RECOMPUTED = {
    "from the key": Case(n=33, written=False),
    "from a state": Case(n=9, d=20),
    "journal": Case(n=7, preprint=False, written=False),
    "a bound for each point": Case(n=17, written=False, prefix=True, tile=16),
    "two layouts": Case(n=7, written=False, strided=True),
}


def reference(case: Case, inputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """State and keys, then the gradients of all inputs, by the plain writing in the inputs' precision."""
    inputs = [each.detach().clone().requires_grad_() for each in inputs]
    key, *previous, bound = inputs
    made = definition(key, (previous[0], previous[1]) if previous else None, bound, case.preprint)
    wanted = [(each, grad.to(each.dtype)) for each, grad in zip(made, grads, strict=True)]
    wanted = wanted[1:] if case.last else wanted
    outputs, pulls = zip(*wanted, strict=True)
    return [each.detach() for each in made] + [*torch.autograd.grad(outputs, inputs, pulls)]


def check(case: Case, dtype: torch.dtype, device: str) -> None:
    """Values and gradients by the house's rule, with outputs that were NaN before."""
    inputs = case.inputs(dtype, device)
    key, *previous, bound = inputs
    grads = [points(*key.shape, seed=i, dtype=dtype).to(device) for i in (7, 8)]
    oracle = reference(case, [each.double() for each in inputs], [each.double() for each in grads])
    plain = reference(case, inputs, grads)
    apart = is_apart(key, case.first, case.preprint, case.last)
    how = {"preprint": case.preprint, "apart": apart, "tile": case.tile}
    given = key, previous[0] if previous else None, previous[1:], bound
    with poisoned():
        state, keys, side = kernels.forward(*given, **how, keep=True)
        bare = kernels.forward(*given, **how, keep=False)
        assert bare[2].numel() == 0
        assert torch.equal(bare[1], keys)
        # Where state and keys are one tensor, so is their gradient.
        pulls = (grads[0].float(), grads[1]) if state is not None else (None, sum(grads))
        pulls = (None, grads[1]) if case.last else pulls
        kinds = dtype, previous[0].dtype if previous else None
        runs = [
            kernels.backward(side, *pulls, kinds, bound.shape[2], case.preprint, case.tile)
            for _ in range(times(device))
        ]
    flat = [[one, *(two or ()), three] for one, two, three in runs]
    assert all(map(torch.equal, flat[0], flat[-1]))
    assert (state is None) == (not apart)
    made = [keys if state is None else state, keys, *flat[0]]
    skip = 1 if case.last else 0
    for actual, eagerly, exact in list(zip(made, plain, oracle, strict=True))[skip:]:
        assert_within(actual, eager=eagerly, oracle=exact)


def check_recomputed(case: Case, lows: int, dtype: torch.dtype, device: str) -> None:
    """A state made again from the low-rank parts so far, against one update after the other."""
    key, *state, low, bound = case.inputs(dtype, device)
    parts = [low] + [points(*low.shape, seed=i, dtype=dtype).to(device) for i in range(20, 19 + lows)]
    if case.strided:
        # Of two layouts, which the kernel does not take side by side.
        parts[-1] = parts[-1].transpose(1, 2).contiguous().transpose(1, 2)
    found = []
    for wide in (lambda each: each.double(), lambda each: each):
        made = wide(state[0]) if state else definition(wide(key), None, wide(bound), case.preprint)[0]
        for part in parts:
            made, keys = definition(wide(key), (made, wide(part)), wide(bound), case.preprint)
            # For a recomputed state nothing is rounded in between.
            made = made.to(bound.dtype if made.dtype != torch.float64 else made.dtype)
        found.append((made, keys))
    with poisoned():
        how = {"preprint": case.preprint, "apart": True, "keep": True, "tile": case.tile}
        made, keys, side = kernels.forward(key, state[0] if state else None, parts, bound, **how)
    for actual, plain, oracle in zip((made, keys), found[1], found[0], strict=True):
        assert_within(actual, eager=plain, oracle=oracle)
    assert side.abs().max() == 1


OPENINGS = {
    "published": (Pursuit.published(1), (2, 3, 70, 16)),
    "corrected": (Pursuit.corrected(1), (1, 2, 9, 5)),
    "several tiles": (Pursuit.published(1, 0.5), (1, 2, 300, 64)),
    "wide": (Pursuit(1, 0.1, threshold="over_mu", guard=0.5), (2, 1, 33, 100)),
}


def check_opening(name: str, strided: bool, dtype: torch.dtype, device: str) -> None:
    """Tau and the first keys by one kernel, in memory that was NaN before."""
    pursuit, shape = OPENINGS[name]
    key = points(*shape, dtype=dtype).to(device)
    if strided:
        key = key.transpose(1, 2).contiguous().transpose(1, 2)
    found = []
    for each in (key.double(), key):
        bound = bounds(each, None, pursuit)
        found.append((bound, definition(each, None, bound, pursuit.sign == "preprint")[1]))
    scale, times_mu = scale_of(pursuit, shape[1]), pursuit.threshold == "times_mu"
    with poisoned():
        made = kernels.opening(key, scale, times_mu, pursuit.guard)
    for actual, exact, eagerly in zip(made, *found, strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)
    key[0, 0, 0, 0] = float("nan")
    assert kernels.opening(key, scale, times_mu, pursuit.guard)[1][0, 0].isnan().all()
