"""linear_maps against loops in float64, its gradients, and what it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import ShapeError
from kernelhead.ops import linear_maps
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
    assert maps_backend(x, [weight for weight, _ in given]) == "eager"


def test_gradients() -> None:
    held = [
        each.requires_grad_()
        for each in (points(2, 3, 4), *(part for pair in maps(4, 2, 3) for part in pair))
    ]

    def run(x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        return linear_maps(x, list(zip(parts[::2], parts[1::2], strict=True)))

    assert torch.autograd.gradcheck(run, held)


def test_what_is_refused() -> None:
    x, given = points(4, 5), maps(5, 3)
    with pytest.raises(ShapeError, match="linear_maps: axis `c` is 4 in `x` but 5 in `weight`"):
        linear_maps(x[:, 1:], given)
    with pytest.raises(ShapeError, match="linear_maps: axis `e`"):
        linear_maps(x, [(given[0][0], given[0][1][1:])])
