"""Mixing of neighbours by kernels: in the interpreter everywhere, compiled where there is a GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="the extra gpu is not installed")

from kernelhead.nn import LocalMixing
from kernelhead.ops import local_mix
from kernelhead.ops.backends import local_backend
from tests.inputs import keep, points
from tests.ops.triton.interpreter import interpreted
from tests.ops.triton.local_cases import CASES, check
from tests.tolerance import assert_within


@pytest.mark.slow
def test_the_interpreter_runs_the_same_kernels() -> None:
    assert interpreted("interpreted_local.py") == len(CASES) + 6


@pytest.mark.long
def test_the_interpreter_runs_them_in_half_precision() -> None:
    assert interpreted("interpreted_local.py", "-m", "long") == len(CASES) - 2


def test_the_backend_is_eager_where_the_kernels_do_not_fit() -> None:
    assert local_backend(torch.zeros(2, 3, 4), torch.zeros(3, 4)) == "eager"


@pytest.mark.gpu
def test_which_points_fit() -> None:
    x, weight = torch.zeros(2, 3, 4, device="cuda"), torch.zeros(3, 4, device="cuda")
    assert local_backend(x, weight) == "triton"
    assert local_backend(x.double(), weight) == "eager"
    assert local_backend(x.transpose(1, 2), weight) == "eager"
    assert local_backend(x[:, :0], weight) == "eager"
    assert local_backend(x, weight.expand(3, 4).repeat(22, 1)) == "eager"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_under_autocast(compiled: bool) -> None:
    torch.manual_seed(0)
    layer, x, mask = LocalMixing(20, taps=5, dilation=3), points(2, 90, 20), keep([90, 41], 90)
    oracle = layer.double()(x, mask=mask)
    layer, x, mask = layer.float().cuda(), x.float().cuda(), mask.cuda()
    run = torch.compile(layer, fullgraph=True) if compiled else layer
    with torch.autocast("cuda", torch.bfloat16):
        made = run(x, mask=mask)
    made.float().square().sum().backward()
    plain = layer.cpu().bfloat16()(x.cpu().bfloat16(), mask=mask.cpu())
    assert_within(made.cpu(), eager=plain, oracle=oracle)
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in layer.parameters())


@pytest.mark.gpu
def test_the_door_takes_the_kernels() -> None:
    x, weight, bias = CASES["several tiles"].inputs(torch.float32, "cuda")
    made = local_mix(x, weight, bias, dilation=16)
    plain = local_mix(x.cpu(), weight.cpu(), bias.cpu(), dilation=16)
    exact = local_mix(x.cpu().double(), weight.cpu().double(), bias.cpu().double(), dilation=16)
    assert_within(made.cpu(), eager=plain, oracle=exact)
