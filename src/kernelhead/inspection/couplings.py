"""Who goes where at least cost: exact and entropic couplings of two sets of points, and their distances."""

from itertools import combinations

import torch
from torch import Tensor

from kernelhead.errors import BadInput, missing_extra, unknown
from kernelhead.ops.transport import sinkhorn, squared_distances
from kernelhead.pattern import Dense
from kernelhead.rng import generator
from kernelhead.shapes import check_axes, check_size

SOLVERS = ("exact", "sinkhorn")
COSTS = ("sqeuclidean", "euclidean")
EPSILON, STEPS = 1e-3, 300  # of the entropic solver, where accuracy counts


def optimal_matching(x: Tensor, y: Tensor, *, batch: int | None = None, seed: int = 0) -> Tensor:
    """For every x the place of its y in the one-to-one matching of least squared length.

    Exact, by scipy's assignment, which costs O(n^3): 0.02 s for 450 points, 0.3 s for 1,400. In batches
    both sets are shuffled and matched part by part, at O(n batch^2), which costs more than the least.

    Shapes: x (n, d), y (n, d); returns (n,).

    Args:
        batch: most points that are matched at once; all if None.
        seed: of the shuffle.

    Raises:
        BadInput: a point is not finite, there is none, or `batch` is no such number.
        ShapeError: the sets differ in size or width.

    Example:
        >>> optimal_matching(torch.tensor([[0.0], [1.0]]), torch.tensor([[5.0], [4.0]]))
        tensor([1, 0])
    """
    from scipy.optimize import linear_sum_assignment

    who = "optimal_matching"
    count = check_axes(who, x=(x, "n d"), y=(y, "n d"))["n"]
    check_points(who, x=x, y=y)
    size = count if batch is None else check_size(who, "batch", batch)
    source = generator(seed)
    whole = torch.arange(count)
    left, right = (whole if size >= count else torch.randperm(count, generator=source) for _ in range(2))
    found = torch.empty(count, dtype=torch.int64)
    x, y = (points.detach().double().cpu() for points in (x, y))
    for rows, columns in zip(left.split(size), right.split(size), strict=True):
        cost = squared_distances(x[rows], y[columns])
        found[rows] = columns[torch.from_numpy(linear_sum_assignment(cost.numpy())[1])]
    return found.to(whole.device)


def optimal_coupling(
    x: Tensor,
    y: Tensor,
    *,
    cost: str = "sqeuclidean",
    solver: str = "exact",
    epsilon: float = EPSILON,
    steps: int = STEPS,
) -> Dense:
    """How equal shares of x are brought to equal shares of y at least cost, as a pattern.

    Sets of one size are solved by scipy's assignment and others by POT's network simplex, both exact; or by
    Sinkhorn's steps, on the device of the points.

    Shapes: x (n, d), y (m, d); the pattern is (n, m), with sums 1 / n in rows and 1 / m in columns.

    Args:
        cost: "sqeuclidean" or "euclidean".
        solver: "exact" or "sinkhorn".
        epsilon: of the entropy, as a share of the mean cost.
        steps: of "sinkhorn".

    Raises:
        BadInput: a point is not finite, or there is none.
        MissingExtra: the sizes differ and POT is not installed.
        ShapeError: the points have different widths.
        UnknownName: no such cost or solver.

    Example:
        >>> optimal_coupling(torch.tensor([[0.0], [1.0]]), torch.tensor([[5.0], [4.0]])).matrix()
        tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]], dtype=torch.float64)
    """
    who = "optimal_coupling"
    costs = _costs(who, x, y, cost, solver)
    if solver == "sinkhorn":
        return Dense(sinkhorn(costs, epsilon=epsilon, steps=steps).coupling)
    return Dense(_exact(who, costs))


def wasserstein(
    x: Tensor,
    y: Tensor,
    *,
    cost: str = "sqeuclidean",
    solver: str = "exact",
    epsilon: float = EPSILON,
    steps: int = STEPS,
) -> float:
    """The Wasserstein distance of two sets of points with equal shares: $W_2$, or $W_1$ of plain lengths.

    By "sinkhorn" it is the lower of its bounds, never above the exact one, up to rounding.

    Shapes: x (n, d), y (m, d).

    Args:
        cost: "sqeuclidean" for $W_2$, "euclidean" for $W_1$.
        solver: "exact" or "sinkhorn".
        epsilon: of the entropy, as a share of the mean cost.
        steps: of "sinkhorn".

    Raises:
        BadInput: a point is not finite, or there is none.
        MissingExtra: the sizes differ and POT is not installed.
        ShapeError: the points have different widths.
        UnknownName: no such cost or solver.

    Example:
        >>> wasserstein(torch.tensor([[0.0], [1.0]]), torch.tensor([[5.0], [4.0]]))
        4.0
    """
    who = "wasserstein"
    costs = _costs(who, x, y, cost, solver)
    if solver == "sinkhorn":
        least = sinkhorn(costs, epsilon=epsilon, steps=steps).lower
    else:
        least = (_exact(who, costs) * costs).sum()
    value = max(float(least), 0.0)
    return value**0.5 if cost == "sqeuclidean" else value


def bures_distance(mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor) -> float:
    r"""The Wasserstein distance $W_2$ of two normal distributions.

    $W_2^2 = \|m - m'\|^2 + \mathrm{tr}(S + S' - 2 (S^{1/2} S' S^{1/2})^{1/2})$.

    Shapes: means (d,), covariances (d, d), symmetric and not negative.

    Args:
        other_mean: of the second.
        other_covariance: of the second.

    Raises:
        ShapeError: sizes do not fit.
        BadInput: a number is not finite.

    Example:
        >>> zero, one = torch.zeros(2), torch.eye(2)
        >>> round(bures_distance(zero, one, torch.tensor([3.0, 0.0]), 4 * one), 6)
        3.316625
    """
    sides = {"mean": (mean, "d"), "covariance": (covariance, "d e"), "other_mean": (other_mean, "d")}
    check_axes("bures_distance", **sides, other_covariance=(other_covariance, "d e"))
    check_axes("bures_distance", covariance=(covariance, "d d"))
    check_points("bures_distance", **{name: side for name, (side, _) in sides.items()})
    check_points("bures_distance", other_covariance=other_covariance)
    mean, covariance, other_mean, other_covariance = (
        each.detach().double().cpu() for each in (mean, covariance, other_mean, other_covariance)
    )
    root = _root(covariance)
    shared = _root(root @ other_covariance @ root).trace()
    spread = (covariance + other_covariance).trace() - 2 * shared
    return float(((mean - other_mean).square().sum() + spread).clamp_min(0).sqrt())


def bures_difficulty(x: Tensor, labels: Tensor) -> float:
    """The mean distance of two classes, each taken for a normal distribution: the smaller, the harder.

    Shapes: x (n, d), labels (n,).

    Raises:
        BadInput: fewer than two classes, a class of fewer than two points, or a number that is not finite.
        ShapeError: not one label a point.

    Example:
        >>> x = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
        >>> bures_difficulty(x, torch.tensor([0, 0, 1, 1]))
        10.0
    """
    check_axes("bures_difficulty", x=(x, "n d"), labels=(labels, "n"))
    check_points("bures_difficulty", x=x)
    x, labels = x.detach().double().cpu(), labels.cpu()
    normals = []
    for label in labels.unique():
        members = x[labels == label]
        if len(members) < 2:
            raise BadInput(f"bures_difficulty: class {int(label)} has 1 point, expected two or more")
        normals.append((members.mean(0), torch.atleast_2d(torch.cov(members.T, correction=0))))
    if len(normals) < 2:
        raise BadInput(f"bures_difficulty: {len(normals)} class, expected two or more")
    pairs = [bures_distance(*one, *other) for one, other in combinations(normals, 2)]
    return sum(pairs) / len(pairs)


def check_points(who: str, **sets: Tensor) -> None:
    """Check that sets of points hold some, and only finite numbers.

    Raises:
        BadInput: one does not.
    """
    for name, points in sets.items():
        if not points.numel():
            raise BadInput(f"{who}: `{name}` {tuple(points.shape)} has no points, expected one or more")
        if not bool(points.isfinite().all()):
            raise BadInput(f"{who}: `{name}` {tuple(points.shape)} holds numbers that are not finite")


def _costs(who: str, x: Tensor, y: Tensor, cost: str, solver: str) -> Tensor:
    if cost not in COSTS:
        raise unknown(who, "cost", cost, COSTS)
    if solver not in SOLVERS:
        raise unknown(who, "solver", solver, SOLVERS)
    check_axes(who, x=(x, "n d"), y=(y, "m d"))
    check_points(who, x=x, y=y)
    x, y = x.detach().double(), y.detach().double()
    squared = squared_distances(x, y)
    return squared if cost == "sqeuclidean" else squared.sqrt()


def _exact(who: str, costs: Tensor) -> Tensor:
    rows, columns = costs.shape
    if rows == columns:
        from scipy.optimize import linear_sum_assignment

        places = torch.from_numpy(linear_sum_assignment(costs.cpu().numpy())[1])
        return torch.eye(rows, dtype=costs.dtype)[places].to(costs.device) / rows
    try:
        from ot import emd, unif
    except ImportError:
        raise missing_extra(f"{who} of {rows} and {columns} points", "POT", "ot") from None
    made = emd(unif(rows), unif(columns), costs.cpu().numpy(), numItermax=10**7)
    return torch.from_numpy(made).to(costs)


def _root(matrix: Tensor) -> Tensor:
    """The square root of a symmetric matrix that is not negative, up to rounding."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
