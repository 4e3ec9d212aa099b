"""The scans and the step in Triton's interpreter; run by test_prefix.py in a process of its own."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernelhead.kernels import Cosine
from kernelhead.ops.eager import linear as eager_linear
from kernelhead.ops.eager import primal as eager
from kernelhead.ops.linear import linear_attention
from kernelhead.ops.primal import prefix_scores, running_means
from kernelhead.ops.triton import prefix_library as library
from tests.inputs import points
from tests.ops.triton.interpreter import precisions
from tests.ops.triton.prefix_cases import (
    CASES,
    Case,
    check_causality,
    check_means,
    check_one_step,
    check_products,
    check_steps,
    layer,
    products,
    with_gradients,
)
from tests.tolerance import assert_within

DTYPES = [torch.float32, torch.float16]
HALF = ("ragged", "chunk + 1", "wide")


@pytest.fixture
def kernels_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doors choose the kernels, which the interpreter runs on the CPU; float64 stays as it is."""

    def choose(points: Tensor, *_: object) -> str:
        return "eager" if points.dtype == torch.float64 else "triton"

    for door in ("ops.primal.scan", "ops.linear.scan", "nn.primal.step"):
        monkeypatch.setattr(f"kernelhead.{door}_backend", choose)


@pytest.mark.parametrize(("name", "dtype"), precisions(CASES, HALF))
@pytest.mark.parametrize("check", [check_products, check_means])
def test_kernels(check: Callable[[Case, torch.dtype, str], None], name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_causality(dtype: torch.dtype) -> None:
    check_causality(dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("landmarks", "join"), [(None, "shared"), (4, "shared"), (4, "per_head")])
@pytest.mark.usefixtures("kernels_everywhere")
def test_steps(landmarks: int | None, join: str, masked: bool, dtype: torch.dtype) -> None:
    check_steps(layer(landmarks, join), masked, dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [False, True])
def test_one_step(rows: bool, dtype: torch.dtype) -> None:
    check_one_step(rows, dtype, "cpu")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_custom_ops(strided: bool, reverse: bool) -> None:
    sides = [each.requires_grad_() for each in Case(n=20, strided=strided).sides(torch.float32, "cpu")]
    torch.library.opcheck(library.traced_products, (*sides, reverse))
    mask = points(2, 20) > 0
    for given in ((None, None), (mask, mask.cumsum(-1).clamp_min(1))):
        torch.library.opcheck(library.traced_means, (sides[0].detach().requires_grad_(), *given, reverse))


def test_gradients_of_gradients() -> None:
    sides = Case(n=9, p=3, e=2).sides(torch.float32, "cpu")
    grad = points(2, 2, 9, 2, seed=7, dtype=torch.float32)

    def second(run: Callable[..., Tensor], kind: torch.dtype) -> list[Tensor]:
        inputs = [each.to(kind, copy=True).requires_grad_() for each in sides]
        firsts = torch.autograd.grad(run(*inputs, False), inputs, grad.to(kind), create_graph=True)
        return list(torch.autograd.grad(sum(each.square().sum() for each in firsts), inputs))

    made, plain = second(library.prefix_products, torch.float32), second(products, torch.float32)
    for actual, eagerly, exact in zip(made, plain, second(products, torch.float64), strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.usefixtures("kernels_everywhere")
def test_doors(masked: bool) -> None:
    case = Case(n=12, p=4, e=4, strided=True, masked=masked)
    mask = case.mask("cpu")
    real = None if mask is None else mask[:, None]
    weights = [points(2, 6, 2, seed=i, dtype=torch.float32) for i in (3, 4)]
    sides = case.sides(torch.float32, "cpu")
    both = torch.cat(prefix_scores(*sides, *weights, mask=real), -1)
    grad = points(*both.shape, seed=5, dtype=torch.float32)

    def scores(*given: Tensor | None) -> Tensor:
        return torch.cat(eager.prefix_scores(*given[:5], Cosine(), given[5]), -1)

    pairs = [
        (lambda *given: torch.cat(prefix_scores(*given[:5], mask=given[5]), -1), scores, [*sides, *weights]),
        (lambda x, mask: running_means(x, mask=mask), eager.running_means, sides[:1]),
        (
            lambda *given: linear_attention(*given[:3], mask=given[3], causal=True),
            lambda *given: eager_linear.linear_attention(*given[:3], mask=given[3], causal=True),
            sides,
        ),
    ]
    for door, plain, inputs in pairs:
        made, eagerly = (with_gradients(run, inputs, real, grad) for run in (door, plain))
        exact = with_gradients(plain, [each.double() for each in inputs], real, grad.double())
        for one, other, oracle in zip(made, eagerly, exact, strict=True):
            assert_within(one, eager=other, oracle=oracle)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("landmarks", [None, 4])
def test_a_causal_layer(landmarks: int | None, masked: bool, request: pytest.FixtureRequest) -> None:
    module = layer(landmarks)
    x, mask = points(2, 40, 20, dtype=torch.float32), points(2, 40, seed=1) > -0.5

    def run(kind: torch.dtype) -> list[Tensor]:
        module.to(kind).zero_grad()
        output = module(x.to(kind), mask=mask if masked else None)
        output.square().sum().backward()
        named = module.named_parameters()
        return [output.detach(), *(each.grad.clone() for name, each in named if name != "root")]

    oracle, plain = run(torch.float64), run(torch.float32)
    request.getfixturevalue("kernels_everywhere")
    for actual, eagerly, exact in zip(run(torch.float32), plain, oracle, strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("landmarks", [None, 4])
@pytest.mark.usefixtures("kernels_everywhere")
def test_tracing_gives_the_same_values_and_gradients(landmarks: int | None, masked: bool) -> None:
    case = Case(n=20, p=4, e=4, strided=True, masked=masked)
    mask, sides = case.mask("cpu"), case.sides(torch.float32, "cpu")
    real = None if mask is None else mask[:, None]
    sides = [each.detach().requires_grad_() for each in sides]
    weights = [points(2, 6, 2, seed=i, dtype=torch.float32).requires_grad_() for i in (3, 4)]

    def run() -> Tensor:
        if landmarks is None:
            means = [library.running_means(side, real) for side in sides]
            return sum(mean.square().sum() for mean in means)  # type: ignore[return-value]
        left, right = library.prefix_scores(*sides, *weights, Cosine(), real)
        return left.square().sum() + right.sum() + library.linear_attention(*sides, real).sum()

    wanted = sides if landmarks is None else [*sides, *weights]
    plain = [run(), *torch.autograd.grad(run(), wanted)]
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    traced = [compiled(), *torch.autograd.grad(compiled(), wanted)]
    for one, other in zip(plain, traced, strict=True):
        torch.testing.assert_close(one, other)
