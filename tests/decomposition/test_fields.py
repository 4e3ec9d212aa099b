"""Numbers modulo a prime: products and ranks against loops, the map of stored numbers, the words."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.decomposition import field_product, field_rank, to_field
from kernelhead.decomposition.fields import PRIME, check_prime
from kernelhead.errors import BadInput, ShapeError
from tests.inputs import points
from tests.oracles.separation import rank

PRIMES = (3, 7, 32749, PRIME, 67_108_859)  # the last one is the largest below 2^26


def drawn(*shape: int, prime: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(prime, shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("inner", [1, 5, 70])
def test_products_are_exact(prime: int, inner: int) -> None:
    left, right = drawn(2, 3, inner, prime=prime), drawn(inner, 4, prime=prime, seed=1)
    wanted = [
        [
            [
                sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) % prime
                for column in right.mT.tolist()
            ]
            for row in rows
        ]
        for rows in left.tolist()
    ]
    assert field_product(left, right, prime).tolist() == wanted


@given(
    n=st.integers(1, 12), m=st.integers(1, 12), inner=st.integers(0, 12), seed=st.integers(0, 999),
    prime=st.sampled_from(PRIMES),
)  # fmt: skip
def test_ranks_are_those_of_loops(n: int, m: int, inner: int, seed: int, prime: int) -> None:
    left, right = drawn(n, inner, prime=prime, seed=seed), drawn(inner, m, prime=prime, seed=seed + 1)
    matrix = field_product(left, right, prime)
    assert field_rank(matrix, prime) == rank(matrix.tolist(), prime) <= min(n, m, inner)


@pytest.mark.parametrize("size", [63, 64, 65, 200])
def test_ranks_across_blocks(size: int) -> None:
    """A planted rank, with rows of zeros and repeated ones between."""
    matrix = field_product(drawn(size, 40, prime=PRIME), drawn(40, size, prime=PRIME, seed=1))
    matrix[::7] = 0
    matrix[1::5] = matrix[2]
    assert field_rank(matrix) == field_rank(matrix.mT) == rank(matrix[:90, :90].tolist(), PRIME) == 40
    assert field_rank(drawn(size, size, prime=PRIME)) == size


def test_whole_numbers_of_any_size_and_sign() -> None:
    matrix = torch.tensor([[2**62 + 1, -5], [-(2**61), 7]])
    for prime in PRIMES:
        assert field_rank(matrix, prime) == rank(matrix.tolist(), prime)
    assert field_rank(torch.zeros(0, 3)) == field_rank(torch.zeros(4, 4)) == 0


@given(seed=st.integers(0, 999), prime=st.sampled_from(PRIMES))
def test_stored_numbers_keep_sums_and_products(seed: int, prime: int) -> None:
    """A polynomial of stored numbers, over the rationals and then into the field, and in the field."""
    x = points(6, seed=seed) * torch.tensor([1.0, 1e-200, 1e200, 0.0, -1.0, 2.0**-1074], dtype=torch.float64)
    exact = [Fraction(number) for number in x.tolist()]
    total = exact[0] * exact[1] * exact[2] + exact[3] - exact[4] * exact[4] + exact[5]
    a, b, c, d, e, f = (int(each) for each in to_field(x, prime).tolist())
    wanted = total.numerator * pow(total.denominator, -1, prime) % prime
    assert (a * b * c + d - e * e + f) % prime == wanted


def test_every_precision_is_taken_as_it_is_stored() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = points(5, dtype=dtype)
        assert torch.equal(to_field(x), to_field(x.double()))
    assert to_field(torch.tensor([[-3, 5]]), 7).tolist() == [[4, 5]]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: field_rank(torch.tensor([[0.5]])), BadInput, r"field_rank: `matrix` \(1, 1\) holds entries"),
        (lambda: field_rank(torch.tensor([[torch.inf]])), BadInput, "no whole numbers"),
        (lambda: field_rank(torch.zeros(3)), ShapeError, "field_rank: `matrix` has shape"),
        (lambda: to_field(torch.tensor([torch.nan])), BadInput, "to_field: `numbers` .* hold NaN"),
        (lambda: field_product(torch.zeros(2, 3), torch.zeros(2, 3)), ShapeError, "field_product: axis `k`"),
        (lambda: check_prime("f", 2), BadInput, "f: prime is 2, expected a whole number of at least 3"),
        (lambda: check_prime("f", 91), BadInput, "f: prime is 91, expected an odd prime below 67108864"),
        (lambda: check_prime("f", 67_108_879), BadInput, "expected an odd prime below 67108864"),
        (lambda: field_rank(torch.zeros(1, 1), 4), BadInput, "field_rank: prime is 4"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
