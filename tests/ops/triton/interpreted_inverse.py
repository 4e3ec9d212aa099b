"""The iterated inverse in Triton's interpreter; run by a test in a process of its own."""

import pytest
import torch
import triton.language as tl
from torch import Tensor

from kernelhead.ops import nystrom_attention
from kernelhead.ops.eager import linear as eager
from kernelhead.ops.triton import inverse
from kernelhead.ops.triton import inverse_library as library
from tests.inputs import points
from tests.ops.triton.inverse_cases import CASES, check, made
from tests.tolerance import assert_within


@pytest.fixture(autouse=True)
def _parts_in_single(monkeypatch: pytest.MonkeyPatch) -> None:
    # The interpreter makes no tile of bfloat16; the parts have eight bits in float32 as well.
    monkeypatch.setattr(inverse, "KIND", tl.float32)


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    check(CASES[name], "cpu")


def test_gradients_of_any_strides() -> None:
    case = CASES["few"]
    matrix, grad = case.matrix("cpu"), points(2, 3, 5, 5, dtype=torch.float32).mT
    strided = made(library.iterated_inverse, matrix, grad, case.iterations)
    plain = made(library.iterated_inverse, matrix, grad.contiguous(), case.iterations)
    assert all(map(torch.equal, strided, plain))


def test_many_gradients_at_once() -> None:
    matrix = CASES["few"].matrix("cpu")[0, 0]
    one, all_at_once = (
        torch.autograd.functional.jacobian(
            lambda given: library.iterated_inverse(given, 6), matrix, vectorize=vectorize
        )
        for vectorize in (False, True)
    )
    torch.testing.assert_close(all_at_once, one)


def test_gradients_of_gradients() -> None:
    matrix = CASES["few"].matrix("cpu")[0, 0]
    curved = [
        torch.autograd.functional.hessian(lambda given, run=run: run(given, 3).square().sum(), each)
        for run, each in (
            (library.iterated_inverse, matrix),
            (eager.iterated_inverse, matrix),
            (eager.iterated_inverse, matrix.double()),
        )
    ]
    assert_within(curved[0], eager=curved[1], oracle=curved[2])


def test_the_door_takes_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelhead.ops.linear.short_backend", lambda *_: "short")
    held = [points(2, 3, 34, 8, seed=seed, dtype=torch.float32) for seed in range(3)]
    plain = nystrom_attention(*held, landmarks=17)
    seen: list[str] = []
    monkeypatch.setattr("kernelhead.ops.linear.inverse_backend", lambda _: seen.append("seen") or "triton")
    made_so = nystrom_attention(*held, landmarks=17)
    exact = eager.nystrom_attention(*(each.double() for each in held), landmarks=17)
    assert seen == ["seen"]
    assert_within(made_so, eager=plain, oracle=exact)


def test_custom_ops() -> None:
    matrix = CASES["few"].matrix("cpu")
    largest = matrix.sum(-2).amax(-1)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    given = matrix.requires_grad_(), largest.requires_grad_()
    torch.library.opcheck(library.traced_forward, (*given, 3, True), test_utils=checks)
    matrix, largest = (each.detach() for each in given)
    torch.library.opcheck(library.traced_forward, (matrix, largest, 3, False))
    _, kept = library.traced_forward(matrix, largest, 3, True)
    torch.library.opcheck(library.traced_backward, (matrix, largest, kept, points(*matrix.shape).float()))


# torch's own, of how it traces a function with a gradient of its own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tracing_gives_the_same_values_and_gradients() -> None:
    case = CASES["ragged"]
    matrix, grad = case.matrix("cpu"), points(2, 3, 33, 33, dtype=torch.float32)

    def run(given: Tensor, iterations: int) -> Tensor:
        return library.iterated_inverse(given, iterations)

    compiled = torch.compile(run, fullgraph=True, dynamic=False, backend="aot_eager")
    plain, traced = (made(each, matrix, grad, case.iterations) for each in (run, compiled))
    assert all(map(torch.equal, plain, traced))
    with torch.no_grad():
        assert torch.equal(compiled(matrix, case.iterations), plain[0])
