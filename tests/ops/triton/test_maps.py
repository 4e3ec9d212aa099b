"""Linear maps of the same points by kernels: interpreted everywhere, compiled where there is a GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="the extra gpu is not installed")

from torch import Tensor, nn

from kernelhead.models import SequenceClassifier
from kernelhead.nn import LinearAttention, record
from kernelhead.nn.maps import mapped
from kernelhead.ops import linear_maps
from kernelhead.ops.backends import maps_backend
from kernelhead.ops.eager import maps as eager
from kernelhead.ops.triton import maps
from tests.inputs import points
from tests.ops.triton.interpreter import interpreted
from tests.ops.triton.maps_cases import CASES, check
from tests.tolerance import assert_within

KINDS = (torch.float16, torch.bfloat16)


@pytest.mark.slow
def test_the_interpreter_runs_the_same_kernels() -> None:
    assert interpreted("interpreted_maps.py") == len(CASES) + 13


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, kind: torch.dtype) -> None:
    check(CASES[name], kind, "cuda")


@pytest.mark.gpu
def test_which_points_fit() -> None:
    x, weight = torch.zeros(3, 16, device="cuda"), torch.zeros(32, 16, device="cuda")
    one = weight, weight[:, 0].clone()
    assert maps_backend(x, [one]) == "eager"
    assert maps_backend(x.bfloat16(), [(one[0].bfloat16(), one[1].bfloat16())] * 3) == "triton"
    with torch.autocast("cuda", torch.bfloat16):
        assert maps_backend(x, [one]) == "triton"
        assert maps_backend(x, [(one[0], one[1].cpu())]) == "eager"
        assert maps_backend(x.double(), [one]) == "eager"
        assert maps_backend(x[:0], [one]) == "eager"
        assert maps_backend(x.cpu(), [one]) == "eager"
        assert maps_backend(x, [one, (weight[:16], one[1][:16])]) == "eager"
        assert maps_backend(x, [one] * 4) == "eager"
        for count, shape in ((1, (32, 8)), (1, (24, 16)), (1, (256, 16)), (1, (128, 128)), (2, (128, 64))):
            wide = x.new_zeros(shape), x.new_zeros(shape[0])
            assert maps_backend(x.new_zeros(3, shape[1]), [wide] * count) == "eager"
        assert torch.func.vmap(lambda each: linear_maps(each, [one])[0])(x).shape == (3, 32)


@pytest.mark.gpu
def test_the_door_takes_the_kernels() -> None:
    x, *parts = CASES["several tiles"].inputs(torch.bfloat16, "cuda")
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    exact = eager.linear_maps(x.double(), [(weight.double(), bias.double()) for weight, bias in pairs])
    with torch.autocast("cuda", torch.bfloat16):
        assert maps_backend(x.float(), pairs) == "triton"
        plain, made = eager.linear_maps(x.float(), pairs), linear_maps(x.float(), pairs)
    for actual, eagerly, oracle in zip(made, plain, exact, strict=True):
        assert actual.dtype == torch.bfloat16
        assert_within(actual, eager=eagerly, oracle=oracle)


@pytest.mark.gpu
def test_points_and_gradients_at_odd_addresses() -> None:
    def moved(given: Tensor) -> Tensor:
        return given.new_empty(given.numel() + 1)[1:].view_as(given).copy_(given)

    x, *parts = CASES["several tiles"].inputs(torch.bfloat16, "cuda")
    weights, pairs = parts[::2], list(zip(parts[::2], parts[1::2], strict=True))
    grads = maps.forward(x, pairs)
    assert all(map(torch.equal, maps.forward(moved(x), pairs), grads))
    made = maps.backward(moved(x), weights, [*map(moved, grads)])
    assert all(map(torch.equal, made, maps.backward(x, weights, grads)))


@pytest.mark.gpu
def test_a_layer_that_is_looked_into_does_without() -> None:
    layers = [nn.Linear(16, 16).cuda() for _ in range(2)]
    x, seen = points(2, 9, 16, dtype=torch.float32).cuda(), list[Tensor]()
    with torch.autocast("cuda", torch.bfloat16):
        made = mapped(x, *layers)
        layers[1].register_forward_hook(lambda _, __, out: seen.append(out))
        looked = mapped(x, *layers)
    assert len(seen) == 1
    exact = [layer.cpu()(x.cpu()).cuda() for layer in layers]
    for actual, eagerly, oracle in zip(made, looked, exact, strict=True):
        assert_within(actual, eager=eagerly, oracle=oracle)


@pytest.mark.gpu
def test_a_recorded_layer_in_half_precision() -> None:
    torch.manual_seed(0)
    layer, x = LinearAttention(32, heads=2), points(2, 70, 32, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        plain = layer(x)
    exact = layer.double()(x.double())
    with torch.autocast("cuda", torch.bfloat16), record(layer.float().cuda()) as tape:
        made = layer(x.cuda())
    assert torch.equal(tape.last("").output, made)
    assert_within(made.cpu(), eager=plain, oracle=exact)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("attention", ["linear", "softmax", "primal", "none"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_classifier_under_autocast(compiled: bool, attention: str) -> None:
    torch.manual_seed(0)
    net = SequenceClassifier(
        3, vocabulary=50, width=32, inner=64, heads=2, rank=4, landmarks=8, attention=attention,
        window=5 if attention == "none" else 0,
    )  # fmt: skip
    tokens, target = torch.arange(180).view(2, 90) % 50, torch.tensor([0, 2])

    def grads(model: nn.Module, where: str, kind: torch.dtype | None) -> list[Tensor]:
        run = torch.compile(model, fullgraph=True) if compiled and where == "cuda" else model
        model.zero_grad()
        with torch.autocast(where, kind, enabled=kind is not None):
            made = nn.functional.cross_entropy(run(tokens.to(where)), target.to(where))
        made.backward()
        return [each.grad.cpu().clone() for each in model.parameters() if each.grad is not None]

    oracle = grads(net.double(), "cpu", None)
    plain = grads(net.float(), "cpu", torch.bfloat16)
    for each, eagerly, exact in zip(grads(net.cuda(), "cuda", torch.bfloat16), plain, oracle, strict=True):
        bound = 2 * float((eagerly - exact).norm()) + 2**-7 * float(exact.norm()) + 1e-6
        assert float((each - exact).norm()) <= bound
