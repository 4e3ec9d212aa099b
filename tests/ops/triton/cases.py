"""Primal kernels against the float64 definition, on whatever device runs them."""

from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelhead.kernels import Cosine
from kernelhead.ops.eager import primal as eager
from kernelhead.ops.primal import landmark_index
from kernelhead.ops.triton import landmarks
from kernelhead.ops.triton import primal as kernels
from tests.inputs import points
from tests.tolerance import assert_within

COSINE = Cosine()


@dataclass(frozen=True)
class Case:
    """A shape with its options; between rows of points lie as many entries as `apart` says."""

    batch: int = 2
    heads: int = 2
    n: int = 7
    d: int = 16
    s: int = 3
    per_row: bool = True
    per_head_join: bool = False
    masked: bool = False
    strided: bool = False
    causal: bool = False
    apart: int = 0
    layout: kernels.Plan | None = field(default=None)

    def inputs(self, dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor | None]:
        """Query, key, left, right, join, bias, and the mask."""
        lead = (self.batch, self.heads) if self.per_row else (self.heads,)
        head = (self.heads,) if self.per_head_join else ()
        if self.strided:
            both = points(self.batch, self.n, 2, self.heads, self.d, dtype=dtype).to(device)
            query, key = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
        else:
            shape = (self.batch, self.heads, self.n, self.d)
            query, key = (points(*shape, seed=i, dtype=dtype).to(device) for i in (0, 1))
        query, key = (F.pad(side, (self.apart, 0))[..., self.apart :] for side in (query, key))
        left, right = (points(*lead, self.d, self.s, seed=i, dtype=dtype).to(device) for i in (2, 3))
        join = points(*head, self.d, 2 * self.s, seed=4, dtype=dtype).to(device)
        bias = points(*((self.heads, 1) if self.per_head_join else ()), self.d, seed=5, dtype=dtype).to(
            device
        )
        mask = (points(self.batch, self.n, seed=6) > -0.5).to(device) if self.masked else None
        return [query, key, left, right, join, bias], mask


CASES = {
    "one point": Case(n=1),
    "ragged": Case(n=7, d=20, s=5, masked=True),
    "shared weights": Case(n=33, per_row=False, masked=True),
    "a join for each head": Case(n=33, per_head_join=True),
    "fused projection": Case(n=33, strided=True, masked=True),
    "rank above the width": Case(n=12, d=16, s=40),
    "rank above one launch": Case(n=20, d=16, s=70, masked=True),
    "groups of sequences": Case(batch=5, n=20, masked=True, layout=kernels.Plan(16, 32, 1, 4, 1, 2)),
    "groups with shared weights": Case(batch=3, n=33, per_row=False, layout=kernels.Plan(16, 16, 3, 4, 1, 2)),
    "causal": Case(n=40, d=20, s=5, causal=True),
    "causal, masked": Case(
        n=33, masked=True, causal=True, strided=True, layout=kernels.Plan(16, 32, 2, 4, 1)
    ),
    "causal, many tiles": Case(
        batch=1, n=273, masked=True, causal=True, layout=kernels.Plan(16, 288, 1, 4, 1)
    ),
    "causal, rank above one launch": Case(n=20, d=16, s=70, causal=True),
    "rows of a wider tensor": Case(n=20, apart=3, masked=True),
    "block - 1": Case(n=31, layout=kernels.Plan(16, 32, 1, 4, 1)),
    "block": Case(n=32, layout=kernels.Plan(16, 16, 2, 4, 1)),
    "block + 1": Case(n=33, masked=True, layout=kernels.Plan(16, 32, 2, 4, 1)),
}


def sums(features: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Sums over real points of squared scores; float32 on the CPU point by point, as kernels add."""
    scores = features @ weight
    kept = scores if mask is None else scores.masked_fill(~mask.unsqueeze(-1), 0)
    squares = kept.to(torch.promote_types(kept.dtype, torch.float32)).square()
    # torch adds in pairs on the CPU, and may by luck be right to the last digit.
    plainly = squares.dtype == torch.float32 and not squares.is_cuda
    return [*accumulate(squares.unbind(-2))][-1] if plainly else squares.sum(-2)


def running_means(x: Tensor, real: Tensor | None) -> Tensor:
    """`eager.running_means`, float32 on the CPU point by point: torch sums up in float64 there."""
    if x.is_cuda or x.dtype != torch.float32:
        return eager.running_means(x, real)
    kept = x if real is None else x.masked_fill(~real.unsqueeze(-1), 0)
    ones = torch.ones_like(x[..., :1]) if real is None else real.unsqueeze(-1).expand(*x.shape[:-1], 1)
    return torch.stack([*accumulate(kept.unbind(-2))], dim=-2) / ones.cumsum(-2).clamp_min(1)


def definition(
    inputs: list[Tensor], mask: Tensor | None, grads: list[Tensor], causal: bool = False
) -> list[Tensor]:
    """Output, both sums and all gradients, in the precision of the inputs, by the plain writing."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    query, key, left, right, join, bias = inputs
    real = None if mask is None else mask[:, None]
    if causal:
        query, key = running_means(query, real), running_means(key, real)
    output = eager.primal_attention(query, key, left, right, join, bias, COSINE, real)
    made = [output, sums(COSINE.features(query), left, real), sums(COSINE.features(key), right, real)]
    wanted = [grad.to(each.dtype) for grad, each in zip(grads, made, strict=True)]
    return [*made, *torch.autograd.grad(made, inputs, wanted)]


def times(device: str) -> int:
    """How often to compute for the same bits: twice, but for the interpreter, where nothing races."""
    return 2 if device == "cuda" else 1


def check(case: Case, dtype: torch.dtype, device: str) -> None:
    """Values and gradients by the house's rule, with outputs that were NaN before."""
    inputs, mask = case.inputs(dtype, device)
    query, left = inputs[0], inputs[2]
    grads = [points(*query.shape, seed=7, dtype=dtype).to(device)]
    grads += [
        points(*query.shape[:2], left.shape[-1], seed=i, dtype=torch.float32).to(device) for i in (8, 9)
    ]
    causal, layout = case.causal, case.layout
    oracle = definition(
        [tensor.double() for tensor in inputs], mask, [grad.double() for grad in grads], causal
    )
    plain = definition(inputs, mask, grads, causal)
    if mask is not None:
        # What lies at padded points must not matter.
        for side in inputs[:2]:
            side[~mask[:, None].expand(side.shape[:-1])] = float("nan")
    with poisoned():
        output, *both = kernels.forward(*inputs, mask, True, causal, layout)
        folded, *_ = kernels.forward(*inputs, mask, False, causal, layout)
        runs = [
            kernels.backward(*inputs, mask, grads[0], 2 * grads[1], 2 * grads[2], causal, layout)
            for _ in range(times(device))
        ]
    made = runs[0]
    assert all(map(torch.equal, made, runs[-1]))
    assert_within(folded, eager=plain[0], oracle=oracle[0])
    for actual, eagerly, exact in zip([output, *both, *made], plain, oracle, strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)


def check_join(o: int, dtype: torch.dtype, device: str) -> None:
    """A join to a width that is not a head's."""
    (query, key, left, right, _, _), mask = Case(n=20, masked=True).inputs(dtype, device)
    join, bias = points(o, 6, seed=4, dtype=dtype).to(device), points(o, seed=5, dtype=dtype).to(device)
    given = query, key, left, right, join, bias
    real = None if mask is None else mask[:, None]
    oracle = eager.primal_attention(*(each.double() for each in given), COSINE, real)
    plain = eager.primal_attention(*given, COSINE, real)
    for moments in (False, True):
        with poisoned():
            made, *_ = kernels.forward(*given, mask, moments)
        assert_within(made, eager=plain, oracle=oracle)


@dataclass(frozen=True)
class Landmarks:
    """Weights from landmarks: a shape with its options; as many places as landmarks, some maybe repeated."""

    batch: int = 2
    heads: int = 2
    n: int = 40
    d: int = 16
    s: int = 3
    count: int = 7
    masked: bool = False

    def inputs(self, dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor]:
        """Points, left and right, and the places of the landmarks."""
        x = points(self.batch, self.n, 2 * self.heads * self.d, dtype=dtype).to(device)
        sides = [points(self.heads, self.count, self.s, seed=i, dtype=dtype).to(device) for i in (1, 2)]
        if self.masked:
            lengths = torch.arange(1, self.batch + 1, device=device) * self.n // (self.batch + 1)
            places = landmark_index(self.count, lengths)
        else:
            places = landmark_index(self.count, self.n).to(device)
        # Every second feature block only, so that rows are strided.
        return [x[..., : self.heads * self.d], *sides], places


LANDMARKS = {
    "one": Landmarks(count=1),
    "few": Landmarks(d=20, s=5),
    "two tiles": Landmarks(n=200, count=70),
    "more than points": Landmarks(n=5, count=150),
    "of each row": Landmarks(batch=3, count=20, masked=True),
}


def weights_by_definition(inputs: list[Tensor], places: Tensor, grads: list[Tensor]) -> list[Tensor]:
    """Weights of both sides and all gradients, by the plain writing."""
    x, left, right = inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    rows = x[torch.arange(len(x), device=x.device)[:, None], places]  # (b, l, c)
    rows = rows.unflatten(-1, (left.shape[0], -1)).permute(0, 2, 3, 1)  # (b, h, d, l)
    made = [rows @ left, rows @ right]
    return [*made, *torch.autograd.grad(made, inputs, [grad.to(x.dtype) for grad in grads])]


def check_landmarks(case: Landmarks, dtype: torch.dtype, device: str) -> None:
    """Values and gradients by the house's rule, twice with the same bits."""
    inputs, places = case.inputs(dtype, device)
    shape = case.batch, case.heads, case.d, case.s
    grads = [points(*shape, seed=i, dtype=dtype).to(device) for i in (3, 4)]
    oracle = weights_by_definition([each.double() for each in inputs], places, grads)
    plain = weights_by_definition(inputs, places, grads)
    x, left, right = inputs
    with poisoned():
        made = landmarks.forward(x, places, left, right, dtype)
        runs = [landmarks.backward(x, places, left, right, *grads) for _ in range(times(device))]
    back = runs[0]
    assert all(map(torch.equal, back, runs[-1]))
    for actual, eagerly, exact in zip([*made, *back], plain, oracle, strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)


class poisoned:  # noqa: N801  reads as a with-block
    """Fresh memory is filled with NaN, so that whatever a kernel leaves unwritten shows."""

    def __enter__(self) -> None:
        self.before = torch.utils.deterministic.fill_uninitialized_memory
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = True

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = self.before
