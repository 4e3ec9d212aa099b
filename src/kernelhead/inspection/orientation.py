"""Marks of a partial ancestral graph from its skeleton and separating sets: rules R0 to R10 of Zhang (2008).

A graph is a square table whose entry [a][b] is the mark at b of the edge between a and b.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

NONE, CIRCLE, HEAD, TAIL = range(4)

Marks = list[list[int]]
Separators = Mapping[tuple[int, int], Sequence[int]]  # by pairs (i, j), i < j
Rule = Callable[[Marks, Separators], bool]


def oriented(marks: Marks, separators: Separators) -> Marks:
    """A graph with the skeleton of another one and the marks of R0 to R4."""
    made = [[CIRCLE if mark else NONE for mark in row] for row in marks]
    _colliders(made, separators)
    return completed(made, separators, ARROWS)


def completed(marks: Marks, separators: Separators, rules: Sequence[Rule]) -> Marks:
    """A graph after rules that were followed until none changes anything."""
    made = [[*row] for row in marks]
    while sum(rule(made, separators) for rule in rules):
        pass
    return made


def possible_parent(m: Marks, a: int, b: int) -> bool:
    """Whether an edge between a and b may point from a to b: no head at a, no tail at b."""
    return m[a][b] in (CIRCLE, HEAD) and m[b][a] in (CIRCLE, TAIL)


def possible_ancestor(m: Marks, a: int, b: int) -> bool:
    """Whether a path of such edges leads from a to b."""
    seen, open_ = {a}, [a]
    while open_:
        u = open_.pop()
        for v in range(len(m)):
            if v not in seen and possible_parent(m, u, v):
                if v == b:
                    return True
                seen.add(v)
                open_.append(v)
    return False


def _colliders(m: Marks, separators: Separators) -> None:
    """R0: x *-> z <-* y, where x and y are apart and were separated without z."""
    for z in range(len(m)):
        for x, y in combinations(_around(m, z), 2):
            if not m[x][y] and z not in separators.get((x, y), ()):
                m[x][z] = m[y][z] = HEAD


def _r1(m: Marks, separators: Separators) -> bool:
    """a *-> b o-* c, a and c apart: b -> c."""
    changed = False
    for b in range(len(m)):
        for a in _at(m, b, HEAD):
            for c in _at(m, b, CIRCLE):
                if not m[a][c]:
                    m[c][b], m[b][c], changed = TAIL, HEAD, True
    return changed


def _r2(m: Marks, separators: Separators) -> bool:
    """a -> b *-> c or a *-> b -> c, with a *-o c: a *-> c."""
    changed = False
    for c in range(len(m)):
        for a in _at(m, c, CIRCLE):
            if any(m[a][b] == HEAD and TAIL in (m[b][a], m[c][b]) for b in _at(m, c, HEAD)):
                m[a][c], changed = HEAD, True
    return changed


def _r3(m: Marks, separators: Separators) -> bool:
    """a *-> b <-* c, a *-o d o-* c, a and c apart, with d *-o b: d *-> b."""
    changed = False
    for b in range(len(m)):
        for d in _at(m, b, CIRCLE):
            both = [x for x in _at(m, b, HEAD) if m[x][d] == CIRCLE]
            if any(not m[a][c] for a, c in combinations(both, 2)):
                m[d][b], changed = HEAD, True
    return changed


def _r4(m: Marks, separators: Separators) -> bool:
    """A discriminating path d ... a, b, c with b o-* c: b -> c if b separated d and c, else a <-> b <-> c."""
    changed = False
    for b in range(len(m)):
        for c in _at(m, b, CIRCLE):
            for a in _parents(m, c):
                far = _discriminated(m, a, b, c) if m[b][a] == HEAD else None
                if far is None:
                    continue
                changed = True
                if b in separators.get((min(far, c), max(far, c)), ()):
                    m[c][b], m[b][c] = TAIL, HEAD
                else:
                    m[a][b] = m[b][a] = m[b][c] = m[c][b] = HEAD
                break
    return changed


def _r5(m: Marks, separators: Separators) -> bool:
    """An uncovered circle path from a to b with a o-o b and both its ends' neighbours apart: all tails."""
    changed = False
    for a, b in combinations(range(len(m)), 2):
        for path in _paths(m, [a], b, _circles) if _circles(m, a, b) else ():
            if len(path) > 3 and not m[a][path[-2]] and not m[path[1]][b]:
                for u, v in zip(path, [*path[1:], a], strict=True):
                    m[u][v] = m[v][u] = TAIL
                changed = True
                break
    return changed


def _r6(m: Marks, separators: Separators) -> bool:
    """a -- b o-* c: b -* c."""
    changed = False
    for b in range(len(m)):
        if any(m[b][a] == TAIL for a in _at(m, b, TAIL)):
            for c in _at(m, b, CIRCLE):
                m[c][b], changed = TAIL, True
    return changed


def _r7(m: Marks, separators: Separators) -> bool:
    """a -o b o-* c, a and c apart: b -* c."""
    changed = False
    for b in range(len(m)):
        for c in _at(m, b, CIRCLE):
            if any(a != c and m[b][a] == TAIL and not m[a][c] for a in _at(m, b, CIRCLE)):
                m[c][b], changed = TAIL, True
    return changed


def _r8(m: Marks, separators: Separators) -> bool:
    """a -> b -> c or a -o b -> c, with a o-> c: a -> c."""
    changed = False
    for a, c in _open(m):
        if any(m[b][a] == TAIL and m[a][b] in (HEAD, CIRCLE) for b in _parents(m, c)):
            m[c][a], changed = TAIL, True
    return changed


def _r9(m: Marks, separators: Separators) -> bool:
    """a o-> c, an uncovered path from a to c that may be directed, its second point and c apart: a -> c."""
    changed = False
    for a, c in _open(m):
        if any(len(path) > 3 and not m[path[1]][c] for path in _paths(m, [a], c, possible_parent)):
            m[c][a], changed = TAIL, True
    return changed


def _r10(m: Marks, separators: Separators) -> bool:
    """a o-> c, b -> c <- d, such paths from a to b and to d whose second points are apart: a -> c."""
    changed = False
    for a, c in _open(m):
        firsts = {
            b: {path[1] for path in _paths(m, [a], b, possible_parent) if c not in path}
            for b in _parents(m, c)
            if b != a
        }
        pairs = ((e, f) for b, d in combinations(firsts, 2) for e in firsts[b] for f in firsts[d])
        if any(e != f and not m[e][f] for e, f in pairs):
            m[c][a], changed = TAIL, True
    return changed


ARROWS: tuple[Rule, ...] = (_r1, _r2, _r3, _r4)
SELECTION: tuple[Rule, ...] = (_r5, _r6, _r7)  # what is selected may hang on the variables
TAILS: tuple[Rule, ...] = (_r8, _r9, _r10)


def _around(m: Marks, b: int) -> list[int]:
    return [a for a in range(len(m)) if m[a][b]]


def _at(m: Marks, b: int, mark: int) -> list[int]:
    """Whose edge to b has this mark at b."""
    return [a for a in range(len(m)) if m[a][b] == mark]


def _parents(m: Marks, c: int) -> list[int]:
    return [a for a in _at(m, c, HEAD) if m[c][a] == TAIL]


def _open(m: Marks) -> list[tuple[int, int]]:
    """All a o-> c."""
    return [(a, c) for c in range(len(m)) for a in _at(m, c, HEAD) if m[c][a] == CIRCLE]


def _circles(m: Marks, a: int, b: int) -> bool:
    return m[a][b] == m[b][a] == CIRCLE


def _discriminated(m: Marks, a: int, b: int, c: int) -> int | None:
    """The far end d of a discriminating path d ... a, b, c, over parents of c, of which all are colliders."""
    seen, open_ = {a, b, c}, [a]
    while open_:
        u = open_.pop(0)
        for d in _at(m, u, HEAD):
            if d in seen:
                continue
            if not m[d][c]:
                return d
            if m[d][c] == HEAD and m[c][d] == TAIL and m[u][d] == HEAD:
                seen.add(d)
                open_.append(d)
    return None


def _paths(
    m: Marks, path: list[int], end: int, step: Callable[[Marks, int, int], bool]
) -> Iterator[list[int]]:
    """Uncovered paths: of three points in a row the outer ones are apart."""
    last = path[-1]
    if last == end:
        yield path
        return
    for v in range(len(m)):
        if v not in path and step(m, last, v) and not (len(path) > 1 and m[path[-2]][v]):
            yield from _paths(m, [*path, v], end, step)
