"""Ancestral graphs: their words, their sets around a point, and explanations that are searched along them."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import linear_model
from kernelhead.errors import BadInput, ShapeError
from kernelhead.inspection import (
    AncestralGraph,
    attention_graph,
    explanation_baselines,
    minimal_explanation,
)
from tests.oracles import causal as oracle

COLLIDER = torch.tensor([[0, 2, 0, 0], [1, 0, 1, 2], [0, 2, 0, 0], [0, 3, 0, 0]])  # 0 o-> 1 <-o 2, 1 -> 3


def test_a_graph_in_words_json_and_dots() -> None:
    graph = AncestralGraph((5, 6, 7, 9), COLLIDER, {(5, 7): ()}, {(5, 7): 0.3}, "icd", 12, 3.5, ("a note",))
    assert graph.edges() == [(5, "o->", 6), (6, "<-o", 7), (6, "-->", 9)]
    names = [f'n"{place}' for place in range(10)]
    record = json.loads(json.dumps(graph.to_dict(names)))
    assert record["names"] == ['n"5', 'n"6', 'n"7', 'n"9']
    assert record["separators"] == [{"pair": [5, 7], "given": [], "p_value": 0.3}]
    assert record["edges"][2] == {"from": 6, "marks": "-->", "to": 9}
    assert (record["tests"], record["condition"], record["notes"]) == (12, 3.5, ["a note"])
    assert "names" not in graph.to_dict()
    dots = graph.to_dot(names, 'a "title"')
    assert dots.startswith('digraph "a \\"title\\"" {\n  5 [label="n\\"5"];')
    assert "6 -> 9 [dir=both, arrowtail=none, arrowhead=normal];" in dots


def test_sets_around_a_point_go_over_colliders() -> None:
    graph = AncestralGraph((0, 1, 2, 3), COLLIDER)
    assert graph.possible_dsep(0) == {1: 1, 2: 2}
    assert graph.possible_dsep(0, radius=1) == {1: 1}
    assert graph.possible_dsep(3) == {1: 1}
    assert graph.explaining_sets(0, 1) == [(1,)]  # 2 is reached over 1 only
    assert graph.explaining_sets(0, 2) == [(1, 2)]
    assert graph.explaining_sets(1, 1) == [(0,), (2,), (3,)]


@given(seed=st.integers(0, 999))
def test_every_set_is_reached_over_itself_and_the_nearest_come_first(seed: int) -> None:
    graph = attention_graph(torch.from_numpy(linear_model(6, seed=seed).attention), n=768)
    for target in graph.nodes:
        near = {each for each in graph.nodes if graph.skeleton[target, each]}
        far = graph.possible_dsep(target)
        assert {each for each, distance in far.items() if distance == 1} == near
        for size in (1, 2, 3):
            sets = graph.explaining_sets(target, size)
            sums = [sum(far[each] for each in chosen) for chosen in sets]
            assert sums == sorted(sums)
            assert all(near & {*chosen} and target not in chosen for chosen in sets)


def test_marks_must_be_those_of_a_graph() -> None:
    with pytest.raises(ShapeError, match="axis `p` is 2"):
        AncestralGraph((0, 1), COLLIDER)
    with pytest.raises(BadInput, match=r"expected whole numbers from 0 to 3"):
        AncestralGraph((0, 1, 2, 3), COLLIDER + 2)
    with pytest.raises(BadInput, match=r"one end only, or leads from a point to itself"):
        AncestralGraph((0, 1), torch.tensor([[0, 1], [0, 0]]))
    with pytest.raises(BadInput, match=r"9 is not one of its points \[0, 1, 2, 3\]"):
        AncestralGraph((0, 1, 2, 3), COLLIDER).possible_dsep(9)


def test_the_smallest_explanations_are_found_and_counted() -> None:
    graph = AncestralGraph((0, 1, 2, 3), COLLIDER)
    asked: list[int] = []

    def changes(sets: list[tuple[int, ...]]) -> list[bool]:
        asked.append(len(sets))
        return [{*each} in ({0, 3}, {2, 3}) for each in sets]

    found = minimal_explanation(changes, graph, 1)
    assert found.sets == ((0, 3), (2, 3))
    assert [*found.sets] == oracle.smallest_changes(lambda each: changes([each])[0], [0, 2, 3], 3)
    assert (found.size, found.asked, found.candidates) == (2, 6, (0, 2, 3))
    assert asked[:2] == [3, 3]
    nothing = minimal_explanation(lambda sets: [False] * len(sets), graph, 1, largest=2)
    assert (nothing.sets, nothing.size, nothing.asked) == ((), None, 6)
    assert minimal_explanation(changes, graph, 1, radius=1, largest=1).sets == ()
    with pytest.raises(BadInput, match=r"`changes` gave 1 answers to 3 sets"):
        minimal_explanation(lambda sets: [False], graph, 1)
    with pytest.raises(BadInput, match=r"minimal_explanation: largest is 0"):
        minimal_explanation(changes, graph, 1, largest=0)


def test_explanations_without_a_graph_have_as_many_candidates() -> None:
    weights = torch.tensor([0.5, 0.1, 0.3, 0.05, 0.05])
    found = explanation_baselines(lambda sets: [{1, 2} <= {*each} for each in sets], weights, 0, count=2)
    assert found["attention"].sets == ((2, 1),)
    assert found["attention"].asked == 3
    assert found["attention prefix"].sets == ((2, 1),)
    assert found["attention prefix"].asked == 2
    assert len(found["random"].candidates) == 2
    assert 0 not in found["random"].candidates
    assert explanation_baselines(lambda sets: [True] * len(sets), weights, 0, count=0)["attention"].asked == 0
    with pytest.raises(BadInput, match=r"target is 5, expected one of 5 points"):
        explanation_baselines(lambda sets: [], weights, 5, count=2)
