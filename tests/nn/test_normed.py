"""NormedAttention: the definition of its forms, its context, its twin that sees itself only."""

import pytest
import torch

from kernelhead.errors import BadInput, UnknownName
from kernelhead.nn import NormedAttention, record
from kernelhead.nn.normed import SideNorm
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import datapoints as oracle
from tests.tolerance import assert_exact


def made(*, seed: int = 0, **options: object) -> NormedAttention:
    with seeded(seed):
        layer = NormedAttention(8, heads=2, **options).double()
        for weight in layer.parameters():
            torch.nn.init.normal_(weight, std=0.5)
    return layer


@pytest.mark.parametrize(("norm", "epsilon"), [("query", 1e-12), ("all", 1e-5)])
def test_it_is_the_definition(norm: str, epsilon: float) -> None:
    layer, x = made(norm=norm, scale="input", epsilon=epsilon), points(1, 5, 8)
    assert_exact(layer(x)[0], oracle.attention(x[0], layer.state_dict(), 2, norm, epsilon))


def test_scales_differ_by_the_root_of_the_heads() -> None:
    assert made(scale="head").scale == pytest.approx(2**0.5 * made(scale="input").scale)


def test_no_norm_is_softmax_attention_of_the_input() -> None:
    layer, x = made(norm="none"), points(1, 4, 8)
    assert not any(name.startswith("norm") for name, _ in layer.named_parameters())
    assert layer(x).shape == x.shape


@pytest.mark.parametrize("norm", ["query", "all"])
def test_with_a_context_each_point_sees_it_and_itself_alone(norm: str) -> None:
    layer, x, context = made(norm=norm), points(2, 3, 8), points(2, 5, 8, seed=1)
    found = layer(x, context=context, context_mask=keep([5, 4], 5))
    for place in range(3):
        # Beside the context, as one more point of it, a point sees the same.
        for batch, length in enumerate([5, 4]):
            whole = torch.cat([context[batch, :length], x[batch, place : place + 1]])
            assert_exact(found[batch, place], layer(whole[None])[0, -1])


def test_the_twin_has_the_same_weights_and_sees_itself() -> None:
    layer, twin, x = made(), made(sight="self"), points(2, 5, 8)
    twin.load_state_dict(layer.state_dict())
    for place in range(5):
        assert_exact(twin(x)[:, place], layer(x[:, place : place + 1])[:, 0])
    assert torch.equal(twin(x, context=points(2, 3, 8, seed=1)), twin(x))


@pytest.mark.parametrize("sight", ["all", "self"])
def test_patterns_with_a_context_have_a_column_for_oneself(sight: str) -> None:
    layer, x = made(sight=sight), points(1, 3, 8)
    with record(layer, patterns=True) as tape:
        layer(x, context=points(1, 4, 8, seed=1))
        layer(x)
    across, within = (call.pattern.matrix() for call in tape.calls[""])
    assert across.shape == (1, 2, 3, 5)
    assert within.shape == (1, 2, 3, 3)
    assert_exact(across.sum(-1), torch.ones(1, 2, 3, dtype=torch.float64))
    assert bool((across[..., -1] == 1).all()) == (sight == "self")


def test_dropout_is_for_training_only() -> None:
    for sight in ("all", "self"):
        layer, x = made(dropout=0.5, sight=sight), points(1, 6, 8)
        with seeded(1):
            assert not torch.equal(layer(x), layer.eval()(x))
        assert torch.equal(layer(x), layer(x))


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(BadInput, match="NormedAttention: width 8 does not split into 3 heads"):
        NormedAttention(8, heads=3)
    with pytest.raises(BadInput, match="NormedAttention: dropout is 1"):
        NormedAttention(8, heads=2, dropout=1.0)
    with pytest.raises(UnknownName, match="NormedAttention: unknown scale 'heads', did you mean 'head'"):
        NormedAttention(8, heads=2, scale="heads")
    with pytest.raises(UnknownName, match="NormedAttention: unknown sight 'none'"):
        NormedAttention(8, heads=2, sight="none")
    with pytest.raises(UnknownName, match="SideNorm: unknown norm 'queries', did you mean 'query'"):
        SideNorm(8, "queries")
    assert "norm=query" in repr(NormedAttention(8, heads=2, norm="query"))
