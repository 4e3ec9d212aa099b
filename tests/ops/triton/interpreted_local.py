"""Mixing of neighbours in Triton's interpreter; run by test_local.py in a process of its own."""

import pytest
import torch
from torch import Tensor

from kernelhead.ops.triton import local
from kernelhead.ops.triton import local_library as library
from tests.inputs import points
from tests.ops.triton.interpreter import precisions
from tests.ops.triton.local_cases import CASES, Case, check


@pytest.mark.parametrize(("name", "dtype"), precisions(CASES, ("few", "several tiles")))
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cpu")


def test_custom_ops() -> None:
    x, weight, bias = (each.requires_grad_() for each in CASES["few"].inputs(torch.float32, "cpu"))
    torch.library.opcheck(library.traced_mix, (x, weight, bias, 2, 1))
    grad = points(*x.shape, seed=7, dtype=torch.float32)
    torch.library.opcheck(library.traced_backward, (x.detach(), weight.detach(), grad, 2, 1))


def test_a_gradient_of_any_strides() -> None:
    case = Case(n=9, c=6)
    inputs = [each.requires_grad_() for each in case.inputs(torch.float32, "cpu")]
    made = library.local_mix(*inputs, 1, False)
    grad = points(2, 6, 9, seed=7, dtype=torch.float32)
    strided = torch.autograd.grad(made, inputs, grad.mT, retain_graph=True)
    assert all(map(torch.equal, strided, torch.autograd.grad(made, inputs, grad.mT.contiguous())))


def test_places_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, *_ = CASES["several tiles"].inputs(torch.float32, "cpu")
    grad = points(*x.shape, seed=7, dtype=torch.float32)
    near = local.weigh(x, grad, 5, 16, 2)
    monkeypatch.setattr(local, "FAR", 1)
    assert torch.equal(local.weigh(x, grad, 5, 16, 2), near)


def test_tracing_gives_the_same_values_and_gradients() -> None:
    inputs = [each.requires_grad_() for each in CASES["several tiles"].inputs(torch.float32, "cpu")]

    def run() -> Tensor:
        return library.local_mix(*inputs, 16, False).square().sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    plain = [run(), *torch.autograd.grad(run(), inputs)]
    traced = [compiled(), *torch.autograd.grad(compiled(), inputs)]
    assert all(map(torch.equal, plain, traced))
