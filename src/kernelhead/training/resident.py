"""Training with all data on the device: one graph a step, for models that are bound by their launches."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.errors import BadInput, unknown
from kernelhead.nn import evaluating
from kernelhead.shapes import check_size
from kernelhead.training.course import PRECISIONS, Course, cast, products
from kernelhead.training.progress import keeper_of, kept_in
from kernelhead.training.stacked import Run, fit_runs
from kernelhead.training.steps import Fitted, Inputs, Lesson, Loss, Watch, about_course
from kernelhead.training.turns import meet


def cross_entropy(model: nn.Module, x: Inputs, y: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Mean over a batch of the negative log-probability of the right class.

    Args:
        model: from inputs to scores of classes.
        x: inputs of a batch; several as a tuple.
        y: its classes.
        smoothing: share of a label that is spread over all classes.
    """
    return F.cross_entropy(model(*x) if isinstance(x, tuple) else model(x), y, label_smoothing=smoothing)


def fit_resident(
    model: nn.Module,
    x: Inputs,
    y: Tensor,
    course: Course,
    *,
    loss: Loss | None = None,
    compiled: bool | None = None,
    captured: bool = True,
    watch: Watch | None = None,
    every: int = 500,
    patience: int | None = None,
    lessons: Sequence[Lesson] = (),
    keep: Path | None = None,
) -> Fitted:
    """Train a model on tensors that lie on its device, and leave the last weights in it, or the best.

    On a CUDA device the loss is compiled and a whole step, with its choice of cases, its rate and the
    optimiser, is captured as one graph and replayed; elsewhere the same step runs plainly. With `eta`
    the KSVD penalty of all primal layers is added. Runs of one kind that take turns in one process are
    trained in one step for all of them, see `fit_runs`.

    Shapes: x (cases, ...) as `loss` takes it, or several such, for example with a mask; y (cases, ...).

    Args:
        model: on the device of x and y, in training mode.
        x: inputs of all cases; several as a tuple, of which `loss` then gets one with a batch of each.
        y: targets of all cases.
        course: how to train.
        loss: from the model and a batch, or a part of one, to a scalar; may change the inputs, at random
            too. By default `cross_entropy` with the course's smoothing.
        compiled: whether `loss` goes through torch.compile; on CUDA by default.
        captured: whether a step on CUDA is one graph, which asks of `loss` that it never waits for the
            device and that its shapes hang on no values.
        watch: a figure of the model, the higher the better, such as its accuracy on validation data;
            the weights of the highest are left in the model.
        every: steps from one look to the next; the last step has one too.
        patience: looks without a higher figure after which training ends, rates being those of the whole
            course; None to go on.
        lessons: what is shown when, easy cases first: of each its first step, 0 for the first of them, and
            the places of its cases, on the CPU. Cases are then drawn one by one, and a lesson begins up to
            64 steps late. All cases in epochs without.
        keep: file in which the course leaves how far it has come, every twenty seconds or less often, and
            at its end what it has come to; where it is there already, the course goes on from it, from a
            model with the same first weights. On the CPU losses and weights are those of a course that
            nobody stopped, to the last bit. What `watch` and `loss` keep for themselves is not in it.

    Raises:
        BadInput: fewer cases than a batch, x and y of different lengths, patience that is no such number
            or has nothing to watch, lessons out of order or without cases, or a loss that is not finite.
        CheckpointError: the file to keep is damaged, of another course, or cannot be written.
        MissingExtra: there is one, and safetensors is not installed.

    Example:
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> fitted = fit_resident(model, x, (x[:, 0] > 0).long(), Course(100, 16, lr=0.05))
        >>> fitted.losses[-1] < 0.5 * fitted.losses[0]
        True
    """
    parts = x if isinstance(x, tuple) else (x,)
    if {len(part) for part in parts} != {len(y)} or len(y) < course.batch:
        counts = " and ".join(str(len(part)) for part in parts)
        raise BadInput(
            f"fit_resident: {counts} inputs and {len(y)} targets, expected the same number of all and at "
            f"least a batch of {course.batch}"
        )
    if patience is not None:
        check_size("fit_resident", "patience", patience)
        if watch is None:
            raise BadInput(f"fit_resident: patience is {patience}, but there is nothing to watch")
    firsts = [first for first, _ in lessons]
    inside = all(len(places) and 0 <= places.min() <= places.max() < len(y) for _, places in lessons)
    if lessons and (firsts[0] != 0 or firsts != sorted(set(firsts)) or not inside):
        raise BadInput(
            f"fit_resident: lessons begin at {firsts}, expected 0 and then later steps, each with places of "
            f"the {len(y)} cases"
        )
    if loss is None:
        loss = partial(cross_entropy, smoothing=course.smoothing)
    compiled = y.is_cuda if compiled is None else compiled
    cases = {**{f"input {place}": part for place, part in enumerate(parts)}, "targets": y}
    keeper = keeper_of(keep, lambda: about_course(course, model, cases, every, patience, lessons))
    run = Run(model, x, y, course, loss, compiled, captured, watch, every, patience, tuple(lessons), keeper)
    with kept_in(None):  # courses within a loss or a look are not the job's own
        made = meet(run, fit_runs)
    if isinstance(made, BadInput):
        raise made
    return made


@torch.no_grad()
def scores_of(model: nn.Module, x: Inputs, *, batch: int = 1024, precision: str = "32") -> Tensor:
    """Outputs for all cases in evaluation mode, a batch at a time, float32.

    Args:
        model: called with a batch of each input.
        x: inputs of all cases; several as a tuple.
        batch: cases of a call.
        precision: "32", "tf32", "bf16" or "fp16".

    Raises:
        UnknownName: no such precision.
    """
    if precision not in PRECISIONS:
        raise unknown("scores_of", "precision", precision, PRECISIONS)
    parts = x if isinstance(x, tuple) else (x,)
    with evaluating(model), products(precision), cast(parts[0].device, precision):
        return torch.cat(
            [model(*each).float() for each in zip(*(part.split(batch) for part in parts), strict=True)]
        )
