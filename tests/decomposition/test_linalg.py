"""Small linear algebra: bases start orthonormal, blocks change no QR, signs are paired, zeros stay zeros."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.decomposition import orthonormal_columns, paired_signs, tall_qr, unit_frobenius
from kernelhead.decomposition.linalg import inverse_or_zero
from kernelhead.rng import seeded
from tests.inputs import points
from tests.tolerance import assert_exact, assert_same_span

SIZES = st.integers(1, 7)
SEEDS = st.integers(0, 999)
# Starting weights are drawn in float32; a QR errs by its size times a rounding.
ROUNDING = torch.finfo(torch.float32).eps


def identity(*shape: int) -> Tensor:
    return torch.eye(shape[-1], dtype=torch.float64).expand(*shape, shape[-1])


@given(count=st.integers(1, 4), rows=SIZES, columns=SIZES, seed=SEEDS)
def test_every_matrix_starts_orthonormal(count: int, rows: int, columns: int, seed: int) -> None:
    with seeded(seed):
        basis = orthonormal_columns(count, rows, columns)
    assert basis.shape == (count, rows, columns)
    basis = basis.double()
    gram = basis.mT @ basis if rows >= columns else basis @ basis.mT
    assert_exact(gram, identity(count, min(rows, columns)), bound=2 * rows * columns * ROUNDING)


@given(count=st.integers(1, 4), rows=st.integers(2, 7), columns=st.integers(2, 7), seed=SEEDS)
def test_unit_frobenius_is_orthonormal_as_vectors(count: int, rows: int, columns: int, seed: int) -> None:
    with seeded(seed):
        flat = unit_frobenius(count, rows, columns).flatten(1).double()
    assert_exact(flat @ flat.mT, identity(count), bound=2 * count * rows * columns * ROUNDING)


def test_unit_frobenius_has_no_orthonormal_columns() -> None:
    with seeded(0):
        one = unit_frobenius(2, 6, 3)[0]
    assert float((one.mT @ one - torch.eye(3)).abs().max()) > 0.5


@pytest.mark.parametrize("start", [orthonormal_columns, unit_frobenius], ids=lambda start: start.__name__)
def test_weights_follow_the_global_generator(start: Callable[[int, int, int], Tensor]) -> None:
    drawn = []
    for seed in (1, 1, 2):
        with seeded(seed):
            drawn.append(start(2, 5, 3))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@given(batch=st.lists(st.integers(1, 3), max_size=2), n=st.integers(1, 40), p=SIZES, block=SIZES)
def test_blocks_give_the_plain_qr(batch: list[int], n: int, p: int, block: int) -> None:
    matrix = points(*batch, n, p)
    basis, triangle = tall_qr(matrix, block=block)
    plain = torch.linalg.qr(matrix)
    k = min(n, p)
    assert basis.shape == (*batch, n, k)
    assert_exact(basis @ triangle, matrix)
    assert_exact(basis.mT @ basis, identity(*batch, k))
    assert torch.equal(triangle, triangle.triu())
    # A QR of full rank is unique up to one sign for each column of the basis and row of the triangle.
    signs = torch.sign((basis * plain.Q).sum(-2))
    assert_exact(basis * signs.unsqueeze(-2), plain.Q)
    assert_exact(triangle * signs.unsqueeze(-1), plain.R)


@pytest.mark.parametrize("n", [31, 32, 33, 63, 64, 65, 97], ids="n{}".format)
def test_blocks_may_end_anywhere(n: int) -> None:
    matrix = points(n, 5)
    assert_same_span(tall_qr(matrix, block=32)[0], torch.linalg.qr(matrix).Q)


@pytest.mark.parametrize("rank", [0, 1, 3], ids="rank{}".format)
def test_columns_are_orthonormal_where_the_matrix_is_deficient(rank: int) -> None:
    matrix = points(50, rank) @ points(rank, 5, seed=1)
    basis, triangle = tall_qr(matrix, block=16)
    assert_exact(basis.mT @ basis, identity(5))
    assert_exact(basis @ triangle + 1, matrix + 1)


@given(n=SIZES, m=SIZES, s=SIZES, seed=SEEDS)
def test_paired_signs_do_not_change_the_pattern(n: int, m: int, s: int, seed: int) -> None:
    left, right = points(n, s, seed=seed), points(m, s, seed=seed + 1)
    one, other = paired_signs(left, right)
    assert torch.equal(one.abs(), left.abs())
    assert torch.equal(one[:, None] * other[None], left[:, None] * right[None])
    largest = one.gather(-2, one.abs().argmax(-2, keepdim=True))
    assert bool((largest > 0).all())


@given(signs=st.lists(st.sampled_from([-1.0, 1.0]), min_size=4, max_size=4), batch=SIZES)
def test_paired_signs_forget_a_common_sign(signs: list[float], batch: int) -> None:
    left, right, sign = points(batch, 5, 4), points(batch, 3, 4, seed=1), torch.tensor(signs).double()
    for one, other in zip(paired_signs(left, right), paired_signs(left * sign, right * sign), strict=True):
        assert torch.equal(one, other)


def test_columns_of_zeros_keep_their_partner() -> None:
    left, right = torch.zeros(3, 2), torch.ones(4, 2)
    assert torch.equal(paired_signs(left, right)[1], right)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_signs_keep_the_precision(dtype: torch.dtype) -> None:
    left, right = paired_signs(points(3, 2, dtype=dtype), points(4, 2, dtype=dtype))
    assert (left.dtype, right.dtype) == (dtype, dtype)


@given(values=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_an_inverse_is_an_inverse(values: list[float]) -> None:
    given_values = torch.tensor(values, dtype=torch.float64)
    assert_exact(inverse_or_zero(given_values) * given_values, torch.ones_like(given_values))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_value_that_is_zero_up_to_rounding_has_no_inverse(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    values = torch.tensor([[2.0, 1.0, eps, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    expected = torch.tensor([[0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    assert torch.equal(inverse_or_zero(values), expected)
