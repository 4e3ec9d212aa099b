"""Feature maps: against the oracle, their laws, and random ones within a computed confidence bound."""

from collections.abc import Callable
from functools import partial
from math import comb, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import ShapeError
from kernelhead.kernels import draw_frequencies, gram, polynomial_features, positive_features, unit_rows
from tests.inputs import points
from tests.oracles import kernels as oracle
from tests.tolerance import assert_exact, assert_within

SEEDS = st.integers(0, 999)
DEVIATIONS = 5.0  # of an estimate that a bound allows


def frequencies(count: int, width: int, seed: int = 0) -> Tensor:
    return draw_frequencies(count, width, torch.Generator().manual_seed(seed))


def variance_of_a_term(left: Tensor, right: Tensor) -> Tensor:
    """Of exp(w'(q+k) - (|q|^2+|k|^2)/2) over normal w, for points scaled by d^(-1/4).

    It is exp(-|q|^2-|k|^2) (exp(2|q+k|^2) - exp(|q+k|^2)): (n, d), (m, d) to (n, m).
    """
    q, k = (side * side.shape[-1] ** -0.25 for side in (left, right))
    both = (q[:, None] + k[None]).square().sum(-1)
    alone = q.square().sum(-1)[:, None] + k.square().sum(-1)[None]
    return (2 * both - alone).exp() - (both - alone).exp()


def estimate(left: Tensor, right: Tensor, frequency: Tensor) -> Tensor:
    return positive_features(left, frequency) @ positive_features(right, frequency).mT


def exponential(left: Tensor, right: Tensor) -> Tensor:
    return oracle.entries(oracle.exponential_kernel, left, right)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (7, 4), (2, 3, 5, 8)], ids=str)
def test_unit_rows_are_the_definition(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = points(*shape, dtype=dtype)
    eager = torch.nn.functional.normalize(x, dim=-1)
    assert unit_rows(x).dtype == dtype
    assert_within(unit_rows(x), eager=eager, oracle=oracle.map_rows(x, oracle.cosine_features))


def divided(x: Tensor) -> Tensor:
    """Unit rows as torch differentiates them."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-12)


@pytest.mark.parametrize("strided", [False, True], ids=["rows", "columns"])
def test_gradients_of_unit_rows_of_any_order(strided: bool) -> None:
    x = points(4, 3, 2).mT if strided else points(4, 2, 3)
    x.requires_grad_()
    assert torch.autograd.gradcheck(unit_rows, [x])
    assert torch.autograd.gradgradcheck(unit_rows, [x])
    assert torch.equal(unit_rows(x), unit_rows(x.detach()))


@pytest.mark.parametrize("length", [0.0, 5e-13, 1e-12, 2e-12, 1.0], ids=str)
def test_gradients_where_rows_have_next_to_no_length(length: float) -> None:
    x = (length * unit_rows(points(3, 4))).requires_grad_()
    above = points(3, 4, seed=1)
    made, expected = (torch.autograd.grad(each(x), x, above)[0] for each in (unit_rows, divided))
    assert_exact(made, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_unit_rows_in_low_precision(dtype: torch.dtype) -> None:
    x, above = points(5, 33, dtype=dtype).requires_grad_(), points(5, 33, seed=1, dtype=dtype)
    exact = x.detach().double().requires_grad_()
    made, eager = (torch.autograd.grad(each(x), x, above)[0] for each in (unit_rows, divided))
    assert made.dtype == dtype
    assert_within(made, eager=eager, oracle=torch.autograd.grad(divided(exact), exact, above.double())[0])


@given(n=st.integers(1, 6), p=st.integers(1, 6), seed=SEEDS)
def test_gram_is_every_inner_product_and_so_are_its_gradients(n: int, p: int, seed: int) -> None:
    x = points(2, n, p, seed=seed).requires_grad_()
    products = [[(x[:, :, i] * x[:, :, j]).sum(-1) for j in range(p)] for i in range(p)]
    assert_exact(gram(x), torch.stack([torch.stack(row, -1) for row in products], -2))
    assert torch.autograd.gradcheck(gram, [x])
    assert torch.autograd.gradgradcheck(gram, [x])


def exponentials(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return run(x).exp().sum()


# torch's own, of how it prepares derivatives forward.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("run", [unit_rows, gram])
def test_transforms_find_gradients_too(run: Callable[[Tensor], Tensor]) -> None:
    x, along, loss = points(3, 4, 2), points(3, 4, 2, seed=1), partial(exponentials, run)
    held = x.clone().requires_grad_()
    expected = torch.autograd.grad(loss(held), held)[0]
    assert_exact(torch.func.vmap(torch.func.grad(loss))(x), expected)
    assert_exact(torch.func.jvp(loss, (x,), (along,))[1], (expected * along).sum())


@pytest.mark.plain
@pytest.mark.parametrize("run", [unit_rows, gram])
def test_a_compiler_finds_gradients_too(run: Callable[[Tensor], Tensor]) -> None:
    x, loss = points(3, 4, 2).requires_grad_(), partial(exponentials, run)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    assert_exact(torch.autograd.grad(compiled(x), x)[0], torch.autograd.grad(loss(x), x)[0])


@given(n=st.integers(1, 6), d=st.integers(1, 6), scale=st.floats(1e-9, 1e9), seed=SEEDS)
def test_unit_rows_have_length_one_at_any_scale(n: int, d: int, scale: float, seed: int) -> None:
    x = points(n, d, seed=seed)
    assert_exact(unit_rows(scale * x).norm(dim=-1), torch.ones(n, dtype=torch.float64))
    assert_exact(unit_rows(scale * x), unit_rows(x))


@pytest.mark.parametrize("length", [0.0, 1e-14, 1e-12], ids=str)
def test_a_vanishing_row_is_not_blown_up(length: float) -> None:
    x = points(3, 4) * length
    assert_exact(unit_rows(x), oracle.map_rows(x, oracle.cosine_features))


def test_norms_do_not_overflow_in_half_precision() -> None:
    x = torch.full((1, 64), 30_000.0, dtype=torch.float16)
    assert torch.equal(unit_rows(x), torch.full((1, 64), 0.125, dtype=torch.float16))


def test_gradients_of_unit_rows_stay_finite_at_zero() -> None:
    x = points(3, 4)
    x[1] = 0
    unit_rows(x.requires_grad_()).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("d", "count"), [(1, 1), (4, 9), (8, 8)], ids=str)
def test_positive_features_are_the_definition(d: int, count: int, dtype: torch.dtype) -> None:
    x, frequency = points(2, 5, d, dtype=dtype), frequencies(count, d).to(dtype)
    definition = oracle.map_rows(x, partial(oracle.exponential_features, frequencies=frequency))
    z = x * d**-0.25
    eager = (z @ frequency.mT - z.norm(dim=-1, keepdim=True) ** 2 / 2).exp() / sqrt(count)
    assert_within(positive_features(x, frequency), eager=eager, oracle=definition)


@given(n=st.integers(1, 5), d=st.integers(1, 5), count=st.integers(1, 9), seed=SEEDS)
def test_positive_features_are_positive(n: int, d: int, count: int, seed: int) -> None:
    made = positive_features(points(n, d, seed=seed), frequencies(count, d, seed))
    assert made.shape == (n, count)
    assert bool((made > 0).all())


@pytest.mark.parametrize("kind", ["orthogonal", "independent"])
@pytest.mark.parametrize("count", [64, 512, 4096, 32_768], ids="m{}".format)
def test_positive_features_converge_within_the_bound(count: int, kind: str) -> None:
    # Longer points have terms with so heavy a tail that deviations say nothing about small counts.
    left, right = points(6, 8) / 2, points(5, 8, seed=1) / 2
    frequency = frequencies(count, 8) if kind == "orthogonal" else points(count, 8, seed=2)
    error = (estimate(left, right, frequency) - exponential(left, right)).abs()
    bound = DEVIATIONS * (variance_of_a_term(left, right) / count).sqrt()
    assert bool((error <= bound).all()), f"{float((error / bound).max()):.2f} of the bound"


def test_the_bound_is_not_loose() -> None:
    left, right, count, draws = points(4, 6) / 2, points(3, 6, seed=1) / 2, 32, 400
    independent = (points(count, 6, seed=seed + 100) for seed in range(draws))
    errors = torch.stack([estimate(left, right, w) - exponential(left, right) for w in independent])
    ratio = errors.square().mean(0) / (variance_of_a_term(left, right) / count)
    assert 0.7 < float(ratio.mean()) < 1.3


def test_orthogonal_frequencies_are_unbiased_and_no_worse() -> None:
    left, right, count, draws = points(4, 6) / 2, points(3, 6, seed=1) / 2, 6, 600
    drawn = torch.stack([estimate(left, right, frequencies(count, 6, seed)) for seed in range(draws)])
    exact, variance = exponential(left, right), variance_of_a_term(left, right) / count
    assert bool(((drawn.mean(0) - exact).abs() <= DEVIATIONS * (variance / draws).sqrt()).all())
    assert float((drawn - exact).square().mean()) < float(variance.mean())


def test_the_error_falls_as_the_root_of_the_count() -> None:
    left, right = points(20, 8) / 2, points(20, 8, seed=1) / 2
    few, many = (
        sqrt(float((estimate(left, right, frequencies(count, 8)) - exponential(left, right)).square().mean()))
        for count in (64, 6400)
    )
    assert 3 < few / many < 33  # ten, give or take what one draw allows


@given(count=st.integers(1, 20), width=st.integers(1, 6), seed=SEEDS)
def test_frequencies_are_orthogonal_within_a_block(count: int, width: int, seed: int) -> None:
    drawn = frequencies(count, width, seed)
    assert drawn.shape == (count, width)
    assert drawn.dtype == torch.float64
    for block in unit_rows(drawn).split(width):
        assert_exact(block @ block.mT, torch.eye(len(block), dtype=torch.float64))


def test_frequencies_are_standard_normal() -> None:
    count, width = 6000, 5
    drawn = frequencies(count, width)
    # Of 6000 independent normal vectors: mean 0 and variance 1 an axis; squared norms of mean 5, variance 10.
    assert float(drawn.mean(0).abs().max()) < DEVIATIONS / sqrt(count)
    assert float((drawn.square().mean(0) - 1).abs().max()) < DEVIATIONS * sqrt(2 / count)
    squares = drawn.square().sum(-1)
    assert abs(float(squares.mean()) - width) < DEVIATIONS * sqrt(2 * width / count)
    # The variance of a sample variance of chi-square(5) is (fourth central moment - variance^2) / count.
    fourth = 12 * width * (width + 4)
    assert abs(float(squares.var()) - 2 * width) < DEVIATIONS * sqrt((fourth - (2 * width) ** 2) / count)


def test_frequencies_follow_their_generator_alone() -> None:
    before = torch.get_rng_state()
    assert torch.equal(frequencies(7, 3, seed=1), frequencies(7, 3, seed=1))
    assert not torch.equal(frequencies(7, 3, seed=1), frequencies(7, 3, seed=2))
    assert torch.equal(torch.get_rng_state(), before)


@given(d=st.integers(1, 4), degree=st.integers(1, 4), offset=st.sampled_from([0.0, 0.5, 2.0]), seed=SEEDS)
def test_monomials_multiply_to_the_power(d: int, degree: int, offset: float, seed: int) -> None:
    left, right = points(4, d, seed=seed), points(3, d, seed=seed + 1)
    made = polynomial_features(left, degree, offset)
    assert made.shape == (4, comb(d + degree, degree))
    closed = partial(oracle.polynomial_kernel, degree=degree, offset=offset)
    product = made @ polynomial_features(right, degree, offset).mT
    # Terms of both signs cancel, so the largest entry that could have been is the measure.
    bound = ((left.norm(dim=-1)[:, None] * right.norm(dim=-1) + offset) ** degree).max()
    assert_exact(product / bound + 2, oracle.entries(closed, left, right) / bound + 2)


@pytest.mark.parametrize(("degree", "offset"), [(2, 1.0), (3, 0.5)], ids=str)
def test_monomials_are_the_oracles_in_some_order(degree: int, offset: float) -> None:
    x = points(2, 5, 3)
    definition = oracle.map_rows(x, partial(oracle.polynomial_features, degree=degree, offset=offset))
    assert_exact(polynomial_features(x, degree, offset).sort(-1).values, definition.sort(-1).values)


def test_gradients() -> None:
    x = points(2, 3).requires_grad_()
    assert torch.autograd.gradcheck(unit_rows, [x])
    assert torch.autograd.gradcheck(lambda x: polynomial_features(x, 3, 0.5), [x])
    assert torch.autograd.gradcheck(lambda x: positive_features(x, frequencies(4, 3)), [x])


def test_gram_of_a_single_row_is_refused() -> None:
    with pytest.raises(ShapeError, match="gram: `features`"):
        gram(points(3))
