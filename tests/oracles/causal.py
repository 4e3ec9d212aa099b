"""Causal graphs by their definitions: correlations, tests, and what all ancestral graphs of a class share."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from statistics import NormalDist

Matrix = Sequence[Sequence[float]]
Marks = list[list[int]]
CIRCLE, HEAD, TAIL = 1, 2, 3
ENDS = ((TAIL, HEAD), (HEAD, TAIL), (HEAD, HEAD), (TAIL, TAIL))  # -> <- <-> --


def correlation(attention: Matrix, values: Matrix | None = None) -> list[list[float]]:
    """r_ij = S_ij / sqrt(S_ii S_jj), S = A C A', C the identity or the covariance of values."""
    m = len(attention[0])
    if values is None:
        between = [[float(k == h) for h in range(m)] for k in range(m)]
    else:
        means = [sum(row) / len(row) for row in values]
        between = [
            [
                sum((x - means[k]) * (y - means[h]) for x, y in zip(values[k], values[h], strict=True))
                for h in range(m)
            ]
            for k in range(m)
        ]
    s = [
        [sum(one[k] * between[k][h] * other[h] for k in range(m) for h in range(m)) for other in attention]
        for one in attention
    ]
    return [[s[i][j] / math.sqrt(s[i][i] * s[j][j]) for j in range(len(s))] for i in range(len(s))]


def partial(r: Matrix, i: int, j: int, given: Sequence[int]) -> float:
    """Points are taken out one by one: r_ij.Zz = (r_ij.Z - r_iz.Z r_jz.Z) / sqrt((1 - ...)(1 - ...))."""
    if not given:
        return r[i][j]
    z, rest = given[0], given[1:]
    ij, iz, jz = partial(r, i, j, rest), partial(r, i, z, rest), partial(r, j, z, rest)
    return (ij - iz * jz) / math.sqrt((1 - iz * iz) * (1 - jz * jz))


def p_value(r: Matrix, i: int, j: int, given: Sequence[int], n: int) -> float:
    """2 (1 - Phi(sqrt(n - k - 3) |z|)), z = ln((1 + rho) / (1 - rho)) / 2."""
    rho = partial(r, i, j, given)
    z = math.log((1 + rho) / (1 - rho)) / 2
    return 2 * (1 - NormalDist().cdf(math.sqrt(n - len(given) - 3) * abs(z)))


def subsets(points: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(points) + 1):
        yield from combinations(points, size)


def ancestors(m: Marks, points: Sequence[int]) -> set[int]:
    """Points with a directed path to one of these, which are among them."""
    found = {*points}
    while True:
        more = {
            a for a in range(len(m)) for b in found if m[a][b] == HEAD and m[b][a] == TAIL and a not in found
        }
        if not more:
            return found
        found |= more


def paths(m: Marks, path: list[int], end: int) -> Iterator[list[int]]:
    if path[-1] == end:
        yield path
        return
    for step in range(len(m)):
        if m[path[-1]][step] and step not in path:
            yield from paths(m, [*path, step], end)


def separated(m: Marks, x: int, y: int, given: Sequence[int]) -> bool:
    """m-separation: each path has a collider that is no ancestor of what is given or a given non-collider."""
    above = ancestors(m, given)
    for path in paths(m, [x], y):
        open_ = True
        for before, here, after in zip(path, path[1:], path[2:], strict=False):
            collides = m[before][here] == HEAD and m[after][here] == HEAD
            open_ &= here in above if collides else here not in given
        if open_:
            return False
    return True


def independences(m: Marks) -> set[tuple[int, int, tuple[int, ...]]]:
    found = set()
    for x, y in combinations(range(len(m)), 2):
        for given in subsets([z for z in range(len(m)) if z not in (x, y)]):
            if separated(m, x, y, given):
                found.add((x, y, given))
    return found


def is_maximal_ancestral(m: Marks) -> bool:
    """No point is an ancestor of a parent or spouse, lines meet no heads, points apart can be separated."""
    for a, b in combinations(range(len(m)), 2):
        if not m[a][b]:
            others = [z for z in range(len(m)) if z not in (a, b)]
            if not any(separated(m, a, b, given) for given in subsets(others)):
                return False
        elif m[a][b] == m[b][a] == TAIL:
            if any(m[c][end] == HEAD for end in (a, b) for c in range(len(m))):
                return False
        else:
            for one, other in ((a, b), (b, a)):
                if m[one][other] == HEAD and other in ancestors(m, [one]):
                    return False
    return True


def of_edges(edges: Sequence[tuple[int, int]], nodes: int) -> Marks:
    """The marks of directed edges (cause, effect)."""
    m = [[0] * nodes for _ in range(nodes)]
    for cause, effect in edges:
        m[cause][effect], m[effect][cause] = HEAD, TAIL
    return m


def shared_marks(m: Marks, *, selection: bool) -> Marks:
    """What all maximal ancestral graphs with the independences of m share; a circle where they differ."""
    pairs = [(a, b) for a, b in combinations(range(len(m)), 2) if m[a][b]]
    wanted, found = independences(m), [[0] * len(m) for _ in m]
    for ends in product(ENDS if selection else ENDS[:3], repeat=len(pairs)):
        other = [[0] * len(m) for _ in m]
        for (a, b), (at_a, at_b) in zip(pairs, ends, strict=True):
            other[a][b], other[b][a] = at_b, at_a
        if is_maximal_ancestral(other) and independences(other) == wanted:
            for a, b in [*pairs, *((b, a) for a, b in pairs)]:
                found[a][b] = other[a][b] if found[a][b] in (0, other[a][b]) else CIRCLE
    return found


def smallest_changes(
    changes: Callable[[tuple[int, ...]], bool], points: Sequence[int], largest: int
) -> list[tuple[int, ...]]:
    """All sets of the smallest size that change something."""
    for size in range(1, largest + 1):
        found = [each for each in combinations(points, size) if changes(each)]
        if found:
            return found
    return []
