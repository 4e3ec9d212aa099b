"""Block, Positions and sinusoids: what they compute, for which lengths, and their words."""

from math import cos, sin

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, UnknownName
from kernelhead.models import Block, Positions, sinusoids
from kernelhead.nn import PrimalAttention, SoftmaxAttention
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.tolerance import assert_exact


def block(norm: str = "pre", dropout: float = 0.0) -> Block:
    with seeded(0):
        return Block(SoftmaxAttention(8, heads=2), inner=12, norm=norm, dropout=dropout).double()


def test_pre_norm_is_the_definition() -> None:
    made, x = block("pre"), points(2, 5, 8)
    middle = x + made.attention(made.attention_norm(x))
    assert_exact(made(x), middle + made.feed_forward(made.forward_norm(middle)))


def test_post_norm_is_the_definition() -> None:
    made, x = block("post"), points(2, 5, 8)
    middle = made.attention_norm(x + made.attention(x))
    assert_exact(made(x), made.forward_norm(middle + made.feed_forward(middle)))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_masked_point_moves_no_real_one(norm: str) -> None:
    made, mask = block(norm), keep([5, 3], 5)
    dirty = points(2, 5, 8).masked_fill(~mask[..., None], float("nan"))
    clean = dirty.nan_to_num(0.0)
    assert torch.equal(made(dirty, mask=mask)[mask], made(clean, mask=mask)[mask])


def test_dropout_acts_in_training_only() -> None:
    made, x = block(dropout=0.5), points(2, 5, 8)
    with seeded(1):
        assert not torch.equal(made.train()(x), made(x))
    assert torch.equal(made.eval()(x), made(x))


def test_the_width_is_that_of_the_attention() -> None:
    made = Block(PrimalAttention(6, heads=2, rank=2), inner=10)
    assert [layer.normalized_shape for layer in (made.attention_norm, made.forward_norm)] == [(6,), (6,)]
    assert made.feed_forward[0].weight.shape == (10, 6)


def test_an_unknown_norm_suggests_the_nearest() -> None:
    with pytest.raises(
        UnknownName, match=r"Block: unknown norm 'pree', did you mean 'pre'\? Known: post, pre"
    ):
        Block(SoftmaxAttention(8, heads=2), inner=4, norm="pree")


@pytest.mark.parametrize("width", [1, 4, 7])
def test_sinusoids_are_the_definition(width: int) -> None:
    made, half = sinusoids(6, width), (width + 1) // 2
    assert made.shape == (6, width)
    for place in range(6):
        for column in range(width):
            phase = place * 10_000.0 ** (-(column // 2) / half)
            expected = cos(phase) if column % 2 else sin(phase)
            assert made[place, column].item() == pytest.approx(expected, abs=1e-5)


@given(length=st.integers(1, 30), more=st.integers(0, 30), width=st.integers(1, 9))
def test_a_longer_table_begins_with_the_shorter(length: int, more: int, width: int) -> None:
    assert torch.equal(sinusoids(length + more, width)[:length], sinusoids(length, width))


def test_places_are_told_apart() -> None:
    table = sinusoids(200, 8)
    distances = torch.cdist(table, table) + 10 * torch.eye(200)
    assert distances.min() > 1e-3


def test_none_adds_nothing() -> None:
    x = points(2, 5, 8)
    assert Positions(8, kind="none")(x) is x


def test_sinusoidal_serves_any_length() -> None:
    made = Positions(8)
    for n in (1, 7, 300):
        assert torch.equal(made(torch.zeros(2, n, 8))[1], sinusoids(n, 8))
    assert not list(made.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_positions_keep_the_precision(dtype: torch.dtype) -> None:
    assert Positions(8)(points(2, 5, 8, dtype=dtype)).dtype == dtype


def test_learned_positions_start_small_and_serve_shorter() -> None:
    made = Positions(8, kind="learned", longest=6)
    assert made.table.abs().max() <= 0.02
    assert torch.equal(made(torch.zeros(1, 4, 8))[0], made.table[:4])
    assert torch.equal(made(torch.zeros(1, 6, 8))[0], made.table)


def test_learned_positions_refuse_longer() -> None:
    words = r"Positions: 7 points, but positions were learned for 6; use position='sinusoidal' for any length"
    with pytest.raises(BadInput, match=words):
        Positions(8, kind="learned", longest=6)(torch.zeros(1, 7, 8))


def test_an_unknown_kind_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Positions: unknown kind 'learnt', did you mean 'learned'"):
        Positions(8, kind="learnt")
