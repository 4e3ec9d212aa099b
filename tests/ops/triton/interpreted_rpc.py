"""The pursuit's kernels in Triton's interpreter; run by test_rpc.py in a process of its own."""

import pytest
import torch
from torch import Tensor

from kernelhead.ops import Pursuit
from kernelhead.ops.eager import rpc as eager
from kernelhead.ops.triton.rpc_library import Past, opened, traced_backward, traced_update, update
from tests.inputs import keep, points
from tests.ops.triton.rpc_cases import (
    CASES,
    OPENINGS,
    RECOMPUTED,
    Case,
    check,
    check_opening,
    check_recomputed,
)
from tests.tolerance import assert_within


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("lows", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RECOMPUTED)
def test_a_recomputed_state(name: str, lows: int, dtype: torch.dtype) -> None:
    check_recomputed(RECOMPUTED[name], lows, dtype, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("name", OPENINGS)
def test_openings(name: str, strided: bool, dtype: torch.dtype) -> None:
    check_opening(name, strided, dtype, "cpu")


@pytest.mark.parametrize("pursuit", [Pursuit.published(1), Pursuit.published(2, 1.0), Pursuit.corrected()])
def test_attention_that_is_opened(pursuit: Pursuit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelhead.ops.triton.rpc.FEWEST", 1)
    key, value = (points(2, 2, 9, 8, seed=i, dtype=torch.float32) for i in range(2))
    how = {"mask": None, "causal": False, "dropout": 0.0}
    oracle = eager.rpc_attention(key.double(), value.double(), None, pursuit, **how)
    plain = eager.rpc_attention(key, value, None, pursuit, **how)
    made = eager.rpc_attention(key, value, None, pursuit, **how, update=update, opened=opened)
    assert opened(key, pursuit) is not None
    assert opened(key.requires_grad_(), pursuit) is None
    assert_within(made, eager=plain, oracle=oracle)


@pytest.mark.parametrize("name", ["first", "journal", "last", "fused projection"])
def test_custom_ops(name: str) -> None:
    case = CASES[name]
    key, *previous, bound = (each.requires_grad_() for each in case.inputs(torch.float32, "cpu"))
    state, low = previous or (None, None)
    torch.library.opcheck(traced_update, (key, state, low, bound, case.preprint, case.last))
    made, keys, side = traced_update(key, state, low, bound, case.preprint, case.last)
    grads = (made.detach() if made.numel() else None), keys.detach()
    kinds = torch.float32, None if case.first else torch.float32
    torch.library.opcheck(traced_backward, (side, *grads, *kinds, bound.shape[2], case.preprint))


RUNS = {
    "published": (Pursuit.published(4, 1.0), {}),
    "corrected": (Pursuit.corrected(), {"mask": keep([9, 5], 9)}),
    "prefix": (Pursuit.published(3, 1.0, scope="prefix"), {"causal": True}),
    "one iteration": (Pursuit.published(1, 1.0), {}),
    "more than one call takes": (Pursuit.published(7, 1.0), {}),
}


def attend(tensors: list[Tensor], name: str, step: eager.Update) -> Tensor:
    pursuit, how = RUNS[name]
    given = {"mask": None, "causal": False, "dropout": 0.0, **how}
    return eager.rpc_attention(*tensors, None, pursuit, **given, update=step)


@pytest.mark.parametrize("name", RUNS)
def test_attention_with_kernels_is_attention(name: str) -> None:
    made = [points(2, 2, 9, 8, seed=i, dtype=torch.float32) for i in range(2)]
    results = []
    for tensors, step in (
        (made, update),
        (made, eager.update),
        ([each.double() for each in made], eager.update),
    ):
        held = [each.detach().clone().requires_grad_() for each in tensors]
        output = attend(held, name, step)
        results.append([output, *torch.autograd.grad(output.square().sum(), held)])
    for actual, plain, oracle in zip(*results, strict=True):
        assert_within(actual, eager=plain, oracle=oracle)


@pytest.mark.parametrize("name", ["published", "corrected"])
def test_tracing_gives_the_same_values_and_gradients(name: str) -> None:
    held = [points(2, 2, 9, 8, seed=i, dtype=torch.float32).requires_grad_() for i in range(2)]
    torch._dynamo.reset()

    def run() -> Tensor:
        return attend(held, name, update).square().sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    plain = [run(), *torch.autograd.grad(run(), held)]
    traced = [compiled(), *torch.autograd.grad(compiled(), held)]
    for one, other in zip(traced, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_half_precision_runs_through() -> None:
    held = [points(2, 2, 9, 8, seed=i, dtype=torch.float16).requires_grad_() for i in range(2)]
    for name in RUNS:
        output = attend(held, name, update)
        grads = torch.autograd.grad(output.float().square().sum(), held)
        assert {each.dtype for each in (output, *grads)} == {torch.float16}
        assert all(each.isfinite().all() for each in grads)


@pytest.mark.parametrize("first", [False, True])
def test_nan_stays(first: bool) -> None:
    key, *previous, bound = Case(first=first).inputs(torch.float32, "cpu")
    key[0, 0, 2, 3] = torch.nan
    _, keys = update(
        key, (Past(previous[0], previous[0]), previous[1]) if previous else None, bound, True, False
    )
    assert torch.equal(keys.isnan(), key.isnan())


def test_nothing_is_kept_without_gradients() -> None:
    key, *_, bound = Case(first=True).inputs(torch.float32, "cpu")
    past, keys = update(key, None, bound, True, False)
    assert keys.grad_fn is None
    # A state that can be recomputed has no entries.
    assert past.state.untyped_storage().nbytes() == 4
    assert past.written is None
    lows = tuple(points(*key.shape, seed=i, dtype=torch.float32) for i in range(4))
    past, _ = update(key, (Past(past.state, None, lows[:3]), lows[3]), bound, True, False)
    assert past.written is not None
    assert past.lows == ()
