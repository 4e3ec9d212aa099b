"""Polynomial attention and ranks by loops over Python's own numbers: float64, fractions or whole ones."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

Matrix = Sequence[Sequence[Any]]


def network(points: Matrix, layers: Sequence[Sequence[Matrix]], heads: int) -> list[list[Any]]:
    """Layers of y_i = sum_h W_O sum_j <W_Q x_i, W_K x_j> W_V x_j; weights (out, in), as torch has them."""
    x = [list(point) for point in points]
    width = len(x[0])
    size = width // heads
    for query, key, value, out in layers:
        sides = [
            [[sum(row[c] * point[c] for c in range(width)) for row in weight] for point in x]
            for weight in (query, key, value)
        ]
        after = []
        for i in range(len(x)):
            joined = []
            for head in range(heads):
                span = range(head * size, (head + 1) * size)
                scores = [
                    sum(sides[0][i][feature] * sides[1][j][feature] for feature in span)
                    for j in range(len(x))
                ]
                joined += [sum(scores[j] * sides[2][j][feature] for j in range(len(x))) for feature in span]
            after.append([sum(row[c] * joined[c] for c in range(width)) for row in out])
        x = after
    return x


def rank(matrix: Matrix, prime: int | None = None) -> int:
    """By elimination, one row after another, over the rationals or modulo a prime."""
    rows = [[Fraction(entry) if prime is None else int(entry) % prime for entry in row] for row in matrix]
    found = 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(found, len(rows)) if rows[i][column] != 0), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        top = rows[found]
        one: Any = 1 / top[column] if prime is None else pow(top[column], -1, prime)
        for i in range(found + 1, len(rows)):
            factor = rows[i][column] * one
            rows[i] = [a - factor * b for a, b in zip(rows[i], top, strict=True)]
            if prime is not None:
                rows[i] = [entry % prime for entry in rows[i]]
        found += 1
        if found == len(rows):
            break
    return found
