"""Linear, Performer and Nystrom attention: their answers, their laws, their gradients, their words."""

import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.kernels.features import draw_frequencies, positive_features
from kernelhead.ops.eager.linear import elu_features
from kernelhead.ops.linear import (
    LinearState,
    linear_attention,
    linear_pattern,
    linear_step,
    nystrom_attention,
    nystrom_pattern,
    performer_attention,
    performer_pattern,
)
from kernelhead.ops.softmax import softmax_attention
from kernelhead.pattern import Dense, Factored
from kernelhead.rng import generator
from tests.inputs import keep, points
from tests.oracles import rivals
from tests.tolerance import assert_exact, assert_within

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    nystrom_package = pytest.importorskip("nystrom_attention", reason="the extra test is not installed")
    performer_package = pytest.importorskip("performer_pytorch.performer_pytorch")

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
FREQUENCIES = draw_frequencies(6, 4, generator(0))
# More points than one chunk of the scan.
LONG = 150


def performer(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    return performer_attention(q, k, v, FREQUENCIES, mask=mask, causal=causal)


def performer_oracle(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
    return rivals.performer_attention(q, k, v, FREQUENCIES, mask=mask, causal=causal)


def nystrom_oracle(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, landmarks: int) -> Tensor:
    """Sample by sample, with no more landmarks than real points; zero at padding."""
    outputs = []
    for i, real in enumerate(mask):
        here, count = slice(i, i + 1), min(landmarks, int(real.sum()))
        marks = [rivals.segment_means(side[here], mask[here], count) for side in (q, k)]
        outputs.append(rivals.nystrom_attention(q[here], k[here], v[here], *marks, mask=mask[here]))
    return torch.cat(outputs) * mask[:, None, :, None]


FEATURES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "linear": (linear_attention, rivals.linear_attention, lambda x: torch.nn.functional.elu(x) + 1),
    "performer": (performer, performer_oracle, partial(positive_features, frequencies=FREQUENCIES)),
}
MASKED: dict[str, Callable[..., Tensor]] = {
    "linear": linear_attention,
    "linear causal": partial(linear_attention, causal=True),
    "performer": performer,
    "performer causal": partial(performer, causal=True),
    "nystrom": partial(nystrom_attention, landmarks=3),
    "nystrom exact": partial(nystrom_attention, landmarks=3, pinv="exact"),
}
every_attention = pytest.mark.parametrize("attention", MASKED.values(), ids=MASKED)
both_maps = pytest.mark.parametrize("name", FEATURES)
both_directions = pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])


def sides(n: int = 7, dtype: torch.dtype = torch.float64, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    shapes = [(2, 3, n, 4), (2, 3, n, 4), (2, 3, n, 5)]
    q, k, v = (points(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes))
    return q, k, v


@both_maps
@both_directions
@pytest.mark.parametrize(
    "mask", [None, keep([7, 4], 7), keep([0, 5], 7).flip(-1)], ids=["all", "end", "front"]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_output_is_the_definition(name: str, causal: bool, mask: Tensor | None, dtype: torch.dtype) -> None:
    attention, oracle, features = FEATURES[name]
    q, k, v = sides(dtype=dtype)
    weights = features(q) @ features(k).mT
    weights = weights if mask is None else weights * mask[:, None, None]
    weights = weights.tril() if causal else weights
    plain = (weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)) @ v
    actual = attention(q, k, v, mask=None if mask is None else mask[:, None], causal=causal)
    assert actual.dtype == dtype
    assert_within(actual, eager=plain, oracle=oracle(q, k, v, mask=mask, causal=causal))


@pytest.mark.parametrize("lengths", [[11, 11], [11, 8], [9, 3], [2, 0]], ids=str)
@pytest.mark.parametrize("landmarks", [1, 3, 4, 11, 20], ids="s{}".format)
def test_nystrom_is_the_definition(landmarks: int, lengths: list[int]) -> None:
    q, k, v = sides(11)
    mask = keep(lengths, 11)
    actual = nystrom_attention(q, k, v, landmarks=landmarks, mask=mask[:, None], pinv="exact")
    oracle = nystrom_oracle(q, k, v, mask=mask, landmarks=landmarks)
    assert_exact(actual, oracle)


@pytest.mark.parametrize("pinv", ["iterative", "exact"])
@pytest.mark.parametrize("landmarks", [1, 3, 4, 12, 20], ids="s{}".format)
def test_nystrom_of_equal_segments_is_that_under_a_full_mask(landmarks: int, pinv: str) -> None:
    held = [side.clone().requires_grad_() for side in sides(12)]
    made = [
        nystrom_attention(*held, landmarks=landmarks, mask=mask, pinv=pinv)
        for mask in (None, torch.ones(12, dtype=torch.bool))
    ]
    assert_exact(made[0], made[1].detach())
    grads = [torch.autograd.grad(each.square().sum(), held) for each in made]
    for ours, masked in zip(*grads, strict=True):
        assert_exact(ours, masked)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nystrom_in_lower_precision(dtype: torch.dtype) -> None:
    q, k, v = sides(8, dtype)
    marks = [side.unflatten(-2, (2, 4)).mean(-2) for side in (q, k)]
    first, core, last = (
        (left @ right.mT / 2).softmax(-1)
        for left, right in [(q, marks[1]), (marks[0], marks[1]), (marks[0], k)]
    )
    wide = torch.promote_types(dtype, torch.float32)
    plain = first @ torch.linalg.pinv(core.to(wide)).to(dtype) @ (last @ v)
    oracle = nystrom_oracle(q, k, v, mask=keep([8, 8], 8), landmarks=2)
    assert_within(nystrom_attention(q, k, v, landmarks=2, pinv="exact"), eager=plain, oracle=oracle)


def test_nystrom_iterations_go_to_the_exact_inverse() -> None:
    q, k, v = sides(12)
    exact = nystrom_attention(q, k, v, landmarks=3, pinv="exact")
    gaps = [(nystrom_attention(q, k, v, landmarks=3, iterations=i) - exact).abs().max() for i in (2, 6, 20)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-8


@pytest.mark.parametrize("pinv", ["iterative", "exact"])
def test_nystrom_with_a_landmark_for_every_real_point_is_softmax(pinv: str) -> None:
    q, k, v = sides()
    mask = keep([7, 4], 7)[:, None]
    actual = nystrom_attention(q, k, v, landmarks=7, mask=mask, pinv=pinv)
    assert_exact(actual, softmax_attention(q, k, v, mask=mask) * mask.unsqueeze(-1))


@pytest.mark.parametrize("pinv", ["iterative", "exact"])
def test_nystrom_of_equal_points_has_gradients(pinv: str) -> None:
    held = [side[..., :1, :].expand(2, 3, 7, -1).clone().requires_grad_() for side in sides()]
    for landmarks in (3, 7):
        output = nystrom_attention(*held, landmarks=landmarks, mask=keep([7, 5], 7)[:, None], pinv=pinv)
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(output.square().sum(), held))


@pytest.mark.parametrize("mask", [None, (torch.arange(12) % 4 != 2)[None]], ids=["all", "one of four padded"])
def test_nystrom_agrees_with_the_package(mask: Tensor | None) -> None:
    """For one sample and one head, no residual, eps 0, and as many real points in every segment of n / s."""
    theirs = nystrom_package.NystromAttention(
        dim=4, dim_head=4, heads=1, num_landmarks=3, residual=False, eps=0.0
    ).double()
    x = points(1, 12, 4)
    q, k, v = theirs.to_qkv(x).chunk(3, dim=-1)
    ours = theirs.to_out(nystrom_attention(q, k, v, landmarks=3, mask=mask))
    real = slice(None) if mask is None else mask
    assert_exact(ours[real], theirs(x, mask=mask)[real])


@pytest.mark.parametrize("n", [7, LONG], ids="n{}".format)
@both_directions
def test_performer_agrees_with_the_package(causal: bool, n: int) -> None:
    """With eps 0 in its feature map and in its causal sum: the published 1e-4 changes the means."""
    q, k, v = sides(n)
    maps = partial(performer_package.softmax_kernel, projection_matrix=FREQUENCIES, eps=0.0)
    left, right = maps(q, is_query=True), maps(k, is_query=False)
    if causal:
        theirs = performer_package.causal_linear_attention_noncuda(left, right, v, eps=0.0)
    else:
        theirs = performer_package.linear_attention(left, right, v)
    assert_exact(performer(q, k, v, causal=causal), theirs)


@both_directions
def test_linear_agrees_with_the_package(causal: bool) -> None:
    """Its sums, with eps 0, given our feature map."""
    q, k, v = sides(LONG)
    left, right = (torch.nn.functional.elu(side) + 1 for side in (q, k))
    sums = partial(performer_package.causal_linear_attention_noncuda, eps=0.0)
    theirs = (sums if causal else performer_package.linear_attention)(left, right, v)
    assert_exact(linear_attention(q, k, v, causal=causal), theirs)


@pytest.mark.parametrize("count", [400, 6400], ids="p{}".format)
def test_performer_estimates_softmax(count: int) -> None:
    q, k, v = (side / 2 for side in sides())
    frequencies = draw_frequencies(count, 4, generator(1))
    scaled_q, scaled_k = q * 4**-0.25, k * 4**-0.25
    kernel = (scaled_q @ scaled_k.mT).exp()
    # Var of one feature: exp(|q + k|^2) K^2 - K^2; four standard deviations of the mean in every entry.
    total = scaled_q.square().sum(-1).unsqueeze(-1) + scaled_k.square().sum(-1).unsqueeze(-2)
    spread = kernel * ((total + 2 * kernel.log()).exp() - 1).sqrt() / count**0.5
    relative = (spread / kernel).amax(-1, keepdim=True) * 4
    error = performer_attention(q, k, v, frequencies) - softmax_attention(q, k, v)
    size = v.abs().amax(-2, keepdim=True)
    assert (error.abs() <= 2 * relative / (1 - relative).clamp_min(0.1) * size).all()


@both_directions
def test_performer_stands_exponents_that_overflow(causal: bool) -> None:
    q, k, v = (scale * side for scale, side in zip((6, 6, 1), sides(LONG), strict=True))
    scaled = k * 4**-0.25
    exponent = (scaled @ FREQUENCIES.mT - scaled.square().sum(-1, keepdim=True) / 2).abs().max()
    assert exponent > 150
    oracle = performer(q, k, v, causal=causal)
    error = performer(q.float(), k.float(), v.float(), causal=causal) - oracle
    # An exponent of size x is known to x eps in float32.
    assert error.abs().max() <= oracle.abs().max() * exponent * torch.finfo(torch.float32).eps


def test_the_elu_map_has_its_gradients_everywhere() -> None:
    x = torch.tensor([-40.0, -3.0, -0.1, 0.0, 0.2, 5.0], dtype=torch.float64, requires_grad=True)
    wanted = torch.where(x > 0, 1.0, x.exp()).detach()
    (slope,) = torch.autograd.grad(elu_features(x).sum(), x, create_graph=True)
    assert_exact(slope, wanted)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    assert_exact(bend, torch.where(x > 0, 0.0, x.exp()).detach())
    # As transforms and compilers make it.
    made = torch.func.vmap(torch.func.grad(lambda each: elu_features(each).sum()))(x.detach())
    assert_exact(made, wanted)


def test_the_elu_map_does_not_round_to_zero() -> None:
    k, v = points(5, 4) - 30, points(5, 3)
    weights = k.exp() @ k.exp().mT
    oracle = weights / weights.sum(-1, keepdim=True) @ v
    assert_exact(linear_attention(k, k, v), oracle)
    k, v = k.float(), v.float()
    weights = k.exp() @ k.exp().mT
    plain = weights / weights.sum(-1, keepdim=True) @ v
    assert_within(linear_attention(k, k, v), eager=plain, oracle=oracle)


@given(n=st.integers(1, 9), m=st.integers(1, 9), seed=st.integers(0, 999), name=st.sampled_from([*FEATURES]))
def test_moving_points_moves_outputs(n: int, m: int, seed: int, name: str) -> None:
    q, k, v = points(n, 4, seed=seed), points(m, 4, seed=seed + 1), points(m, 3, seed=seed + 2)
    draw = torch.Generator().manual_seed(seed)
    queries, keys = torch.randperm(n, generator=draw), torch.randperm(m, generator=draw)
    attention = FEATURES[name][0]
    assert_exact(attention(q[queries], k[keys], v[keys]), attention(q, k, v)[queries])


@every_attention
def test_what_stands_at_padding_has_no_influence(attention: Callable[..., Tensor]) -> None:
    mask = keep([7, 5], 7)[:, None]
    real = mask.unsqueeze(-1)
    # Queries are points of their own, but for landmarks.
    both = "landmarks" in getattr(attention, "keywords", {})
    results = []
    for garbage in (torch.nan, 3.0):
        q, k, v = (side.where(real, garbage) for side in sides())
        held = [(q if both else sides()[0]).requires_grad_(), k.requires_grad_(), v.requires_grad_()]
        output = attention(*held, mask=mask)
        results.append((output, *torch.autograd.grad(output.square().sum(), held)))
    assert all(map(torch.equal, *results))
    assert all((grad.masked_select(~real) == 0).all() for grad in results[0][2:])
    short = attention(*(side[1:, :, :5] for side in sides()))
    assert_exact(results[0][0][1:, :, :5], short)


@every_attention
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_that_sees_nothing_is_zero_and_so_are_its_gradients(
    attention: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    held = [side.requires_grad_() for side in sides(dtype=dtype)]
    output = attention(*held, mask=keep([7, 0], 7)[:, None])
    assert (output[1] == 0).all()
    assert all((grad[1] == 0).all() for grad in torch.autograd.grad(output.sum(), held))


@every_attention
def test_a_batch_of_one_equals_a_slice(attention: Callable[..., Tensor]) -> None:
    q, k, v = sides(20)
    mask = keep([20, 12], 20)[:, None]
    whole = attention(q, k, v, mask=mask)
    for i in range(2):
        here = slice(i, i + 1)
        assert_exact(attention(q[here], k[here], v[here], mask=mask[here]), whole[here])
        assert_exact(attention(q[i, 0], k[i, 0], v[i, 0], mask=mask[i, 0]), whole[i, 0])


@both_maps
@pytest.mark.parametrize("cut", [1, 63, 64, 65, 149], ids="cut{}".format)
def test_causal_outputs_do_not_see_what_follows(name: str, cut: int) -> None:
    q, k, v = sides(LONG)
    attention = FEATURES[name][0]
    head = attention(*(side[..., :cut, :] for side in (q, k, v)), causal=True)
    assert_exact(attention(q, k, v, causal=True)[..., :cut, :], head)


@both_maps
@pytest.mark.parametrize("n", [1, 63, 64, 65, LONG], ids="n{}".format)
def test_chunks_leave_no_trace(name: str, n: int) -> None:
    attention, _, features = FEATURES[name]
    q, k, v = sides(n)
    mask = keep([n, n // 2], n).flip(-1)[:, None]
    weights = (features(q) @ features(k).mT * mask.unsqueeze(-2)).tril()
    plain = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300) @ v
    assert_exact(attention(q, k, v, mask=mask, causal=True), plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_are_rows_of_causal_attention(dtype: torch.dtype) -> None:
    q, k, v = sides(dtype=dtype)
    state, rows = None, []
    for i in range(7):
        row, state = linear_step(state, q[..., i, :], k[..., i, :], v[..., i, :])
        rows.append(row)
    whole = linear_attention(q, k, v, causal=True)
    oracle = rivals.linear_attention(q, k, v, causal=True)
    assert_within(torch.stack(rows, -2), eager=whole, oracle=oracle)
    assert state is not None
    assert state.products.shape == (2, 3, 4, 5)


@every_attention
@pytest.mark.parametrize(
    "mask", [None, keep([5, 4], 5)[:, None], keep([5, 0], 5)[:, None]], ids=["all", "pad", "no"]
)
def test_gradients(attention: Callable[..., Tensor], mask: Tensor | None) -> None:
    held = [side[:, :1].clone().requires_grad_() for side in sides(5)]
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, mask=mask), held)


@pytest.mark.parametrize("attention", [linear_attention, performer])
def test_gradients_through_chunks(attention: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelhead.ops.eager.linear.CHUNK", 2)
    held = [side[:, :1].clone().requires_grad_() for side in sides(5)]
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, causal=True), held)


@pytest.mark.parametrize("n", [5, LONG], ids="n{}".format)
@both_directions
@both_maps
def test_the_pattern_times_values_is_the_output(name: str, causal: bool, n: int) -> None:
    q, k, v = sides(n)
    mask = keep([n, n - 2], n)[:, None]
    how = {"mask": mask, "causal": causal}
    pattern = linear_pattern(q, k, **how) if name == "linear" else performer_pattern(q, k, FREQUENCIES, **how)
    assert isinstance(pattern, Dense if causal else Factored)
    assert_exact(pattern.apply(v), FEATURES[name][0](q, k, v, **how))
    assert_exact(pattern.marginals()[0], torch.ones(2, 3, n, dtype=torch.float64))
    assert (pattern.matrix()[1, ..., n - 2 :] == 0).all()


@pytest.mark.parametrize("pinv", ["iterative", "exact"])
def test_the_nystrom_pattern_times_values_is_the_output(pinv: str) -> None:
    q, k, v = sides(12)
    how = {"mask": keep([12, 8], 12)[:, None], "landmarks": 3, "pinv": pinv}
    pattern = nystrom_pattern(q, k, **how)
    assert_exact(pattern @ v, nystrom_attention(q, k, v, **how))
    assert (pattern[1, :, 8:] == 0).all()
    assert (pattern[1, ..., 8:] == 0).all()


@every_attention
def test_autocast_does_not_reach_the_sums(attention: Callable[..., Tensor]) -> None:
    q, k, v = sides(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = attention(q, k, v)
    assert torch.equal(inside, attention(q, k, v))


@every_attention
def test_the_global_generator_does_not_move(attention: Callable[..., Tensor]) -> None:
    before = torch.random.get_rng_state()
    attention(*sides())
    assert torch.equal(before, torch.random.get_rng_state())


def test_words_about_axes() -> None:
    q, k, v = points(3, 4), points(5, 4), points(5, 2)
    with pytest.raises(ShapeError, match=r"linear_attention: causal needs as many queries as keys"):
        linear_attention(q, k, v, causal=True)
    with pytest.raises(ShapeError, match=r"linear_pattern: axis `d` is 4 in `query` but 2 in `key` \(5, 2\)"):
        linear_pattern(q, v)
    with pytest.raises(
        ShapeError, match=r"performer_attention: axis `d` is 4 in `query` but 3 in `frequencies`"
    ):
        performer_attention(q, k, v, points(8, 3))
    with pytest.raises(
        ShapeError, match=r"performer_pattern: `frequencies` has shape \(2, 8, 4\), .* \(p d\)"
    ):
        performer_pattern(q, k, points(2, 8, 4))
    with pytest.raises(
        ShapeError, match=r"nystrom_attention: axis `n` is 3 in `query` but 5 in `key` \(5, 4\)"
    ):
        nystrom_attention(q, k, v, landmarks=2)
    with pytest.raises(
        ShapeError, match=r"linear_step: axis `d` is 4 in `query` but 3 in `products` \(3, 2\)"
    ):
        linear_step(LinearState(points(3, 2), points(3)), points(4), points(4), points(2))


def test_words_about_landmarks() -> None:
    q = points(5, 4)
    with pytest.raises(
        BadInput, match=r"nystrom_attention: landmarks is 0, expected a whole number of at least 1"
    ):
        nystrom_attention(q, q, q, landmarks=0)
    with pytest.raises(
        BadInput, match=r"nystrom_pattern: iterations is 0, expected a whole number of at least 1"
    ):
        nystrom_pattern(q, q, landmarks=2, iterations=0)
    with pytest.raises(
        UnknownName, match=r"unknown pinv 'exat', did you mean 'exact'\? Known: exact, iterative"
    ):
        nystrom_attention(q, q, q, landmarks=2, pinv="exat")
