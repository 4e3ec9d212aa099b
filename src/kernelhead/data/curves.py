"""Instances whose views lie on a curve: features for retrieval, where neighbours lead from view to view."""

import numpy as np

from kernelhead.data.features import Features
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

HARMONICS = np.array([1.0, 2.0])


def instance_curves(
    instances: int,
    *,
    views: int = 25,
    width: int = 64,
    arc: float = 2.2,
    noise: float = 0.9,
    seed: int,
) -> Features:
    r"""Views of instances, each a random smooth curve on the sphere, with noise; the label is the instance.

    A curve is $\sum_{h=1,2} (u_h \cos h t + v_h \sin h t) / h$, scaled to length 1, with normal $u_h$, $v_h$;
    a view is its point at a $t$ drawn from 0 to `arc`, plus normal noise, scaled to 1 again. Views far apart
    on a curve may be as unlike as views of two instances: what lies between joins them.

    Args:
        instances: how many curves.
        views: points of each.
        width: features of a point, d.
        arc: length of the interval of t.
        noise: expected length of the noise, about.
        seed: names the draw.

    Raises:
        BadInput: a size is not positive, or `arc` or `noise` is negative.

    Example:
        >>> drawn = instance_curves(3, views=4, width=8, seed=0)
        >>> drawn.x.shape, drawn.labels[3:5]
        ((12, 8), ('0', '1'))
    """
    who = "instance_curves"
    for name, size in (("instances", instances), ("views", views), ("width", width)):
        check_size(who, name, size)
    if not (arc >= 0 and noise >= 0):
        raise BadInput(f"{who}: arc is {arc!r}, noise {noise!r}, expected 0 or more")
    draws = np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))
    u, v = draws.standard_normal((2, instances, 1, 2, width)) / np.sqrt(width)
    phase = (arc * draws.random((instances, views, 1)) * HARMONICS)[..., None]  # (i, v, 2, 1)
    curve = ((np.cos(phase) * u + np.sin(phase) * v) / HARMONICS[:, None]).sum(2)  # (i, v, d)
    noisy = _unit(curve) + noise * draws.standard_normal(curve.shape) / np.sqrt(width)
    labels = tuple(str(instance) for instance in range(instances) for _ in range(views))
    return Features(_unit(noisy).reshape(-1, width).astype(np.float32), labels=labels, name="curves")


def _unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))
