"""Training with all data on the device: one graph a step, for models that are bound by their launches."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import cos, inf, isfinite, pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.errors import BadInput, unknown
from kernelhead.nn import PooledPrimalAttention, PrimalAttention, evaluating, ksvd_penalty, record
from kernelhead.nn.penalties import REDUCTIONS
from kernelhead.rng import seeded
from kernelhead.shapes import check_size
from kernelhead.training.average import Average
from kernelhead.training.turns import pass_on

SCHEDULES = ("cosine", "one_cycle", "constant")
OPTIMISERS = ("adamw", "radam")
PRECISIONS = {"32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
PRIMAL = (PrimalAttention, PooledPrimalAttention)  # what has a KSVD penalty
WARM = 3
AHEAD = 64  # steps whose cases are chosen at a time at least: a copy to the device waits for it
TURN = 8  # steps from one turn to the next, where several runs take turns

Inputs = Tensor | tuple[Tensor, ...]
Loss = Callable[[nn.Module, Any, Tensor], Tensor]
Watch = Callable[[nn.Module], float]


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


@dataclass(frozen=True)
class Fitted:
    """What a course took.

    Attributes:
        steps: made, all of the course or fewer where patience ended it.
        losses: of every step, on the batch of that step.
        watched: the figure after each stretch of steps, where one was asked for.
        seconds: of the steps that were timed; compiling, capturing and looking left out.
        steps_a_second: over the same.
        peak_gib: most memory of the device in use, zero on the CPU.
    """

    losses: list[float]
    watched: list[float]
    seconds: float
    steps_a_second: float
    peak_gib: float

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return len(self.losses)


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
) -> Fitted:
    """Train a model on tensors that lie on its device, and leave the last weights in it, or the best.

    On a CUDA device the loss is compiled and a whole step, with its choice of cases, its rate and the
    optimiser, is captured as one graph and replayed; elsewhere the same step runs plainly. With `eta`
    the KSVD penalty of all primal layers is added.

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

    Raises:
        BadInput: fewer cases than a batch, x and y of different lengths, patience that is no such number
            or has nothing to watch, or a loss that is not finite.

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
    if loss is None:
        loss = partial(cross_entropy, smoothing=course.smoothing)
    with seeded(course.seed):
        run = Steps(model, x, y, course, loss, y.is_cuda if compiled is None else compiled)
        return fit_steps(run, watch, every, patience, captured=captured)


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
    with evaluating(model), _products(precision), _cast(parts[0].device, precision):
        return torch.cat(
            [model(*each).float() for each in zip(*(part.split(batch) for part in parts), strict=True)]
        )


def fit_steps(
    run: "Steps", watch: Watch | None, every: int, patience: int | None, *, captured: bool = True
) -> Fitted:
    """Make all steps, or those until patience ends; leave the last weights in the model, or the best."""
    model, course = run.model, run.course
    model.train()
    warm, step = min(WARM, course.steps), run.warm_step
    watched: list[float] = []
    best, highest, since = {}, -inf, 0
    looking, started = 0.0, time.perf_counter()
    for number in range(course.steps):
        if number == warm:
            step = run.captured() if run.on_gpu and captured else run.step
            looking, started = 0.0, time.perf_counter()
        run.shuffle(number)
        step()
        if number % TURN == 0:
            pass_on()
        if watch is None or ((number + 1) % every and number + 1 < course.steps):
            continue
        run.settle()
        looked = time.perf_counter()
        with run.shown():
            watched.append(watch(model))
            since += 1
            if watched[-1] > highest:
                highest, since = watched[-1], 0
                best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        looking += time.perf_counter() - looked
        if since == patience:
            break
    losses = run.losses[: number + 1].tolist()
    seconds = time.perf_counter() - started - looking
    if not isfinite(losses[-1]):
        raise BadInput(f"fit_resident: the loss is {losses[-1]} after {len(losses)} steps; lower the lr")
    peak = torch.cuda.max_memory_allocated(run.y.device) / 2**30 if run.on_gpu else 0.0
    if best:
        model.load_state_dict(best)
    elif run.average is not None:
        run.average.put()
    return Fitted(losses, watched, seconds, max(len(losses) - warm, 0) / max(seconds, 1e-9), peak)


class Steps:
    """One step of a course, with all that it reads and writes in fixed places."""

    def __init__(
        self, model: nn.Module, x: Inputs, y: Tensor, course: Course, loss: Loss, compiled: bool
    ) -> None:
        self.model, self.x, self.y, self.course = model, x, y, course
        device, self.on_gpu = y.device, y.is_cuda
        self.rates, self.losses = course.rates().to(device), torch.zeros(course.steps, device=device)
        self.number, self.spot = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self.epoch = len(y) // course.batch
        self.ahead = -(-AHEAD // self.epoch)
        self.order = torch.zeros(self.ahead * self.epoch, course.batch, dtype=torch.int64, device=device)
        self.source = torch.Generator().manual_seed(course.seed)
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.lr = torch.tensor(course.lr, device=device) if self.on_gpu else course.lr
        self.optimiser = _optimiser(model, course, self.lr, capturable=self.on_gpu)
        self.average = Average(self.weights, decay=course.ema, steps=course.steps) if course.ema > 0 else None
        penalised = course.eta > 0 and any(isinstance(each, PRIMAL) for each in model.modules())

        def objective(inputs: Inputs, targets: Tensor) -> Tensor:
            with _cast(device, course.precision):
                if not penalised:
                    return loss(model, inputs, targets) / course.accumulate
                with record(model) as tape:
                    made = loss(model, inputs, targets)
                made = made + course.eta * ksvd_penalty(tape, reduction=course.reduction)
                return made / course.accumulate

        self.objective = torch.compile(objective, dynamic=False) if compiled else objective

    def shuffle(self, number: int) -> None:
        """New orders of the cases where an epoch begins; of several where epochs are short."""
        if number % len(self.order) == 0:
            kept = self.epoch * self.course.batch
            drawn = [torch.randperm(len(self.y), generator=self.source)[:kept] for _ in range(self.ahead)]
            self.order.copy_(torch.cat(drawn).view_as(self.order))
            self.spot.zero_()

    def step(self) -> None:
        """Take the next batch, its rate, and change the weights."""
        index = self.order.index_select(0, self.spot)[0]
        rate = self.rates.index_select(0, self.number)[0]
        if isinstance(self.lr, Tensor):
            self.lr.copy_(rate)
        else:
            for group in self.optimiser.param_groups:
                group["lr"] = float(rate)
        self.optimiser.zero_grad(set_to_none=True)
        with _products(self.course.precision):
            for part in index.chunk(self.course.accumulate):
                made = self.objective(_picked(self.x, part), self.y.index_select(0, part))
                made.backward()
                self.losses.index_add_(0, self.number, made.detach().float().view(1))
        if self.course.clip is not None:
            nn.utils.clip_grad_norm_(self.weights, self.course.clip, foreach=True)
        self.optimiser.step()
        if self.average is not None:
            self.average.update(self.number)
        self.number += 1
        self.spot += 1

    def shown(self) -> AbstractContextManager[None]:
        """A with-block in which the model has the weights that count: their average, where there is one."""
        return nullcontext() if self.average is None else self.average.shown()

    def settle(self) -> None:
        """Wait for what is under way, so that it is not counted as someone else's time."""
        if self.on_gpu:
            torch.cuda.current_stream().synchronize()

    def warm_step(self) -> None:
        """A plain step, on a stream of its own where a graph will be captured later."""
        if not self.on_gpu:
            self.step()
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.settle()

    def captured(self) -> Callable[[], None]:
        """A step as one graph; capturing it does not run it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def _optimiser(
    model: nn.Module, course: Course, lr: float | Tensor, *, capturable: bool
) -> torch.optim.Optimizer:
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            # Decay pulls matrices to zero; values (root), norms and biases have their own scale.
            (decayed if weight.dim() > 1 and not name.endswith("root") else kept).append(weight)
    groups = [{"params": decayed, "weight_decay": course.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if course.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=lr, eps=course.epsilon, fused=True, capturable=capturable)
    return torch.optim.RAdam(
        groups, lr=lr, eps=course.epsilon, decoupled_weight_decay=True, capturable=capturable
    )


def _picked(x: Inputs, index: Tensor) -> Inputs:
    if isinstance(x, tuple):
        return tuple(part.index_select(0, index) for part in x)
    return x.index_select(0, index)


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """How float32 matrices are multiplied, which is a setting of the whole process, for one block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _cast(device: torch.device, precision: str) -> torch.autocast:
    kind = PRECISIONS[precision]
    return torch.autocast(device.type, kind or torch.bfloat16, enabled=kind is not None)
