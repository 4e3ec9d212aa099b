"""Training read as transport: how far points were moved, how far they had to be, and by which path."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.inspection.couplings import COSTS, EPSILON, STEPS, bures_difficulty, wasserstein
from kernelhead.inspection.moves import (
    TransportFigures,
    class_paths,
    figures_of,
    mean_figures,
    moved_classes,
)
from kernelhead.shapes import check_axes, check_size

PERMUTATIONS = 20


@dataclass(frozen=True)
class TransportReport:
    """Figures of a training, of its classes, and of what has nothing to do with it.

    Attributes:
        figures: of all classes.
        classes: of each class by itself.
        nulls: "permutation": ends swapped at random inside classes, the mean of several draws; "straight
            line": the same ends, reached straight; "untrained", where its ends were given.
        difficulty: mean Bures distance of two classes at the start; None for one class.
        points: how many points of how many classes.
        looks: how many steps the path has.
        solver: of the pairings; "sinkhorn" has W from below.
    """

    figures: TransportFigures
    classes: Mapping[str, TransportFigures]
    nulls: Mapping[str, TransportFigures]
    difficulty: float | None
    points: int
    looks: int
    solver: str

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain values, for a record."""
        return asdict(self)


def monge_gap(
    x: Tensor,
    y: Tensor,
    *,
    labels: Tensor | None = None,
    cost: str = "sqeuclidean",
    root: bool = False,
    center: bool = False,
    solver: str = "exact",
    epsilon: float = EPSILON,
    steps: int = STEPS,
) -> float:
    r"""How much more it costs to bring every $x_i$ to its $y_i$ than to bring the x to the y.

    The cost form is $\frac1n \sum_i c(x_i, y_i) - W_c$ (Uscidda and Cuturi, 2023), zero if the map is optimal
    for c; for squared lengths that is the gradient of a convex function. The root form is the difference of
    roots of sums, class by class, as in `TransportFigures`.

    Shapes: x and y (n, d), row by row; labels (n,).

    Args:
        labels: classes that are matched each by itself; one for all if None.
        cost: "sqeuclidean" or "euclidean".
        root: whether to take roots of sums of squares; for "sqeuclidean".
        center: whether to take off the mean displacement of each class first; for "sqeuclidean".
        solver: "exact" or "sinkhorn".
        epsilon: of the entropy, as a share of the mean cost.
        steps: of "sinkhorn".

    Raises:
        BadInput: a number is not finite, a class has fewer than two points, or an option is for squared
            lengths alone.
        ShapeError: x, y and labels do not fit each other.
        UnknownName: no such cost or solver.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [3.0]])
        >>> monge_gap(x, 2 * x), monge_gap(x, -x) > 0
        (0.0, True)
    """
    who = "monge_gap"
    if cost not in COSTS:
        raise unknown(who, "cost", cost, COSTS)
    if cost == "euclidean" and (root or center):
        raise BadInput(f"{who}: root={root}, center={center} are for squared lengths, but cost is {cost!r}")
    check_axes(who, x=(x, "n d"), y=(y, "n d"))
    groups = class_paths(who, torch.stack([x, y]), x.new_zeros(len(x)) if labels is None else labels, None)
    if cost == "euclidean":
        gaps = [
            len(path[0])
            * max(
                float((path[1] - path[0]).norm(dim=-1).mean())
                - wasserstein(path[0], path[1], cost=cost, solver=solver, epsilon=epsilon, steps=steps),
                0.0,
            )
            for path in groups.values()
        ]
        return sum(gaps) / len(x)
    moved = moved_classes(who, [*groups.values()], solver, epsilon, steps, permutations=1, seed=0)
    figures = figures_of(moved)
    if not root:
        return figures.cost_gap
    return figures.centred_gap if center else figures.monge_gap


def transport_report(
    projections: Tensor | Sequence[Tensor],
    labels: Tensor,
    *,
    untrained: Tensor | None = None,
    mask: Tensor | None = None,
    permutations: int = PERMUTATIONS,
    solver: str = "exact",
    epsilon: float = EPSILON,
    steps: int = STEPS,
    seed: int = 0,
) -> TransportReport:
    """Read a training as transport from the first to the last of its projections, class by class.

    Nulls stand beside every figure: where classes move as a whole, pairings at random have a high optimality
    too, and so has a network before its training.

    Shapes: projections (looks + 1, ..., d), such as (e, b, n, d); labels (...) or its first axes, such as
    (b,); untrained (..., d); mask (...), True where a point is real.

    Args:
        projections: of the same points, the start first; see `TrajectoryRecorder`.
        labels: whole numbers.
        untrained: ends of the points before training.
        permutations: draws of pairings at random.
        solver: "exact" or "sinkhorn", all classes at once on the device of the projections.
        epsilon: of the entropy, as a share of the mean cost.
        steps: of "sinkhorn".
        seed: of the draws.

    Raises:
        BadInput: fewer than two projections, a number that is not finite, a class of fewer than two points,
            or labels that are not whole numbers.
        ShapeError: shapes that do not fit.
        UnknownName: no such solver.

    Example:
        >>> start = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [6.0, 1.0]])
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> report = transport_report([start, start + 1, 2 * start + 1], labels)
        >>> report.figures.optimality, report.figures.matching
        (1.0, 1.0)
        >>> report.nulls["straight line"].efficiency, report.nulls["permutation"].optimality < 1
        (1.0, True)
    """
    who = "transport_report"
    check_size(who, "permutations", permutations)
    whole = _stacked(who, projections)
    groups = class_paths(who, whole, labels, mask)
    paths = [*groups.values()]
    moved = moved_classes(who, paths, solver, epsilon, steps, permutations=permutations, seed=seed)
    nulls = {
        "permutation": mean_figures(
            [
                figures_of([replace(each, own=each.drawn[draw]) for each in moved])
                for draw in range(permutations)
            ]
        ),
        "straight line": figures_of([replace(each, straight=True) for each in moved]),
    }
    if untrained is not None:
        if untrained.shape != whole.shape[1:]:
            raise ShapeError(
                f"{who}: `untrained` has shape {tuple(untrained.shape)}, expected {tuple(whole.shape[1:])}"
            )
        ends = class_paths(who, torch.stack([whole[0], untrained.to(whole)]), labels, mask)
        nulls["untrained"] = figures_of(
            moved_classes(who, [*ends.values()], solver, epsilon, steps, permutations=permutations, seed=seed)
        )
    starts = torch.cat([path[0] for path in paths])
    owners = torch.cat([torch.full((path.shape[1],), place) for place, path in enumerate(paths)])
    return TransportReport(
        figures_of(moved),
        {name: figures_of([each]) for name, each in zip(groups, moved, strict=True)},
        nulls,
        bures_difficulty(starts, owners) if len(paths) > 1 else None,
        len(starts),
        len(whole) - 1,
        solver,
    )


def transport_trace(
    projections: Tensor | Sequence[Tensor],
    labels: Tensor,
    *,
    looks: int = 20,
    mask: Tensor | None = None,
    solver: str = "exact",
    epsilon: float = EPSILON,
    steps: int = STEPS,
    seed: int = 0,
) -> dict[int, TransportFigures]:
    """Figures of the training so far, at evenly spaced projections, by their number; the last is one.

    Shapes: as `transport_report`.

    Args:
        projections: of the same points, the start first.
        labels: whole numbers.
        looks: at how many projections, at most.
        mask: True where a point is real.
        solver: "exact" or "sinkhorn".
        epsilon: of the entropy, as a share of the mean cost.
        steps: of "sinkhorn".
        seed: of the pairings at random behind `normalised_optimality`.

    Raises:
        BadInput: `looks` is no such number; or as `transport_report`.
        ShapeError: shapes that do not fit.
        UnknownName: no such solver.

    Example:
        >>> start = torch.tensor([[0.0], [1.0]])
        >>> [*transport_trace([start, 2 * start, 3 * start, 4 * start], torch.tensor([0, 0]), looks=2)]
        [2, 3]
    """
    who = "transport_trace"
    check_size(who, "looks", looks)
    whole = _stacked(who, projections)
    paths = [*class_paths(who, whole, labels, mask).values()]
    last = len(whole) - 1
    places = sorted({round(last * (look + 1) / looks) for look in range(looks)} - {0})
    found = {}
    for place in places:
        part = [path[: place + 1] for path in paths]
        found[place] = figures_of(moved_classes(who, part, solver, epsilon, steps, permutations=5, seed=seed))
    return found


def transport_record(
    report: TransportReport, trace: Mapping[int, TransportFigures] | None = None, *, layer: str = ""
) -> dict[str, Any]:
    """A report and a trace as the JSON that stands in a run folder as transport.json.

    Args:
        report: at the end of training.
        trace: on the way, by look.
        layer: whose projections they are.

    Example:
        >>> start = torch.tensor([[0.0], [1.0]])
        >>> [*transport_record(transport_report([start, 2 * start], torch.tensor([0, 0])))][:3]
        ['layer', 'figures', 'classes']
    """
    rows = [{"look": look, **asdict(figures)} for look, figures in (trace or {}).items()]
    return {"layer": layer, **report.to_dict(), "trace": rows}


def _stacked(who: str, projections: Tensor | Sequence[Tensor]) -> Tensor:
    if len(projections) < 2:
        raise BadInput(f"{who}: {len(projections)} projections, expected a start and an end at least")
    if isinstance(projections, Tensor):
        return projections
    shapes = {tuple(each.shape) for each in projections}
    if len(shapes) > 1:
        raise ShapeError(f"{who}: projections of shapes {sorted(shapes)}, expected one for all")
    return torch.stack([*projections])
