"""A feed-forward and looked up tokens in Triton's interpreter; run by a test in a process of its own."""

from dataclasses import replace

import pytest
import torch
import triton.language as tl
from torch import Tensor

from kernelhead.ops.triton import feedforward_library as library
from kernelhead.ops.triton import lookup, lookup_library
from tests.inputs import points
from tests.ops.triton import lookup_cases
from tests.ops.triton.feedforward_cases import CASES, EPSILON, check, made

# The interpreter makes no tile of bfloat16.
HALF = torch.float16


@pytest.fixture(autouse=True)
def _parts_in_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "KIND", tl.float16)


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    check(CASES[name], HALF, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("name", lookup_cases.CASES)
def test_gathered(name: str, dtype: torch.dtype) -> None:
    lookup_cases.check(lookup_cases.CASES[name], dtype, "cpu")


@pytest.mark.parametrize("few", [1, 3], ids="programs{}".format)
def test_programs_take_tiles_in_turns(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORWARD", "BACKWARD"):
        cut = replace(getattr(library.feedforward, name), programs=few)
        monkeypatch.setattr(library.feedforward, name, cut)
    check(CASES["several tiles"], HALF, "cpu")
    monkeypatch.setattr(lookup, "PROGRAMS", few)
    lookup_cases.check(lookup_cases.CASES["mostly one token"], torch.float32, "cpu")


def test_custom_ops() -> None:
    case = CASES["few"]
    inputs, word = case.inputs(HALF, "cpu"), case.word("cpu")
    others = word, case.dropout, EPSILON, HALF
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        library.traced_forward, (*(each.requires_grad_() for each in inputs), *others), test_utils=checks
    )
    detached = [each.detach() for each in inputs]
    torch.library.opcheck(
        library.traced_backward,
        (*detached[:-1], word, points(*inputs[0].shape, dtype=torch.float32), *others[1:]),
    )
    tokens = lookup_cases.CASES["few"].tokens("cpu")
    torch.library.opcheck(
        lookup_library.traced_gathered, (tokens, points(*tokens.shape, 4, dtype=torch.float32), 3)
    )


def test_a_gradient_of_any_strides() -> None:
    case = CASES["few"]
    inputs, word = case.inputs(HALF, "cpu"), case.word("cpu")
    grad = points(case.c, case.n, dtype=torch.float32).mT
    how = word, case.dropout, EPSILON, HALF
    strided = made(library.feed_forward, inputs, grad, *how)
    assert all(map(torch.equal, strided, made(library.feed_forward, inputs, grad.contiguous(), *how)))


# torch's own, of how it traces a function with a gradient of its own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tracing_gives_the_same_values_and_gradients() -> None:
    case = CASES["several tiles"]
    inputs, word = case.inputs(HALF, "cpu"), case.word("cpu")
    tokens, table = lookup_cases.CASES["few"].tokens("cpu"), points(3, case.c, dtype=torch.float32)
    held = [each.requires_grad_() for each in (*inputs[1:], table)]

    def run() -> Tensor:
        x = inputs[0] + lookup_library.look_up(table, tokens).sum()
        *weights, _ = held
        pairs = [(*weights[at : at + 2],) for at in (0, 2, 4)]
        return library.feed_forward(x, *pairs, word, 0.1, EPSILON, HALF).square().mean()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    plain = [run(), *torch.autograd.grad(run(), held)]
    traced = [compiled(), *torch.autograd.grad(compiled(), held)]
    assert all(map(torch.equal, plain, traced))
