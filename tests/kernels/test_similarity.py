"""Kernels of similarity: entries are the definition, features multiply to entries, names are known."""

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.kernels import (
    KERNELS,
    AbstractKernel,
    Cosine,
    Elu,
    Exponential,
    Identity,
    Polynomial,
    Relu,
    draw_frequencies,
    named_kernel,
)
from kernelhead.pattern import Factored
from tests.inputs import points
from tests.oracles import kernels as oracle
from tests.tolerance import assert_exact, assert_within

WIDTH = 4
Entry = Callable[[Tensor, Tensor], float]

EXACT: dict[str, tuple[AbstractKernel, Entry]] = {
    "identity": (Identity(), oracle.identity_kernel),
    "cosine": (Cosine(), oracle.cosine_kernel),
    "relu": (Relu(), oracle.relu_kernel),
    "elu": (Elu(), oracle.elu_kernel),
    "polynomial": (Polynomial(), partial(oracle.polynomial_kernel, degree=2, offset=1.0)),
    "cube": (Polynomial(degree=3, offset=0.0), partial(oracle.polynomial_kernel, degree=3, offset=0.0)),
    "affine": (Polynomial(degree=1, offset=0.5), partial(oracle.polynomial_kernel, degree=1, offset=0.5)),
}
FREQUENCIES = draw_frequencies(9, WIDTH, torch.Generator().manual_seed(0))
ALL = EXACT | {"exponential": (Exponential(FREQUENCIES), oracle.exponential_kernel)}

exact_kernels = pytest.mark.parametrize(("kernel", "entry"), EXACT.values(), ids=EXACT)
all_kernels = pytest.mark.parametrize(("kernel", "entry"), ALL.values(), ids=ALL)
SIZES = st.integers(1, 6)


@all_kernels
@given(n=SIZES, m=SIZES, seed=st.integers(0, 999))
def test_entries_are_the_definition(kernel: AbstractKernel, entry: Entry, n: int, m: int, seed: int) -> None:
    left, right = points(n, WIDTH, seed=seed), points(m, WIDTH, seed=seed + 1)
    assert_exact(kernel.entries(left, right), oracle.entries(entry, left, right))


@exact_kernels
@given(n=SIZES, m=SIZES, seed=st.integers(0, 999))
def test_features_multiply_to_the_definition(
    kernel: AbstractKernel, entry: Entry, n: int, m: int, seed: int
) -> None:
    left, right = points(n, WIDTH, seed=seed), points(m, WIDTH, seed=seed + 1)
    product = kernel.left_features(left) @ kernel.right_features(right).mT
    assert_exact(product, oracle.entries(entry, left, right))
    assert_exact(kernel.pattern(left, right).matrix(), product)


@exact_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_features_lose_no_more_than_entries_do(
    kernel: AbstractKernel, entry: Entry, dtype: torch.dtype
) -> None:
    left, right = points(9, WIDTH, dtype=dtype), points(7, WIDTH, seed=1, dtype=dtype)
    made = kernel.pattern(left, right).matrix()
    assert made.dtype == dtype
    assert_within(made, eager=kernel.entries(left, right), oracle=oracle.entries(entry, left, right))


@all_kernels
def test_swapping_the_sides_transposes(kernel: AbstractKernel, entry: Entry) -> None:
    left, right = points(3, WIDTH), points(5, WIDTH, seed=1)
    assert_exact(kernel.entries(left, right), kernel.entries(right, left).mT)
    assert_exact(kernel.pattern(left, right).matrix(), kernel.pattern(right, left).transpose().matrix())


@all_kernels
def test_a_point_is_mapped_alone(kernel: AbstractKernel, entry: Entry) -> None:
    batch = points(2, 3, 5, WIDTH)
    assert_exact(kernel.features(batch)[1, 2, 3:4], kernel.features(batch[1, 2, 3:4]))
    assert_exact(kernel.entries(batch, batch)[1, 2], kernel.entries(batch[1, 2], batch[1, 2]))


@all_kernels
def test_the_width_of_features_is_foretold(kernel: AbstractKernel, entry: Entry) -> None:
    width = kernel.feature_width(WIDTH)
    assert kernel.features(points(3, WIDTH)).shape == (3, width)
    assert kernel.keeps_width == (width == WIDTH)


@all_kernels
def test_landmarks_are_as_wide_as_features(kernel: AbstractKernel, entry: Entry) -> None:
    x = points(3, WIDTH)
    expected = x if kernel.keeps_width else kernel.right_features(x)
    assert torch.equal(kernel.landmark_features(x), expected)
    assert kernel.landmark_features(x).shape[-1] == kernel.feature_width(WIDTH)


@all_kernels
def test_gradients(kernel: AbstractKernel, entry: Entry) -> None:
    left, right = points(3, WIDTH).requires_grad_(), points(2, WIDTH, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(kernel.features, [left])
    assert torch.autograd.gradcheck(kernel.entries, [left, right])


@all_kernels
def test_a_pattern_is_held_as_factors(kernel: AbstractKernel, entry: Entry) -> None:
    pattern = kernel.pattern(points(2, 5, WIDTH), points(2, 3, WIDTH, seed=1))
    assert isinstance(pattern, Factored)
    assert pattern.shape == (2, 5, 3)
    assert torch.equal(pattern.values, torch.ones(kernel.feature_width(WIDTH), dtype=torch.float64))


@all_kernels
def test_sides_of_other_widths_are_named(kernel: AbstractKernel, entry: Entry) -> None:
    words = (
        f"{type(kernel).__name__}: axis `d` is 4 in `left` but 3 in `right` (5, 3), whose axes are (... m d)"
    )
    with pytest.raises(ShapeError, match=re.escape(words)):
        kernel.pattern(points(5, WIDTH), points(5, 3))


@all_kernels
def test_a_formula_stands_beside_each(kernel: AbstractKernel, entry: Entry) -> None:
    assert "q" in kernel.formula
    assert "k" in kernel.formula


@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_a_cosine_sees_no_length_and_stays_in_range(scale: float, seed: int) -> None:
    left, right = points(5, WIDTH, seed=seed), points(3, WIDTH, seed=seed + 1)
    assert_exact(Cosine().entries(scale * left, right), Cosine().entries(left, right))
    assert float(Cosine().pattern(left, right).matrix().abs().max()) <= 1 + 1e-12


@pytest.mark.parametrize("length", [0.0, 1e-14, 1e-13, 1e-12, 1e-6], ids=str)
def test_a_cosine_of_a_vanishing_point_is_the_definition(length: float) -> None:
    left, right = points(3, WIDTH) * length, points(2, WIDTH, seed=1)
    definition = oracle.entries(oracle.cosine_kernel, left, right)
    assert_exact(Cosine().pattern(left, right).matrix(), definition)
    assert_exact(Cosine().entries(left, right), definition)


@all_kernels
def test_gradients_stay_finite_at_a_point_of_zeros(kernel: AbstractKernel, entry: Entry) -> None:
    x = torch.zeros(1, WIDTH, dtype=torch.float64, requires_grad=True)
    for made in (kernel.features(x), kernel.entries(x, points(2, WIDTH))):
        (gradient,) = torch.autograd.grad(made.sum(), x)
        assert bool(gradient.isfinite().all())


def test_a_positive_map_has_positive_entries() -> None:
    left, right = points(9, WIDTH), points(9, WIDTH, seed=1)
    for kernel in (Elu(), Exponential(FREQUENCIES)):
        assert bool((kernel.features(left) > 0).all())
        assert bool((kernel.entries(left, right) > 0).all())


def test_the_exponential_normalised_is_softmax() -> None:
    left, right = points(5, WIDTH), points(7, WIDTH, seed=1)
    entries = Exponential(FREQUENCIES).entries(left, right)
    softmax = (left @ right.mT / WIDTH**0.5).softmax(-1)
    assert_exact(entries / entries.sum(-1, keepdim=True), softmax)


def test_a_kernel_hands_its_tensors_over_and_takes_others() -> None:
    kernel = Exponential(FREQUENCIES)
    assert kernel.tensors() == {"frequencies": FREQUENCIES}
    other = kernel.with_tensors({"frequencies": FREQUENCIES[:3]})
    assert isinstance(other, Exponential)
    assert other.feature_width(WIDTH) == 3
    assert kernel.feature_width(WIDTH) == 9
    plain = Polynomial(degree=3)
    assert plain.tensors() == {}
    assert plain.with_tensors({}) is plain


def test_a_kernel_alone_is_abstract() -> None:
    with pytest.raises(TypeError, match="Can't instantiate abstract class AbstractKernel"):
        AbstractKernel()  # type: ignore[abstract]


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_name_gives_its_kernel(name: str) -> None:
    kernel = named_kernel(name, width=WIDTH)
    assert type(kernel).__name__.lower() == name
    assert kernel.features(points(3, WIDTH)).shape == (3, kernel.feature_width(WIDTH))


def test_every_kernel_has_a_name() -> None:
    made = {type(kernel(WIDTH, 0)) for kernel in KERNELS.values()}
    assert made == {type(kernel) for kernel, _ in ALL.values()}


def test_a_kernel_goes_through_as_it_is() -> None:
    kernel = Polynomial(degree=3)
    assert named_kernel(kernel, width=WIDTH) is kernel


def test_frequencies_of_a_named_kernel_follow_its_seed() -> None:
    before = torch.get_rng_state()
    one, same, other = (named_kernel("exponential", width=WIDTH, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.tensors()["frequencies"], same.tensors()["frequencies"])
    assert not torch.equal(one.tensors()["frequencies"], other.tensors()["frequencies"])
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_name_is_repaired() -> None:
    with pytest.raises(UnknownName, match="named_kernel: unknown feature map 'cosin', did you mean 'cosine'"):
        named_kernel("cosin", width=WIDTH)


@pytest.mark.parametrize("degree", [0, -1, 1.5, True], ids=str)
def test_a_degree_that_is_no_power_is_named(degree: object) -> None:
    words = f"Polynomial: degree is {degree!r}, expected a whole number of at least 1"
    with pytest.raises(BadInput, match=words):
        Polynomial(degree=degree)  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", [-1.0, float("nan")], ids=str)
def test_an_offset_without_a_root_is_named(offset: float) -> None:
    with pytest.raises(BadInput, match=f"Polynomial: offset is {offset!r}, expected 0 or more"):
        Polynomial(offset=offset)


def test_frequencies_of_another_width_are_named() -> None:
    with pytest.raises(BadInput, match="Exponential: frequencies are 4 wide, but points are 6"):
        Exponential(FREQUENCIES).feature_width(6)
