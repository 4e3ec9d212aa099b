"""softmax_attention and softmax_pattern: their answer, their laws, their gradients, their words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops.softmax import check_dropout, check_sides, softmax_attention, softmax_pattern
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import rivals
from tests.tolerance import assert_exact, assert_within

HOW = {
    "plain": {},
    "masked": {"mask": keep([7, 4], 7)[:, None]},
    "causal": {"causal": True},
    "both": {"mask": keep([7, 4], 7)[:, None], "causal": True},
    "front padding": {"mask": keep([7, 4], 7)[:, None].flip(-1), "causal": True},
    "nothing real": {"mask": keep([7, 0], 7)[:, None], "causal": True},
}


def sides(dtype: torch.dtype = torch.float64, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    shapes = [(2, 3, 7, 4), (2, 3, 7, 4), (2, 3, 7, 5)]
    q, k, v = (points(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes))
    return q, k, v


def oracle(q: Tensor, k: Tensor, v: Tensor, how: dict[str, object]) -> Tensor:
    mask = how.get("mask")
    return rivals.softmax_attention(
        q, k, v, mask=mask[:, 0] if isinstance(mask, Tensor) else None, causal="causal" in how
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_output_is_the_definition(how: dict[str, object], dtype: torch.dtype) -> None:
    q, k, v = sides(dtype)
    plain = softmax_pattern(q, k, **how) @ v
    assert_within(softmax_attention(q, k, v, **how), eager=plain, oracle=oracle(q, k, v, how))


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_few_keys_in_bfloat16_are_taken_in_float32_on_a_cpu(how: dict[str, object]) -> None:
    held = [side.requires_grad_() for side in sides(torch.bfloat16)]
    wide = [side.detach().float().requires_grad_() for side in held]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = softmax_attention(*held, **how)
    expected = softmax_attention(*wide, **how)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, expected.bfloat16())
    grads = torch.autograd.grad(output, held, torch.ones_like(output))
    wide_grads = torch.autograd.grad(expected, wide, torch.ones_like(expected))
    assert all(torch.equal(one, other.bfloat16()) for one, other in zip(grads, wide_grads, strict=True))


@pytest.mark.parametrize("n", [1, 2, 33], ids="n{}".format)
def test_two_sides_of_different_lengths(n: int) -> None:
    q, k, v = points(1, 2, n, 4), points(1, 2, 5, 4, seed=1), points(1, 2, 5, 3, seed=2)
    assert_exact(softmax_attention(q, k, v), rivals.softmax_attention(q, k, v))


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_the_pattern_times_values_is_the_output(how: dict[str, object]) -> None:
    q, k, v = sides()
    pattern = softmax_pattern(q, k, **how)
    assert_exact(pattern @ v, oracle(q, k, v, how))
    sums = pattern.sum(-1)
    assert ((sums - 1).abs() < 1e-12).logical_or(sums == 0).all()
    if "mask" in how:
        assert (pattern.masked_select(~how["mask"].unsqueeze(-2).expand_as(pattern)) == 0).all()


def test_the_scale_is_the_callers() -> None:
    q, k, v = sides()
    assert_exact(softmax_attention(q, k, v, scale=2.0), softmax_attention(4 * q, k, v))
    assert_exact(softmax_pattern(q, k, scale=2.0), softmax_pattern(4 * q, k))


@given(n=st.integers(1, 9), m=st.integers(1, 9), seed=st.integers(0, 999))
def test_moving_points_moves_outputs(n: int, m: int, seed: int) -> None:
    q, k, v = points(n, 4, seed=seed), points(m, 4, seed=seed + 1), points(m, 3, seed=seed + 2)
    draw = torch.Generator().manual_seed(seed)
    queries, keys = torch.randperm(n, generator=draw), torch.randperm(m, generator=draw)
    assert_exact(softmax_attention(q[queries], k[keys], v[keys]), softmax_attention(q, k, v)[queries])


@pytest.mark.parametrize("causal", [False, True])
def test_what_stands_at_padded_keys_has_no_influence(causal: bool) -> None:
    q, k, v = sides()
    mask = keep([7, 4], 7)[:, None]
    real = mask.unsqueeze(-1)
    dirty = [side.where(real, torch.nan).requires_grad_() for side in (k, v)]
    clean = [side.where(real, 0).requires_grad_() for side in (k, v)]
    outputs = [softmax_attention(q, *pair, mask=mask, causal=causal) for pair in (dirty, clean)]
    assert torch.equal(*outputs)
    assert torch.equal(softmax_pattern(q, dirty[0], mask=mask), softmax_pattern(q, clean[0], mask=mask))
    for one, other in zip(
        torch.autograd.grad(outputs[0].square().sum(), dirty),
        torch.autograd.grad(outputs[1].square().sum(), clean),
        strict=True,
    ):
        assert torch.equal(one, other)
        assert (one.masked_select(~real) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_row_that_sees_nothing_is_zero_and_so_are_its_gradients(dtype: torch.dtype) -> None:
    held = [side.requires_grad_() for side in sides(dtype)]
    output = softmax_attention(*held, mask=keep([7, 0], 7)[:, None])
    assert (output[1] == 0).all()
    assert all((grad[1] == 0).all() for grad in torch.autograd.grad(output.sum(), held))


def test_a_batch_of_one_equals_a_slice() -> None:
    q, k, v = sides()
    mask = keep([7, 4], 7)[:, None]
    whole = softmax_attention(q, k, v, mask=mask)
    assert_exact(softmax_attention(q[1:], k[1:], v[1:], mask=mask[1:]), whole[1:])
    assert_exact(softmax_attention(q[1:], k[1:, :, :4], v[1:, :, :4]), whole[1:])


@given(n=st.integers(2, 9), cut=st.integers(1, 8), seed=st.integers(0, 999))
def test_causal_outputs_do_not_see_what_follows(n: int, cut: int, seed: int) -> None:
    cut = min(cut, n)
    q, k, v = (points(n, 4, seed=seed + i) for i in range(3))
    head = softmax_attention(q[:cut], k[:cut], v[:cut], causal=True)
    assert_exact(softmax_attention(q, k, v, causal=True)[:cut], head)


@pytest.mark.parametrize("batch", [(2, 3), (3,), ()], ids=str)
def test_batch_axes_broadcast(batch: tuple[int, ...]) -> None:
    q, (_, k, v) = points(*batch, 7, 4), sides()
    mask = keep([7, 4], 7)[:, None]
    expanded = q.expand(2, 3, 7, 4)
    assert_exact(softmax_attention(q, k, v, mask=mask), softmax_attention(expanded, k, v, mask=mask))
    assert_exact(softmax_attention(q, k, v), softmax_attention(expanded, k, v))
    one = softmax_attention(q, k[0, 0], v[0, 0], mask=mask)
    repeated = [side[0, 0].expand(2, 3, *side.shape[-2:]) for side in (k, v)]
    assert_exact(one.expand(2, 3, 7, 5), softmax_attention(expanded, *repeated, mask=mask))


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_gradients(how: dict[str, object]) -> None:
    held = [side[:, :1].clone().requires_grad_() for side in sides()]
    assert torch.autograd.gradcheck(lambda q, k, v: softmax_attention(q, k, v, **how), held)
    assert torch.autograd.gradcheck(lambda q, k: softmax_pattern(q, k, **how), held[:2])


def test_dropout_drops_entries_and_scales_the_rest() -> None:
    q, k, _ = sides()
    with seeded(0):
        entries = softmax_attention(q, k, torch.eye(7, dtype=q.dtype).expand(2, 3, 7, 7), dropout=0.5)
    dropped = entries == 0
    assert 0 < dropped.sum() < dropped.numel()
    assert_exact(entries, (2 * softmax_pattern(q, k)).masked_fill(dropped, 0))


def test_the_global_generator_does_not_move() -> None:
    q, k, v = sides()
    before = torch.random.get_rng_state()
    softmax_attention(q, k, v)
    assert torch.equal(before, torch.random.get_rng_state())


def test_words() -> None:
    q, k, v = points(3, 4), points(5, 4), points(5, 2)
    with pytest.raises(
        ShapeError, match=r"softmax_attention: axis `d` is 4 in `query` but 6 in `key` \(5, 6\)"
    ):
        softmax_attention(q, points(5, 6), v)
    with pytest.raises(ShapeError, match=r"axis `m` is 5 in `key` but 4 in `value` \(4, 2\)"):
        softmax_attention(q, k, points(4, 2))
    with pytest.raises(ShapeError, match=r"softmax_pattern: axis `m` is 5 in `key` but 4 in `mask` \(4,\)"):
        softmax_pattern(q, k, mask=torch.ones(4, dtype=torch.bool))
    with pytest.raises(BadInput, match=r"`mask` is torch.float32, expected torch.bool with True where"):
        softmax_attention(q, k, v, mask=torch.ones(5))
    with pytest.raises(
        ShapeError, match=r"causal needs as many queries as keys, but axis `n` is 3 .* `m` is 5"
    ):
        softmax_attention(q, k, v, causal=True)
    with pytest.raises(BadInput, match=r"`key` \(0, 4\) has no points, expected one or more"):
        check_sides("f", q, k[:0])
    with pytest.raises(
        ShapeError, match=r"f: batch axes do not broadcast: \(2,\) in `query`, \(3,\) in `key`"
    ):
        check_sides("f", points(2, 3, 4), points(3, 5, 4))
    with pytest.raises(BadInput, match=r"softmax_attention: dropout is 1, expected a number in \[0, 1\)"):
        softmax_attention(q, k, v, dropout=1)
    with pytest.raises(BadInput, match=r"f: dropout is -0.1"):
        check_dropout("f", -0.1)
