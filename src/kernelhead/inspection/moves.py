"""What transport figures are made of: the points of every class, their best pairing, their path."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean

import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.inspection.couplings import SOLVERS, check_points
from kernelhead.ops.transport import sinkhorn, squared_distances
from kernelhead.rng import generator

FEWEST = 2  # points of a class: one has nobody to be swapped with


@dataclass(frozen=True)
class TransportFigures:
    r"""What a map from start to end costs beside what it could cost, summed over classes.

    For a class c with starts $x_i$ and ends $y_i$, $D_c^2 = \sum_i \|y_i - x_i\|^2$ and $W_c^2$ is the least
    of that over all pairings inside the class.

    Attributes:
        direct: $D = \sum_c D_c$.
        wasserstein: $W = \sum_c W_c$.
        monge_gap: D - W, of roots, never negative.
        cost_gap: $\sum_c (D_c^2 - W_c^2) / n$, of mean costs; moving a class as a whole does not change it.
        centred_gap: D - W after the mean displacement of every class is taken off.
        optimality: W / D, from 0 to 1.
        normalised_optimality: 1 for the least cost, 0 for what pairings drawn at random cost.
        matching: share of the points that the best pairing sends to their own end.
        path: length of all steps of all points, K.
        efficiency: $\sum_i \|y_i - x_i\| / K$, point by point: 1 for straight paths.
        thesis_efficiency: D / K, a root of squares over a sum of lengths, which is 1 for a single point only:
            n points that go as far as each other straight ahead have $1 / \sqrt n$.
    """

    direct: float
    wasserstein: float
    monge_gap: float
    cost_gap: float
    centred_gap: float
    optimality: float
    normalised_optimality: float
    matching: float
    path: float
    efficiency: float
    thesis_efficiency: float


@dataclass(frozen=True, eq=False)
class Moved:
    """A class on its way, with all that its figures are made of.

    Shapes: start, first, end (n, d), the first being after one look; image (n,), the place of the end that
    the best pairing sends a point to; own (n,), the place of its own end; drawn (draws, n), other pairings.

    Attributes:
        least: summed cost of the best pairing.
        rest: length of all steps but the first.
        straight: whether the end is reached straight, whatever the steps.
    """

    start: Tensor
    first: Tensor
    end: Tensor
    image: Tensor
    least: float
    rest: float
    own: Tensor
    drawn: Tensor
    straight: bool = False

    def squared(self, places: Tensor) -> float:
        """Summed cost of a pairing."""
        return float((self.end[places] - self.start).square().sum())

    @property
    def shift(self) -> float:
        """What of a squared cost is due to the class as a whole."""
        return float((self.end.mean(0) - self.start.mean(0)).square().sum()) * len(self.start)

    @property
    def length(self) -> float:
        """Summed distance of all points from their own ends."""
        return float((self.end[self.own] - self.start).norm(dim=-1).sum())

    @property
    def path(self) -> float:
        """Summed length of all steps."""
        if self.straight:
            return self.length
        return float((self.first[self.own] - self.start).norm(dim=-1).sum()) + self.rest

    @property
    def at_random(self) -> float:
        """Root of the summed cost of other pairings, in the mean."""
        return fmean(self.squared(places) ** 0.5 for places in self.drawn)

    @property
    def matched(self) -> int:
        """Points that stay with their own end, or with one that cannot be told from it."""
        same = self.image == self.own
        for points in (self.end, self.start):
            same = same | (points[self.image] == points[self.own]).all(-1)
        return int(same.sum())


def moved_classes(
    who: str,
    paths: Sequence[Tensor],
    solver: str,
    epsilon: float,
    steps: int,
    *,
    permutations: int,
    seed: int,
) -> list[Moved]:
    """Every class, paths (looks + 1, n, d), with its best pairing."""
    if solver not in SOLVERS:
        raise unknown(who, "solver", solver, SOLVERS)
    pairs = [(path[0], path[-1]) for path in paths]
    solved = _assigned(pairs) if solver == "exact" else _scaled(pairs, epsilon, steps)
    source, made = generator(seed), []
    for path, (image, least) in zip(paths, solved, strict=True):
        count = path.shape[1]
        drawn = torch.stack([torch.randperm(count, generator=source) for _ in range(permutations)])
        rest = float((path[2:] - path[1:-1]).norm(dim=-1).sum())
        own = torch.arange(count, device=path.device)
        made.append(Moved(path[0], path[1], path[-1], image, least, rest, own, drawn.to(path.device)))
    return made


def _assigned(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, float]]:
    """The best pairing of each class and its summed cost, by scipy."""
    from scipy.optimize import linear_sum_assignment

    found = []
    for start, end in pairs:
        costs = squared_distances(start - start.mean(0), end - end.mean(0)).cpu().numpy()
        image = torch.from_numpy(linear_sum_assignment(costs)[1]).to(start.device)
        found.append((image, float((end[image] - start).square().sum())))
    return found


def _scaled(pairs: Sequence[tuple[Tensor, Tensor]], epsilon: float, steps: int) -> list[tuple[Tensor, float]]:
    """The same for all classes at once, by Sinkhorn: the heaviest of each row, and the cost from below."""
    counts = torch.tensor([len(start) for start, _ in pairs])
    most = int(counts.max())
    mask = (torch.arange(most) < counts[:, None]).to(pairs[0][0].device)
    left, right = (
        torch.stack([torch.cat([p - p.mean(0), p.new_zeros(most - len(p), p.shape[1])]) for p in side])
        for side in zip(*pairs, strict=True)
    )
    made = sinkhorn(
        squared_distances(left, right), epsilon=epsilon, steps=steps, left_mask=mask, right_mask=mask
    )
    found = []
    for place, (start, end) in enumerate(pairs):
        count = len(start)
        image = made.coupling[place, :count, :count].argmax(-1)
        shift = float((end.mean(0) - start.mean(0)).square().sum())
        found.append((image, count * (max(float(made.lower[place]), 0.0) + shift)))
    return found


def figures_of(moved: Sequence[Moved]) -> TransportFigures:
    """The figures of some classes, summed over them."""
    squares = [(each.squared(each.own), each.least, each.shift) for each in moved]
    count = sum(len(each.start) for each in moved)
    direct = sum(own**0.5 for own, _, _ in squares)
    # A pairing that costs no less than the best is the best, but for rounding.
    least = sum(min(own, best) ** 0.5 for own, best, _ in squares)
    centred = sum(_rest(own, shift) - _rest(min(own, best), shift) for own, best, shift in squares)
    at_random = sum(each.at_random for each in moved)
    path, length = sum(each.path for each in moved), sum(each.length for each in moved)
    return TransportFigures(
        direct=direct,
        wasserstein=least,
        monge_gap=direct - least,
        cost_gap=sum(own - min(own, best) for own, best, _ in squares) / count,
        centred_gap=centred,
        optimality=least / direct if direct else 1.0,
        normalised_optimality=(at_random - direct) / (at_random - least) if at_random > least else 1.0,
        matching=sum(each.matched for each in moved) / count,
        path=path,
        efficiency=length / path if path else 1.0,
        thesis_efficiency=direct / path if path else 1.0,
    )


def _rest(squared: float, shift: float) -> float:
    return max(squared - shift, 0.0) ** 0.5


def mean_figures(found: Sequence[TransportFigures]) -> TransportFigures:
    """The mean of every figure."""
    return TransportFigures(
        **{each.name: fmean(getattr(one, each.name) for one in found) for each in fields(TransportFigures)}
    )


def class_paths(who: str, whole: Tensor, labels: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """The paths of every class, (looks + 1, n, d) in double precision, by its label."""
    check_points(who, projections=whole)
    places = whole.shape[1:-1]
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise BadInput(f"{who}: `labels` are {labels.dtype}, expected whole numbers")
    if not labels.dim() or labels.shape != places[: labels.dim()]:
        raise ShapeError(
            f"{who}: `labels` has shape {tuple(labels.shape)}, expected {tuple(places)} or its first axes"
        )
    if mask is not None and (mask.shape != places or mask.dtype != torch.bool):
        raise ShapeError(
            f"{who}: `mask` is {mask.dtype} {tuple(mask.shape)}, expected torch.bool {tuple(places)}"
        )
    spread = labels.reshape(*labels.shape, *[1] * (len(places) - labels.dim())).expand(places).flatten()
    points = whole.detach().double().flatten(1, -2)
    kept = torch.ones_like(spread, dtype=torch.bool) if mask is None else mask.flatten().to(spread.device)
    found = {}
    for label in spread[kept].unique():
        path = points[:, ((spread == label) & kept).to(points.device)]
        if path.shape[1] < FEWEST:
            raise BadInput(f"{who}: class {int(label)} has {path.shape[1]} point, expected {FEWEST} or more")
        found[str(int(label))] = path
    if not found:
        raise BadInput(f"{who}: `mask` leaves none of {len(spread)} points, expected two or more of a class")
    return found
