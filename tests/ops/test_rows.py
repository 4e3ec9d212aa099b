"""own_attention: its answer, its law, its gradient, its words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops import own_attention, own_pattern, softmax_attention
from tests.inputs import points
from tests.oracles import datapoints as oracle
from tests.tolerance import assert_exact, assert_within


def sides(n: int, m: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Query, key, value, own key and own value."""
    shapes = (n, 4), (m, 4), (m, 3), (n, 4), (n, 3)
    return [points(*shape, seed=seed + place, dtype=dtype) for place, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("real", [[True] * 5, [True, False, True, False, False], [False] * 5], ids=str)
def test_it_is_the_definition(real: list[bool], dtype: torch.dtype) -> None:
    given, exact = sides(3, 5, dtype=dtype), sides(3, 5)
    if dtype != torch.float64:
        exact = [each.double() for each in given]
    mask = torch.tensor(real)
    found = own_attention(*given, mask=mask, scale=0.7)
    scores = torch.cat([given[0] @ given[1].mT, (given[0] * given[3]).sum(-1, keepdim=True)], dim=-1) * 0.7
    scores = scores.masked_fill(~torch.cat([mask, torch.tensor([True])]), -1e30)
    shares = scores.softmax(-1)
    eager = shares[:, :-1] @ given[2] + shares[:, -1:] * given[4]
    assert_within(found, eager=eager, oracle=oracle.own_attention(*exact, real, 0.7))


@given(n=st.integers(1, 6), m=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_pattern_sums_to_one_and_is_what_is_applied(n: int, m: int, seed: int) -> None:
    query, key, value, own_key, own_value = sides(n, m, seed=seed)
    entries = own_pattern(query, key, own_key)
    assert entries.shape == (n, m + 1)
    assert_exact(entries.sum(-1), torch.ones(n, dtype=torch.float64))
    made = entries[:, :-1] @ value + entries[:, -1:] * own_value
    assert_exact(own_attention(query, key, value, own_key, own_value), made)


@given(seed=st.integers(0, 99))
def test_one_point_of_a_table_sees_what_it_sees_in_plain_attention(seed: int) -> None:
    query, key, value, *_ = sides(6, 6, seed=seed)
    whole = softmax_attention(query, key, value)
    for place in range(6):
        one, others = slice(place, place + 1), [other for other in range(6) if other != place]
        alone = own_attention(query[one], key[others], value[others], key[one], value[one])
        assert_exact(alone, whole[one])


def test_padding_has_no_influence() -> None:
    query, key, value, own_key, own_value = sides(3, 5)
    mask = torch.tensor([True, True, False, True, False])
    clean = own_attention(query, key, value, own_key, own_value, mask=mask)
    key[~mask], value[~mask] = float("nan"), float("inf")
    assert torch.equal(own_attention(query, key, value, own_key, own_value, mask=mask), clean)


def test_gradients() -> None:
    given = [each.requires_grad_() for each in sides(3, 4)]
    mask = torch.tensor([True, False, True, True])
    assert torch.autograd.gradcheck(lambda *each: own_attention(*each, mask=mask), given)


def test_a_wrong_shape_is_named() -> None:
    query, key, value, own_key, own_value = sides(3, 5)
    with pytest.raises(ShapeError, match="own_attention: axis `n` is 3 in `query` but 2 in `own_key`"):
        own_attention(query, key, value, own_key[:2], own_value)
    with pytest.raises(ShapeError, match="own_attention: axis `e` is 3 in `value` but 2 in `own_value`"):
        own_attention(query, key, value, own_key, own_value[:, :2])
    with pytest.raises(ShapeError, match="own_pattern: axis `d` is 4 in `query` but 3 in `own_key`"):
        own_pattern(query, key, own_key[:, :3])
    with pytest.raises(BadInput, match=r"own_attention: dropout is 1.5, expected a number in \[0, 1\)"):
        own_attention(query, key, value, own_key, own_value, dropout=1.5)
