"""Kernels of time: their definition and laws, exact phases, gradients, the released encodings, and words."""

from collections.abc import Callable
from math import tau

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.kernels import (
    AbstractTimeKernel,
    BochnerKernel,
    MercerKernel,
    bochner_features,
    log_lags,
    mercer_features,
    phases,
    product_features,
    published_bochner,
    published_mercer,
    quantile_frequencies,
)
from tests.inputs import points
from tests.oracles import time as oracle
from tests.tolerance import assert_exact

SEEDS = st.integers(0, 999)
DECADE = 3e8  # seconds


def bochner(seed: int = 0, *, dtype: torch.dtype = torch.float64, unit: str = "days") -> BochnerKernel:
    return BochnerKernel(points(5, seed=seed, dtype=dtype), points(5, seed=seed + 1, dtype=dtype).abs(), unit)


def mercer(seed: int = 0, *, dtype: torch.dtype = torch.float64, unit: str = "days") -> MercerKernel:
    periods = points(2, seed=seed, dtype=dtype).exp()
    return MercerKernel(periods, points(2, 4, seed=seed + 1, dtype=dtype).abs(), unit)


MAKERS: dict[str, Callable[..., AbstractTimeKernel]] = {"bochner": bochner, "mercer": mercer}
kernels = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def times(n: int, seed: int = 0) -> Tensor:
    return points(n, seed=seed).abs() * 10


@pytest.mark.parametrize("seed", [0, 1])
def test_entries_are_the_definition(seed: int) -> None:
    s, t = times(4, seed), times(3, seed + 1)
    one, two = bochner(seed), mercer(seed)
    lags = [[float(a - b) for b in t] for a in s]
    weights = one.weights
    assert weights is not None
    made = [
        [oracle.bochner_entry(lag, one.frequencies.tolist(), weights.tolist()) for lag in row] for row in lags
    ]
    assert_exact(one.gram(s, t), torch.tensor(made, dtype=torch.float64))
    periods, coefficients = two.periods.tolist(), two.coefficients.tolist()
    made = [[oracle.mercer_entry(lag, periods, coefficients) for lag in row] for row in lags]
    assert_exact(two.gram(s, t), torch.tensor(made, dtype=torch.float64))


@kernels
@given(n=st.integers(1, 6), m=st.integers(1, 6), seed=SEEDS)
def test_features_multiply_to_entries(
    make: Callable[..., AbstractTimeKernel], n: int, m: int, seed: int
) -> None:
    kernel, s, t = make(seed), times(n, seed), times(m, seed + 1)
    top = float(kernel.gram(s[:1], s[:1]))  # the largest entry there is
    assert_exact(kernel.features(s) @ kernel.features(t).mT + top, kernel.gram(s, t) + top)
    assert_exact(kernel.pattern(s, t).matrix() + top, kernel.gram(s, t) + top)


@kernels
@given(n=st.integers(1, 8), shift=st.floats(0, 1e6), seed=SEEDS)
def test_a_shift_of_all_times_changes_nothing(
    make: Callable[..., AbstractTimeKernel], n: int, shift: float, seed: int
) -> None:
    kernel, s = make(seed), times(n, seed)
    top = float(kernel.gram(s[:1], s[:1]))
    # Rounding of s + shift alone moves phases by as much.
    assert_exact(kernel.gram(s + shift, s + shift) + top, kernel.gram(s, s) + top, bound=1e-7)
    assert_exact(kernel.gram(s, s).diagonal(), torch.full((n,), top, dtype=torch.float64))


@kernels
@given(n=st.integers(1, 12), seed=SEEDS)
def test_no_eigenvalue_is_negative(make: Callable[..., AbstractTimeKernel], n: int, seed: int) -> None:
    gram = make(seed).gram(times(n, seed), times(n, seed))
    assert_exact(gram, gram.mT)
    values = torch.linalg.eigvalsh(gram)
    assert float(values.min()) >= -1e-10 * float(values.max())


@given(d=st.integers(1, 9), seed=SEEDS)
def test_without_weights_a_bochner_kernel_is_one_at_zero(d: int, seed: int) -> None:
    kernel, t = BochnerKernel(points(d, seed=seed)), times(3, seed)
    assert_exact(kernel.gram(t, t).diagonal(), torch.ones(3, dtype=torch.float64))
    assert float(kernel.gram(t, times(4, seed + 1)).abs().max()) <= 1 + 1e-12


@given(turns=st.integers(-1000, 1000), seed=SEEDS)
def test_one_period_later_is_the_same(turns: int, seed: int) -> None:
    kernel = MercerKernel(torch.tensor([7.0]).double(), points(1, 4, seed=seed).abs())
    t = times(5, seed)
    assert_exact(kernel.gram(t + 7.0 * turns, t) + 10, kernel.gram(t, t) + 10)


@kernels
@pytest.mark.parametrize("unit", ["seconds", "hours", "weeks"])
def test_another_unit_is_the_same_kernel(make: Callable[..., AbstractTimeKernel], unit: str) -> None:
    kernel, t = make(0), times(4)
    factor = {"seconds": 86400.0, "hours": 24.0, "weeks": 1 / 7}[unit]
    other = kernel.converted(unit)
    assert_exact(other.gram(t * factor, t * factor), kernel.gram(t, t))
    assert other.unit == unit  # type: ignore[attr-defined]


@pytest.mark.parametrize("start", [0.0, DECADE, 1.7e9], ids=["zero", "decade", "epoch"])
def test_phases_of_seconds_are_exact_after_years(start: float) -> None:
    # One radian a second, and the two ladders that lose their fast components in float32.
    frequency = torch.tensor([1.0, 0.1, 2e-3, 1e-7])
    t = start + torch.tensor([0.0, 1.0, 2.5, 1e3, 1e7], dtype=torch.float64)
    exact = torch.cos((t[:, None] - t)[..., None] * frequency.double())
    made = bochner_features(t, frequency, torch.ones(4))
    waves, other = made.unflatten(-1, (2, 4)), made.unflatten(-1, (2, 4))
    found = (waves[:, None] * other[None]).sum(-2)
    assert found.dtype == torch.float32
    assert float((found - exact).abs().max()) < 2e-6
    gram = BochnerKernel(frequency, torch.ones(4), "seconds").gram(t, t)
    assert float((gram - exact.sum(-1)).abs().max()) < 2e-6


def test_a_product_in_float32_would_lose_them() -> None:
    t = DECADE + torch.arange(8, dtype=torch.float64)
    wrong = (t.float() * torch.ones(1)).cos()
    right = phases(t, torch.ones(())).float().cos()
    assert float((right - t.cos()).abs().max()) < 1e-6
    assert float((wrong - t.cos()).abs().max()) > 1


@given(t=st.floats(-1e9, 1e9), frequency=st.floats(1e-6, 10))
def test_phases_lie_in_one_turn(t: float, frequency: float) -> None:
    angle = phases(torch.tensor([t], dtype=torch.float64), torch.tensor([frequency], dtype=torch.float64))
    assert float(angle.abs()) <= tau / 2 + 1e-12
    error = abs(float(angle.sin()) - float(torch.tensor(t * frequency, dtype=torch.float64).sin()))
    assert error <= 1e-15 * abs(t * frequency) + 1e-12


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_released_encodings_to_1e_5_in_float32(seed: int) -> None:
    t = torch.linspace(0, 10, 101)
    start = torch.linspace(0, 8, 16)
    sine, cosine = (start + 0.1 * points(16, seed=seed + k, dtype=torch.float32) for k in (0, 1))
    scale = points(32, seed=seed, dtype=torch.float32)
    made = published_bochner(t, sine, cosine, scale)
    assert made.dtype == torch.float32
    assert float((made - oracle.released_bochner(t, sine, cosine, scale)).abs().max()) < 1e-5
    weights, bias = (
        points(16, 20, seed=seed, dtype=torch.float32) / 4,
        points(16, seed=seed, dtype=torch.float32),
    )
    made = published_mercer(t, sine, weights, bias)
    assert made.dtype == torch.float32
    assert float((made - oracle.released_mercer(t, sine, weights, bias)).abs().max()) < 1e-5


def test_the_released_encodings_are_exact_in_float64() -> None:
    t, start = times(7), torch.linspace(-1, 2, 4, dtype=torch.float64)
    made = published_bochner(t, start, start + 0.1, points(8))
    assert_exact(made, oracle.released_bochner(t, start, start + 0.1, points(8)))
    made = published_mercer(t, start, points(4, 6), points(4))
    assert_exact(made, oracle.released_mercer(t, start, points(4, 6), points(4)))


def test_released_inner_products_are_no_kernel_of_the_lag() -> None:
    # Sines and cosines with frequencies of their own: the same lag, another inner product.
    a, b = torch.zeros(1).double(), torch.ones(1).double()
    made = published_bochner(torch.tensor([0.0, 1.0, 2.0, 3.0]).double(), a, b, torch.ones(2).double())
    gram = made @ made.mT
    assert abs(float(gram[0, 1] - gram[1, 2])) > 0.1


def test_gradients_reach_frequencies_periods_and_amplitudes() -> None:
    t = times(3)
    frequencies, amplitudes = points(2).requires_grad_(), points(2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda f, a: bochner_features(t, f, a), [frequencies, amplitudes])
    periods, rows = points(2).exp().requires_grad_(), points(2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda p, a: mercer_features(t, p, a), [periods, rows])
    exponents, weights, bias = (x.requires_grad_() for x in (points(2), points(2, 4), points(2, seed=1)))
    assert torch.autograd.gradcheck(lambda *args: published_mercer(t, *args), [exponents, weights, bias])
    scale = points(4).requires_grad_()
    sides = points(2).requires_grad_(), points(2, seed=3).requires_grad_(), scale
    assert torch.autograd.gradcheck(lambda *args: published_bochner(t, *args), sides)
    steps = points(3).requires_grad_()
    shares = torch.tensor([0.1, 0.45, 0.8], dtype=torch.float64)
    lowest = torch.zeros((), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda low, up: quantile_frequencies(shares, low, up), [lowest, steps])


def test_the_gradient_of_a_frequency_after_a_decade_is_the_time() -> None:
    t = torch.tensor([DECADE], dtype=torch.float64)
    frequency = torch.ones(1, requires_grad=True)
    bochner_features(t, frequency, torch.ones(1))[..., 1:].sum().backward()
    assert frequency.grad is not None
    assert float(frequency.grad) == pytest.approx(DECADE * float(t.cos()), rel=1e-4)


@given(d=st.integers(1, 9), k=st.integers(1, 9), seed=SEEDS)
def test_quantiles_rise(d: int, k: int, seed: int) -> None:
    shares = (torch.arange(d) + 0.5).double() / d
    made = quantile_frequencies(shares, torch.tensor(0.5).double(), points(k, seed=seed))
    assert bool((made.diff() > 0).all())
    assert float(made.min()) > float(torch.tensor(0.5).exp())


@given(n=st.integers(1, 5), seed=SEEDS)
def test_products_of_features_multiply_kernels(n: int, seed: int) -> None:
    a, b, c, d = (points(n, size, seed=seed + k) for k, size in enumerate((3, 3, 2, 2)))
    made = product_features(a, c) @ product_features(b, d).mT
    assert_exact(made + 10, (a @ b.mT) * (c @ d.mT) + 10)


def test_log_lags_are_odd() -> None:
    t = times(5)
    assert_exact(log_lags(-t, 0.1), -log_lags(t, 0.1))
    assert_exact(log_lags(t, 1.0), (1 + t).log())


def test_words() -> None:
    with pytest.raises(
        ShapeError, match=r"`frequencies` has shape \(2, 1\), expected \(d,\), d of 1 or more"
    ):
        BochnerKernel(torch.ones(2, 1))
    with pytest.raises(ShapeError, match=r"`weights` has shape \(3,\), expected \(2,\)"):
        BochnerKernel(torch.ones(2), torch.ones(3))
    with pytest.raises(BadInput, match=r"BochnerKernel: a frequency is not finite"):
        BochnerKernel(torch.tensor([float("nan")]))
    with pytest.raises(BadInput, match=r"the smallest weight is -1\.0, expected finite and 0 or more"):
        BochnerKernel(torch.ones(2), torch.tensor([1.0, -1.0]))
    with pytest.raises(UnknownName, match=r"BochnerKernel: unknown unit 'day', did you mean 'days'"):
        BochnerKernel(torch.ones(2), unit="day")
    with pytest.raises(UnknownName, match=r"MercerKernel: unknown unit 'fortnights'"):
        mercer().converted("fortnights")
    with pytest.raises(ShapeError, match=r"`periods` has shape \(2,\) and `coefficients` \(3, 2\)"):
        MercerKernel(torch.ones(2), torch.ones(3, 2))
    with pytest.raises(BadInput, match=r"the shortest period is 0\.0, expected above 0"):
        MercerKernel(torch.zeros(1), torch.ones(1, 2))
    with pytest.raises(BadInput, match=r"the smallest coefficient is -1\.0"):
        MercerKernel(torch.ones(1), -torch.ones(1, 2))
