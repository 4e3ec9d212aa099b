"""Mixing of neighbours against loops in float64, its gradients, and what it refuses."""

import pytest
import torch

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops import local_mix
from tests.inputs import points
from tests.oracles import local as oracle


def given(n: int = 7, taps: int = 3, width: int = 5) -> list[torch.Tensor]:
    return [points(2, n, width), points(taps, width, seed=1), points(width, seed=2)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dilation", [1, 2, 5, 2**40])
@pytest.mark.parametrize("taps", [1, 2, 3, 8])
def test_the_definition(taps: int, dilation: int, causal: bool) -> None:
    tensors = given(taps=taps)
    made = local_mix(*tensors, dilation=dilation, causal=causal)
    exact = oracle.local_mix(*(each.numpy() for each in tensors), dilation, causal)
    torch.testing.assert_close(made, torch.from_numpy(exact), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients(causal: bool) -> None:
    tensors = [each.requires_grad_() for each in given(n=4, width=2)]
    assert torch.autograd.gradcheck(lambda *sides: local_mix(*sides, dilation=2, causal=causal), tensors)


def test_a_causal_one_sees_nothing_later() -> None:
    x, weight, bias = given(taps=4)
    before = local_mix(x, weight, bias, causal=True)
    x[:, -1] = 9
    after = local_mix(x, weight, bias, causal=True)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_weights_take_the_precision_of_the_points() -> None:
    x, weight, bias = given()
    assert local_mix(x.half(), weight.float(), bias.float()).dtype == torch.float16


def test_what_is_refused() -> None:
    x, weight, bias = given()
    with pytest.raises(ShapeError, match="local_mix"):
        local_mix(x, weight[:, :2], bias)
    with pytest.raises(BadInput, match="local_mix: dilation is 0"):
        local_mix(x, weight, bias, dilation=0)
    with pytest.raises(BadInput, match="local_mix: taps is 0"):
        local_mix(x, weight[:0], bias)
    with pytest.raises(BadInput, match=r"local_mix: `x` is torch\.int64, expected floating-point"):
        local_mix(x.long(), weight, bias)


def test_no_points_are_no_points() -> None:
    _, weight, bias = given()
    made = local_mix(torch.zeros(2, 0, 5, dtype=weight.dtype), weight.requires_grad_(), bias)
    assert made.shape == (2, 0, 5)
    assert torch.autograd.grad(made.sum(), weight)[0].eq(0).all()
