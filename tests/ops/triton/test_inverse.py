"""The iterated inverse by a kernel: interpreted everywhere, compiled where there is a GPU."""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad

pytest.importorskip("triton", reason="the extra gpu is not installed")

from kernelhead.ops import backends, nystrom_attention
from kernelhead.ops import linear as ops
from kernelhead.ops.eager import linear as eager
from kernelhead.ops.triton import inverse_library as library
from tests.inputs import points
from tests.ops.triton.interpreter import interpreted
from tests.ops.triton.inverse_cases import CASES, check, made
from tests.tolerance import assert_within


@pytest.mark.slow
def test_the_interpreter_runs_the_same_kernels() -> None:
    assert interpreted("interpreted_inverse.py") == len(CASES) + 6


# torch's own, of how it makes a dual.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_backend_is_eager_where_the_kernels_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.ones(2, 64, 64)
    assert backends.inverse_backend(matrix) == "eager"
    monkeypatch.setattr(backends, "on_cuda", lambda _: True)
    major = 7
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=major, minor=5))
    assert backends.inverse_backend(matrix) == "eager"
    major = 9
    assert backends.inverse_backend(matrix) == "triton"
    assert backends.inverse_backend(matrix.double()) == "eager"
    assert backends.inverse_backend(matrix[:0]) == "eager"
    assert backends.inverse_backend(torch.ones(65, 65)) == "eager"
    major = 10
    assert backends.inverse_backend(matrix) == "eager"
    assert backends.inverse_backend(matrix[:, :32, :32]) == "triton"
    major = 9
    seen: list[str] = []

    def look(given: torch.Tensor) -> torch.Tensor:
        seen.append(backends.inverse_backend(given))
        return given.sum()

    torch.func.grad(look)(matrix)
    torch.func.grad(lambda weight: look(matrix) * weight)(torch.tensor(1.0))
    with forward_ad.dual_level():
        look(forward_ad.make_dual(matrix, matrix))
    assert seen == ["eager"] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    check(CASES[name], "cuda")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode: str) -> None:
    case = CASES["widest"]
    matrix, grad = case.matrix("cuda"), points(2, 3, 64, 64, seed=7, dtype=torch.float32).cuda()
    oracle = made(eager.iterated_inverse, matrix.double(), grad.double(), case.iterations)
    plain = made(eager.iterated_inverse, matrix, grad, case.iterations)
    run = torch.compile(library.iterated_inverse, fullgraph=True, dynamic=False, mode=mode)
    for _ in range(3):
        for actual, eagerly, exact in zip(
            made(run, matrix, grad, case.iterations), plain, oracle, strict=True
        ):
            assert_within(actual, eager=eagerly, oracle=exact)


@pytest.mark.gpu
def test_the_door_takes_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [points(2, 3, 256, 16, seed=seed, dtype=torch.bfloat16).cuda() for seed in range(3)]
    seen: list[str] = []

    def looked(matrix: torch.Tensor) -> str:
        seen.append(backends.inverse_backend(matrix))
        return seen[-1]

    monkeypatch.setattr(ops, "inverse_backend", looked)
    nystrom_attention(*held, landmarks=64)
    nystrom_attention(*held, landmarks=128)
    assert seen == ["triton", "eager"]
