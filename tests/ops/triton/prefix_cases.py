"""Scans and steps against the float64 definition, on whatever device runs them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.nn import PrimalAttention
from kernelhead.ops.eager import primal as eager
from kernelhead.ops.triton import prefix as kernels
from kernelhead.ops.triton.step import primal_step
from tests.inputs import points
from tests.ops.triton.cases import poisoned, times
from tests.tolerance import assert_within

SMALL = kernels.Plan(16, 2)  # chunks of 32 points


@dataclass(frozen=True)
class Case:
    """A shape with its options; a small layout makes several chunks of few points."""

    n: int = 7
    p: int = 16
    e: int = 4
    masked: bool = False
    strided: bool = False
    shared: bool = False
    reverse: bool = False
    layout: kernels.Plan | None = None

    def sides(self, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Features, rows and values; two of them views of one tensor, the last shared by the batch."""
        made = [points(2, 2, self.n, self.p, seed=i, dtype=dtype).to(device) for i in (0, 1)]
        if self.strided:
            both = points(2, self.n, 2, 2, self.p, dtype=dtype).to(device)
            made = [both[:, :, i].transpose(1, 2) for i in (0, 1)]
        values = points(1 if self.shared else 2, 2, self.n, self.e, seed=2, dtype=dtype).to(device)
        return [*made, values.expand(2, -1, -1, -1)]

    def mask(self, device: str) -> Tensor | None:
        """Which points are real, (b, n); the first of a row is not."""
        if not self.masked:
            return None
        made = points(2, self.n, seed=6) > -0.5
        made[1, 0] = False
        return made.to(device)


CASES = {
    "one point": Case(n=1, p=1, e=1),
    "ragged": Case(n=7, p=20, e=5, masked=True),
    "chunk - 1": Case(n=31, masked=True, layout=SMALL),
    "chunk": Case(n=32, layout=SMALL),
    "chunk + 1": Case(n=33, masked=True, reverse=True, layout=SMALL),
    "several chunks": Case(n=70, p=20, e=5, masked=True, shared=True, layout=SMALL),
    "fused projection": Case(n=50, strided=True, masked=True, layout=SMALL),
    "wide": Case(n=20, p=128, e=100, shared=True),
}


def products(features: Tensor, rows: Tensor, values: Tensor, reverse: bool) -> Tensor:
    """The definition, through the n-by-n products."""
    scores = features @ rows.mT
    return (scores.triu() if reverse else scores.tril()) @ values


def check_products(case: Case, dtype: torch.dtype, device: str) -> None:
    """Values and gradients by the house's rule, in memory that was NaN before."""
    sides, reverse = case.sides(dtype, device), case.reverse
    features, rows, values = sides
    grad = points(*values.shape, seed=7, dtype=dtype).to(device)
    oracle = with_gradients(products, [side.double() for side in sides], reverse, grad.double())
    plain = with_gradients(products, sides, reverse, grad)
    calls = (
        (features, rows, values, reverse),
        (grad, values, rows, reverse),
        (values, grad, features, not reverse),
        (rows, features, grad, not reverse),
    )
    with poisoned():
        made = [kernels.prefix_products(*call, case.layout) for call in calls]
        again = [kernels.prefix_products(*calls[0], case.layout) for _ in range(times(device) - 1)]
    assert all(torch.equal(made[0], each) for each in again)
    for actual, eagerly, exact in zip(made, plain, oracle, strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)


def with_gradients(run: object, inputs: list[Tensor], option: object, grad: Tensor) -> list[Tensor]:
    """The output of ``run(*inputs, option)`` and the gradients of all inputs."""
    inputs = [each.detach().clone().requires_grad_() for each in inputs]
    made = run(*inputs, option)  # type: ignore[operator]
    return [made, *torch.autograd.grad(made, inputs, grad)]


def check_means(case: Case, dtype: torch.dtype, device: str) -> None:
    """Values and the gradient by the house's rule; what stands at padded points does not matter."""
    x, mask = case.sides(dtype, device)[0], case.mask(device)
    grad = points(*x.shape, seed=7, dtype=dtype).to(device)
    real = None if mask is None else mask[:, None]
    oracle = with_gradients(eager.running_means, [x.double()], real, grad.double())
    plain = with_gradients(eager.running_means, [x], real, grad)
    counts = None
    if mask is not None:
        counts = mask.cumsum(-1).clamp_min(1)
        x[~mask[:, None].expand(x.shape[:-1])] = float("nan")
    with poisoned():
        runs = [
            [
                kernels.running_means(x, mask, counts, False, case.layout),
                kernels.running_means(grad, mask, counts, True, case.layout),
            ]
            for _ in range(times(device))
        ]
    made = runs[0]
    assert all(map(torch.equal, made, runs[-1]))
    for actual, eagerly, exact in zip(made, plain, oracle, strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)


def check_causality(dtype: torch.dtype, device: str) -> None:
    """Another last point moves no bit of what comes before it, nor another first one in reverse."""
    sides = Case(n=34, layout=SMALL).sides(dtype, device)
    for reverse, end, others in ((False, -1, slice(0, -1)), (True, 0, slice(1, None))):
        changed = [side.clone() for side in sides]
        for side in changed:
            side[:, :, end] += 3
        made = [kernels.prefix_products(*each, reverse, SMALL) for each in (sides, changed)]
        made += [kernels.running_means(each[0], None, None, reverse, SMALL) for each in (sides, changed)]
        for one, other in zip(made[::2], made[1::2], strict=True):
            assert torch.equal(one[:, :, others], other[:, :, others])
            assert not torch.equal(one[:, :, end], other[:, :, end])


def layer(landmarks: int | None, join: str = "shared") -> PrimalAttention:
    """A causal layer with fewer landmarks than points."""
    torch.manual_seed(0)
    return PrimalAttention(20, heads=2, rank=3, landmarks=landmarks, causal=True, join=join)


def stepped(module: PrimalAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    """All points of (b, n, c), one at a time."""
    state, outputs = module.start(x.shape[0]), []
    for t in range(x.shape[1]):
        output, state = module.step(x[:, t], state, mask=None if mask is None else mask[:, t])
        outputs.append(output)
    return torch.stack(outputs, 1)


def check_steps(module: PrimalAttention, masked: bool, dtype: torch.dtype, device: str) -> None:
    """Steps without gradients, by the kernel, are the parallel form in float64 by the house's rule."""
    x, mask = points(2, 9, 20, dtype=dtype), points(2, 9, seed=1) > -0.5
    mask = mask if masked else None
    module = module.to(dtype=dtype, device="cpu")
    plain = stepped(module, x, mask)
    oracle = module.double()(x.double(), mask=mask)
    module, x = module.to(dtype=dtype, device=device), x.to(device)
    if mask is not None:
        mask = mask.to(device)
        x[~mask] = float("nan")
    with torch.no_grad():
        made = stepped(module, x, mask)
    assert_within(made, eager=plain, oracle=oracle)


def check_one_step(rows: bool, dtype: torch.dtype, device: str) -> None:
    """Everything is written, and the given state stays as it was; a padded point adds nothing."""
    query, key, row = (points(2, 3, 1, 5, seed=i, dtype=dtype).to(device) for i in range(3))
    shape = (2, 3, 5, 2) if rows else (2, 3, 5)
    state = [points(*shape, seed=i, dtype=torch.float32).to(device) for i in (3, 4)]
    seen, mask = torch.tensor([4, 9], device=device), torch.tensor([True, False], device=device)
    weights = [points(3, 4 if rows else 5, 2, seed=i, dtype=dtype).to(device) for i in (5, 6)]
    join, bias = points(5, 4, seed=7, dtype=dtype).to(device), points(5, seed=8, dtype=dtype).to(device)
    given = [each.clone() for each in (*state, seen)]
    sides = query, key, row if rows else None
    with poisoned():
        out, made = primal_step(sides, (*state, seen), tuple(weights), join, bias, mask)
    assert all(torch.isfinite(each).all() for each in (out, *made))
    assert all(map(torch.equal, (*state, seen), given))
    assert all(torch.equal(one[1], other[1]) for one, other in zip(made, given, strict=True))
    assert made[2].tolist() == [5, 9]
