"""Attention through features in Triton's interpreter; run by test_features.py in a process of its own."""

import pytest
import torch
from torch import Tensor

from kernelhead.ops import backends
from kernelhead.ops import linear as ops
from kernelhead.ops.eager import linear as eager
from kernelhead.ops.triton import features_library as library
from tests.inputs import points
from tests.ops.triton.features_cases import (
    CASES,
    Attention,
    Case,
    answered,
    attention,
    check,
    check_what_values_share,
    seconds,
)
from tests.ops.triton.interpreter import precisions
from tests.tolerance import assert_within

HALF = ("ragged, drawn", "chunks, drawn", "far keys")
DRAWN = pytest.mark.parametrize("p", [None, 20], ids=["elu", "drawn"])


@pytest.mark.parametrize(("name", "dtype"), precisions(CASES, HALF))
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cpu")


@DRAWN
def test_what_values_share(p: int | None) -> None:
    # The interpreter makes no tile of bfloat16.
    check_what_values_share(Case(n=200, m=200, p=p), torch.float16, "cpu")


@DRAWN
@pytest.mark.parametrize("masked", ["all", "lengths"])
def test_custom_ops(masked: str, p: int | None) -> None:
    case = Case(n=20, m=30, p=p, masked=masked, laid="heads behind")
    sides = [side.requires_grad_() for side in case.sides(torch.float32, "cpu")]
    given = *sides, case.frequencies("cpu"), case.mask("cpu")
    # The sums over keys are outputs as well, but have no gradients.
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(library.traced_forward, given, test_utils=checks)
    with torch.no_grad():
        made = library.traced_forward(*given)
    held = *(side.detach() for side in sides), *given[3:], *made[1:], torch.ones_like(made[0])
    torch.library.opcheck(library.traced_backward, held)


@DRAWN
def test_gradients_of_gradients(p: int | None) -> None:
    case = Case(n=9, m=12, p=p, masked="lengths")
    mask, grad = case.mask("cpu"), points(2, 2, 9, 16, seed=7, dtype=torch.float32)
    sides = case.sides(torch.float32, "cpu")
    made, plain = (seconds(attention(each, case, "cpu"), sides, mask, grad) for each in (library, eager))
    exact = seconds(attention(eager, case, "cpu"), [side.double() for side in sides], mask, grad.double())
    for actual, eagerly, oracle in zip(made, plain, exact, strict=True):
        assert_within(actual, eager=eagerly, oracle=oracle)


@DRAWN
def test_sides_without_a_gradient(p: int | None) -> None:
    case = Case(p=p)
    query, key, value = case.sides(torch.float32, "cpu")
    run = attention(library, case, "cpu")
    assert not run(query, key, value).requires_grad
    (alone,) = torch.autograd.grad(run(query, key.requires_grad_(), value).square().sum(), key)
    held = [side.detach().requires_grad_() for side in (query, key, value)]
    assert torch.equal(alone, torch.autograd.grad(run(*held).square().sum(), held)[1])
    (slope,) = torch.autograd.grad(run(query, key, value).square().sum(), key, create_graph=True)
    assert slope.requires_grad


@DRAWN
def test_a_side_that_is_all_of_them(p: int | None) -> None:
    case = Case(n=9, m=9, p=p)
    side = points(2, 2, 9, 16, dtype=torch.float32).requires_grad_()

    def slope(run: Attention, kind: torch.dtype) -> Tensor:
        given = side.detach().to(kind).requires_grad_()
        loss = run(given, given, given, mask=None).square().sum()
        return torch.autograd.grad(loss, given, create_graph=True)[0].detach()

    made, plain = (slope(attention(each, case, "cpu"), torch.float32) for each in (library, eager))
    assert_within(made, eager=plain, oracle=slope(attention(eager, case, "cpu"), torch.float64))


@DRAWN
def test_a_gradient_of_any_strides(p: int | None) -> None:
    case = Case(n=20, m=20, p=p)
    sides, run = case.sides(torch.float32, "cpu"), attention(library, case, "cpu")
    for grad in (points(2, 2, 16, 20, dtype=torch.float32).mT, torch.ones(()).expand(2, 2, 20, 16)):
        strided = answered(run, sides, None, grad)
        assert all(map(torch.equal, strided, answered(run, sides, None, grad.contiguous())))


# torch's own, of how it traces a function with a gradient of its own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@DRAWN
@pytest.mark.parametrize("masked", ["all", "lengths"])
def test_tracing_gives_the_same_values_and_gradients(masked: str, p: int | None) -> None:
    case = Case(n=20, m=30, p=p, masked=masked, laid="heads behind")
    mask, run = case.mask("cpu"), attention(library, case, "cpu")
    held = [side.requires_grad_() for side in case.sides(torch.float32, "cpu")]

    def loss() -> Tensor:
        return run(*held, mask=mask).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    plain = [loss(), *torch.autograd.grad(loss(), held)]
    traced = [compiled(), *torch.autograd.grad(compiled(), held)]
    for one, other in zip(plain, traced, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("large", [30.0, 300.0, 3000.0])
def test_far_keys_have_the_features_that_were_summed(large: float) -> None:
    # What moves queries and keys is less than rounding leaves here.
    case = Case(n=9, m=32, d=64, p=20, large=large)
    sides, grad = case.sides(torch.float32, "cpu"), points(2, 2, 9, 16, seed=7, dtype=torch.float32)
    made, plain = (answered(attention(each, case, "cpu"), sides, None, grad) for each in (library, eager))
    exact = answered(attention(eager, case, "cpu"), [side.double() for side in sides], None, grad.double())
    for at in (0, 3):
        assert_within(made[at], eager=plain[at], oracle=exact[at])


def test_weights_below_all_reciprocals_make_no_nan() -> None:
    case = Case(n=9, m=12)
    query, key, value = case.sides(torch.float32, "cpu")
    grad = points(2, 2, 9, 16, seed=7, dtype=torch.float32)
    for shift in (45.0, 100.0):
        made = answered(attention(library, case, "cpu"), [query - shift, key - shift, value], None, grad)
        assert all(each.isfinite().all() for each in made)


@DRAWN
def test_many_gradients_at_once(p: int | None) -> None:
    case = Case(n=3, m=4, p=p)
    query, *others = case.sides(torch.float32, "cpu")

    def run(given: Tensor) -> Tensor:
        return attention(library, case, "cpu")(given, *others).sum(-1)

    one, all_at_once = (
        torch.autograd.functional.jacobian(run, query, vectorize=vectorize) for vectorize in (False, True)
    )
    torch.testing.assert_close(all_at_once, one)


def test_a_traced_transform_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # Here, where no lines are counted: what counts them stands in the code that is traced.
    monkeypatch.setattr(backends, "on_cuda", lambda _: True)
    x, seen = torch.zeros(2, 3, 4, 16, dtype=torch.bfloat16), []

    def loss(weight: Tensor) -> Tensor:
        seen.append(backends.features_backend(x, x, x, None))
        return (x * weight).sum().float()

    torch.compile(torch.func.grad(loss), backend="eager", fullgraph=True)(torch.ones(16))
    assert seen == ["short"]


@DRAWN
def test_doors(p: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelhead.ops.linear.features_backend", lambda *_: "triton")
    case = Case(n=20, m=30, p=p, masked="lengths")
    sides, mask = case.sides(torch.float32, "cpu"), case.mask("cpu")
    run: list[Attention] = [attention(each, case, "cpu") for each in (ops, library)]
    one, other = (each(*sides, mask=mask) for each in run)
    assert torch.equal(one, other)
