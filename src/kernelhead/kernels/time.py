"""Kernels of two times: stationary ones by Bochner, periodic ones by Mercer; phases are exact at any span."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import tau
from typing import ClassVar, Self

import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.pattern import Factored
from kernelhead.units import seconds_in


@dataclass(frozen=True, eq=False)
class AbstractTimeKernel(ABC):
    """A positive semi-definite kernel of the difference of two times; subclasses are frozen dataclasses.

    ``features(s) @ features(t).mT`` equals ``gram(s, t)``, which is computed from the differences.

    Attributes:
        formula: the kernel of a difference.
    """

    formula: ClassVar[str]

    @abstractmethod
    def features(self, times: Tensor) -> Tensor:
        """The feature map of both sides, (... n) to (... n p)."""

    @abstractmethod
    def of_lags(self, lags: Tensor) -> Tensor:
        """The kernel as a function of differences, of any shape and to the same."""

    @abstractmethod
    def converted(self, unit: str) -> Self:
        """The same kernel for times in another unit.

        Raises:
            UnknownName: there is no such unit.
        """

    def gram(self, left: Tensor, right: Tensor) -> Tensor:
        """The kernel between two sets of times, (... n) and (... m) to (... n m)."""
        return self.of_lags(left.double().unsqueeze(-1) - right.double().unsqueeze(-2))

    def pattern(self, left: Tensor, right: Tensor) -> Factored:
        """The kernel between two sets of times, as factors; no n-by-m matrix is made."""
        features = self.features(left)
        return Factored(features, features.new_ones(features.shape[-1]), self.features(right))


@dataclass(frozen=True, eq=False)
class BochnerKernel(AbstractTimeKernel):
    r"""A stationary kernel by its spectrum, $\psi(\tau) = \sum_i w_i \cos \omega_i \tau$ with $w_i \ge 0$.

    By Bochner's theorem every continuous stationary kernel is such a sum in the limit.

    Shapes: frequencies (d,), weights (d,); features are 2 d wide, all cosines first.

    Args:
        frequencies: radians in a unit of time.
        weights: not negative; each 1/d by default, so that the kernel is 1 at zero.
        unit: of the times, see `UNITS`.

    Raises:
        ShapeError: the frequencies are not (d,), or the weights have another length.
        BadInput: a frequency is not finite, or a weight is negative.
        UnknownName: there is no such unit.

    Example:
        >>> kernel = BochnerKernel(torch.tensor([1.0, 2.0]))
        >>> s, t = torch.tensor([0.0, 3.0]), torch.tensor([3.0])
        >>> torch.allclose(kernel.features(s) @ kernel.features(t).mT, kernel.gram(s, t))
        True
        >>> kernel.gram(t, t)
        tensor([[1.]])
    """

    frequencies: Tensor
    weights: Tensor | None = None
    unit: str = "days"

    formula: ClassVar[str] = r"\sum_i w_i \cos(\omega_i (s - t))"

    def __post_init__(self) -> None:
        seconds_in("BochnerKernel", self.unit)
        shape = tuple(self.frequencies.shape)
        if len(shape) != 1 or not shape[0]:
            raise ShapeError(f"BochnerKernel: `frequencies` has shape {shape}, expected (d,), d of 1 or more")
        if self.weights is not None and tuple(self.weights.shape) != shape:
            raise ShapeError(
                f"BochnerKernel: `weights` has shape {tuple(self.weights.shape)}, expected {shape}"
            )
        if not bool(self.frequencies.isfinite().all()):
            raise BadInput("BochnerKernel: a frequency is not finite")
        _check_weights("BochnerKernel", "weight", self.weights)

    def features(self, times: Tensor) -> Tensor:
        """Cosines, then sines, each times the root of its weight."""
        return bochner_features(times, self.frequencies, self._weights.sqrt())

    def of_lags(self, lags: Tensor) -> Tensor:
        """A sum of cosines."""
        angle = _rounded(phases(lags, self.frequencies), self.frequencies)
        return (angle.cos() * self._weights).sum(-1)

    def converted(self, unit: str) -> Self:
        """The same kernel for times in another unit."""
        factor = seconds_in("BochnerKernel", unit) / seconds_in("BochnerKernel", self.unit)
        return replace(self, frequencies=self.frequencies.double() * factor, unit=unit)

    @property
    def _weights(self) -> Tensor:
        if self.weights is not None:
            return self.weights
        return torch.full_like(self.frequencies, 1 / len(self.frequencies))


@dataclass(frozen=True, eq=False)
class MercerKernel(AbstractTimeKernel):
    r"""A sum of periodic kernels, $\sum_p \sum_{j=0}^J c_{pj} \cos(2\pi j \tau / T_p)$ with $c_{pj} \ge 0$.

    By Mercer's theorem the eigenfunctions of a stationary kernel of period T are the Fourier basis; a sine
    and a cosine of one harmonic share their eigenvalue, or the kernel would not be stationary.

    Shapes: periods (k,), coefficients (k, J + 1) from the constant on; features are k (2 J + 1) wide, a
    period after the other, each with its constant, its cosines and its sines.

    Args:
        periods: in the unit of the times.
        coefficients: not negative.
        unit: of the times, see `UNITS`.

    Raises:
        ShapeError: the coefficients are not a row for each period.
        BadInput: a period is not above zero, or a coefficient is negative.
        UnknownName: there is no such unit.

    Example:
        >>> kernel = MercerKernel(torch.tensor([7.0]), torch.tensor([[0.5, 0.3, 0.2]]))
        >>> kernel.gram(torch.tensor([1.0]), torch.tensor([15.0])).round(decimals=4)
        tensor([[1.]])
        >>> kernel.features(torch.tensor([1.0])).shape
        torch.Size([1, 5])
    """

    periods: Tensor
    coefficients: Tensor
    unit: str = "days"

    formula: ClassVar[str] = r"\sum_p \sum_j c_{pj} \cos(2 \pi j (s - t) / T_p)"

    def __post_init__(self) -> None:
        seconds_in("MercerKernel", self.unit)
        shape, wanted = tuple(self.coefficients.shape), tuple(self.periods.shape)
        if len(shape) != 2 or not shape[0] or not shape[1] or wanted != shape[:1]:
            raise ShapeError(
                f"MercerKernel: `periods` has shape {wanted} and `coefficients` {shape}, expected (k,) and "
                "(k, J + 1)"
            )
        if not bool(((self.periods > 0) & self.periods.isfinite()).all()):
            raise BadInput(
                f"MercerKernel: the shortest period is {float(self.periods.min())}, expected above 0"
            )
        _check_weights("MercerKernel", "coefficient", self.coefficients)

    def features(self, times: Tensor) -> Tensor:
        """Constant, cosines and sines of every period, each times the root of its coefficient."""
        return mercer_features(times, self.periods, self.coefficients.sqrt())

    def of_lags(self, lags: Tensor) -> Tensor:
        """A sum of Fourier series."""
        angle = _harmonics(lags, self.periods, self.coefficients.shape[1] - 1)  # (... k J)
        constant, rest = self.coefficients[:, 0], self.coefficients[:, 1:]
        return constant.sum() + (angle.cos() * rest).sum((-2, -1))

    def converted(self, unit: str) -> Self:
        """The same kernel for times in another unit."""
        factor = seconds_in("MercerKernel", self.unit) / seconds_in("MercerKernel", unit)
        return replace(self, periods=self.periods.double() * factor, unit=unit)


def phases(times: Tensor, frequencies: Tensor) -> Tensor:
    r"""$\omega t$ without its whole turns, in $[-\pi, \pi]$ and in float64.

    What is left can be rounded to float32: ten years of seconds then have the phase of their last second,
    where a product in float32 would be off by whole radians.

    Shapes: times (...), frequencies (f...); returns (... f...).

    Example:
        >>> decade = torch.tensor([3e8], dtype=torch.float64)  # in seconds, one radian each
        >>> bool((phases(decade, torch.ones(1)).float().sin() - decade.sin()).abs() < 1e-6)
        True
    """
    times, rates = times.double(), frequencies.double() / tau
    turns = times.reshape(*times.shape, *[1] * rates.dim()) * rates
    return tau * (turns - turns.detach().round())


def bochner_features(times: Tensor, frequencies: Tensor, amplitudes: Tensor) -> Tensor:
    r"""$a_i \cos \omega_i t$ for all i, then $a_i \sin \omega_i t$; amplitudes are roots of weights.

    Shapes: times (... n), frequencies (d,), amplitudes (d,); returns (... n 2d).

    Example:
        >>> bochner_features(torch.zeros(1), torch.ones(2), torch.ones(2))
        tensor([[1., 1., 0., 0.]])
    """
    angle = _rounded(phases(times, frequencies), frequencies)
    return torch.cat([amplitudes * angle.cos(), amplitudes * angle.sin()], dim=-1)


def mercer_features(times: Tensor, periods: Tensor, amplitudes: Tensor) -> Tensor:
    r"""For each period $a_{p0}$, all $a_{pj} \cos(2\pi j t/T_p)$ and all $a_{pj} \sin(2\pi j t/T_p)$.

    Amplitudes are roots of coefficients; those of either sign are of the same kernel.

    Shapes: times (... n), periods (k,), amplitudes (k, J + 1); returns (... n k(2J + 1)).

    Example:
        >>> mercer_features(torch.zeros(1), torch.ones(1), torch.ones(1, 3))
        tensor([[1., 1., 1., 0., 0.]])
    """
    angle = _harmonics(times, periods, amplitudes.shape[1] - 1)  # (... n k J)
    constant, rest = amplitudes[:, :1], amplitudes[:, 1:]
    parts = constant.expand(*angle.shape[:-1], 1), rest * angle.cos(), rest * angle.sin()
    return torch.cat(parts, dim=-1).flatten(-2)


def published_bochner(times: Tensor, sine: Tensor, cosine: Tensor, scale: Tensor) -> Tensor:
    r"""$\beta \odot [\sin(t\,10^{-a}), \cos(t\,10^{-b})]$, as released; no kernel's features.

    Sines and cosines have frequencies of their own, so that inner products depend on both times.

    Shapes: times (... n), sine a (d,), cosine b (d,), scale (2d,); returns (... n 2d).

    Example:
        >>> zero = torch.zeros(1)
        >>> published_bochner(zero, zero, zero, torch.ones(2))
        tensor([[0., 1.]])
    """
    sines, cosines = (_rounded(phases(times, 10.0 ** -each.double()), each) for each in (sine, cosine))
    return scale * torch.cat([sines.sin(), cosines.cos()], dim=-1)


def published_mercer(times: Tensor, exponents: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    r"""$\sum_j A_{pj} \sin(j t\,10^{-q_p}) + B_{pj} \cos(j t\,10^{-q_p})$ and a bias, as released.

    Weights have any sign and harmonics are summed: a learned periodic function, not the features of a kernel.

    Shapes: times (... n), exponents q (k,), weights [A B] (k, 2J), bias (k,); returns (... n k).

    Example:
        >>> published_mercer(torch.zeros(1), torch.zeros(1), torch.ones(1, 4), torch.ones(1))
        tensor([[3.]])
    """
    rates = 10.0 ** -exponents.double()
    angle = _multiples(_rounded(phases(times, rates), exponents), weights.shape[1] // 2)  # (... n k J)
    return (torch.cat([angle.sin(), angle.cos()], dim=-1) * weights).sum(-1) + bias


def quantile_frequencies(shares: Tensor, lowest: Tensor, steps: Tensor) -> Tensor:
    r"""Frequencies $F^{-1}(u)$ of a learned distribution; $\log F^{-1}$ rises and is piecewise linear.

    Shapes: shares u (d,) in (0, 1), lowest (), steps (k,); returns (d,), rising with u.

    Args:
        shares: which quantiles.
        lowest: logarithm of the lowest frequency.
        steps: before a softplus, how much the logarithm rises over each of k equal parts of (0, 1).

    Example:
        >>> made = quantile_frequencies(torch.tensor([0.1, 0.5, 0.9]), torch.tensor(0.0), torch.zeros(4))
        >>> bool((made.diff() > 0).all())
        True
    """
    part = torch.arange(len(steps), device=steps.device)
    passed = (shares[:, None] * len(steps) - part).clamp(0, 1)  # (d, k)
    return (lowest + passed.to(steps.dtype) @ torch.nn.functional.softplus(steps)).exp()


def log_lags(times: Tensor, shortest: float) -> Tensor:
    r"""$\operatorname{sign}(t) \log(1 + |t| / t_0)$ in float64: a scalar that tells days and years apart.

    Args:
        times: t, one lag an entry.
        shortest: the lag $t_0$ from which on it grows as a logarithm.

    Example:
        >>> log_lags(torch.tensor([0.0, -1.0]), 1.0)
        tensor([ 0.0000, -0.6931], dtype=torch.float64)
    """
    times = times.double()
    return times.sign() * (times.abs() / shortest).log1p()


def product_features(left: Tensor, right: Tensor) -> Tensor:
    """Every feature times every other of the same row: inner products multiply, as those of `cat` add.

    Shapes: left (... n p), right (... n r); returns (... n pr).

    Example:
        >>> product_features(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]]))
        tensor([[ 3.,  5.,  6., 10.]])
    """
    return (left.unsqueeze(-1) * right.unsqueeze(-2)).flatten(-2)


def _harmonics(times: Tensor, periods: Tensor, count: int) -> Tensor:
    """Angles of 1 to `count` waves in each period: times (...), periods (k,) to (... k count)."""
    return _multiples(_rounded(phases(times, tau / periods.double()), periods), count)


def _multiples(angle: Tensor, count: int) -> Tensor:
    """1 to `count` times a reduced angle: whole turns that were left out of it stay whole."""
    return angle.unsqueeze(-1) * torch.arange(1, count + 1, device=angle.device)


def _rounded(angle: Tensor, like: Tensor) -> Tensor:
    """A reduced angle in the precision of what it is made with, float32 or better."""
    return angle.to(torch.promote_types(like.dtype, torch.float32))


def _check_weights(who: str, what: str, weights: Tensor | None) -> None:
    if weights is not None and not bool(((weights >= 0) & weights.isfinite()).all()):
        raise BadInput(f"{who}: the smallest {what} is {float(weights.min())}, expected finite and 0 or more")
