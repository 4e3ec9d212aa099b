"""Rules of orientation one by one, on graphs in which they have something to do or have not."""

import pytest

from kernelhead.inspection.orientation import (
    ARROWS,
    CIRCLE,
    HEAD,
    SELECTION,
    TAIL,
    TAILS,
    Marks,
    completed,
    oriented,
    possible_ancestor,
)

RULES = (*ARROWS, *SELECTION, *TAILS)
AT_FIRST, AT_LAST = {"<": HEAD, "o": CIRCLE, "-": TAIL}, {">": HEAD, "o": CIRCLE, "-": TAIL}


def parsed(text: str) -> Marks:
    """From edges such as "0 o-> 1, 1 --- 2"."""
    edges = [edge.split() for edge in text.split(", ")]
    size = 1 + max(int(each) for a, _, b in edges for each in (a, b))
    made = [[0] * size for _ in range(size)]
    for a, marks, b in edges:
        made[int(b)][int(a)], made[int(a)][int(b)] = AT_FIRST[marks[0]], AT_LAST[marks[2]]
    return made


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        (1, "0 o-> 1, 1 o-o 2", "0 o-> 1, 1 --> 2"),
        (1, "0 o-> 1, 1 o-o 2, 0 o-o 2", "0 o-> 1, 1 o-o 2, 0 o-o 2"),
        (2, "0 --> 1, 1 o-> 2, 0 o-o 2", "0 --> 1, 1 o-> 2, 0 o-> 2"),
        (2, "0 o-> 1, 1 --> 2, 0 o-o 2", "0 o-> 1, 1 --> 2, 0 o-> 2"),
        (2, "0 o-> 1, 1 o-> 2, 0 o-o 2", "0 o-> 1, 1 o-> 2, 0 o-o 2"),
        (3, "0 o-> 1, 2 o-> 1, 0 o-o 3, 2 o-o 3, 3 o-o 1", "0 o-> 1, 2 o-> 1, 0 o-o 3, 2 o-o 3, 3 o-> 1"),
        (4, "0 o-> 1, 1 <-> 2, 1 --> 3, 2 o-o 3", "0 o-> 1, 1 <-> 2, 1 --> 3, 2 <-> 3"),
        (5, "0 o-o 1, 1 o-o 2, 2 o-o 3, 0 o-o 3", "0 --- 1, 1 --- 2, 2 --- 3, 0 --- 3"),
        (5, "0 o-o 1, 1 o-o 2, 0 o-o 2", "0 o-o 1, 1 o-o 2, 0 o-o 2"),
        (6, "0 --- 1, 1 o-> 2", "0 --- 1, 1 --> 2"),
        (7, "0 --o 1, 1 o-o 2", "0 --o 1, 1 --o 2"),
        (7, "0 --o 1, 1 o-o 2, 0 o-o 2", "0 --o 1, 1 o-o 2, 0 o-o 2"),
        (8, "0 --> 1, 1 --> 2, 0 o-> 2", "0 --> 1, 1 --> 2, 0 --> 2"),
        (8, "0 --o 1, 1 --> 2, 0 o-> 2", "0 --o 1, 1 --> 2, 0 --> 2"),
        (9, "0 o-o 1, 1 o-o 2, 2 o-> 3, 0 o-> 3", "0 o-o 1, 1 o-o 2, 2 --> 3, 0 --> 3"),
        (9, "0 <-o 1, 1 o-> 2, 2 o-> 3, 0 o-> 3", "0 <-o 1, 1 o-> 2, 2 o-> 3, 0 o-> 3"),
        (10, "0 o-> 1, 2 --> 1, 3 --> 1, 0 o-o 2, 0 o-o 3", "0 --> 1, 2 --> 1, 3 --> 1, 0 o-o 2, 0 o-o 3"),
        (10, "0 o-> 1, 2 --> 1, 3 --> 1, 0 <-o 2, 0 o-o 3", "0 o-> 1, 2 --> 1, 3 --> 1, 0 <-o 2, 0 o-o 3"),
    ],
)
def test_a_rule_does_what_it_says(rule: int, before: str, after: str) -> None:
    assert completed(parsed(before), {}, [RULES[rule - 1]]) == parsed(after)


def test_a_discriminating_path_heeds_what_separated() -> None:
    before = parsed("0 o-> 1, 1 <-> 2, 1 --> 3, 2 o-o 3")
    assert completed(before, {(0, 3): (1, 2)}, ARROWS[3:]) == parsed("0 o-> 1, 1 <-> 2, 1 --> 3, 2 --> 3")


def test_marks_start_anew_from_the_skeleton() -> None:
    assert oriented(parsed("0 <-> 1, 1 --- 2"), {(0, 2): ()}) == parsed("0 o-> 1, 1 <-o 2")
    assert oriented(parsed("0 <-> 1, 1 --- 2"), {(0, 2): (1,)}) == parsed("0 o-o 1, 1 o-o 2")


def test_ancestors_are_possible_along_edges_that_may_point() -> None:
    marks = parsed("0 o-> 1, 1 --> 2, 3 <-> 2")
    found = {(a, b) for a in range(4) for b in range(4) if a != b and possible_ancestor(marks, a, b)}
    assert found == {(0, 1), (0, 2), (1, 2)}
