"""Sides: the softmax that they stand for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import ShapeError
from kernelhead.nn.hosts import Sides
from kernelhead.ops import softmax_attention, softmax_pattern
from tests.inputs import keep, points
from tests.tolerance import assert_exact


def sides(n: int = 3, m: int = 5, seed: int = 0, **options: object) -> Sides:
    query, key, value = (points(2, 2, size, 4, seed=seed + i) for i, size in enumerate((n, m, m)))
    given = {"mask": None, "causal": False, "scale": 0.5, **options}
    return Sides(query, key, value, **given)


@given(n=st.integers(1, 5), causal=st.booleans(), padded=st.booleans(), seed=st.integers(0, 99))
def test_they_are_softmax_attention(n: int, causal: bool, padded: bool, seed: int) -> None:
    mask = keep([n, max(n - 2, 1)], n) if padded else None
    each = sides(n, n, seed, mask=mask, causal=causal)
    real = None if mask is None else mask[:, None]
    options = {"mask": real, "causal": causal, "scale": 0.5}
    assert_exact(each.pattern().matrix(), softmax_pattern(each.query, each.key, **options))
    assert_exact(each.output(), softmax_attention(each.query, each.key, each.value, **options))


@given(n=st.integers(1, 5), m=st.integers(5, 7), seed=st.integers(0, 99))
def test_the_last_query_sees_the_last_key(n: int, m: int, seed: int) -> None:
    whole = sides(m, m, seed, causal=True)
    part = Sides(whole.query[:, :, m - n :], whole.key, whole.value, None, True, 0.5)
    assert_exact(part.pattern().matrix(), whole.pattern().matrix()[:, :, m - n :])
    assert_exact(part.output(), whole.output()[:, :, m - n :])


def test_a_bias_is_added() -> None:
    bias = points(2, 1, 3, 5, seed=7)
    bias[..., 2] = -torch.inf
    each = sides(bias=bias)
    expected = torch.softmax(0.5 * each.query @ each.key.mT + bias, dim=-1)
    assert_exact(each.pattern().matrix(), expected)


def test_what_sees_nothing_is_zero() -> None:
    each = sides(mask=torch.tensor([[False] * 5, [True] * 5]), bias=torch.full((1, 1, 1, 5), -torch.inf))
    assert not each.pattern().matrix().any()
    assert not each.output().any()


def test_nothing_in_the_padding_has_influence() -> None:
    mask = keep([5, 3], 5)
    each = sides(mask=mask)
    key, value = (points.masked_fill(~mask[:, None, :, None], torch.nan) for points in (each.key, each.value))
    dirty = Sides(each.query, key, value, mask, False, 0.5)
    assert torch.equal(dirty.output(), each.output())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_widened_also_under_autocast(dtype: torch.dtype) -> None:
    whole = sides()
    half = Sides(*(each.to(dtype) for each in (whole.query, whole.key, whole.value)), None, False, 0.5)
    plain = half.pattern().matrix()
    assert plain.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(half.pattern().matrix(), plain)
        assert half.output().dtype == torch.float32


def test_words() -> None:
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ShapeError, match="Sides: axis `d` is 4 in `query` but 5 in `key`"):
        Sides(x, torch.zeros(1, 2, 3, 5), x, None, False, 1.0)
    with pytest.raises(ShapeError, match="Sides: axis `m` is 3 in `key` but 2 in `mask`"):
        Sides(x, x, x, torch.ones(1, 2, dtype=torch.bool), False, 1.0)
