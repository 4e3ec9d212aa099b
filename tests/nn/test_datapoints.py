"""Attention between rows and between columns of a table: shapes, laws, words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.nn import AttributeAttention, DatapointAttention, record
from kernelhead.nn.datapoints import ROW_ATTENTIONS
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import datapoints as oracle
from tests.tolerance import assert_exact

rows = pytest.mark.parametrize("attention", ROW_ATTENTIONS)


def made(attention: str, *, norm: str = "all") -> DatapointAttention:
    with seeded(0):
        return DatapointAttention(3, 4, heads=2, attention=attention, norm=norm, rank=3, inducing=4).double()


@rows
@given(order=st.permutations(range(5)), norm=st.sampled_from(["all", "query"]))
def test_shuffling_rows_shuffles_outputs(attention: str, order: list[int], norm: str) -> None:
    layer, table = made(attention, norm=norm), points(1, 5, 3, 4)
    assert_exact(layer(table[:, order]), layer(table)[:, order])


@rows
def test_a_row_that_does_not_exist_has_no_influence(attention: str) -> None:
    layer, table, mask = made(attention), points(2, 6, 3, 4), keep([6, 4], 6)
    found = layer(table, mask=mask)
    assert_exact(found[1, :4], layer(table[1:, :4])[0])
    assert bool((found[1, 4:] == 0).all())


@rows
def test_rows_beside_a_context_do_not_see_each_other(attention: str) -> None:
    layer, table, context = made(attention), points(1, 4, 3, 4), points(1, 6, 3, 4, seed=1)
    found = layer(table, context=context)
    assert_exact(layer(table[:, 2:3], context=context), found[:, 2:3])
    moved = layer(table, context=context + points(1, 6, 3, 4, seed=2))
    assert torch.allclose(moved, found) == (attention == "self")


@pytest.mark.parametrize("norm", ["query", "all"])
def test_softmax_between_rows_is_the_definition(norm: str) -> None:
    layer, table = made("softmax", norm=norm), points(1, 5, 3, 4)
    wanted = oracle.attention(table[0].flatten(1), layer.attention.state_dict(), 2, norm, 1e-5)
    assert_exact(layer(table)[0].flatten(1), wanted)


def test_columns_of_a_row_see_each_other_and_no_other_row() -> None:
    with seeded(0):
        layer = AttributeAttention(4, heads=2, norm="query", epsilon=1e-12).double()
    table = points(2, 5, 3, 4)
    found = layer(table)
    assert_exact(layer(table[:, 3:4]), found[:, 3:4])
    for row in range(2):
        wanted = oracle.attention(table[1, row], layer.attention.state_dict(), 2, "query", 1e-12)
        assert_exact(found[1, row], wanted)


def test_the_tape_has_a_pattern_between_rows() -> None:
    layer = made("softmax")
    with record(layer, patterns=True) as tape:
        layer(points(2, 5, 3, 4))
    assert tape.last("attention").pattern.shape == (2, 2, 5, 5)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(
        UnknownName, match="DatapointAttention: unknown attention 'primol', did you mean 'primal'"
    ):
        DatapointAttention(3, 4, heads=2, attention="primol")
    with pytest.raises(BadInput, match="DatapointAttention: columns is 0"):
        DatapointAttention(0, 4, heads=2)
    with pytest.raises(BadInput, match="NormedAttention: width 12 does not split into 5 heads"):
        DatapointAttention(3, 4, heads=5)
    with pytest.raises(ShapeError, match=r"DatapointAttention: `table` has shape \(5, 12\)"):
        made("softmax")(points(5, 12))
    with pytest.raises(BadInput, match=r"NormedAttention: `x` has shape \(1, 5, 8\), expected \(b, n, 12\)"):
        made("softmax")(points(1, 5, 2, 4))
    with pytest.raises(ShapeError, match=r"AttributeAttention: `table` has shape \(5, 12\)"):
        AttributeAttention(4, heads=2)(points(5, 12))
