"""Instances that are clouds of points of a class: simulations whose difficulty is known in closed form."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kernelhead.errors import BadInput, unknown
from kernelhead.shapes import check_size

VARIANCE = 2.0  # of every feature, in all classes
PARTS = {"train": 0, "test": 1}


@dataclass(frozen=True, eq=False)
class Clouds:
    """Instances of several points each; all points of an instance have its class.

    Shapes: x (instances, points, features), y (instances,), means (classes, features).

    Args:
        x: the points.
        y: classes, from 0.
        means: of the classes.
    """

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    means: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.y)

    def part(self, name: str) -> "Clouds":
        """Every second instance, from the first on to train with, from the second on to test with.

        Raises:
            UnknownName: the part is neither train nor test.

        Example:
            >>> gaussian_clouds(2, 1, instances=5, seed=0).part("test").y.tolist()
            [0, 1]
        """
        if name not in PARTS:
            raise unknown("Clouds", "part", name, PARTS)
        return replace(self, x=self.x[PARTS[name] :: 2], y=self.y[PARTS[name] :: 2])

    def points(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """All points as rows, with the class and the instance of each.

        Example:
            >>> [part.shape for part in gaussian_clouds(2, 1, instances=4, seed=0).points()]
            [(80, 2), (80,), (80,)]
        """
        count = self.x.shape[1]
        instances = np.repeat(np.arange(len(self)), count)
        return self.x.reshape(-1, self.x.shape[2]), np.repeat(self.y, count), instances


def gaussian_clouds(
    classes: int, separation: float, *, instances: int = 90, points: int = 20, seed: int
) -> Clouds:
    r"""Clouds of normal points in the plane, of two or three classes, all of covariance 2 I.

    Means are $(0, \mp s)$, or $(-x, 0)$, $(x, 0)$, $(0, x)$ with $x = 3 s / (1 + \sqrt 2)$: the mean Bures
    distance of two classes is 2 s in both. Classes are as large as each other, up to one instance.

    Args:
        classes: 2 or 3.
        separation: s, such as 1, 2, 3, 4: the smaller, the harder.
        instances: how many clouds.
        points: of each.
        seed: names the draw.

    Raises:
        BadInput: other classes, a separation that is not above 0, or a size that is not positive.

    Example:
        >>> drawn = gaussian_clouds(3, 2, seed=0)
        >>> drawn.x.shape, drawn.means.round(2).tolist()
        ((90, 20, 2), [[-2.49, 0.0], [2.49, 0.0], [0.0, 2.49]])
    """
    who = "gaussian_clouds"
    if classes not in (2, 3):
        raise BadInput(f"{who}: classes is {classes!r}, expected 2 or 3")
    if not separation > 0:
        raise BadInput(f"{who}: separation is {separation!r}, expected a number above 0")
    check_size(who, "instances", instances, least=classes)
    check_size(who, "points", points)
    draws = np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))
    side = 3 * separation / (1 + np.sqrt(2))
    places = {2: [(0, -separation), (0, separation)], 3: [(-side, 0), (side, 0), (0, side)]}
    means = np.array(places[classes], dtype=np.float64)
    y = np.arange(instances) * classes // instances
    noise = np.sqrt(VARIANCE) * draws.standard_normal((instances, points, 2))
    return Clouds(means[y][:, None] + noise, y, means)
