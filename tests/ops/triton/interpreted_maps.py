"""Linear maps of the same points in Triton's interpreter; run by a test in a process of its own."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernelhead.ops.eager import maps as eager
from kernelhead.ops.triton import maps, maps_library
from tests.inputs import points
from tests.ops.triton.maps_cases import CASES, check, made

# The interpreter makes no tile of bfloat16.
HALF = torch.float16


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    check(CASES[name], HALF, "cpu")


@pytest.mark.parametrize("few", [1, 3], ids="programs{}".format)
def test_programs_take_tiles_in_turns(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = tuple(replace(cut, programs=few) for cut in maps.SCARCE)
    monkeypatch.setattr(maps, "SCARCE", cuts)
    check(CASES["several tiles"], HALF, "cpu")


def test_larger_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "SCARCE", maps.AMPLE)
    for name in ("one point", "several tiles"):
        check(CASES[name], HALF, "cpu")


@pytest.mark.parametrize("name", ["one point", "few"])
def test_custom_ops(name: str) -> None:
    inputs = CASES[name].inputs(HALF, "cpu")
    nothing = [None] * (7 - len(inputs))
    torch.library.opcheck(
        maps_library.traced_forward,
        (*(each.requires_grad_() for each in inputs), *nothing),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    x, *parts = (each.detach() for each in inputs)
    grads = [points(*x.shape[:-1], CASES[name].e, dtype=HALF) for _ in parts[::2]]
    fill = [None] * (3 - len(grads))
    torch.library.opcheck(maps_library.traced_backward, (x, *parts[::2], *fill, *grads, *fill))


def test_gradients_of_any_strides_and_of_some_maps() -> None:
    case = CASES["few"]
    inputs = case.inputs(HALF, "cpu")
    grads = [points(case.e, case.n, seed=at, dtype=HALF).mT for at in range(3)]
    strided = made(maps_library.linear_maps, inputs, grads)
    whole = [grad.contiguous() for grad in grads]
    assert all(map(torch.equal, strided, made(maps_library.linear_maps, inputs, whole)))
    held = [each.requires_grad_() for each in inputs]
    outs = maps_library.linear_maps(held[0], list(zip(held[1::2], held[2::2], strict=True)))
    some = torch.autograd.grad(outs[1], held, grads[1], materialize_grads=True)
    assert not some[1].any()
    assert torch.equal(some[3], strided[6])


def test_a_gradient_can_be_differentiated() -> None:
    inputs = [each.requires_grad_() for each in CASES["few"].inputs(HALF, "cpu")]

    def second(run: object) -> tuple[Tensor, ...]:
        outs = run(inputs[0], list(zip(inputs[1::2], inputs[2::2], strict=True)))  # type: ignore[operator]
        loss = sum(each.float().square().sum() for each in outs)
        (first,) = torch.autograd.grad(loss, inputs[0], create_graph=True)
        return torch.autograd.grad(first.float().square().sum(), inputs[1::2])

    for actual, plain in zip(second(maps_library.linear_maps), second(eager.linear_maps), strict=True):
        assert torch.allclose(actual.float(), plain.float(), rtol=2e-2, atol=2e-2 * float(plain.abs().max()))


@pytest.mark.parametrize("shared", ["two maps", "two calls"])
@pytest.mark.parametrize("several", [False, True])
def test_a_gradient_to_differentiate_of_shared_weights(shared: str, several: bool) -> None:
    sizes = enumerate([(5, 16), (16, 16), (16,)])
    x, weight, bias = (points(*size, seed=seed, dtype=HALF).div_(2).requires_grad_() for seed, size in sizes)
    held, one = [x, weight, bias], (weight, bias)

    def grads(run: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        outs = run(x, [one, one]) if shared == "two maps" else run(run(x, [one])[0], [one])
        if several:
            many = [torch.stack([torch.ones_like(out), 2 * torch.ones_like(out)]) for out in outs]
            found = torch.autograd.grad(outs, held, many, is_grads_batched=True)
            assert not any(each.requires_grad for each in found)
            return found
        loss = torch.stack([out.float().square().sum() for out in outs]).sum()
        first = torch.autograd.grad(loss, held, create_graph=True)
        second = torch.stack([each.float().square().mean() for each in first]).sum()
        return *(each.detach() for each in first), *torch.autograd.grad(second, held)

    for actual, plain in zip(grads(maps_library.linear_maps), grads(eager.linear_maps), strict=True):
        assert float((actual - plain).float().norm()) <= 1e-2 * float(plain.float().norm())


# torch's own, of how it traces a function with a gradient of its own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["one point", "several tiles"])
def test_tracing_gives_the_same_values_and_gradients(name: str) -> None:
    held = [each.requires_grad_() for each in CASES[name].inputs(HALF, "cpu")]

    def run() -> Tensor:
        outs = maps_library.linear_maps(held[0], list(zip(held[1::2], held[2::2], strict=True)))
        return torch.stack([each.float().square().mean() for each in outs]).sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    plain = [run(), *torch.autograd.grad(run(), held)]
    traced = [compiled(), *torch.autograd.grad(compiled(), held)]
    assert all(map(torch.equal, plain, traced))
