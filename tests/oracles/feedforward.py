"""A feed-forward with its norm and residual, and rows of a table, written as loops in float64."""

from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def feed_forward(
    x: Array,
    norm: tuple[Array, Array],
    enter: tuple[Array, Array],
    leave: tuple[Array, Array],
    epsilon: float,
    kept: tuple[Array, Array] | None = None,
) -> Array:
    """(n, c) from points (n, c); `kept` are factors of the middle (n, i) and of the result (n, c)."""
    out = np.zeros_like(x)
    for point in range(x.shape[0]):
        mean = sum(x[point]) / x.shape[1]
        spread = sum((each - mean) ** 2 for each in x[point]) / x.shape[1]
        shown = [(each - mean) / sqrt(spread + epsilon) for each in x[point]]
        shown = [each * scale + shift for each, scale, shift in zip(shown, *norm, strict=True)]
        middle = []
        for inner in range(len(enter[1])):
            sum_in = enter[1][inner] + sum(enter[0][inner, c] * shown[c] for c in range(len(shown)))
            passed = sum_in * (1 + erf(sum_in / sqrt(2))) / 2
            middle.append(passed if kept is None else passed * kept[0][point, inner])
        for c in range(len(shown)):
            made = leave[1][c] + sum(leave[0][c, inner] * middle[inner] for inner in range(len(middle)))
            out[point, c] = x[point, c] + (made if kept is None else made * kept[1][point, c])
    return out


def hashed(place: int, word: int) -> int:
    """A number of 32 bits without a sign."""
    made = place ^ word
    made = ((made ^ made >> 16) * 0x9E3779B1 & 0xFFFFFFFF) ^ word
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        made = (made ^ made >> shift) * factor & 0xFFFFFFFF
    return made ^ made >> 16


def crossed(rows: int, columns: int, word: int) -> list[list[int]]:
    """For every entry of a matrix a number of 32 bits with a sign."""
    made = []
    for row in range(rows):
        made.append([])
        for column in range(columns):
            both = hashed(row, word) + hashed(column, ~word & 0xFFFFFFFF) & 0xFFFFFFFF
            both = both * 0x85EBCA6B & 0xFFFFFFFF
            both = (both ^ both >> 15) * 0xC2B2AE35 & 0xFFFFFFFF
            made[-1].append(both - 2**32 if both >= 2**31 else both)
    return made
