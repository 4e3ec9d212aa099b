"""The KSVD penalty of a model: J of every head, squared and averaged in the published orders."""

import torch
from torch import Tensor

from tests.oracles.kernels import exact


def head_objective(left_moments: Tensor, right_moments: Tensor, root: Tensor, trace: Tensor) -> Tensor:
    """J[b,h] = 1/2 sum_l root[h,l]^2 (left[b,h,l] + right[b,h,l]) - trace, spec 1.9 before its means.

    Shapes: moments (b, h, s), means over the real points; root (h, s), the square root of Lambda; trace
    (h,) of W, or (b, h) of W_{.|X}; returns (b, h).
    """
    left_moments, right_moments, root, trace = map(exact, (left_moments, right_moments, root, trace))
    b, h, s = left_moments.shape
    result = torch.zeros(b, h, dtype=torch.float64)
    for sample in range(b):
        for head in range(h):
            variance = 0.0
            for component in range(s):
                both = left_moments[sample, head, component] + right_moments[sample, head, component]
                variance += float(root[head, component] ** 2 * both) / 2
            result[sample, head] = variance - (trace[head] if trace.dim() == 1 else trace[sample, head])
    return result


def penalty(modules: list[list[Tensor]], *, reduction: str = "batch", layers: str = "mean") -> float:
    """Mean (spec 1.9) or sum (spec 1.4) over modules of their squared J.

    Args:
        modules: for each module the J (b, h) of each of its calls; see `layer_penalty`.
        reduction: "batch" or "sample".
        layers: "mean" or "sum".
    """
    total = 0.0
    for calls in modules:
        total += layer_penalty(calls, reduction=reduction)
    return {"mean": total / len(modules), "sum": total}[layers]


def layer_penalty(calls: list[Tensor], *, reduction: str) -> float:
    """J^2 of one module, its calls averaged before the square (two inputs of LRA retrieval, spec 1.9).

    "batch": (mean_{b,h} J)^2, as LRA and CV; calls may differ in b.
    "sample": mean_b (mean_h J)^2, as TimeSeries, RL and NLP; sample b is the same in every call.
    """
    if reduction == "batch":
        average = 0.0
        for call in calls:
            average += _mean(call.flatten().tolist()) / len(calls)
        return average**2
    if reduction == "sample":
        squares = []
        for sample in range(len(calls[0])):
            average = 0.0
            for call in calls:
                average += _mean(call[sample].tolist()) / len(calls)
            squares.append(average**2)
        return _mean(squares)
    raise ValueError(f"layer_penalty: reduction is {reduction!r}, expected 'batch' or 'sample'")


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)
