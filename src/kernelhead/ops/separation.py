"""What L polynomial attentions in a row can express: their rank between two sides of the inputs."""

from math import comb, e, fsum, inf, log, sqrt

from kernelhead.errors import BadInput
from kernelhead.shapes import check_size


def nested_sums(depth: int) -> int:
    r"""$C = (3^L - 1) / 2$: sums over all points in L polynomial attentions in a row, of degree 2C + 1.

    Example:
        >>> [nested_sums(depth) for depth in range(4)]
        [0, 1, 4, 13]
    """
    return (3 ** check_size("nested_sums", "depth", depth, least=0) - 1) // 2


def generic_rank(depth: int, width: int) -> int:
    r"""Separation rank $\binom{d + C}{C}$ of one point from another, for generic weights.

    The other point enters with even degrees 2k and the first with the complement, so that the rank is at most
    $\sum_{k \le C} \binom{k + d - 1}{d - 1}$, which is that number. Random weights attain it in every case
    that was computed, with any heads of two features or more; heads of one feature have less from width 4
    on. With more points a side the rank is larger.

    Args:
        depth: layers, L.
        width: features of a point, d.

    Raises:
        BadInput: a size is out of range.

    Example:
        >>> [generic_rank(2, width) for width in (2, 3, 4)], generic_rank(3, 2)
        ([15, 35, 70], 105)
    """
    return comb(check_size("generic_rank", "width", width) + nested_sums(depth), width)


def log_separation_rank(depth: int, width: int, *, base: float = 3.0) -> float:
    """The logarithm of `generic_rank`, without the number itself, which soon has more digits than atoms.

    It grows as C log(e d / C), three times a layer, while C is far below d, and as d L, by d a layer to
    base 3, once C is far above it.

    Args:
        depth: layers, L.
        width: features of a point, d.
        base: of the logarithm.

    Raises:
        BadInput: a size is out of range, or `base` is not above 1.

    Example:
        >>> round(log_separation_rank(97, 12288) - log_separation_rank(96, 12288), 3)
        12288.0
    """
    if not base > 1:
        raise BadInput(f"log_separation_rank: base is {base!r}, expected a number above 1")
    small, large = sorted((check_size("log_separation_rank", "width", width), nested_sums(depth)))
    return fsum(log(large + each) - log(each) for each in range(1, small + 1)) / log(base)


def separation_bounds(depth: int, width: int, heads: int = 1) -> tuple[float, float]:
    r"""The published bounds on the logarithm of the separation rank to base 3, for balanced sides.

    With a, b, c of the theorem: $3^{L-2} (\log_3 (d - H) + a)$ and $C \log_3 (d + H)$ up to
    $L = \log_3 d$, $\frac12 d L + b$ and $2 d L + c$ from there on.

    Args:
        depth: layers, L.
        width: features of a point, d.
        heads: of every layer, H.

    Raises:
        BadInput: a size is out of range.

    Example:
        >>> low, high = separation_bounds(2, 64)
        >>> low < log_separation_rank(2, 64) < high
        True
    """
    for name, size in {"depth": depth, "width": width, "heads": heads}.items():
        check_size("separation_bounds", name, size)
    left = _log3(width - heads) if width > heads else -inf
    if depth <= _log3(width):
        return 3.0 ** (depth - 2) * (left - depth + 2 - _log3(2)), nested_sums(depth) * _log3(width + heads)
    low = width * depth / 2 - depth * (heads / 2 + 1) - width * (1 + (left - _log3(2)) / 2)
    high = 2 * width * depth + depth - 2 * width * _log3(width / (2 * sqrt(2) * e)) + _log3(width)
    return (low if left > -inf else -inf), high


def _log3(number: float) -> float:
    return log(number) / log(3)
