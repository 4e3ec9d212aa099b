"""Attention through features by kernels: interpreted everywhere, compiled where there is a GPU."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the extra gpu is not installed")

from kernelhead.ops import backends
from kernelhead.ops import linear as ops
from kernelhead.ops.eager import short
from kernelhead.ops.triton import features as kernels
from kernelhead.ops.triton.parts import Cut
from tests.inputs import keep, points
from tests.ops.triton.features_cases import (
    CASES,
    CUTS,
    Attention,
    Case,
    answered,
    attention,
    check,
    check_what_values_share,
    seconds,
)
from tests.ops.triton.interpreter import interpreted

gpu = pytest.mark.gpu
KINDS = (torch.bfloat16, torch.float16)
DRAWN = pytest.mark.parametrize("p", [None, 111], ids=["elu", "drawn"])
X = torch.zeros(2, 3, 4, 16, dtype=torch.bfloat16)
FREQUENCIES = torch.zeros(20, 16)


@pytest.mark.slow
def test_the_interpreter_runs_the_same_kernels() -> None:
    assert interpreted("interpreted_features.py") == len(CASES) + 30


@pytest.mark.long
def test_the_interpreter_runs_them_in_half_precision() -> None:
    assert interpreted("interpreted_features.py", "-m", "long") == len(CASES) - 3


@pytest.mark.parametrize("heads", [1, 7, 512, 10_000])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1024, 5000, 1_048_577])
@pytest.mark.parametrize("name", CUTS)
def test_chunks_cover_all_points_once(name: str, n: int, heads: int) -> None:
    cut: Cut = getattr(kernels, name)
    length, chunks = kernels.chunks_of(cut, heads, n)
    assert length % cut.tile == 0
    assert length * (chunks - 1) < n <= length * chunks
    assert chunks == 1 or chunks * heads < cut.programs + heads


def test_many_heads_have_one_chunk_of_keys_each() -> None:
    for cut in (kernels.KEYS, kernels.QUERY_GRADIENTS):
        assert kernels.chunks_of(cut, cut.programs, 1_048_577)[1] == 1


def given(**changed: object) -> list[Any]:
    """What the backend is chosen for: sides, mask and frequencies, some of them others."""
    usual: dict[str, object] = {"query": X, "key": X, "value": X, "mask": None, "frequencies": FREQUENCIES}
    return [*(usual | changed).values()]


FITTING: dict[str, dict[str, object]] = {
    "elu": {"frequencies": None},
    "drawn": {},
    "a mask": {"mask": torch.ones(2, 1, 4, dtype=torch.bool)},
    "a mask for each head": {"mask": torch.ones(2, 3, 4, dtype=torch.bool)},
    "other keys": {"key": X[:, :, :3], "value": X[:, :, :3].repeat(1, 1, 1, 4)},
    "strided": {"query": X.mT.contiguous().mT},
    "frequencies as wide as points": {"frequencies": FREQUENCIES.bfloat16()},
}
OTHERS: dict[str, dict[str, object]] = {
    "narrow": {"query": X[..., :8], "key": X[..., :8]},
    "narrow values": {"value": X[..., :8]},
    "wide": {"query": X.repeat(1, 1, 1, 8), "key": X.repeat(1, 1, 1, 8)},
    "no power of two": {"value": X.repeat(1, 1, 1, 3)},
    "many frequencies": {"frequencies": torch.zeros(129, 16)},
    "no frequency": {"frequencies": FREQUENCIES[:0]},
    "learned frequencies": {"frequencies": FREQUENCIES.clone().requires_grad_()},
    "one mask for all samples": {"mask": torch.ones(1, 1, 4, dtype=torch.bool)},
    "keys for all heads": {"key": X[:, :1], "value": X[:, :1]},
    "keys without samples": {"key": X[0], "value": X[0]},
}


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, major: int = 9, minor: int = 0) -> None:
    """Tensors pass for those of a GPU of that compute capability."""
    monkeypatch.setattr(backends, "on_cuda", lambda _: True)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=major, minor=minor)
    )


@pytest.mark.parametrize("name", [*FITTING, *OTHERS])
def test_which_points_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = given(**(FITTING | OTHERS)[name])
    assert backends.features_backend(*changed) == "eager"
    on_a_gpu(monkeypatch)
    assert backends.features_backend(*changed) == ("triton" if name in FITTING else "short")
    assert backends.features_backend(*[side.float() for side in changed[:3]], *changed[3:]) == "eager"


# torch's own, of how it loads its rules for forward differentiation.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_but_one_gradient_is_asked_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    seen: list[str] = []

    def run(query: Tensor) -> Tensor:
        seen.append(backends.features_backend(*given(query=query)))
        return query

    run(X)
    torch.func.vjp(run, X)
    torch.func.jvp(run, (X,), (X,))
    torch.func.grad(lambda weight: (run(X) * weight).sum().float())(torch.ones(16))
    torch.func.vmap(lambda weight: (run(X) * weight).sum())(torch.ones(2, 16))
    with torch.autograd.forward_ad.dual_level():
        run(X)
    monkeypatch.setattr(backends, "HAS_TRITON", False)
    run(X)
    assert seen == ["triton", *["short"] * 6]


# Bytes of shared memory: 163 KiB with 8.0 and from 9.0 on, 99 KiB with 8.6, 8.9 and 12.0, 64 KiB before.
@pytest.mark.parametrize(
    ("capability", "kinds"),
    {
        (7, 5): ("short", "short", "short"),
        (8, 0): ("triton", "triton", "triton"),
        (8, 6): ("triton", "triton", "short"),
        (8, 9): ("triton", "triton", "short"),
        (9, 0): ("triton", "triton", "triton"),
        (10, 0): ("triton", "triton", "triton"),
        (12, 0): ("triton", "triton", "short"),
    }.items(),
)
def test_small_devices_take_what_they_hold(
    capability: tuple[int, int], kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch, *capability)
    monkeypatch.setattr(backends, "TRITON", (3, 7))
    x = torch.zeros(2, 3, 4, 32, dtype=torch.bfloat16)
    drawn = None, torch.zeros(64, 32), torch.zeros(111, 32)
    assert tuple(backends.features_backend(x, x, x, None, each) for each in drawn) == kinds


def test_blackwell_takes_what_triton_compiles_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, drawn = torch.zeros(2, 3, 4, 64, dtype=torch.bfloat16), torch.zeros(128, 64)
    on_a_gpu(monkeypatch, 10)
    monkeypatch.setattr(backends, "TRITON", (3, 7))
    assert backends.features_backend(wide, wide, wide, None, drawn[:64]) == "triton"
    assert backends.features_backend(wide, wide, wide, None, drawn) == "short"
    monkeypatch.setattr(backends, "TRITON", (3, 6))
    assert backends.features_backend(wide, wide, wide, None) == "short"
    on_a_gpu(monkeypatch, 9)
    assert backends.features_backend(wide, wide, wide, None, drawn) == "triton"


def test_points_far_apart_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    far = torch.empty_strided(X.shape, (0, 0, 2**24, 1), dtype=X.dtype, device="meta")
    assert backends.features_backend(*given(query=far)) == "short"


@gpu
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cuda")


@gpu
@pytest.mark.parametrize("p", [None, 1, 17, 64, 65, 128])
@pytest.mark.parametrize(("d", "e"), [(16, 16), (32, 64), (64, 16), (64, 64)])
def test_widths(d: int, e: int, p: int | None) -> None:
    check(Case(n=300, m=333, d=d, e=e, p=p, masked="lengths", laid="heads behind"), torch.bfloat16, "cuda")


@gpu
@DRAWN
@pytest.mark.parametrize("masked", ["all", "lengths", "each head"])
def test_long_sequences(masked: str, p: int | None) -> None:
    check(Case(n=3000, m=5000, d=32, e=32, p=p, masked=masked), torch.bfloat16, "cuda")


@gpu
@DRAWN
def test_what_values_share(p: int | None) -> None:
    check_what_values_share(Case(n=512, m=512, d=32, p=p, masked="lengths"), torch.bfloat16, "cuda")


@gpu
@DRAWN
def test_gradients_of_gradients_are_those_of_the_short_way(p: int | None) -> None:
    case = Case(n=70, m=70, p=p, masked="lengths")
    mask, grad = case.mask("cuda"), points(2, 2, 70, 16, seed=7, dtype=torch.bfloat16).cuda()
    sides = case.sides(torch.bfloat16, "cuda")
    made, plain = (seconds(attention(each, case, "cuda"), sides, mask, grad) for each in (ops, short))
    for one, other in zip(made, plain, strict=True):
        torch.testing.assert_close(one, other)


def compared(run: Attention, case: Case) -> None:
    """The door's answers, eager or traced, have the same bits."""
    sides, mask = case.sides(torch.bfloat16, "cuda"), case.mask("cuda")
    assert backends.features_backend(*sides, mask, case.frequencies("cuda")) == "triton"
    grad = points(2, 2, case.n, case.e, seed=7, dtype=torch.bfloat16).cuda()
    plain = answered(attention(ops, case, "cuda"), sides, mask, grad)
    assert all(map(torch.equal, plain, answered(run, sides, mask, grad)))


@gpu
@DRAWN
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["ragged", "other keys", "fused projection"])
def test_tracing_moves_no_bit(name: str, p: int | None) -> None:
    case = replace(CASES[name], p=p)
    run = attention(ops, case, "cuda")

    def called(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return run(query, key, value, mask=mask)

    compared(torch.compile(called, dynamic=False, fullgraph=True), case)


@gpu
@DRAWN
@pytest.mark.parametrize("masked", ["all", "lengths"])
def test_a_captured_graph_moves_no_bit(masked: str, p: int | None) -> None:
    case = Case(n=2000, m=3000, d=32, e=32, p=p, masked=masked)
    sides, mask = case.sides(torch.bfloat16, "cuda"), case.mask("cuda")
    grad = points(2, 2, case.n, case.e, seed=7, dtype=torch.bfloat16).cuda()
    run = attention(ops, case, "cuda")
    held = [torch.zeros_like(side) for side in sides]
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        answered(run, held, mask, grad)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = answered(run, held, mask, grad)
    for each, side in zip(held, sides, strict=True):
        each.copy_(side)
    graph.replay()
    assert all(map(torch.equal, made, answered(run, sides, mask, grad)))


@gpu
@DRAWN
def test_what_stands_at_padding_moves_no_bit(p: int | None) -> None:
    case = Case(n=300, m=300, d=32, e=32, p=p)
    query, *others = case.sides(torch.bfloat16, "cuda")
    mask = keep([300, 100], 300)[:, None].cuda()
    grad = points(2, 2, 300, 32, seed=7, dtype=torch.bfloat16).cuda()
    made = []
    for fill in (0.0, torch.nan):
        sides = [query, *(side.masked_fill(~mask.unsqueeze(-1), fill) for side in others)]
        made.append(answered(attention(ops, case, "cuda"), sides, mask, grad))
    assert all(map(torch.equal, *made))
