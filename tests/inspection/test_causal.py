"""Causal graphs from attention: tests by loops, marks by definition, known models, baselines, words."""

import sys
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import LinearModel, linear_model
from kernelhead.errors import BadInput, Degenerate, MissingExtra, ShapeError, UnknownName
from kernelhead.inspection import (
    AncestralGraph,
    PartialCorrelations,
    attention_correlation,
    attention_graph,
    graph_baselines,
    skeleton_f1,
)
from kernelhead.inspection.orientation import HEAD, SELECTION, TAIL, TAILS, completed, oriented
from kernelhead.pattern import Factored
from tests.inputs import points
from tests.oracles import causal as oracle
from tests.tolerance import assert_exact

CHAIN = [(0, 1, 0.8), (1, 2, 0.8), (2, 3, 0.8)]
COLLIDER = [(0, 2, 0.8), (1, 2, 0.8), (2, 3, 0.8)]
EIGHT = [
    *[(0, 2, 0.8), (1, 2, 0.9), (2, 3, 0.7), (2, 4, 1.0)],
    *[(3, 5, 0.8), (4, 5, 0.6), (5, 6, 0.9), (1, 7, 0.8)],
]
GOLDEN = {
    "chain": (CHAIN, "0 o-o 1, 1 o-o 2, 2 o-o 3"),
    "collider": (COLLIDER, "0 o-> 2, 1 o-> 2, 2 --> 3"),
    "eight": (EIGHT, "0 o-> 2, 1 o-> 2, 1 o-o 7, 2 --> 3, 2 --> 4, 3 --> 5, 4 --> 5, 5 --> 6"),
}
EXACT = 10**9  # samples at which a correlation is independent only where it is zero


def attention_of(edges: list[tuple[int, int, float]]) -> torch.Tensor:
    return torch.from_numpy(LinearModel.of(edges).attention)


def told(graph: AncestralGraph) -> str:
    return ", ".join(f"{a} {marks} {b}" for a, marks, b in graph.edges())


@pytest.mark.parametrize("name", GOLDEN)
def test_correlations_and_tests_are_their_definitions(name: str) -> None:
    attention = attention_of(GOLDEN[name][0])
    found = attention_correlation(attention)
    wanted = oracle.correlation(attention.tolist())
    assert_exact(found, torch.tensor(wanted, dtype=torch.float64), bound=1e-12)
    tests, p = PartialCorrelations(found, 768), len(wanted)
    for i, j in combinations(range(p), 2):
        for given_ in combinations([k for k in range(p) if k not in (i, j)], 2):
            for chosen in ((), given_[:1], given_):
                assert abs(tests.partial(i, j, chosen) - oracle.partial(wanted, i, j, chosen)) < 1e-12
                assert abs(tests.p_value(i, j, chosen) - oracle.p_value(wanted, i, j, chosen, 768)) < 1e-12


@given(n=st.integers(2, 5), m=st.integers(2, 5), seed=st.integers(0, 999))
def test_correlations_with_values_are_their_definition(n: int, m: int, seed: int) -> None:
    entries, values = points(n, m, seed=seed).softmax(-1), points(m, 4, seed=seed + 1)
    wanted = torch.tensor(oracle.correlation(entries.tolist(), values.tolist()), dtype=torch.float64)
    assert_exact(attention_correlation(entries, values), wanted)


@given(seed=st.integers(0, 999))
def test_the_length_of_a_row_and_the_kind_of_pattern_change_nothing(seed: int) -> None:
    left, right = points(4, 3, seed=seed), points(5, 3, seed=seed + 1)
    pattern = Factored(left, torch.ones(3, dtype=torch.float64), right)
    scaled = pattern.matrix() * torch.tensor([[2.0], [0.5], [3.0], [9.0]])
    assert_exact(attention_correlation(pattern), attention_correlation(scaled))


@pytest.mark.parametrize("method", ["icd", pytest.param("fci", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GOLDEN)
def test_known_models_get_their_marks(name: str, method: str) -> None:
    if method == "fci":
        pytest.importorskip("causallearn")
    edges, marks = GOLDEN[name]
    for n in (EXACT, 768):
        graph = attention_graph(attention_of(edges), n=n, method=method, largest=None)
        assert told(graph) == marks
    assert graph.method == method
    assert graph.condition > 1
    assert all(graph.p_values[pair] > 0.01 for pair in graph.separators)


@pytest.mark.slow
def test_iterative_discovery_asks_less(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("causallearn")
    icd, fci, pc = (
        attention_graph(attention_of(EIGHT), n=EXACT, method=method) for method in ("icd", "fci", "pc")
    )
    assert icd.tests * 3 < fci.tests
    assert "0 --> 2" in told(pc)
    assert "1 o-o 7" in told(pc)
    assert fci.separators.keys() == icd.separators.keys() == pc.separators.keys()
    assert capsys.readouterr().out == ""  # causal-learn prints, we do not


@given(seed=st.integers(0, 9999), selection=st.booleans())
def test_marks_are_what_the_whole_equivalence_class_shares(seed: int, selection: bool) -> None:
    model = linear_model(4, neighbours=1.8, seed=seed)
    edges = [(int(j), int(i)) for i, j in np.argwhere(model.weights)]
    if len(edges) > 4:  # a complete graph or nearly: many members, no mark
        return
    found = attention_graph(
        torch.from_numpy(model.attention), n=EXACT, largest=None, selection=selection
    ).marks
    assert found.tolist() == oracle.shared_marks(oracle.of_edges(edges, 4), selection=selection)


def test_rules_hold_where_something_unseen_causes_two() -> None:
    """0 -> 1 <-> 2 <- 3 of which 1 and 2 have an unseen cause."""
    hidden = LinearModel.of([(0, 1, 0.8), (4, 1, 0.8), (4, 2, 0.8), (3, 2, 0.8)])
    graph = attention_graph(torch.from_numpy(hidden.attention), n=EXACT, nodes=range(4))
    assert told(graph) == "0 o-> 1, 1 <-> 2, 2 <-o 3"
    wanted = oracle.of_edges([(0, 1), (3, 2)], 4)
    wanted[1][2] = wanted[2][1] = HEAD
    assert graph.marks.tolist() == oracle.shared_marks(wanted, selection=True)


def classes_of_five() -> list[oracle.Marks]:
    """Graphs in which R4 to R10 have something to do: latent causes, cycles of lines, paths around."""
    discriminating = oracle.of_edges([(1, 3), (0, 1), (2, 3)], 4)
    discriminating[1][2] = discriminating[2][1] = HEAD
    ring = [[0] * 4 for _ in range(4)]
    for a, b in ((0, 1), (1, 2), (2, 3), (3, 0)):
        ring[a][b] = ring[b][a] = TAIL
    tailed = [[*row, 0] for row in ring] + [[0] * 5]
    tailed[0][4], tailed[4][0] = HEAD, TAIL
    around = oracle.of_edges([(0, 1), (1, 2), (0, 3), (3, 2), (0, 2)], 4)
    return [discriminating, ring, tailed, around]


@pytest.mark.parametrize("number", range(4))
def test_all_rules_give_what_a_class_shares(number: int) -> None:
    assert_shared(classes_of_five()[number])


@given(draw=st.lists(st.sampled_from([None, *oracle.ENDS]), min_size=6, max_size=6))
def test_rules_give_what_a_drawn_class_shares(draw: list[tuple[int, int] | None]) -> None:
    truth = [[0] * 4 for _ in range(4)]
    for (a, b), ends in zip(combinations(range(4), 2), draw, strict=True):
        if ends is not None:
            truth[b][a], truth[a][b] = ends
    if sum(ends is not None for ends in draw) <= 4 and oracle.is_maximal_ancestral(truth):
        assert_shared(truth)


def assert_shared(truth: oracle.Marks) -> None:
    p, apart = len(truth), oracle.independences(truth)
    sets: dict[tuple[int, int], tuple[int, ...]] = {}
    for i, j, given_ in sorted(apart, key=lambda each: len(each[2])):
        sets.setdefault((i, j), given_)
    skeleton = [[int((min(a, b), max(a, b)) not in sets and a != b) for b in range(p)] for a in range(p)]
    found = completed(completed(oriented(skeleton, sets), sets, SELECTION), sets, TAILS)
    assert found == oracle.shared_marks(truth, selection=True)


def test_other_points_are_marginalised() -> None:
    graph = attention_graph(attention_of(CHAIN), n=EXACT, nodes=[3, 0, 1])
    assert told(graph) == "3 o-o 1, 0 o-o 1"
    assert graph.separators == {(3, 0): (1,)}


def test_skeletons_of_random_models_beat_what_needs_no_causes() -> None:
    scores: dict[str, list[float]] = {}
    for seed in range(40):
        model = linear_model(8, seed=seed)
        attention, truth = torch.from_numpy(model.attention), torch.from_numpy(model.skeleton)
        found = {"graph": attention_graph(attention, n=768).skeleton}
        found |= graph_baselines(attention, int(truth.sum()) // 2, seed=seed)
        for name, skeleton in found.items():
            scores.setdefault(name, []).append(skeleton_f1(skeleton, truth))
    assert fmean(scores["graph"]) >= 0.92
    assert 0.72 < fmean(scores["attention"]) < 0.82
    assert fmean(scores["random"]) < fmean(scores["correlation"]) < fmean(scores["graph"]) - 0.1


@given(p=st.integers(2, 6), edges=st.integers(0, 20), seed=st.integers(0, 99))
def test_baselines_have_as_many_edges_as_asked(p: int, edges: int, seed: int) -> None:
    for skeleton in graph_baselines(points(p, p, seed=seed).softmax(-1), edges, seed=seed).values():
        assert torch.equal(skeleton, skeleton.mT)
        assert int(skeleton.sum()) == 2 * min(edges, p * (p - 1) // 2)


def test_uniform_attention_gets_a_sentence() -> None:
    uniform = torch.full((6, 6), 1 / 6)
    with pytest.raises(
        Degenerate, match=r"condition number .*, that of points 2 and 4 is 1\.000000; leave one"
    ):
        attention_graph(uniform, n=64, nodes=[2, 4, 5])
    graph = attention_graph(uniform, n=64, ridge=1e-3)
    assert "nearly uniform and tells little" in graph.notes[0]
    near = torch.eye(4, dtype=torch.float64) * 0.01 + 0.2475
    assert "nearly uniform" in attention_graph(near, n=64).notes[0]
    assert attention_graph(attention_of(CHAIN), n=64).notes == ()


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (2 * torch.eye(3) + 0.1, "row 0 sums to 2.3 and the least entry is 0.1: a pattern of weights"),
        (torch.eye(3) * 1.2 - 0.2 / 3, "the least entry is -0.06667: a pattern of weights, not attention"),
    ],
    ids=["sums", "signs"],
)
def test_rows_that_are_no_shares_are_said(pattern: torch.Tensor, said: str) -> None:
    assert said in attention_graph(pattern, n=64).notes[0]


def test_what_cannot_be_read_gets_a_sentence() -> None:
    fine = torch.eye(3).double()
    with pytest.raises(BadInput, match=r"attention_graph: the pattern \(3, 3\) holds NaN or infinity"):
        attention_graph(fine * torch.nan, n=64)
    with pytest.raises(Degenerate, match=r"row 1 of the pattern \(2, 2\) has length 0\.0e\+00"):
        attention_graph(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), n=64)
    with pytest.raises(UnknownName, match=r"unknown method 'ges'"):
        attention_graph(fine, n=64, method="ges")
    with pytest.raises(BadInput, match=r"alpha is 1\.5, expected between 0 and 1"):
        attention_graph(fine, n=64, alpha=1.5)
    with pytest.raises(BadInput, match=r"largest is -1, expected a whole number of at least 0"):
        attention_graph(fine, n=64, largest=-1)
    for nodes in ([0], [0, 0], [0, 3]):
        with pytest.raises(
            BadInput, match=r"nodes are \[.*\], expected two or more different ones of 3 points"
        ):
            attention_graph(fine, n=64, nodes=nodes)
    with pytest.raises(ShapeError, match=r"`pattern` has shape \(1, 3, 3\), but its axes are \(n m\)"):
        attention_graph(fine[None], n=64)
    with pytest.raises(BadInput, match=r"`values` \(3, 1\) need two finite coordinates"):
        attention_graph(fine, n=64, values=torch.ones(3, 1))
    with pytest.raises(ShapeError, match=r"axis `n` is 2"):
        graph_baselines(torch.ones(2, 3), 1)
    with pytest.raises(ShapeError, match=r"axis `p` is 2"):
        skeleton_f1(torch.ones(2, 2), torch.ones(3, 3))
    assert skeleton_f1(torch.zeros(2, 2), torch.zeros(2, 2)) == 1


def test_tests_say_what_is_wrong_with_them() -> None:
    fine = torch.eye(4)
    with pytest.raises(BadInput, match=r"samples is 3, expected a whole number of at least 4"):
        PartialCorrelations(fine, 3)
    with pytest.raises(BadInput, match=r"ridge is -1, expected 0 or more"):
        PartialCorrelations(fine, 9, -1)
    with pytest.raises(BadInput, match=r"\(4, 4\) is not finite, symmetric and one on its diagonal"):
        PartialCorrelations(2 * fine, 9)
    with pytest.raises(BadInput, match=r"\[0, 1, 1\] are not different ones of 4 points"):
        PartialCorrelations(fine, 9).partial(0, 1, [1])
    with pytest.raises(BadInput, match=r"2 points given are too many for n = 5, expected at most 1"):
        PartialCorrelations(fine, 5).p_value(0, 1, [2, 3])
    assert PartialCorrelations(fine, 9).p_value(0, 1, [2, 3]) == 1
    same = torch.tensor([[1.0, 1.0 - 1e-9], [1.0 - 1e-9, 1.0]], dtype=torch.float64)
    assert PartialCorrelations(same, 10**6).p_value(0, 1) == 0


def test_causal_learn_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "causallearn.search.ConstraintBased.FCI", None)
    with pytest.raises(MissingExtra, match=r"attention_graph, fci: needs causal-learn"):
        attention_graph(torch.eye(3), n=64, method="fci")
