"""Training as transport: known maps, known paths, nulls, both solvers, and the words for what is wrong."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.inspection import monge_gap, transport_record, transport_report, transport_trace
from tests.inputs import keep, points
from tests.oracles import transport as oracle

TWO = torch.arange(40) // 20


def rotated(x: Tensor, angle: float) -> Tensor:
    turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return x @ turn.to(x)


CONVEX = {  # gradients of convex functions
    "shift": lambda x: x + torch.tensor([3.0, -1.0]).to(x),
    "scale": lambda x: 2.5 * x,
    "positive matrix": lambda x: x @ torch.tensor([[2.0, 0.5], [0.5, 1.0]]).to(x),
    "log-sum-exp": lambda x: x.softmax(-1),
    "cubes": lambda x: x**3,
    "exponentials": lambda x: x.exp(),
}
OTHERS = {
    "quarter turn": lambda x: rotated(x, math.pi / 2),
    "half turn": lambda x: -x,
    "reflection": lambda x: x * torch.tensor([1.0, -1.0]).to(x),
    "shuffle": lambda x: x.roll(1, 0),
}


@pytest.mark.parametrize("name", CONVEX)
def test_gradients_of_convex_functions_are_optimal(name: str) -> None:
    x = points(40, 2)
    made = transport_report([x, CONVEX[name](x)], TWO).figures
    gaps = made.monge_gap, made.cost_gap, made.centred_gap
    assert gaps == (0, 0, 0)
    assert (made.optimality, made.matching, made.normalised_optimality) == (1, 1, 1)
    for root in (False, True):
        assert monge_gap(x, CONVEX[name](x), labels=TWO, root=root) == 0


@pytest.mark.parametrize("name", OTHERS)
def test_turns_reflections_and_shuffles_are_not(name: str) -> None:
    x = points(40, 2)
    made = transport_report([x, OTHERS[name](x)], TWO).figures
    assert min(made.monge_gap, made.cost_gap, made.centred_gap) > 0.1
    assert made.optimality < 0.9
    assert made.matching < 0.5
    assert made.normalised_optimality < 0.5


@given(seed=st.integers(0, 99))
def test_figures_are_their_definition(seed: int) -> None:
    clouds = [points(9, 2, seed=4 * seed + look) + look for look in range(4)]
    labels = torch.arange(9) // 5
    made = asdict(transport_report(clouds, labels).figures)
    wanted = oracle.figures([[cloud[labels == label] for cloud in clouds] for label in (0, 1)])
    for name, value in wanted.items():
        assert made[name] == pytest.approx(value, rel=1e-10, abs=1e-12), name


@given(seed=st.integers(0, 99), move=st.floats(-5, 5))
def test_moving_a_class_as_a_whole_leaves_the_gap_of_costs(seed: int, move: float) -> None:
    x, y = points(12, 2, seed=seed), points(12, 2, seed=seed + 1)
    assert monge_gap(x, y + move) == pytest.approx(monge_gap(x, y), rel=1e-9, abs=1e-9)
    centred = monge_gap(x, y + move, root=True, center=True)
    assert centred == pytest.approx(monge_gap(x, y, root=True, center=True), rel=1e-6, abs=1e-6)


@given(seed=st.integers(0, 99))
def test_gaps_are_never_negative_and_optimality_is_a_share(seed: int) -> None:
    x, y = points(20, 3, seed=seed), points(20, 3, seed=seed + 1)
    made = transport_report([x, y], TWO[10:30]).figures
    assert min(made.monge_gap, made.cost_gap, made.centred_gap) >= 0
    assert 0 < made.optimality <= 1
    assert monge_gap(x, y, cost="euclidean") >= 0


def test_a_straight_path_has_efficiency_one_and_the_thesis_form_has_not() -> None:
    x = points(40, 2)
    path = [x + share * torch.tensor([3.0, 4.0]) for share in (0, 0.1, 0.5, 1)]
    made = transport_report(path, torch.zeros(40))
    assert made.figures.efficiency == pytest.approx(1)
    assert made.figures.thesis_efficiency == pytest.approx(40**-0.5)
    assert made.figures.path == pytest.approx(40 * 5)
    assert made.nulls["straight line"].efficiency == 1


def test_half_a_circle_has_efficiency_two_over_pi() -> None:
    angle = torch.linspace(0, math.pi, 4001, dtype=torch.float64)
    circle = torch.stack([-angle.cos(), angle.sin()], -1)[:, None]
    path = circle + points(5, 2)
    made = transport_report(path, torch.zeros(5))
    assert made.figures.efficiency == pytest.approx(2 / math.pi, rel=1e-6)


def test_a_path_that_goes_there_and_back_has_none_and_no_path_has_one() -> None:
    x = points(10, 2)
    assert transport_report([x, x + 1, x], torch.zeros(10)).figures.efficiency == 0
    still = transport_report([x, x, x], torch.zeros(10)).figures
    assert (still.efficiency, still.thesis_efficiency, still.optimality, still.matching) == (1, 1, 1, 1)


def test_nulls_stand_beside() -> None:
    x = points(40, 2)
    end = x + 10 * (TWO[:, None] - 0.5)
    made = transport_report([x, 0.5 * (x + end), end], TWO, untrained=rotated(x, 2.0))
    assert {*made.nulls} == {"permutation", "straight line", "untrained"}
    permuted = made.nulls["permutation"]
    assert permuted.wasserstein == pytest.approx(made.figures.wasserstein)
    assert 0.9 < permuted.optimality < 1  # the classes move as a whole
    assert permuted.normalised_optimality == pytest.approx(0, abs=1e-12)
    assert permuted.matching < 0.15
    assert permuted.efficiency < 1
    assert made.nulls["untrained"] == transport_report([x, rotated(x, 2.0)], TWO).figures
    other = transport_report([x, end], TWO, seed=1).nulls["permutation"]
    assert other != permuted


def test_classes_are_each_for_itself() -> None:
    x = points(40, 2)
    end = torch.where(TWO[:, None] == 0, 2 * x, -x)
    made = transport_report([x, end], TWO)
    assert made.classes["0"].monge_gap == 0
    assert made.classes["1"].monge_gap == pytest.approx(made.figures.monge_gap)
    assert made.points == 40
    assert made.difficulty is not None
    assert transport_report([x, end], torch.zeros(40)).difficulty is None


def test_instances_share_a_label_and_padding_is_left_out() -> None:
    start, end = points(4, 5, 2), points(4, 5, 2, seed=1)
    labels, mask = torch.tensor([0, 0, 1, 1]), keep([5, 3, 4, 2], 5)
    made = transport_report(torch.stack([start, end]), labels, mask=mask)
    flat = labels.repeat_interleave(5)[mask.flatten()]
    wanted = transport_report([start[mask], end[mask]], flat)
    assert made.figures == wanted.figures
    assert made.points == 14


def test_points_that_cannot_be_told_apart_are_matched() -> None:
    x = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    assert transport_report([x, x + 1], torch.zeros(4)).figures.matching == 1


@pytest.mark.parametrize("name", ["positive matrix", "quarter turn"])
def test_the_entropic_solver_is_within_its_tolerance(name: str) -> None:
    x = points(40, 2)
    end = {**CONVEX, **OTHERS}[name](x)
    exact, near = (transport_report([x, end], TWO, solver=s).figures for s in ("exact", "sinkhorn"))
    assert near.wasserstein <= exact.wasserstein * (1 + 1e-9)
    assert near.wasserstein == pytest.approx(exact.wasserstein, rel=5e-3)
    assert near.matching == pytest.approx(exact.matching, abs=0.1)


def test_classes_of_two_sizes_by_the_entropic_solver() -> None:
    x, labels = points(30, 2), (torch.arange(30) >= 12).long()
    exact, near = (transport_report([x, -x], labels, solver=s).classes for s in ("exact", "sinkhorn"))
    for label in ("0", "1"):
        assert near[label].wasserstein == pytest.approx(exact[label].wasserstein, rel=1e-2)


def test_a_trace_ends_where_the_report_does() -> None:
    clouds = [points(20, 2, seed=look) for look in range(8)]
    trace = transport_trace(clouds, TWO[10:30], looks=3)
    assert [*trace] == [2, 5, 7]
    last = transport_report(clouds, TWO[10:30]).figures
    assert trace[7].optimality == last.optimality
    assert trace[7].path == last.path


def test_a_record_is_json() -> None:
    x = points(10, 2)
    report = transport_report([x, 2 * x], torch.zeros(10), untrained=x + 1)
    record = transport_record(report, transport_trace([x, 2 * x], torch.zeros(10)), layer="blocks.0")
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["layer"] == "blocks.0"
    assert record["trace"][0]["look"] == 1


X = points(6, 2)


@pytest.mark.parametrize(
    ("projections", "labels", "options", "error", "words"),
    [
        ([X], torch.zeros(6), {}, BadInput, "1 projections, expected a start and an end"),
        ([X, X[:3]], torch.zeros(6), {}, ShapeError, r"projections of shapes \[\(3, 2\), \(6, 2\)\]"),
        ([X, X / 0], torch.zeros(6), {}, BadInput, "holds numbers that are not finite"),
        ([X, X], torch.tensor([0, 0, 0, 0, 0, 1]), {}, BadInput, "class 1 has 1 point, expected 2 or more"),
        ([X, X], torch.zeros(5), {}, ShapeError, r"`labels` has shape \(5,\), expected \(6,\)"),
        ([X, X], torch.full((6,), 0.5), {}, BadInput, "`labels` are torch.float32, expected whole numbers"),
        ([X, X], torch.zeros(6), {"mask": torch.ones(6)}, ShapeError, "`mask` is torch.float32"),
        ([X, X], torch.zeros(6), {"mask": torch.zeros(6).bool()}, BadInput, "leaves none of 6 points"),
        ([X, X], torch.zeros(6), {"untrained": X[:2]}, ShapeError, r"`untrained` has shape \(2, 2\)"),
        ([X, X], torch.zeros(6), {"solver": "exakt"}, UnknownName, "did you mean 'exact'"),
        ([X, X], torch.zeros(6), {"permutations": 0}, BadInput, "permutations is 0"),
    ],
)
def test_words(
    projections: list[Tensor], labels: Tensor, options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"transport_report: .*{words}"):
        transport_report(projections, labels, **options)  # type: ignore[arg-type]


def test_words_of_the_others() -> None:
    with pytest.raises(BadInput, match="transport_trace: looks is 0"):
        transport_trace([X, X], torch.zeros(6), looks=0)
    with pytest.raises(UnknownName, match="monge_gap: unknown cost 'manhattan'"):
        monge_gap(X, X, cost="manhattan")
    with pytest.raises(BadInput, match="monge_gap: root=True, center=False are for squared lengths"):
        monge_gap(X, X, cost="euclidean", root=True)
    with pytest.raises(ShapeError, match="monge_gap: axis `n` is 6 in `x` but 2 in `y`"):
        monge_gap(X, X[:2])
