"""How a model is trained, in numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import cos, pi

import torch
from torch import Tensor

from kernelhead.errors import BadInput, unknown
from kernelhead.nn.penalties import REDUCTIONS
from kernelhead.shapes import check_size

SCHEDULES = ("cosine", "one_cycle", "constant")
OPTIMISERS = ("adamw", "radam")
PRECISIONS = {"32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Course:
    """How a model is trained: all of it in numbers, so that a run can be told and repeated.

    Args:
        steps: of the optimiser.
        batch: cases of a step; a part of an epoch that does not fill one is left out.
        lr: largest learning rate.
        schedule: "cosine" to zero, "one_cycle" in straight lines from lr/25 up and down to lr/250,000, or
            "constant".
        warmup: share of the steps in which the rate rises to `lr`.
        weight_decay: on all weights of two axes or more, but not on the values of primal layers.
        optimiser: "adamw" or "radam".
        epsilon: of the optimiser.
        eta: weight of the KSVD penalty of primal layers.
        reduction: of that penalty, "batch" or "sample".
        clip: largest norm of a gradient, or None.
        precision: "32", "tf32" for float32 whose products on CUDA are rounded to ten bits, or "bf16" or
            "fp16" by autocast.
        seed: of the order of the cases and of what is drawn in training; weights come from the caller.
        accumulate: parts of a batch whose gradients are summed before a step, for less memory. The step is
            the same where the loss is a mean over cases; the reduction "batch" is then one over a part.
        ema: decay of a moving average of the weights, which is then what is looked at and what is left in
            the model; rises as (1 + t) / (10 + t) at first. Zero for none.
        smoothing: share of a label that is spread over all classes, in the default loss.

    Raises:
        BadInput: a number is out of range, or the batch does not split into that many parts.
        UnknownName: no such schedule, optimiser, reduction or precision.
    """

    steps: int
    batch: int
    lr: float = 1e-3
    schedule: str = "cosine"
    warmup: float = 0.05
    weight_decay: float = 0.05
    optimiser: str = "adamw"
    epsilon: float = 1e-8
    eta: float = 0.0
    reduction: str = "batch"
    clip: float | None = 1.0
    precision: str = "32"
    seed: int = 0
    accumulate: int = 1
    ema: float = 0.0
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_size("Course", "steps", self.steps)
        check_size("Course", "batch", self.batch)
        if self.batch % check_size("Course", "accumulate", self.accumulate):
            raise BadInput(
                f"Course: a batch of {self.batch} does not split into {self.accumulate} equal parts"
            )
        for name, value, known in (
            ("schedule", self.schedule, SCHEDULES),
            ("optimiser", self.optimiser, OPTIMISERS),
            ("reduction", self.reduction, REDUCTIONS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise unknown("Course", name, value, known)
        if not self.lr > 0 or not 0 <= self.warmup < 1:
            raise BadInput(
                f"Course: lr is {self.lr}, warmup {self.warmup}; expected above 0, and from 0 to 1"
            )
        if not self.eta >= 0:
            raise BadInput(f"Course: eta is {self.eta}, expected 0 or more")
        for name in ("ema", "smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"Course: {name} is {getattr(self, name)}, expected from 0 to below 1")

    def rates(self) -> Tensor:
        """The learning rate of every step, (steps,).

        Example:
            >>> [round(rate, 2) for rate in Course(4, 1, lr=1.0, warmup=0.5).rates().tolist()]
            [0.5, 1.0, 1.0, 0.5]
        """
        rise = int(self.steps * self.warmup)
        left = max(self.steps - rise, 1)

        def rate(step: int) -> float:
            up, down = (step + 1) / max(rise, 1), (step - rise) / left
            if self.schedule == "one_cycle":
                return 0.04 + 0.96 * up if step < rise else 1 - down * (1 - 4e-6)
            if step < rise:
                return up
            return 1.0 if self.schedule == "constant" else (1 + cos(pi * down)) / 2

        return torch.tensor([self.lr * rate(step) for step in range(self.steps)])


@contextmanager
def products(precision: str) -> Iterator[None]:
    """How float32 matrices are multiplied, which is a setting of the whole process, for one block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def cast(device: torch.device, precision: str) -> torch.autocast:
    """Autocast to the precision where it is a short one."""
    kind = PRECISIONS[precision]
    return torch.autocast(device.type, kind or torch.bfloat16, enabled=kind is not None)
