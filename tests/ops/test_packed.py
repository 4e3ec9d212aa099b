"""Softmax attention to real keys alone: its packing against the definition, its kernel on a GPU."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kernelhead.nn import SoftmaxAttention
from kernelhead.ops import backends
from kernelhead.ops.eager import packed
from kernelhead.ops.eager import softmax as eager
from kernelhead.ops.softmax import softmax_attention
from tests.inputs import points
from tests.oracles import rivals
from tests.tolerance import assert_exact, assert_within

gpu = pytest.mark.gpu
lengths = pytest.mark.skipif(not backends.HAS_LENGTHS, reason="this torch has no kernel for several lengths")


def real(kind: str, m: int) -> Tensor:
    """Which of m keys are real, in samples of several lengths, (4, 1, m)."""
    mask = torch.arange(m) < torch.tensor([[m], [m // 2], [1], [m - 1]])
    if kind == "front":
        mask = mask.flip(-1)
    elif kind == "holes":
        mask = torch.rand(4, m, generator=torch.Generator().manual_seed(1)) < 0.4
    elif kind == "nothing real":
        mask[1] = False
    return mask.unsqueeze(1)


KINDS = ("behind", "front", "holes", "nothing real")


def looped(
    query: Tensor, key: Tensor, value: Tensor, asked: Tensor, told: Tensor, max_q: int, max_k: int
) -> Tensor:
    """What the kernel promises, a sequence at a time, for (t, h, d); a sequence without keys is a fault."""
    parts = []
    assert asked.dtype == told.dtype == torch.int32
    for i in range(len(asked) - 1):
        q, (k, v) = query[asked[i] : asked[i + 1]], (side[told[i] : told[i + 1]] for side in (key, value))
        assert len(q) <= max_q
        assert len(k) <= max_k
        assert len(k) or not len(q)
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
    assert asked[-1] == len(query)
    assert told[-1] == len(key)
    return torch.cat(parts)


@lengths
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_packed_is_the_definition(kind: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", looped)
    mask = real(kind, 9)
    held = [points(4, 2, size, 8, seed=i).requires_grad_() for i, size in enumerate((n, 9, 9))]
    output = packed.softmax_attention(*held, mask)
    assert_exact(output, rivals.softmax_attention(*held, mask=mask[:, 0]))
    grad = points(*output.shape, seed=5)
    expected = eager.softmax_attention(*held, mask=mask)
    for one, other in zip(
        torch.autograd.grad(output, held, grad), torch.autograd.grad(expected, held, grad), strict=True
    ):
        assert_exact(one, other)


@lengths
def test_what_stands_at_padded_keys_has_no_influence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", looped)
    mask = real("holes", 9)
    query, *sides = (points(4, 2, 9, 8, seed=i) for i in range(3))
    dirty = [side.where(mask.unsqueeze(-1), torch.nan).requires_grad_() for side in sides]
    output = packed.softmax_attention(query, *dirty, mask)
    assert torch.equal(output, packed.softmax_attention(query, *sides, mask))
    for grad in torch.autograd.grad(output.square().sum(), dirty):
        assert (grad.masked_select(~mask.unsqueeze(-1)) == 0).all()


def test_the_backend_is_eager_where_the_kernel_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "on_cuda", lambda _: True)
    monkeypatch.setattr(backends, "HAS_LENGTHS", True)
    monkeypatch.setattr(backends, "MANY_PAIRS", 4 * 2 * 511**2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=major))
    major = 8

    def chosen(*, m: int = 512, d: int = 8, dtype: torch.dtype = torch.bfloat16, plain: bool = True) -> str:
        x, mask = torch.zeros(4, 2, m, d, dtype=dtype), torch.ones(4, 1, m, dtype=torch.bool)
        return backends.softmax_backend(x, x, x, mask, plain=plain)

    assert chosen() == "packed"
    assert chosen(dtype=torch.float16) == "packed"
    refused = {"m": 511, "d": 12, "dtype": torch.float32, "plain": False}
    assert {chosen(**{name: value}) for name, value in refused.items()} == {"eager"}
    assert chosen(d=136) == "eager"
    major = 7
    assert chosen() == "eager"
    major = 8
    monkeypatch.setattr(backends, "MANY_PAIRS", 4 * 2 * 512**2 + 1)
    assert chosen() == "eager"
    monkeypatch.setattr(backends, "MANY_PAIRS", 1)
    x, mask = torch.zeros(4, 2, 512, 8, dtype=torch.bfloat16), torch.ones(1, 1, 512, dtype=torch.bool)
    assert backends.softmax_backend(x, x, x, mask, plain=True) == "eager"
    assert backends.softmax_backend(x, x, x, None, plain=True) == "eager"
    assert backends.softmax_backend(x[0], x[0], x[0], mask, plain=True) == "eager"
    many = x[:1, :1, :, :8].expand(40_000, 1, 512, 8)
    assert backends.softmax_backend(many, many, many, mask.expand(40_000, 1, 512), plain=True) == "eager"
    for heads, taken in ((4, "packed"), (16, "eager")):  # 1.5 and 5.9 thousand million entries
        large = torch.zeros(1, 1, 1, 32, dtype=torch.bfloat16).expand(15_000, heads, 512, 32)
        real = mask.expand(15_000, 1, 512)
        assert backends.softmax_backend(large, large, large, real, plain=True) == taken


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_backend_is_eager_where_more_than_one_gradient_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "on_cuda", lambda _: True)
    monkeypatch.setattr(backends, "HAS_LENGTHS", True)
    monkeypatch.setattr(backends, "MANY_PAIRS", 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=9))
    x, mask = torch.zeros(4, 2, 512, 8, dtype=torch.bfloat16), torch.ones(4, 1, 512, dtype=torch.bool)
    seen = []

    def summed(side: Tensor) -> Tensor:
        seen.append(backends.softmax_backend(side, x, x, mask, plain=True))
        return side.sum()

    summed(x)
    torch.func.grad(summed)(x)
    torch.func.jvp(summed, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        summed(x)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        summed(x)
    with torch.autocast("cpu", torch.float16):
        summed(x)
    assert seen == ["packed", *["eager"] * 5]


@dataclass(frozen=True)
class Case:
    """n queries and m keys of d features, fused in one tensor where they are as many."""

    n: int
    m: int
    d: int
    kind: str
    dtype: torch.dtype = torch.bfloat16

    def sides(self) -> list[Tensor]:
        if self.n == self.m:
            fused = points(4, self.n, 3, 2, self.d, dtype=self.dtype).cuda()
            return [fused[:, :, i].transpose(1, 2).detach().requires_grad_() for i in range(3)]
        sizes = (self.n, self.m, self.m)
        made = (points(4, 2, size, self.d, seed=i, dtype=self.dtype) for i, size in enumerate(sizes))
        return [side.cuda().requires_grad_() for side in made]


CASES = {
    "behind": Case(512, 512, 32, "behind"),
    "front": Case(515, 515, 64, "front"),
    "holes": Case(700, 700, 8, "holes", torch.float16),
    "nothing real": Case(512, 512, 32, "nothing real"),
    "few queries": Case(3, 600, 128, "behind"),
    "many queries": Case(900, 513, 16, "nothing real"),
}


@gpu
@lengths
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_on_a_gpu_output_and_gradients_are_the_definition(
    case: Case, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "MANY_PAIRS", 1)
    sides, mask = case.sides(), real(case.kind, case.m).cuda()
    assert backends.softmax_backend(*sides, mask, plain=True) == "packed"

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return softmax_attention(query, key, value, mask=mask)

    call = torch.compile(run, dynamic=False, fullgraph=True) if compiled else run
    output = call(*sides, mask)
    grad = points(*output.shape, seed=5, dtype=case.dtype).cuda()
    grads = torch.autograd.grad(output, sides, grad)
    exact = [side.detach().double().requires_grad_() for side in sides]
    oracle = eager.softmax_attention(*exact, mask=mask)
    plain = eager.softmax_attention(*sides, mask=mask)
    assert_within(output, eager=plain, oracle=oracle)
    assert (output[~mask.any(-1).squeeze(-1)] == 0).all()
    expected = torch.autograd.grad(oracle, exact, grad.double())
    for one, other, best in zip(grads, torch.autograd.grad(plain, sides, grad), expected, strict=True):
        assert_within(one, eager=other, oracle=best)


@gpu
@lengths
def test_on_a_gpu_a_captured_step_follows_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "MANY_PAIRS", 1)
    layer, mask = SoftmaxAttention(32, heads=2).cuda(), real("behind", 512).squeeze(1).cuda()
    x, wanted = points(4, 512, 32, dtype=torch.float32).cuda(), real("holes", 512).squeeze(1).cuda()

    def run() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            output: Tensor = layer(x, mask=mask)
        return output

    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = run()
        mask.copy_(wanted)
        graph.replay()
        assert torch.equal(output, run())
