"""The pursuit's kernels: in the interpreter everywhere, compiled where there is a GPU."""

import pytest
import torch
from torch import Tensor

from kernelhead.ops import Pursuit, rpc_attention, rpc_start, rpc_step
from kernelhead.ops.eager import rpc as eager
from kernelhead.ops.rpc import rpc_backend
from tests.inputs import keep, points
from tests.tolerance import assert_within

pytest.importorskip("triton", reason="the extra gpu is not installed")

from kernelhead.ops.triton.rpc_library import traced_update
from tests.ops.triton.interpreter import interpreted
from tests.ops.triton.rpc_cases import (
    CASES,
    OPENINGS,
    RECOMPUTED,
    Case,
    check,
    check_opening,
    check_recomputed,
)

gpu = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def test_the_interpreter_runs_the_same_kernels() -> None:
    assert interpreted("interpreted_rpc.py") == 2 * len(CASES) + 8 * len(RECOMPUTED) + 4 * len(OPENINGS) + 18


def test_the_backend_is_eager_where_the_kernels_do_not_fit() -> None:
    assert rpc_backend(torch.zeros(1, 2, 3, 4)) == "eager"


@gpu
def test_the_backend_on_the_gpu() -> None:
    assert rpc_backend(torch.zeros(1, 2, 3, 4, device="cuda")) == "triton"
    assert rpc_backend(torch.zeros(1, 2, 3, 4, device="cuda", dtype=torch.float64)) == "eager"
    assert rpc_backend(torch.zeros(1, 2, 3, 600, device="cuda")) == "eager"


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lows", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RECOMPUTED)
def test_a_recomputed_state(name: str, lows: int, dtype: torch.dtype) -> None:
    check_recomputed(RECOMPUTED[name], lows, dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("name", OPENINGS)
def test_openings(name: str, strided: bool, dtype: torch.dtype) -> None:
    check_opening(name, strided, dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pursuit", [Pursuit.published(), Pursuit.corrected()])
def test_many_heads_without_gradients(pursuit: Pursuit, dtype: torch.dtype) -> None:
    key, value = (points(16, 8, 70, 32, seed=i, dtype=dtype).cuda() for i in range(2))
    how = {"mask": None, "causal": False, "dropout": 0.0}
    oracle, plain = (
        eager.rpc_attention(k, v, None, pursuit, **how)
        for k, v in ((key.double(), value.double()), (key, value))
    )
    assert_within(rpc_attention(key, value, pursuit=pursuit), eager=plain, oracle=oracle)


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [1, 24, 64, 96, 128, 256, 512])
def test_widths(d: int, dtype: torch.dtype) -> None:
    check(Case(n=300, d=d, strided=d == 64), dtype, "cuda")


@gpu
@pytest.mark.parametrize("name", ["first", "ragged", "journal", "last", "fused projection"])
def test_custom_op(name: str) -> None:
    case = CASES[name]
    key, *previous, bound = (each.requires_grad_() for each in case.inputs(torch.float32, "cuda"))
    state, low = previous or (None, None)
    torch.library.opcheck(traced_update, (key, state, low, bound, case.preprint, case.last))


RUNS = {
    "published": (Pursuit.published(3), {}),
    "more than one call takes": (Pursuit(6, 0.1, threshold="over_mu", width="head"), {}),
    "corrected, masked": (Pursuit.corrected(), {"mask": keep([40, 17, 0], 40)}),
    "causal": (Pursuit.corrected(scope="prefix"), {"causal": True}),
    "causal, masked": (
        Pursuit.published(3, scope="prefix"),
        {"causal": True, "mask": keep([40, 17, 0], 40)},
    ),
    "asymmetric": (Pursuit.corrected(), {"query": points(3, 2, 40, 16, seed=7)}),
}


def results(name: str, tensors: list[Tensor], *, plain: bool = False, traced: bool = False) -> list[Tensor]:
    """Output and gradients, with tensors of the options moved to where the points are."""
    held = [each.detach().clone().requires_grad_() for each in tensors]
    pursuit, how = RUNS[name]
    given = {"query": None, "mask": None, "causal": False, "dropout": 0.0, **how}
    for option, each in given.items():
        if isinstance(each, Tensor):
            given[option] = each.to(held[0].device, None if option == "mask" else held[0].dtype)

    def run(key: Tensor, value: Tensor) -> Tensor:
        if plain:
            query = given["query"]
            rest = {option: each for option, each in given.items() if option != "query"}
            return eager.rpc_attention(key, value, query, pursuit, **rest)
        return rpc_attention(key, value, pursuit=pursuit, **given)

    output = (torch.compile(run, fullgraph=True) if traced else run)(*held)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), held)]


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", RUNS)
def test_attention_with_kernels_is_attention(name: str, dtype: torch.dtype) -> None:
    tensors = [points(3, 2, 40, 16, seed=i, dtype=dtype).cuda() for i in range(2)]
    oracle = results(name, [each.double() for each in tensors])
    for actual, eagerly, exact in zip(
        results(name, tensors), results(name, tensors, plain=True), oracle, strict=True
    ):
        assert actual.dtype == dtype
        assert_within(actual, eager=eagerly, oracle=exact)


@gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", RUNS)
def test_compiled(name: str) -> None:
    torch._dynamo.reset()
    tensors = [points(3, 2, 40, 16, seed=i, dtype=torch.float32).cuda() for i in range(2)]
    for one, other in zip(results(name, tensors, traced=True), results(name, tensors), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.parametrize("masked", [False, True])
def test_the_last_point_moves_no_bit_before_it(masked: bool) -> None:
    key, value = (points(2, 2, 70, 16, seed=i, dtype=torch.float32).cuda() for i in range(2))
    mask = keep([70, 70], 70).cuda() if masked else None
    pursuit = Pursuit.corrected(scope="prefix")
    before = rpc_attention(key, value, pursuit=pursuit, mask=mask, causal=True)
    key[:, :, -1], value[:, :, -1] = 9.0, -7.0
    after = rpc_attention(key, value, pursuit=pursuit, mask=mask, causal=True)
    assert torch.equal(before[:, :, :-1], after[:, :, :-1])


@gpu
def test_decoding_equals_the_parallel_form() -> None:
    key, value = (points(2, 2, 9, 16, seed=i, dtype=torch.float32).cuda() for i in range(2))
    pursuit = Pursuit.corrected(3, scope="prefix")
    whole = rpc_attention(key, value, pursuit=pursuit, causal=True)
    state, pieces = rpc_start(2, 2, 16, pursuit=pursuit, device=key.device), []
    for k, v in zip(key.split([4, 1, 1, 3], 2), value.split([4, 1, 1, 3], 2), strict=True):
        output, state = rpc_step(k, v, state, pursuit=pursuit)
        pieces.append(output)
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole, rtol=1e-4, atol=1e-5)
