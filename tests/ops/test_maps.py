"""linear_maps against loops in float64, its gradients, and what it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops import backends, linear_maps
from kernelhead.ops.backends import maps_backend
from tests.inputs import points
from tests.oracles import maps as oracle
from tests.tolerance import assert_exact


def maps(c: int, *sizes: int) -> list[tuple[Tensor, Tensor]]:
    return [(points(e, c, seed=2 * at + 1), points(e, seed=2 * at + 2)) for at, e in enumerate(sizes)]


@pytest.mark.parametrize("n", [1, 7])
def test_the_definition(n: int) -> None:
    x, given = points(n, 5), maps(5, 3, 4)
    for made, (weight, bias) in zip(linear_maps(x, given), given, strict=True):
        assert_exact(made, torch.from_numpy(oracle.linear_map(x.numpy(), weight.numpy(), bias.numpy())))


@given(st.integers(1, 6), st.integers(1, 5), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_maps_are_apart_from_each_other(n: int, c: int, sizes: list[int]) -> None:
    x, given = points(2, n, c), maps(c, *sizes)
    alone = [linear_maps(x, [each])[0] for each in given]
    assert all(map(torch.equal, linear_maps(x, given), alone))
    assert maps_backend(x, given) == "eager"


def test_gradients() -> None:
    held = [
        each.requires_grad_()
        for each in (points(2, 3, 4), *(part for pair in maps(4, 2, 3) for part in pair))
    ]

    def run(x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        return linear_maps(x, list(zip(parts[::2], parts[1::2], strict=True)))

    assert torch.autograd.gradcheck(run, held)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.plain)])
def test_what_the_kernels_serve(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors pass for those of a GPU; whether a map is theirs is found in a trace as well."""
    monkeypatch.setattr(backends, "on_cuda", lambda _: True)
    monkeypatch.setattr(backends, "_is_new", lambda _: True)
    half = {"dtype": torch.bfloat16}
    x, weight, bias = torch.zeros(3, 16, **half), torch.zeros(32, 16, **half), torch.zeros(32, **half)
    learned = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
    seen: list[str] = []

    def found(points: Tensor, *maps: tuple[Tensor, Tensor]) -> str:
        def run() -> Tensor:
            seen.append(maps_backend(points, maps))
            return points + 1

        torch._dynamo.reset()
        (torch.compile(run, backend="eager", fullgraph=True) if compiled else run)()
        return seen[-1]

    assert found(x, (weight, bias)) == "triton"
    assert found(x, learned, learned) == "triton"
    assert found(x.requires_grad_(), learned) == "triton"
    # Frozen, all or some; of two precisions; of two shapes; too many; too large.
    assert found(x, (weight, bias)) == "eager"
    assert found(x, learned, (weight, bias)) == "eager"
    with torch.no_grad():
        assert found(x, learned, (weight, bias)) == "triton"
    x = x.detach()
    assert found(x.float(), (weight, bias)) == "eager"
    assert found(x, (weight, bias.float())) == "eager"
    assert found(x, (weight, bias), (weight[:16], bias[:16])) == "eager"
    assert found(x, *[(weight, bias)] * 4) == "eager"
    assert found(torch.zeros(3, 128, **half), (torch.zeros(128, 128, **half), bias)) == "eager"


class Kept(Tensor):
    """A tensor whose numbers lie elsewhere."""


def test_tensors_of_other_types_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "on_cuda", lambda _: True)
    monkeypatch.setattr(backends, "_is_new", lambda _: True)
    x, weight, bias = (torch.zeros(*size, dtype=torch.bfloat16) for size in ((3, 16), (32, 16), (32,)))
    assert maps_backend(x, [(weight, bias)]) == "triton"
    assert maps_backend(x, [(weight.as_subclass(Kept), bias)]) == "eager"
    assert maps_backend(x.as_subclass(Kept), [(weight, bias)]) == "eager"


def test_what_is_refused() -> None:
    x, given = points(4, 5), maps(5, 3)
    with pytest.raises(ShapeError, match="linear_maps: axis `c` is 4 in `x` but 5 in `weight`"):
        linear_maps(x[:, 1:], given)
    with pytest.raises(ShapeError, match="linear_maps: axis `e`"):
        linear_maps(x, [(given[0][0], given[0][1][1:])])
    with pytest.raises(BadInput, match="`maps` is no list of pairs of weight and bias, got a tensor first"):
        linear_maps(x, given[0])  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="`maps` is no list of pairs of weight and bias, got none"):
        linear_maps(x, [])
