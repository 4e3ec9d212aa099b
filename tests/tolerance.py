"""The one rule for tolerances; see the docs on testing."""

import torch
from torch import Tensor


def assert_exact(actual: Tensor, oracle: Tensor, *, bound: float = 1e-10) -> None:
    """Float64 against the oracle: largest error over largest entry at most `bound`."""
    if actual.shape != oracle.shape:
        raise AssertionError(f"shape {tuple(actual.shape)} is not the oracle's {tuple(oracle.shape)}")
    if actual.dtype not in (torch.float64, torch.complex128):
        raise AssertionError(f"assert_exact compares float64, got {actual.dtype}")
    error = _error(actual, oracle)
    if not error <= bound:
        raise AssertionError(f"relative error {error:.3e} is above {bound:.0e}")


def assert_within(actual: Tensor, *, eager: Tensor, oracle: Tensor) -> None:
    """Float64 as `assert_exact`; lower precision at most twice eager's error plus one rounding."""
    if actual.dtype == torch.float64:
        assert_exact(actual, oracle)
        return
    if actual.shape != oracle.shape or eager.shape != oracle.shape:
        raise AssertionError(
            f"shapes differ: {tuple(actual.shape)}, {tuple(eager.shape)}, {tuple(oracle.shape)}"
        )
    bound = 2 * _error(eager, oracle) + torch.finfo(actual.dtype).eps
    error = _error(actual, oracle)
    if not error <= bound:
        raise AssertionError(f"relative error {error:.3e} is above {bound:.3e}, twice eager's and a rounding")


def assert_same_span(actual: Tensor, expected: Tensor, *, bound: float = 1e-8) -> None:
    """Orthonormal columns (... n s) span the same space: the sine of the largest angle is at most `bound`."""
    if actual.shape != expected.shape:
        raise AssertionError(f"shape {tuple(actual.shape)} is not {tuple(expected.shape)}")
    gap = expected - actual @ (actual.mT @ expected)
    sine = float(torch.linalg.matrix_norm(gap, 2).max())
    if not sine <= bound:
        raise AssertionError(f"sine of the largest angle is {sine:.3e}, above {bound:.0e}")


def _error(actual: Tensor, oracle: Tensor) -> float:
    if actual.numel() == 0:
        return 0.0
    difference = (actual.detach().cpu().double() - oracle.detach().cpu().double()).abs().max()
    return float(difference / oracle.detach().cpu().double().abs().max().clamp_min(1e-300))
