"""The scans and the step: in the interpreter everywhere, compiled where there is a GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernelhead.kernels import Cosine, Elu
from kernelhead.nn import PrimalAttention, ksvd_penalty, record
from kernelhead.ops.backends import scan_backend, step_backend
from kernelhead.ops.eager import linear as eager_linear
from kernelhead.ops.linear import linear_attention
from tests.inputs import keep, points
from tests.tolerance import assert_within

pytest.importorskip("triton", reason="the extra gpu is not installed")

from kernelhead.ops.triton import prefix_library as library
from kernelhead.ops.triton.prefix import plan
from tests.ops.triton.interpreter import interpreted
from tests.ops.triton.prefix_cases import (
    CASES,
    Case,
    check_causality,
    check_means,
    check_one_step,
    check_products,
    check_steps,
    layer,
    stepped,
    with_gradients,
)

gpu = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.slow
def test_the_interpreter_runs_the_same_kernels() -> None:
    assert interpreted("interpreted_prefix.py") == 2 * len(CASES) + 39


@pytest.mark.long
def test_the_interpreter_runs_them_in_half_precision() -> None:
    assert interpreted("interpreted_prefix.py", "-m", "long") == 2 * (len(CASES) - 3)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("n", [1, 17, 256, 257, 65_536, 1_048_577])
def test_a_plan_covers_all_points_once(n: int, size: int) -> None:
    made = plan(n, 64, size=size)
    tiles, length, chunks = made.cut(n)
    assert made.tile * (tiles - 1) < n <= made.tile * tiles
    assert length * (chunks - 1) < tiles <= length * chunks
    assert chunks <= 128


def test_the_backend_is_eager_where_the_kernels_do_not_fit() -> None:
    x = torch.zeros(1, 2, 3, 4)
    assert scan_backend(x, None) == "eager"
    assert step_backend(x[:, :, :1], torch.zeros(1, 2, 4), torch.zeros(2, 4, 3), Elu()) == "eager"


@gpu
def test_the_backend_is_triton_where_the_kernels_fit() -> None:
    x = torch.zeros(1, 2, 3, 4, device="cuda")
    mask = torch.ones(1, 1, 3, dtype=torch.bool, device="cuda")
    assert scan_backend(x, mask, 4, 128) == "triton"
    assert scan_backend(x, mask[0], 4) == "eager"
    assert scan_backend(x, None, 129) == scan_backend(x.double(), None) == scan_backend(x.mT, None) == "eager"
    one, state, weight = x[:, :, :1], torch.zeros(1, 2, 4, device="cuda"), torch.zeros(2, 4, 3)
    assert step_backend(one, state, weight, Cosine()) == "triton"
    assert step_backend(one, state.double(), weight, Cosine()) == "eager"
    assert step_backend(one, state, weight, Elu()) == "eager"


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("check", [check_products, check_means])
def test_kernels(check: Callable[[Case, torch.dtype, str], None], name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("p", "e"), [(1, 128), (16, 1), (24, 20), (32, 33), (50, 47), (64, 64), (65, 64), (128, 20), (128, 128)]
)
def test_widths(p: int, e: int, reverse: bool, dtype: torch.dtype) -> None:
    case = Case(n=600, p=p, e=e, masked=True, strided=p < 64, reverse=reverse)
    check_products(case, dtype, "cuda")
    check_means(case, dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_causality(dtype: torch.dtype) -> None:
    check_causality(dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("landmarks", "join"), [(None, "shared"), (4, "shared"), (4, "per_head")])
def test_steps(landmarks: int | None, join: str, masked: bool, dtype: torch.dtype) -> None:
    check_steps(layer(landmarks, join), masked, dtype, "cuda")


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [False, True])
def test_one_step(rows: bool, dtype: torch.dtype) -> None:
    check_one_step(rows, dtype, "cuda")


@gpu
@pytest.mark.parametrize("n", [1, 700])
def test_custom_ops(n: int) -> None:
    sides = [each.requires_grad_() for each in Case(n=n, strided=True).sides(torch.float32, "cuda")]
    mask = (points(2, n) > 0).cuda()
    for reverse in (False, True):
        torch.library.opcheck(library.traced_products, (*sides, reverse))
        for given in ((None, None), (mask, mask.cumsum(-1).clamp_min(1))):
            torch.library.opcheck(library.traced_means, (sides[0].detach().requires_grad_(), *given, reverse))


@gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("landmarks", [None, 5])
def test_a_causal_layer_on_the_gpu_is_the_one_on_the_cpu(
    landmarks: int | None, masked: bool, compiled: bool
) -> None:
    module = PrimalAttention(32, heads=2, rank=3, landmarks=landmarks, causal=True)
    x, mask = points(3, 300, 32, dtype=torch.float32), keep([300, 117, 0], 300)

    def run(device: str, forward: Callable[..., Tensor]) -> list[Tensor]:
        module.zero_grad()
        with record(module) as tape:
            output = forward(x.to(device), mask=mask.to(device) if masked else None)
            (output.square().sum() + ksvd_penalty(tape)).backward()
        return [output.detach().cpu(), *(p.grad.clone().cpu() for p in module.parameters())]

    expected = run("cpu", module)
    module.cuda()
    made = run("cuda", torch.compile(module, fullgraph=True) if compiled else module)
    for one, other in zip(made, expected, strict=True):
        # Gradients of weights are sums over 900 points: the largest entry sets the scale.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.abs().max())))


@gpu
@pytest.mark.parametrize("landmarks", [None, 5])
def test_steps_on_the_gpu_equal_the_parallel_form(landmarks: int | None) -> None:
    module = PrimalAttention(64, heads=2, rank=20, landmarks=landmarks, causal=True).cuda()
    x = points(2, 40, 64, dtype=torch.float32).cuda()
    with torch.no_grad():
        torch.testing.assert_close(stepped(module, x, None), module(x), rtol=1e-4, atol=1e-5)


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_causal_linear_attention(masked: bool, dtype: torch.dtype) -> None:
    case = Case(n=400, p=20, e=30, strided=True, masked=masked)
    mask, sides = case.mask("cuda"), case.sides(dtype, "cuda")
    real, grad = None if mask is None else mask[:, None], points(2, 2, 400, 30, seed=7, dtype=dtype).cuda()

    def run(attention: Callable[..., Tensor], sides: list[Tensor], grad: Tensor) -> list[Tensor]:
        return with_gradients(
            lambda *given: attention(*given[:3], mask=given[3], causal=True), sides, real, grad
        )

    plain = run(eager_linear.linear_attention, sides, grad)
    oracle = run(eager_linear.linear_attention, [each.double() for each in sides], grad.double())
    for actual, eagerly, exact in zip(run(linear_attention, sides, grad), plain, oracle, strict=True):
        assert_within(actual, eager=eagerly, oracle=exact)
