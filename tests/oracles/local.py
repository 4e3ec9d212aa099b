"""Mixing of neighbours, written as loops in float64."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def local_mix(x: Array, weight: Array, bias: Array, dilation: int, causal: bool) -> Array:
    """(b, n, c) from points (b, n, c), weights (k, c) and a bias (c,)."""
    batch, n, width = x.shape
    taps = weight.shape[0]
    centre = taps - 1 if causal else taps // 2
    out = np.zeros_like(x)
    for row in range(batch):
        for t in range(n):
            for feature in range(width):
                total = bias[feature]
                for tap in range(taps):
                    at = t + (tap - centre) * dilation
                    if 0 <= at < n:
                        total += weight[tap, feature] * x[row, at, feature]
                out[row, t, feature] = total
    return out
