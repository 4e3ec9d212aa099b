"""What the parts of the robustness comparison share: the rows, and a model of a row that is trained."""

from dataclasses import asdict
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kernelhead.rng import seeded
from kernelhead.training.resident import Course, Loss, fit_resident


class Row(NamedTuple):
    """An attention as models name it, and the iterations of its pursuits."""

    attention: str
    iterations: int = 4


# Iterations as in the released scripts: four where the first layer alone pursues, two in all layers.
ROWS = {
    "softmax": Row("softmax"),
    "symmetric": Row("symmetric"),
    "rpc published, first layer": Row("rpc,symmetric,...", 4),
    "rpc published, all layers": Row("rpc", 2),
    "rpc corrected, first layer": Row("rpc_corrected,symmetric,...", 4),
    "rpc corrected, all layers": Row("rpc_corrected", 2),
    "primal": Row("primal"),
    "primal, last layer": Row("primal+"),
}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(model: nn.Module, x: Tensor, y: Tensor, course: Course, loss: Loss) -> dict[str, Any]:
    """Train a model, its draws named by the seed of the course, and say what that took."""
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    with seeded(course.seed):
        # A captured step launches nothing, and compiling would take longer than what it saves.
        fitted = fit_resident(model, x, y, course, loss=loss, compiled=False)
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "seconds": fitted.seconds,
        "steps_a_second": fitted.steps_a_second,
        "peak_gib": fitted.peak_gib,
        "loss": fitted.losses[-1],
        "course": asdict(course),
    }


def finite(number: float) -> float | None:
    """As JSON can hold it."""
    return number if isfinite(number) else None
