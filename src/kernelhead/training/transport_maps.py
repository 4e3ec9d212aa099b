"""Maps to dummy classes, learned from a pairing of points with dummies; heads that know dummies alone."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data.sources import in_part
from kernelhead.errors import BadInput, unknown
from kernelhead.inspection import optimal_matching
from kernelhead.models import TransportMap, mean_anchors, ring_anchors
from kernelhead.nn import evaluating
from kernelhead.rng import generator, seeded
from kernelhead.shapes import check_size
from kernelhead.training.course import Course
from kernelhead.training.resident import fit_resident
from kernelhead.training.steps import Fitted

DUMMIES = ("ring", "class_means")
MATCHES = ("ot", "random", "mean")
RADIUS = 3.0  # of the ring for each class, in deviations of a dummy class
FEWEST = 10  # points from which on some are held out
HEAD_DRAWS, HEAD_STEPS, HEAD_BATCH, HEAD_LR = 2000, 300, 200, 1e-2


@dataclass(frozen=True)
class MapSettings:
    """How points are paired with dummies and a map is learned from the pairs.

    Args:
        dummies: "ring", means on a circle of the first two coordinates, or "class_means", means that lie to
            each other as those of the classes do.
        radius: of the ring, in deviations of a dummy class; 0 for three times the number of classes.
        match: "ot", the pairing of least squared length inside each class; "random"; or "mean", every point
            with the mean of its dummy class.
        matching_batch: most points that are paired at once; 0 for all.
        epochs: over all points, at most.
        batches: of an epoch.
        lr: learning rate of Adam.
        validation: share of the points of every class that chooses the epoch; 0 for none.
        patience: epochs without a better one after which training ends.

    Raises:
        BadInput: a number is out of range.
        UnknownName: no such dummies or pairing.
    """

    dummies: str = "ring"
    radius: float = 0.0
    match: str = "ot"
    matching_batch: int = 1000
    epochs: int = 100
    batches: int = 10
    lr: float = 1e-2
    validation: float = 0.1
    patience: int = 10

    def __post_init__(self) -> None:
        who = "MapSettings"
        for name, value, known in (("dummies", self.dummies, DUMMIES), ("match", self.match, MATCHES)):
            if value not in known:
                raise unknown(who, name, value, known)
        for name in ("epochs", "batches", "patience"):
            check_size(who, name, getattr(self, name))
        check_size(who, "matching_batch", self.matching_batch, least=0)
        if not self.radius >= 0 or not self.lr > 0 or not 0 <= self.validation < 1:
            raise BadInput(
                f"{who}: radius is {self.radius!r}, lr {self.lr!r}, validation {self.validation!r}; "
                "expected 0 or more, above 0, and from 0 to below 1"
            )

    def radius_for(self, classes: int) -> float:
        """The radius of a ring of so many classes.

        Example:
            >>> MapSettings().radius_for(3), MapSettings(radius=2.0).radius_for(3)
            (9.0, 2.0)
        """
        return self.radius or RADIUS * classes


@dataclass(frozen=True, eq=False)
class FittedMap:
    """A trained map with the scale of its training points.

    Args:
        model: on the CPU, in evaluation mode.
        mean: of every feature.
        deviation: of every feature, 1 where it has none.
        fitted: what training took.
    """

    model: TransportMap
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    fitted: Fitted

    def standardised(self, x: NDArray[np.float64]) -> Tensor:
        """Points on the scale of training, in at least two coordinates, the second being zero."""
        return _wide_enough(torch.from_numpy((np.asarray(x, np.float64) - self.mean) / self.deviation))

    def carried(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where points are carried to, (n, coordinates), in double precision."""
        return self._called(lambda model, points: model(points), x)

    def scores(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Minus the distance from every dummy mean, (n, classes), in double precision."""
        return self._called(lambda model, points: model.scores(points), x)

    def _called(
        self, call: Callable[[TransportMap, Tensor], Tensor], x: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        model = deepcopy(self.model).double()
        with torch.no_grad(), evaluating(model):
            return np.asarray(call(model, self.standardised(x)).numpy())


def fit_map(
    x: NDArray[np.float64],
    y: NDArray[np.int64],
    settings: MapSettings | None = None,
    *,
    hidden: Sequence[int] = (32, 32),
    anchors: NDArray[np.float64] | None = None,
    standardise: bool = True,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> FittedMap:
    """Draw as many dummies as points, pair them inside classes and learn a map from points to their dummies.

    Dummies are normal with unit variance about the mean of their class. A part of the training points is held
    out and chooses the epoch; no other points are looked at. The same seed gives the same bits on the CPU.

    Shapes: x (n, d), y (n,), classes from 0; anchors (classes, d), d being two at least.

    Args:
        settings: of pairing and training.
        hidden: widths of the map's layers.
        anchors: means of the dummy classes, in place of those that the settings name.
        standardise: whether to take off the mean of every feature and divide by its deviation first.
        seed: of dummies, weights, what is held out and order.
        device: to train on.

    Raises:
        BadInput: fewer than two classes, one without points, anchors that do not fit, or two means coincide.

    Example:
        >>> x = np.array([[0.0, 0.0], [0.1, 0.2], [3.0, 3.0], [3.1, 2.9]] * 5)
        >>> made = fit_map(x, np.array([0, 0, 1, 1] * 5))
        >>> made.scores(x[:4]).argmax(1).tolist()
        [0, 0, 1, 1]
    """
    settings = settings or MapSettings()
    classes = len(np.unique(y))
    if classes < 2 or y.max() != classes - 1:
        raise BadInput(f"fit_map: classes are {np.unique(y).tolist()}, expected two or more, from 0 on")
    mean, deviation = x.mean(0), x.std(0)
    deviation = np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)
    if not standardise:
        mean, deviation = np.zeros_like(mean), np.ones_like(deviation)
    points = _wide_enough(torch.from_numpy((x - mean) / deviation)).float()
    labels, width = torch.from_numpy(y), points.shape[1]
    means = _anchors(points, labels, settings, anchors)
    goals = matched_dummies(points, labels, means, settings, seed=seed)
    with seeded(seed):
        model = TransportMap(width, means, hidden=hidden)
    held = np.zeros(len(y), bool)
    if settings.validation and len(y) >= FEWEST:
        held = ~in_part("fit_map", y, "train", validation=settings.validation, seed=seed)
    train, valid = (torch.from_numpy(np.flatnonzero(each)) for each in (~held, held))
    batch = max(len(train) // settings.batches, 1)
    every = len(train) // batch
    model, points, goals = model.to(device), points.to(device), goals.to(device)

    def missed(network: nn.Module) -> float:
        with torch.no_grad(), evaluating(network):
            return -float(F.mse_loss(network(points[valid]), goals[valid]))

    fitted = fit_resident(
        model,
        points[train],
        goals[train],
        Course(
            settings.epochs * every,
            batch,
            lr=settings.lr,
            schedule="constant",
            warmup=0.0,
            weight_decay=0.0,
            clip=None,
            seed=seed,
        ),
        loss=_squared_error,
        compiled=False,
        watch=missed if len(valid) else None,
        every=every,
        patience=settings.patience if len(valid) else None,
    )
    return FittedMap(model.cpu().eval(), mean, deviation, fitted)


def matched_dummies(x: Tensor, y: Tensor, anchors: Tensor, settings: MapSettings, *, seed: int = 0) -> Tensor:
    """A dummy of its class for every point, as the settings pair them.

    Shapes: x (n, d), y (n,), anchors (classes, d); returns (n, d).

    Args:
        x: points.
        y: their classes, from 0.
        anchors: means of the dummy classes.
        settings: how to pair.
        seed: of the draw.

    Example:
        >>> x, y = torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])
        >>> matched_dummies(x, y, ring_anchors(2, 2, radius=1.0), MapSettings(match="mean"))[:, 0]
        tensor([ 1.,  1., -1., -1.])
    """
    if settings.match == "mean":
        return anchors[y]
    drawn = anchors[y] + torch.randn(x.shape, generator=generator(seed, len(x)))
    if settings.match == "random":
        return drawn
    for place in range(len(anchors)):
        members = (y == place).nonzero().flatten()
        batch = settings.matching_batch or None
        found = optimal_matching(x[members], drawn[members], batch=batch, seed=seed)
        drawn[members] = drawn[members][found]
    return drawn


def pretrain_head(head: nn.Module, anchors: Tensor, *, seed: int = 0) -> nn.Module:
    """Teach a head to tell dummy classes apart, and freeze it, so that the rest must carry points to them.

    Shapes: anchors (classes, d), means of the dummy classes in what the head takes.

    Args:
        head: from points (... d) to scores of classes; changed in place.
        anchors: means of normal classes of unit variance.
        seed: of the dummies and their order.

    Returns:
        The head.

    Example:
        >>> head = pretrain_head(nn.Linear(2, 3), ring_anchors(3, 2, radius=9.0))
        >>> head(ring_anchors(3, 2, radius=9.0)).argmax(1), head.weight.requires_grad
        (tensor([0, 1, 2]), False)
    """
    classes, width = anchors.shape
    device = next(head.parameters()).device
    y = torch.arange(HEAD_DRAWS) % classes
    x = anchors.cpu()[y] + torch.randn(HEAD_DRAWS, width, generator=generator(seed, classes))
    course = Course(HEAD_STEPS, HEAD_BATCH, lr=HEAD_LR, weight_decay=0.0, seed=seed)
    fit_resident(head, x.to(device), y.to(device), course, compiled=False)
    return head.requires_grad_(False)


def _anchors(
    points: Tensor, labels: Tensor, settings: MapSettings, given: NDArray[np.float64] | None
) -> Tensor:
    classes, width = int(labels.max()) + 1, points.shape[1]
    radius = settings.radius_for(classes)
    if given is not None:
        anchors = torch.as_tensor(np.asarray(given, np.float32))
        if anchors.shape != (classes, width):
            raise BadInput(f"fit_map: dummies of shape {tuple(anchors.shape)}, expected {(classes, width)}")
        return anchors
    if settings.dummies == "ring":
        return ring_anchors(classes, width, radius=radius)
    return mean_anchors(points, labels, radius=radius)


def _squared_error(model: nn.Module, x: Tensor, goals: Tensor) -> Tensor:
    return F.mse_loss(model(x), goals)


def _wide_enough(points: Tensor) -> Tensor:
    """At least two coordinates, for a ring."""
    return F.pad(points, (0, 1)) if points.shape[1] == 1 else points
