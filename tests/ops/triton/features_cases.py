"""Attention through features in kernels against the float64 definition, on whatever device runs them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from kernelhead.kernels.features import draw_frequencies
from kernelhead.ops.eager import linear as eager
from kernelhead.ops.triton import features as kernels
from kernelhead.ops.triton import features_library as library
from kernelhead.rng import generator
from tests.inputs import keep, points
from tests.ops.triton.cases import poisoned, times
from tests.tolerance import assert_within

Attention = Callable[..., Tensor]
CUTS = ("KEYS", "QUERIES", "QUERY_GRADIENTS", "KEY_GRADIENTS")


@dataclass(frozen=True)
class Case:
    """A shape with its options: p frequencies, or elu + 1 if none.

    Attributes:
        laid: how points lie: heads before points, behind them, or all three sides in one tensor.
        masked: which keys are real: all, those of lengths, also of none, or one mask for each head.
        large: by how much larger than usual keys are, so that peaks matter.
        chunked: whether few points make a chunk.
    """

    n: int = 7
    m: int = 7
    d: int = 16
    e: int = 16
    p: int | None = None
    laid: str = "heads first"
    masked: str = "all"
    large: float = 1.0
    chunked: bool = False

    def sides(self, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Query, key and value, (2, 2, n or m, d or e)."""
        if self.laid == "one tensor":
            packed = points(2, self.n, 3, 2, self.d, dtype=dtype).to(device)
            return [packed[:, :, i].transpose(1, 2) for i in range(3)]
        shapes = (self.n, self.d), (self.m, self.d), (self.m, self.e)
        made = [points(2, 2, *shape, seed=seed, dtype=dtype).to(device) for seed, shape in enumerate(shapes)]
        made[1] *= self.large
        if self.laid == "heads behind":
            made = [side.transpose(1, 2).contiguous().transpose(1, 2) for side in made]
        return made

    def frequencies(self, device: str) -> Tensor | None:
        """(p, d) in float32, or none."""
        if self.p is None:
            return None
        return draw_frequencies(self.p, self.d, generator(5)).float().to(device)

    def mask(self, device: str) -> Tensor | None:
        """Which keys are real, (2, 1, m) or (2, 2, m)."""
        lengths = {"all": None, "lengths": [self.m, self.m // 3], "none real": [0, self.m]}
        if self.masked == "each head":
            made = points(2, 2, self.m, seed=6) > 0
        elif lengths[self.masked] is None:
            return None
        else:
            made = keep(lengths[self.masked] or [], self.m)[:, None]
        return made.to(device)


CASES = {
    "one query": Case(n=1, m=2),
    "one query, drawn": Case(n=1, m=2, p=16),
    "ragged": Case(n=70, m=70, masked="lengths", laid="heads behind"),
    "ragged, drawn": Case(n=70, m=70, p=20, masked="lengths", laid="heads behind"),
    "other keys": Case(n=30, m=100, e=32, masked="each head"),
    "other keys, drawn": Case(n=100, m=30, d=32, p=50, masked="each head"),
    "nothing real": Case(n=20, m=20, masked="none real"),
    "nothing real, drawn": Case(n=20, m=20, p=16, masked="none real"),
    "chunks": Case(n=600, m=200, laid="heads behind", masked="lengths", chunked=True),
    "chunks, drawn": Case(n=200, m=600, p=24, laid="heads behind", masked="lengths", chunked=True),
    "chunks of nothing": Case(n=130, m=300, p=16, masked="none real", chunked=True),
    "fused projection": Case(n=65, m=65, d=32, e=32, laid="one tensor"),
    "fused projection, drawn": Case(n=65, m=65, d=32, e=32, p=111, laid="one tensor"),
    "far keys": Case(n=40, m=130, p=31, large=6.0),
    "widest": Case(n=64, m=64, d=64, e=64),
    "widest, drawn": Case(n=64, m=64, d=64, e=64, p=128),
}


def attention(module: object, case: Case, device: str) -> Attention:
    """The attention of a module that a case is about: `short`, `eager` or the kernels' library."""
    frequencies = case.frequencies(device)
    if frequencies is None:
        return partial(module.linear_attention)  # type: ignore[attr-defined]
    return partial(module.performer_attention, frequencies=frequencies)  # type: ignore[attr-defined]


def plain(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, frequencies: Tensor | None = None
) -> Tensor:
    """Patterns written out, features and they in the precision of the points."""
    if frequencies is None:
        left, right = eager.linear_sides(query, key, mask)
    else:
        left, right = eager.positive_sides(query, key, frequencies, mask)
    weights = left.to(query.dtype) @ right.to(key.dtype).mT
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1) @ value


def answered(run: Attention, sides: list[Tensor], mask: Tensor | None, grad: Tensor) -> list[Tensor]:
    """An output and the gradients of all sides, in leaves that lie as these do."""
    held = [side.detach().requires_grad_() for side in sides]
    output = run(*held, mask=mask)
    return [output, *torch.autograd.grad(output, held, grad.to(output))]


def check(case: Case, dtype: torch.dtype, device: str) -> None:
    """Values and gradients by the house's rule, in memory that was NaN before, with NaN at padding."""
    sides, mask = case.sides(dtype, device), case.mask(device)
    grad = points(2, 2, case.n, case.e, seed=7, dtype=dtype).to(device)
    oracle = answered(attention(eager, case, device), [side.double() for side in sides], mask, grad)
    # In half precision the eager writing is float32 within; what rounds as kernels do is written out.
    written = partial(plain, frequencies=case.frequencies(device))
    single = dtype == torch.float32
    eagerly = answered(attention(eager, case, device) if single else written, sides, mask, grad)
    if mask is not None:
        for side in sides[1:]:
            side.masked_fill_(~mask.unsqueeze(-1), torch.nan)
    run = attention(library, case, device)
    with pytest.MonkeyPatch.context() as patched, poisoned():
        if case.chunked:
            patched.setattr(kernels, "SHORTEST", 128)
            for name in CUTS:
                patched.setattr(kernels, name, replace(getattr(kernels, name), programs=64))
        runs = [answered(run, sides, mask, grad) for _ in range(times(device))]
    assert all(map(torch.equal, runs[0], runs[-1]))
    if case.p == 1:
        # A single feature cancels: no query moves anything, and of its gradient rounding alone is left.
        pull, _, nothing = (answers.pop(1) for answers in (runs[0], eagerly, oracle))
        assert pull.dtype == dtype
        assert nothing.abs().max() < 1e-15
        assert pull.abs().max() <= torch.finfo(torch.float32).eps
    for actual, each, exact in zip(runs[0], eagerly, oracle, strict=True):
        assert actual.dtype == dtype
        assert_within(actual, eager=each, oracle=exact)


def seconds(run: Attention, sides: list[Tensor], mask: Tensor | None, grad: Tensor) -> list[Tensor]:
    """Gradients of the summed squares of all first gradients."""
    held = [side.detach().requires_grad_() for side in sides]
    firsts = torch.autograd.grad(run(*held, mask=mask), held, grad, create_graph=True)
    total = sum((each.square().sum() for each in firsts), torch.zeros_like(grad[0, 0, 0, 0]))
    return [*torch.autograd.grad(total, held)]


def check_what_values_share(case: Case, dtype: torch.dtype, device: str) -> None:
    """Gradients of queries and keys are as good where all values have a one in common."""
    query, key, value = case.sides(dtype, device)
    # Multiples of 1/64 below one half have exact neighbours at one.
    value = (value * 16).round().clamp(-31, 31) / 64
    grad, mask = points(2, 2, case.n, case.e, seed=7, dtype=dtype).to(device), case.mask(device)
    errors = []
    for shared in (0.0, 1.0):
        sides = [query, key, value + shared]
        found = answered(attention(library, case, device), sides, mask, grad)
        best = answered(attention(eager, case, device), [side.double() for side in sides], mask, grad)
        pairs = zip(found[1:3], best[1:3], strict=True)
        errors.append([float((one - other).norm() / other.norm()) for one, other in pairs])
    without, offset = torch.tensor(errors)
    assert (offset <= 2 * without + torch.finfo(dtype).eps).all(), errors
