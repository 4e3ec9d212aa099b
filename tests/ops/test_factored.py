"""factored_attention: its answer, its law, its gradients, its words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops.eager import factored as eager
from kernelhead.ops.factored import factored_attention, factored_pattern
from tests.inputs import keep, points
from tests.oracles import cores as oracles
from tests.tolerance import assert_exact, assert_within

causality = pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])


def factors(n: int, m: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shapes = (2, 3, n, 4), (3, 4), (2, 3, m, 4), (2, 3, m, 5)
    left, values, right, value = (points(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes))
    return left, values, right, value


@causality
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (3, 7), (1, 6), (9, 9)])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_answer_is_the_definition(
    n: int, m: int, masked: bool, causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "CHUNK", 4)
    given, mask = factors(n, m, dtype), keep([m, m // 2], m) if masked else None
    real = None if mask is None else mask[:, None]
    found = factored_attention(*given, mask=real, causal=causal)
    expected = oracles.factored_attention(*given, mask=mask, causal=causal)
    applied = factored_pattern(*given[:3], mask=real, causal=causal).apply(given[3].nan_to_num())
    assert_within(found, eager=applied, oracle=expected)


@causality
def test_the_pattern_is_what_is_applied(causal: bool) -> None:
    given, mask = factors(4, 6), keep([6, 3], 6)[:, None]
    pattern = factored_pattern(*given[:3], mask=mask, causal=causal)
    assert_exact(pattern.apply(given[3]), factored_attention(*given, mask=mask, causal=causal))
    assert bool((pattern.matrix()[1, ..., 3:] == 0).all())


@given(n=st.integers(1, 5), m=st.integers(5, 9), cut=st.integers(1, 5))
def test_the_last_rows_need_no_others(n: int, m: int, cut: int) -> None:
    left, values, right, value = factors(n, m)
    cut = min(cut, n)
    whole = factored_attention(left, values, right, value, causal=True)
    part = factored_attention(left[..., -cut:, :], values, right, value, causal=True)
    assert_exact(part, whole[..., -cut:, :])


@causality
def test_gradients(causal: bool) -> None:
    mask = keep([5, 3], 5)[:, None]
    sides = [side.requires_grad_() for side in factors(3, 5)]
    assert torch.autograd.gradcheck(lambda *s: factored_attention(*s, mask=mask, causal=causal), sides)


@causality
def test_nothing_in_the_padding_is_read(causal: bool) -> None:
    left, values, right, value = factors(5, 5)
    mask = keep([5, 2], 5)[:, None]
    clean = factored_attention(left, values, right, value, mask=mask, causal=causal)
    right[1, :, 2:], value[1, :, 2:] = float("nan"), float("inf")
    assert torch.equal(factored_attention(left, values, right, value, mask=mask, causal=causal), clean)


def test_words() -> None:
    left, values, right, value = factors(3, 5)
    with pytest.raises(ShapeError, match=r"factored_attention: axis `s` is 4 in `left` but 3 in `values`"):
        factored_attention(left, values[:, :3], right, value)
    with pytest.raises(BadInput, match=r"`right` \(2, 3, 0, 4\) has no points, expected one or more"):
        factored_attention(left, values, right[..., :0, :], value[..., :0, :])
    with pytest.raises(BadInput, match=r"`mask` is torch.float64, expected torch.bool"):
        factored_attention(left, values, right, value, mask=torch.ones(2, 1, 5, dtype=torch.float64))
    with pytest.raises(ShapeError, match=r"causal needs as many keys as rows, but axis `n` is 5 in `left`"):
        factored_pattern(right, values, left, causal=True)
