"""Exact arithmetic modulo a prime: real numbers as they are stored, products, and ranks of matrices."""

from math import frexp, isqrt

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.shapes import check_axes, check_size

PRIME = 2_097_143  # the largest below 2^21
BITS = 53  # of a whole number that float64 holds
BLOCK = 64  # rows that are reduced together


def to_field(numbers: Tensor, prime: int = PRIME) -> Tensor:
    r"""Numbers modulo a prime, exactly: a stored number is $m 2^e$, and 2 has an inverse.

    Sums and products of what is stored go over into sums and products modulo the prime, so that a polynomial
    of weights can be computed without rounding.

    Shapes: any; returns the same, whole numbers from 0 to prime - 1 in float64.

    Args:
        numbers: finite, of any dtype.
        prime: odd, below 2^26.

    Raises:
        BadInput: a number is not finite, or `prime` is no such prime.

    Example:
        >>> to_field(torch.tensor([5.0, -1.0, 0.5]), prime=7)
        tensor([5., 6., 4.], dtype=torch.float64)
    """
    check_prime("to_field", prime)
    if not torch.isfinite(numbers).all():
        raise BadInput(f"to_field: `numbers` {tuple(numbers.shape)} hold NaN or infinity")

    def element(number: float) -> int:
        part, exponent = frexp(number)
        return int(part * 2**BITS) * pow(2, exponent - BITS, prime) % prime

    found = [element(number) for number in numbers.detach().double().flatten().tolist()]
    return torch.tensor(found, dtype=torch.float64, device=numbers.device).view(numbers.shape)


def field_product(left: Tensor, right: Tensor, prime: int = PRIME) -> Tensor:
    """The product of matrices modulo a prime, by float64 products that are short enough to be exact.

    Shapes: left (... n k), right (... k m), elements of the field in float64; returns (... n m).

    Raises:
        ShapeError: the inner axes differ.
        BadInput: `prime` is no such prime.

    Example:
        >>> field_product(torch.full((1, 2), 6.0).double(), torch.full((2, 1), 5.0).double(), prime=7)
        tensor([[4.]], dtype=torch.float64)
    """
    check_prime("field_product", prime)
    check_axes("field_product", left=(left, "... n k"), right=(right, "... k m"))
    return _product(left, right, prime)


def field_rank(matrix: Tensor, prime: int = PRIME) -> int:
    """The rank of a matrix modulo a prime; a matrix of whole numbers has this rank or a larger one.

    Rows are reduced in blocks against the reduced rows before them, which takes two products a block and
    O(n m min(n, m)) in all.

    Shapes: matrix (n, m), whole numbers of any dtype.

    Args:
        matrix: its entries are taken modulo the prime.
        prime: odd, below 2^26.

    Raises:
        ShapeError: not a matrix.
        BadInput: an entry is not a whole number, or `prime` is no such prime.

    Example:
        >>> field_rank(torch.tensor([[1, 2], [3, 6]])), field_rank(torch.tensor([[7, 0], [0, 1]]), prime=7)
        (1, 1)
    """
    check_prime("field_rank", prime)
    check_axes("field_rank", matrix=(matrix, "n m"))
    if matrix.is_floating_point() and not bool((matrix.frac() == 0).all()):
        raise BadInput(f"field_rank: `matrix` {tuple(matrix.shape)} holds entries that are no whole numbers")
    whole = matrix.double() if matrix.is_floating_point() else (matrix.long() % prime).double()
    known = whole.new_zeros(0, matrix.shape[1])  # reduced: the columns `pivots` are those of the identity
    pivots: list[int] = []
    for block in (whole % prime).split(BLOCK):
        block = (block - _product(block[:, pivots], known, prime)) % prime
        block, new = _reduced(block, prime)
        known = torch.cat([(known - _product(known[:, new], block, prime)) % prime, block])
        pivots += new
    return len(pivots)


def check_prime(who: str, prime: int) -> int:
    """Check that a number is an odd prime below 2^26, whose products float64 holds, and return it.

    Raises:
        BadInput: it is something else.

    Example:
        >>> check_prime("f", 32749)
        32749
    """
    check_size(who, "prime", prime, least=3)
    if prime >= 2 ** (BITS // 2) or any(prime % factor == 0 for factor in range(2, isqrt(prime) + 1)):
        raise BadInput(f"{who}: prime is {prime}, expected an odd prime below {2 ** (BITS // 2)}")
    return prime


def _product(left: Tensor, right: Tensor, prime: int) -> Tensor:
    most = 2**BITS // (prime - 1) ** 2  # products that can be summed
    if left.shape[-1] <= most:
        return (left @ right) % prime
    parts = zip(left.split(most, dim=-1), right.split(most, dim=-2), strict=True)
    made = [(one @ other) % prime for one, other in parts]
    return torch.stack(made).sum(0) % prime


def _reduced(block: Tensor, prime: int) -> tuple[Tensor, list[int]]:
    """The rows of a block that are left when each has a one where all others have zeros, and where."""
    pivots: list[int] = []
    rows: list[int] = []
    for row in range(len(block)):
        places = block[row].nonzero()
        if not len(places):
            continue
        place = int(places[0])
        block[row] = block[row] * pow(int(block[row, place]), -1, prime) % prime
        factors = block[:, place].clone()
        factors[row] = 0
        block = (block - factors[:, None] * block[row]) % prime
        pivots.append(place)
        rows.append(row)
    return block[rows], pivots
