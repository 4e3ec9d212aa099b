"""Co-occurrence by loops over pairs, in exact fractions or float64; imports nothing of the library."""

from fractions import Fraction
from math import exp, log
from typing import Any

# The published example: association of seven words, symmetric, the others zero.
VOCABULARY = ("river", "bank", "loan", "money", "flooded", "shore", "rely")
PAIRS = {
    ("river", "bank"): 4,
    ("river", "flooded"): 5,
    ("river", "shore"): 6,
    ("bank", "loan"): 6,
    ("bank", "money"): 5,
    ("bank", "flooded"): 3,
    ("bank", "shore"): 5,
    ("bank", "rely"): 4,
    ("loan", "money"): 7,
    ("loan", "rely"): 2,
    ("flooded", "shore"): 4,
}


def example() -> list[list[float]]:
    """The published association matrix."""
    size = len(VOCABULARY)
    made = [[0.0] * size for _ in range(size)]
    for (one, other), value in PAIRS.items():
        i, j = VOCABULARY.index(one), VOCABULARY.index(other)
        made[i][j] = made[j][i] = float(value)
    return made


def pair_counts(
    sentences: list[list[int]], size: int, *, window: int, harmonic: bool, directed: bool
) -> list[list[Fraction]]:
    """Row the later word, column the earlier one; without direction both."""
    counts = [[Fraction(0)] * size for _ in range(size)]
    for sentence in sentences:
        for later in range(len(sentence)):
            for earlier in range(max(0, later - window), later):
                weight = Fraction(1, later - earlier) if harmonic else Fraction(1)
                counts[sentence[later]][sentence[earlier]] += weight
                if not directed:
                    counts[sentence[earlier]][sentence[later]] += weight
    return counts


def mutual_information(
    counts: list[list[Any]], *, shift: float = 0.0, smoothing: float = 1.0, positive: bool = False
) -> list[list[float]]:
    """ln p_ij / (p_i q_j) less a shift, zero where a pair was never seen."""
    rows = [float(sum(row)) for row in counts]
    powers = [float(sum(row[j] for row in counts)) ** smoothing for j in range(len(counts[0]))]
    total, mass = sum(rows), sum(powers)
    made = [[0.0] * len(powers) for _ in rows]
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            if count:
                joint, left, right = float(count) / total, rows[i] / total, powers[j] / mass
                value = log(joint / (left * right)) - shift
                made[i][j] = max(value, 0.0) if positive else value
    return made


def restricted(kernel: list[list[float]], words: list[int]) -> list[list[float]]:
    """Q S Q' with the selector multiplied out."""
    size = len(kernel)
    select = [[1.0 if word == i else 0.0 for i in range(size)] for word in words]
    rows = [[sum(q[i] * kernel[i][j] for i in range(size)) for j in range(size)] for q in select]
    return [[sum(row[j] * q[j] for j in range(size)) for q in select] for row in rows]


def normalised(scores: list[list[float]], how: str) -> list[list[float]]:
    """Rows by their sum, by softmax, or as they are."""
    made = []
    for row in scores:
        if how == "none":
            made.append(row)
        elif how == "row":
            total = sum(row)
            made.append([value / total if total else 0.0 for value in row])
        else:
            top = max(row)
            weights = [exp(value - top) for value in row]
            made.append([weight / sum(weights) for weight in weights])
    return made


def prediction(kernel: list[list[float]], words: list[int], how: str = "none") -> list[float]:
    """Mean over the rows of the pattern times Q S."""
    pattern = normalised(restricted(kernel, words), how)
    size = len(kernel)
    return [
        sum(pattern[r][s] * kernel[words[s]][j] for r in range(len(words)) for s in range(len(words)))
        / len(words)
        for j in range(size)
    ]
