"""Low rank plus sparse: what it recovers, its laws, its words."""

import math
import re
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.decomposition import RobustPCA, rpca
from kernelhead.errors import BadInput, ShapeError
from tests.inputs import points
from tests.oracles import rpca as oracle
from tests.tolerance import assert_exact

# Rows, columns, rank, corrupted entries: within reach of the theory.
PLANTED = {
    "square": (50, 50, 2, 120),
    "wide": (30, 60, 2, 80),
    "tall": (60, 30, 2, 80),
    "very wide": (20, 120, 1, 60),
    "very tall": (120, 20, 1, 60),
    "rank one": (40, 40, 1, 100),
    "rank four": (70, 70, 4, 150),
}


def planted(n: int, m: int, rank: int, hit: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A low-rank matrix of incoherent factors, and a sparse one as large at random places."""
    left, right = (torch.linalg.qr(points(size, rank, seed=seed + i))[0] for i, size in enumerate((n, m)))
    # Singular vectors with entries of one size are as far from sparse as they can be.
    left, right = left.sign() + left, right.sign() + right
    low = left @ right.mT
    places = torch.randperm(n * m, generator=torch.Generator().manual_seed(seed))[:hit]
    sparse = torch.zeros(n * m, dtype=torch.float64)
    sparse[places] = 5 * low.abs().mean() * points(hit, seed=seed + 2).sign()
    return low, sparse.view(n, m)


def relative(gap: Tensor, whole: Tensor) -> float:
    return float(torch.linalg.matrix_norm(gap) / torch.linalg.matrix_norm(whole))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", PLANTED.values(), ids=PLANTED)
def test_planted_parts_come_back(shape: tuple[int, int, int, int], seed: int) -> None:
    low, sparse = planted(*shape, seed=10 * seed)
    found = rpca(low + sparse)
    assert bool(found.converged)
    assert relative(found.low - low, low) < 1e-6
    assert relative(found.sparse - sparse, sparse) < 1e-6
    assert int(found.rank) == shape[2] == int(torch.linalg.matrix_rank(found.low, rtol=1e-9))
    assert torch.equal(found.sparse != 0, sparse != 0)


def test_the_flipped_sign_recovers_nothing() -> None:
    low, sparse = planted(40, 30, 2, 60)
    right, _ = oracle.pursuit(low + sparse, iterations=60)
    flipped, _ = oracle.pursuit(low + sparse, iterations=60, sign=-1.0)
    assert relative(right - low, low) < 1e-6
    assert relative(flipped - low, low) > 1
    assert relative(rpca(low + sparse).low - low, low) < 1e-6


@pytest.mark.parametrize("rounds", [1, 2, 7, 20], ids="rounds{}".format)
@pytest.mark.parametrize(("n", "m"), [(8, 6), (6, 8), (7, 7), (1, 5), (5, 1), (1, 1)], ids=str)
def test_every_round_is_the_oracles(n: int, m: int, rounds: int) -> None:
    matrix = points(n, m)
    found = rpca(matrix, tolerance=1e-300, most=rounds)
    low, sparse = oracle.pursuit(matrix, iterations=rounds)
    # Either part may be zero, so that both are measured by the matrix.
    assert_exact((found.low - low) / matrix.norm() + 1, torch.ones(n, m, dtype=torch.float64))
    assert_exact((found.sparse - sparse) / matrix.norm() + 1, torch.ones(n, m, dtype=torch.float64))
    assert int(found.iterations) <= rounds
    assert_exact(found.residual + 1, (matrix - low - sparse).norm() / matrix.norm() + 1)


@pytest.mark.parametrize("options", [{"sparsity": 0.5}, {"mu": 0.7}, {"sparsity": 0.2, "mu": 2.0}], ids=str)
def test_price_and_step_are_the_oracles(options: dict[str, float]) -> None:
    matrix = points(7, 5)
    found = rpca(matrix, tolerance=1e-300, most=15, **options)
    low, sparse = oracle.pursuit(matrix, iterations=15, price=options.get("sparsity"), mu=options.get("mu"))
    assert_exact(found.low, low)
    assert_exact(found.sparse + matrix.norm(), sparse + matrix.norm())


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0], ids=str)
def test_the_step_does_not_change_the_solution(mu: float) -> None:
    low, sparse = planted(30, 30, 1, 30)
    found, usual = rpca(low + sparse, mu=mu, most=5000), rpca(low + sparse)
    assert bool(found.converged)
    assert relative(found.low - usual.low, low) < 1e-5


def test_nothing_near_it_is_better() -> None:
    matrix, price = points(12, 9), 1 / math.sqrt(12)
    found = rpca(matrix, tolerance=1e-10, most=5000)
    assert bool(found.converged)
    least = oracle.objective(found.low, matrix - found.low, price)
    for seed in range(20):
        other = found.low + 1e-2 * points(12, 9, seed=seed + 1)
        assert oracle.objective(other, matrix - other, price) > least


@given(n=st.integers(1, 8), m=st.integers(1, 8), seed=st.integers(0, 999), size=st.integers(-9, 9))
def test_both_parts_sum_to_the_input(n: int, m: int, seed: int, size: int) -> None:
    matrix = 10.0**size * points(n, m, seed=seed)
    found = rpca(matrix)
    gap = relative(matrix - found.low - found.sparse, matrix)
    assert abs(gap - float(found.residual)) <= 1e-12
    assert gap <= 1e-7 or not bool(found.converged)
    assert 0 <= int(found.rank) <= min(n, m)
    assert 1 <= int(found.iterations) <= 1000


@given(seed=st.integers(0, 99), size=st.sampled_from([1e-200, 1e-3, 1.0, 1e4, 1e200]))
def test_another_unit_scales_both_parts(seed: int, size: float) -> None:
    matrix = points(6, 5, seed=seed)
    one, other = rpca(matrix, most=50), rpca(size * matrix, most=50)
    assert_exact(other.low / size + 9, one.low + 9)
    assert_exact(other.sparse / size + 9, one.sparse + 9)


@given(n=st.integers(1, 6), m=st.integers(1, 6), seed=st.integers(0, 99))
def test_transposing_transposes_both_parts(n: int, m: int, seed: int) -> None:
    matrix = points(n, m, seed=seed)
    one, other = rpca(matrix, most=50), rpca(matrix.mT, most=50)
    assert_exact(other.low.mT + 9, one.low + 9)
    assert_exact(other.sparse.mT + 9, one.sparse + 9)


@pytest.mark.parametrize("mu", [None, 0.5], ids=str)
def test_zeros_stay_zeros(mu: float | None) -> None:
    found = rpca(torch.zeros(4, 3), mu=mu)
    assert not found.low.any()
    assert not found.sparse.any()
    assert bool(found.converged)
    assert (int(found.rank), int(found.iterations), float(found.residual)) == (0, 1, 0.0)


def test_a_rank_one_matrix_has_nothing_sparse() -> None:
    matrix = torch.outer(points(20).sign(), points(15, seed=1).sign())
    found = rpca(matrix)
    assert int(found.rank) == 1
    assert relative(found.low - matrix, matrix) < 1e-6
    assert float(found.sparse.abs().max()) < 1e-6


def test_a_low_price_calls_everything_sparse() -> None:
    matrix = points(6, 5)
    found = rpca(matrix, sparsity=1e-3)
    assert int(found.rank) == 0
    assert not found.low.any()
    assert relative(found.sparse - matrix, matrix) < 1e-6


def test_a_high_price_calls_nothing_sparse() -> None:
    matrix = points(6, 5)
    found = rpca(matrix, sparsity=10.0)
    assert not found.sparse.any()
    assert relative(found.low - matrix, matrix) < 1e-6


def test_too_few_rounds_are_said_by_the_result() -> None:
    low, sparse = planted(30, 30, 2, 40)
    found = rpca(low + sparse, most=3)
    assert not bool(found.converged)
    assert int(found.iterations) == 3
    assert float(found.residual) > 1e-7


def test_a_small_primal_residual_is_not_enough() -> None:
    # With a huge step nothing is shrunk: the first round is feasible, and far from optimal.
    found = rpca(points(8, 6), mu=1e6, tolerance=1e-5, most=2)
    assert float(found.residual) < 1e-5
    assert not bool(found.converged)


@given(batch=st.lists(st.integers(1, 3), min_size=1, max_size=2))
def test_a_batch_is_its_slices(batch: list[int]) -> None:
    matrices = points(*batch, 5, 4)
    whole = rpca(matrices, most=100)
    last = tuple(size - 1 for size in batch)
    alone = rpca(matrices[last], most=100)
    assert whole.low.shape == whole.sparse.shape == matrices.shape
    for field in fields(RobustPCA):
        assert torch.equal(getattr(whole, field.name)[last], getattr(alone, field.name)), field.name
    for name in ("rank", "residual", "iterations", "converged"):
        assert getattr(whole, name).shape == tuple(batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_other_precisions_are_solved_in_float64(dtype: torch.dtype) -> None:
    matrix = (3 * points(8, 6)).to(dtype)
    found, wide = rpca(matrix), rpca(matrix.double())
    kept = dtype if dtype.is_floating_point else torch.float64
    assert found.low.dtype == found.sparse.dtype == kept
    assert torch.equal(found.low, wide.low.to(kept))
    assert torch.equal(found.iterations, wide.iterations)


def test_the_same_input_gives_the_same_bits_and_is_not_changed() -> None:
    matrix = points(8, 6).requires_grad_()
    before, state = matrix.detach().clone(), torch.get_rng_state()
    one, same = rpca(matrix), rpca(matrix)
    assert torch.equal(one.low, same.low)
    assert torch.equal(matrix, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert not one.low.requires_grad


def test_a_result_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'low'"):
        rpca(points(3, 3)).low = points(3, 3)  # type: ignore[misc]


def test_a_row_is_no_matrix() -> None:
    with pytest.raises(
        ShapeError, match=re.escape("rpca: `matrix` has shape (5,), but its axes are (... n m)")
    ):
        rpca(points(5))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 3, 3)], ids=str)
def test_no_entries_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match=re.escape(f"rpca: the matrix {shape} has no entries")):
        rpca(torch.zeros(shape))


@pytest.mark.parametrize("hole", [float("nan"), float("inf")], ids=str)
def test_what_is_not_finite_is_named(hole: float) -> None:
    matrix = points(4, 3)
    matrix[2, 1] = hole
    with pytest.raises(BadInput, match=r"rpca: the matrix \(4, 3\) holds NaN or infinity"):
        rpca(matrix)


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(BadInput, match=r"rpca: the matrix \(2, 2\) is complex, expected real numbers"):
        rpca(torch.eye(2, dtype=torch.complex128))


@pytest.mark.parametrize("option", [0, -1.0, float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("name", ["sparsity", "mu", "tolerance"])
def test_an_option_that_is_not_positive_is_named(name: str, option: float) -> None:
    options: dict[str, Any] = {name: option}
    with pytest.raises(BadInput, match=f"rpca: {name} is {option}, expected a finite number above 0"):
        rpca(points(3, 3), **options)


def test_a_count_of_rounds_that_is_no_size_is_named() -> None:
    with pytest.raises(BadInput, match="rpca: most is 0, expected a whole number of at least 1"):
        rpca(points(3, 3), most=0)
