"""The kernels in Triton's interpreter; run by test_primal.py in a process of its own."""

import pytest
import torch
from torch import Tensor

from kernelhead.ops.triton.library import primal_core, traced_backward, traced_core, traced_landmarks
from tests.ops.triton.cases import CASES, LANDMARKS, Case, check, check_join, check_landmarks
from tests.ops.triton.interpreter import precisions

SMALL = Case(batch=1, n=20, masked=True)  # where the kernels run many times
HALF = ("ragged", "fused projection", "rank above one launch", "groups of sequences", "causal, masked")


@pytest.mark.parametrize(("name", "dtype"), precisions(CASES, HALF))
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", LANDMARKS)
def test_weights_from_landmarks(name: str, dtype: torch.dtype) -> None:
    check_landmarks(LANDMARKS[name], dtype, "cpu")


@pytest.mark.parametrize("name", LANDMARKS)
def test_landmarks_as_a_custom_op(name: str) -> None:
    (x, left, right), places = LANDMARKS[name].inputs(torch.float32, "cpu")
    given = (x.requires_grad_(), places, left.requires_grad_(), right.requires_grad_(), torch.float32)
    torch.library.opcheck(traced_landmarks, given)


@pytest.mark.parametrize("o", [1, 6, 40])
def test_a_join_to_another_width(o: int) -> None:
    check_join(o, torch.float32, "cpu")


def inputs_of(case: Case, packed: bool) -> tuple[list[Tensor | None], Tensor | None]:
    """Query, key and weights that want gradients, and the mask; both points in one tensor if packed."""
    inputs, mask = case.inputs(torch.float32, "cpu")
    both = torch.stack([side.transpose(1, 2) for side in inputs[:2]], dim=2)
    points: list[Tensor | None] = [both, None] if packed else [inputs[0], inputs[1]]
    return [each if each is None else each.detach().requires_grad_() for each in (*points, *inputs[2:])], mask


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("moments", "causal"), [(False, False), (True, False), (True, True)])
def test_custom_op(packed: bool, moments: bool, causal: bool) -> None:
    inputs, mask = inputs_of(SMALL, packed)
    torch.library.opcheck(traced_core, (*inputs, mask, moments, causal))
    given = [each if each is None else each.detach() for each in inputs]
    grad, pulls = torch.ones(1, 2, 20, 16), torch.ones(1, 2, 3)
    torch.library.opcheck(traced_backward, (*given, mask, grad, pulls, pulls, causal))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("moments", "causal"), [(False, False), (True, False), (True, True)])
def test_tracing_gives_the_same_values_and_gradients(packed: bool, moments: bool, causal: bool) -> None:
    inputs, mask = inputs_of(SMALL, packed)
    wanted = [each for each in inputs if each is not None]

    def run() -> Tensor:
        output, left, right = primal_core(*inputs, mask, moments, causal)
        return output.square().sum() + left.sum() + 2 * right.sum()

    plain = [run(), *torch.autograd.grad(run(), wanted)]
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    traced = [compiled(), *torch.autograd.grad(compiled(), wanted)]
    assert all(map(torch.equal, plain, traced))


def test_packed_points_are_the_same_points() -> None:
    one, mask = inputs_of(Case(n=20, masked=True), True)
    other, _ = inputs_of(Case(n=20, masked=True), False)
    made, expected = primal_core(*one, mask, True, False), primal_core(*other, mask, True, False)
    assert all(map(torch.equal, made, expected))
    (packed,) = torch.autograd.grad(made[0].square().sum(), one[:1])
    apart = torch.autograd.grad(expected[0].square().sum(), other[:2])
    for place, side in enumerate(apart):
        assert torch.equal(packed[:, :, place].transpose(1, 2), side)
