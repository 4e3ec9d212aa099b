"""Attention through learned points: moving points, masks, contexts, linear cost."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from kernelhead.errors import BadInput, UnknownName
from kernelhead.nn import (
    AbstractKernelAttention,
    InducingAttention,
    PooledPrimalAttention,
    ksvd_penalty,
    record,
)
from kernelhead.ops import landmark_weights, primal_attention
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.tolerance import assert_exact

LAYERS: dict[str, Callable[[], AbstractKernelAttention]] = {
    "inducing": lambda: InducingAttention(8, heads=2, inducing=3, norm="all"),
    "primal": lambda: PooledPrimalAttention(8, heads=2, rank=3, landmarks=4, norm="all"),
}
layers = pytest.mark.parametrize("name", LAYERS)


def made(name: str) -> AbstractKernelAttention:
    with seeded(0):
        return LAYERS[name]().double()


@layers
@given(order=st.permutations(range(6)), seed=st.integers(0, 9))
def test_moving_points_moves_outputs(name: str, order: list[int], seed: int) -> None:
    layer, x, mask = made(name), points(1, 6, 8, seed=seed), keep([5], 6)
    assert_exact(layer(x[:, order], mask=mask[:, order]), layer(x, mask=mask)[:, order])


@layers
def test_a_context_is_what_points_see(name: str) -> None:
    layer, x, context = made(name), points(2, 3, 8), points(2, 5, 8, seed=1)
    mask = keep([5, 4], 5)
    found = layer(x, context=context, context_mask=mask)
    assert_exact(found[:, :1], layer(x[:, :1], context=context, context_mask=mask))
    # What stands at rows that do not exist has no influence; what stands at others has.
    spoilt = context.masked_fill(~mask[..., None], float("nan"))
    assert torch.equal(layer(x, context=spoilt, context_mask=mask), found)
    assert not torch.allclose(layer(x, context=context + points(2, 5, 8, seed=2)), found)
    # A context of the points themselves is no context.
    assert_exact(layer(x, context=x), layer(x))


@layers
def test_operations_grow_by_the_same_number_for_each_point(name: str) -> None:
    def operations(n: int) -> int:
        with FlopCounterMode(display=False) as counter:
            LAYERS[name]()(torch.zeros(1, n, 8))
        return counter.get_total_flops()

    small, middle, large = (operations(n) for n in (1024, 2048, 4096))
    assert large - middle == 2 * (middle - small)


def test_inducing_is_two_attentions() -> None:
    layer, x = made("inducing"), points(1, 5, 8)
    normed = layer.norm.norm(x)[0]
    key, value, query = (
        part(normed).unflatten(-1, (2, 4)).transpose(0, 1) for part in (layer.key, layer.value, layer.query)
    )
    summary = ((layer.points @ key.mT / 2).softmax(-1) @ value).transpose(0, 1).flatten(1)  # (m, c)
    summary = layer.summary_norm(summary)
    other, read = (
        part(summary).unflatten(-1, (2, 4)).transpose(0, 1)
        for part in (layer.summary_key, layer.summary_value)
    )
    mixed = (query @ other.mT / 2).softmax(-1) @ read
    assert_exact(layer(x)[0], layer.out(mixed.transpose(0, 1).flatten(1)))


def test_primal_is_a_primal_layer_on_pooled_landmarks() -> None:
    layer, x = made("primal"), points(1, 5, 8)
    rows = layer.norm.norm(x)[0]
    heads = rows.unflatten(-1, (2, 4)).transpose(0, 1)  # (h, n, d)
    place = layer.pool(rows).unflatten(-1, (2, 4)).transpose(0, 1)
    pooled = (layer.points @ place.mT / 2).softmax(-1) @ heads  # (h, l, d)
    pooled = layer.kernel.landmark_features(pooled)
    left, right = landmark_weights(pooled, layer.left, layer.right)
    query, key = (part(rows).unflatten(-1, (2, 4)).transpose(0, 1) for part in (layer.query, layer.key))
    joined = primal_attention(query, key, left, right, layer.join.weight, layer.join.bias)
    assert_exact(layer(x)[0], layer.out(joined.transpose(0, 1).flatten(1)))


def test_the_pattern_of_inducing_points_is_a_product_of_shares() -> None:
    layer, x = made("inducing"), points(1, 5, 8)
    with record(layer, patterns=True) as tape:
        layer(x, context=points(1, 7, 8, seed=1), context_mask=keep([6], 7))
    entries = tape.last("").pattern.matrix()
    assert entries.shape == (1, 2, 5, 7)
    assert_exact(entries.sum(-1), torch.ones(1, 2, 5, dtype=torch.float64))
    assert bool((entries[..., 6] == 0).all())


def test_the_pattern_of_a_primal_layer_has_the_contexts_points_on_its_right() -> None:
    layer, x = made("primal"), points(1, 5, 8)
    with record(layer, patterns=True) as tape:
        layer(x, mask=keep([4], 5), context=points(1, 7, 8, seed=1), context_mask=keep([6], 7))
    entries = tape.last("").pattern.matrix()
    assert entries.shape == (1, 2, 5, 7)
    assert bool((entries[:, :, 4] == 0).all())
    assert bool((entries[..., 6] == 0).all())
    assert bool((entries[:, :, :4, :6] != 0).all())


def test_the_penalty_of_a_pooled_primal_layer_reaches_its_values() -> None:
    layer = made("primal")
    with record(layer) as tape:
        layer(points(2, 5, 8))
    ksvd_penalty(tape).backward()
    assert bool(layer.root.grad.isfinite().all())
    assert bool((layer.points.grad != 0).any())


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(BadInput, match="InducingAttention: inducing is 0, expected a whole number"):
        InducingAttention(8, heads=2, inducing=0)
    with pytest.raises(BadInput, match="InducingAttention: width 8 does not split into 3 heads"):
        InducingAttention(8, heads=3, inducing=2)
    with pytest.raises(BadInput, match="InducingAttention: dropout is -1"):
        InducingAttention(8, heads=2, inducing=2, dropout=-1)
    with pytest.raises(BadInput, match="PooledPrimalAttention: rank is 0"):
        PooledPrimalAttention(8, heads=2, rank=0, landmarks=2)
    with pytest.raises(BadInput, match="PooledPrimalAttention: landmarks is 0"):
        PooledPrimalAttention(8, heads=2, rank=2, landmarks=0)
    with pytest.raises(UnknownName, match="SideNorm: unknown norm 'keys'"):
        PooledPrimalAttention(8, heads=2, rank=2, landmarks=2, norm="keys")
    assert "landmarks=4" in repr(made("primal"))
    assert "inducing=3" in repr(made("inducing"))
