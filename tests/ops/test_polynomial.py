"""polynomial_attention: its answer, its laws, its gradient, its words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops import polynomial_attention
from tests.inputs import keep, points
from tests.tolerance import assert_exact, assert_within


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1, 7], ids="n{}".format)
def test_it_is_the_definition(n: int, dtype: torch.dtype) -> None:
    query, key, value = points(2, 3, n, 4), points(2, 3, 5, 4, seed=1), points(2, 3, 5, 6, seed=2)
    oracle = torch.zeros(2, 3, n, 6, dtype=torch.float64)
    for j in range(5):
        scores = (query * key[..., j : j + 1, :]).sum(-1)
        oracle += scores[..., None] * value[..., j : j + 1, :]
    sides = [side.to(dtype) for side in (query, key, value)]
    plain = (sides[0] @ sides[1].mT) @ sides[2]
    assert_within(polynomial_attention(*sides), eager=plain, oracle=oracle)


@given(scale=st.sampled_from([0.5, 2.0, -4.0]), seed=st.integers(0, 99))
def test_it_is_a_form_of_degree_three(scale: float, seed: int) -> None:
    x = points(6, 4, seed=seed)
    assert_exact(polynomial_attention(*[scale * x] * 3), scale**3 * polynomial_attention(x, x, x))


def test_padded_keys_have_no_influence() -> None:
    query, key, value = points(2, 5, 4), points(2, 7, 4, seed=1), points(2, 7, 3, seed=2)
    mask = keep([7, 4], 7)
    filled = [side.masked_fill(~mask[..., None], torch.nan) for side in (key, value)]
    found = polynomial_attention(query, *filled, mask=mask)
    assert_exact(found[1], polynomial_attention(query[1], key[1, :4], value[1, :4]))


def test_gradients() -> None:
    sides = [points(*shape).requires_grad_() for shape in [(2, 3, 4), (2, 5, 4), (2, 5, 2)]]
    mask = keep([5, 3], 5)
    assert torch.autograd.gradcheck(lambda q, k, v: polynomial_attention(q, k, v, mask=mask), sides)


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match="polynomial_attention: axis `d` is 4 in `query` but 3 in `key`"):
        polynomial_attention(points(2, 4), points(5, 3), points(5, 2))
    with pytest.raises(BadInput, match=r"polynomial_attention: `key` .* has no points"):
        polynomial_attention(points(2, 4), points(0, 4), points(0, 2))
    with pytest.raises(BadInput, match=r"polynomial_attention: `mask` is torch\.float64"):
        polynomial_attention(points(2, 4), points(5, 4), points(5, 2), mask=points(5))
