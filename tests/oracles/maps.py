"""Linear maps of points, written as loops in float64."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def linear_map(x: Array, weight: Array, bias: Array) -> Array:
    """(n, e) from points (n, c), a weight (e, c) and a bias (e,)."""
    out = np.zeros((x.shape[0], weight.shape[0]))
    for point in range(x.shape[0]):
        for e in range(weight.shape[0]):
            out[point, e] = bias[e] + sum(weight[e, c] * x[point, c] for c in range(x.shape[1]))
    return out
