"""PolynomialAttention: its answer against loops, its pattern, its degree, its words."""

import pytest
import torch
from torch import nn

from kernelhead.errors import BadInput
from kernelhead.nn import PolynomialAttention, record
from kernelhead.rng import seeded
from tests.inputs import points
from tests.oracles.separation import network
from tests.tolerance import assert_exact


def stack(depth: int, width: int, heads: int) -> nn.Sequential:
    with seeded(0):
        return nn.Sequential(*(PolynomialAttention(width, heads=heads) for _ in range(depth))).double()


@pytest.mark.parametrize(("depth", "heads"), [(1, 1), (1, 3), (2, 2), (3, 6)])
def test_layers_are_their_definition(depth: int, heads: int) -> None:
    layers, x = stack(depth, 6, heads), points(2, 4, 6)
    weights = [
        [part.weight.tolist() for part in (each.query, each.key, each.value, each.out)] for each in layers
    ]
    wanted = torch.tensor([network(case, weights, heads) for case in x.tolist()], dtype=torch.float64)
    assert_exact(layers(x).detach(), wanted)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_is_degree(depth: int) -> None:
    layers, x = stack(depth, 4, 2), points(1, 3, 4)
    assert_exact(layers(2 * x), 2.0 ** (3**depth) * layers(x))


def test_points_have_no_places_and_a_context_is_taken() -> None:
    layer, x, other = stack(1, 6, 2)[0], points(2, 5, 6), points(2, 3, 6, seed=1)
    assert_exact(layer(x.flip(1)), layer(x).flip(1))
    assert_exact(layer(x, context=other.flip(1)), layer(x, context=other))


def test_the_pattern_is_what_is_applied() -> None:
    layer, x = stack(1, 6, 2)[0], points(2, 5, 6)
    with record(layer, patterns=True) as tape:
        output = layer(x)
    pattern = tape.last("").pattern
    value = layer.value(x).unflatten(-1, (2, 3)).transpose(1, 2)
    assert_exact(layer.out(pattern.apply(value).transpose(1, 2).flatten(2)), output)
    assert_exact(pattern.matrix(), (pattern.left @ pattern.right.mT))


def test_what_is_refused() -> None:
    with pytest.raises(BadInput, match="PolynomialAttention: width 6 does not split into 4 heads"):
        PolynomialAttention(6, heads=4)
    assert "heads=2" in repr(PolynomialAttention(6, heads=2))
