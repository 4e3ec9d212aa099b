"""Claims on the objective J of the primal problem: zero at a kernel SVD, and only there.

The first is Lemma 4.2 of Primal-Attention (arXiv 2305.19798). The second is the hope with which J squared
is added to a loss; it is one equation a head, and many weights that solve nothing fulfil it.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernelhead.decomposition import ksvd_dense, objective
from kernelhead.kernels import named_kernel
from tests.inputs import points
from tests.oracles import ksvd as oracle
from tests.tolerance import assert_exact

VERDICTS = {
    "J is zero at every solution of the shifted eigenproblem": "holds",
    "J is zero only at a solution of the shifted eigenproblem": "does not hold",
}

LEFT, RIGHT = points(9, 4), points(7, 4, seed=1)
KERNELS = {
    **{name: named_kernel(name, width=4).entries(LEFT, RIGHT) for name in ("identity", "cosine", "elu")},
    "softmax": (LEFT @ RIGHT.mT / 2).softmax(-1),
    "symmetric": LEFT @ LEFT.mT,
    "rank one": LEFT[:, :1] @ RIGHT[:, :1].mT,
}
VALUES = torch.tensor([1.0, 0.5], dtype=torch.float64)
Weights = tuple[Tensor, Tensor, Tensor]


def terms(left_weight: Tensor, right_weight: Tensor, values: Tensor) -> Tensor:
    """Left, right and coupling term of J for the features LEFT and RIGHT."""
    left, right = (LEFT @ left_weight).square().sum(0), (RIGHT @ right_weight).square().sum(0)
    return torch.stack(
        [(values * left).sum() / 2, (values * right).sum() / 2, (left_weight * right_weight).sum()]
    )


def distance(left_weight: Tensor, right_weight: Tensor, values: Tensor) -> float:
    """How far weights are from a solution, from 0 to 1: stationarity W_e = B'R Lambda and W_r = A'E Lambda.

    A weight of zero is stationary too, but carries no singular vector: it counts as 1.
    """
    left_gap = left_weight - RIGHT.mT @ (RIGHT @ right_weight * values)
    right_gap = right_weight - LEFT.mT @ (LEFT @ left_weight * values)
    both = (left_weight, right_weight, left_weight - left_gap, right_weight - right_gap)
    size = float(torch.stack([part.norm() for part in both]).sum())
    return float(left_gap.norm() + right_gap.norm()) / size if size else 1.0


def solution(components: list[int]) -> Weights:
    """Weights and Lambda of some singular components of LEFT RIGHT'."""
    left, values, right = oracle.kernel_svd(LEFT @ RIGHT.mT)
    weights = oracle.primal_weights(LEFT, RIGHT, left[:, components], right[:, components])
    return *weights, 1 / values[components]


def zero_weights() -> Weights:
    return torch.zeros(4, 2).double(), torch.zeros(4, 2).double(), VALUES


def orthogonal_weights_without_lambda() -> Weights:
    basis = torch.linalg.qr(points(4, 4)).Q
    return basis[:, :2], basis[:, 2:], torch.zeros(2).double()


def random_weights_with_a_fitted_lambda() -> Weights:
    weight = points(4, 2)
    left, right, coupling = terms(weight, weight, VALUES)
    return weight, weight, VALUES * coupling / (left + right)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_j_is_zero_at_a_solution(kernel: Tensor) -> None:
    for rank in range(1, min(kernel.shape) + 1):
        result = ksvd_dense(kernel, rank=rank)
        assert_exact(result.trace + result.objective, result.trace)
        by_lemma = oracle.dual_objective(result.left, result.values, result.right)
        assert_exact(result.trace + by_lemma, result.trace)


@pytest.mark.parametrize("components", [[0], [0, 1], [3], [1, 3]], ids=str)
def test_j_is_zero_at_any_components_not_only_the_top(components: list[int]) -> None:
    weights = solution(components)
    left, right, coupling = terms(*weights)
    assert_exact(left + right, coupling)
    assert distance(*weights) <= 1e-10


@pytest.mark.parametrize(
    "weights",
    [zero_weights, orthogonal_weights_without_lambda, random_weights_with_a_fitted_lambda],
    ids=lambda weights: weights.__name__,
)
def test_j_is_zero_far_from_any_solution(weights: Callable[[], Weights]) -> None:
    left_weight, right_weight, values = weights()
    moments = (LEFT @ left_weight).square().sum(0), (RIGHT @ right_weight).square().sum(0)
    made = objective(*moments, values, (left_weight * right_weight).sum())
    assert abs(float(made)) <= 1e-10
    assert distance(left_weight, right_weight, values) > 0.1


def test_heads_cancel_in_a_mean_of_j() -> None:
    weight = points(4, 2)
    left, right, coupling = terms(weight, weight, VALUES)
    above, below = (
        terms(weight, weight, VALUES * factor * coupling / (left + right)) for factor in (1.5, 0.5)
    )
    one, other = above[0] + above[1] - above[2], below[0] + below[1] - below[2]
    assert_exact(one, -other)
    assert float(one) > 0.1
