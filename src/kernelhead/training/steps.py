"""Steps of a course with all data on the device: one graph a step, and looks at what it has led to."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn import PooledPrimalAttention, PrimalAttention, ksvd_penalty, record
from kernelhead.training.average import Average
from kernelhead.training.course import Course, cast, products
from kernelhead.training.progress import Keeper, Pace, State
from kernelhead.training.store import content_sum
from kernelhead.training.turns import pass_on

PRIMAL = (PrimalAttention, PooledPrimalAttention)  # what has a KSVD penalty
WARM = 3
AHEAD = 64  # steps whose cases are chosen at a time at least: a copy to the device waits for it
TURN = 8  # steps from one turn to the next, where several runs take turns

Inputs = Tensor | tuple[Tensor, ...]
Lesson = tuple[int, Tensor]  # the first step, and places of the cases that are shown from there on
Loss = Callable[[nn.Module, Any, Tensor], Tensor]
Watch = Callable[[nn.Module], float]


@dataclass(frozen=True)
class Fitted:
    """What a course took.

    Attributes:
        steps: made, all of the course or fewer where patience ended it.
        losses: of every step, on the batch of that step.
        watched: the figure after each stretch of steps, where one was asked for.
        seconds: of the steps that were timed; compiling, capturing and looking left out. Of several models
            in one step each has its share.
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


@dataclass
class Look:
    """A model that is looked at from time to time, and its best weights so far.

    Args:
        model: whose weights these are.
        watch: a figure of it, the higher the better; None where nobody looks.
    """

    model: nn.Module
    watch: Watch | None
    figures: list[float] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    since: int = 0

    def take(self) -> None:
        """Look, and keep the weights where no figure was higher."""
        if self.watch is None:
            return
        highest = max(self.figures, default=-inf)
        self.figures.append(float(self.watch(self.model)))
        self.since += 1
        if self.figures[-1] > highest:
            self.since = 0
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


def fit_steps(
    run: "Steps",
    watches: Sequence[Watch | None],
    every: int,
    patience: int | None,
    *,
    captured: bool = True,
    keeper: Keeper | None = None,
) -> list[Fitted | BadInput]:
    """Make all steps, or those until patience ends; leave the last weights in the models, or the best.

    Args:
        keeper: of a single model's course, which goes on where that stands.

    Returns:
        What each model took, or what to raise for it.
    """
    course, looks = run.course, [Look(*each) for each in zip(run.models, watches, strict=True)]
    earlier = Pace() if keeper is None else keeper.pace
    if keeper is not None and keeper.ended:
        keeper.load(run.models[0])
        return [_fitted(earlier, keeper.losses, keeper.figures)]
    for model in run.models:
        model.train()
    if keeper is not None:
        looks[0].best = keeper.put_back(run.state())
        looks[0].figures, looks[0].since = keeper.figures, keeper.since
        run.number.fill_(earlier.steps)
    warm, step = min(earlier.steps + WARM, course.steps), run.warm_step
    looking, started = 0.0, time.perf_counter()

    def pace() -> Pace:
        """Until now, when all steps have been made."""
        made = number + 1
        timed, seconds = max(made - warm, 0), (time.perf_counter() - started - looking) / len(looks)
        peak = torch.cuda.max_memory_allocated(run.y.device) / 2**30 if run.on_gpu else 0.0
        if keeper is not None and not timed:
            seconds = 0.0  # of compiling, which each try does
        return Pace(made, earlier.seconds + seconds, earlier.timed + timed, max(earlier.peak, peak))

    for number in range(earlier.steps, course.steps):
        if number == warm:
            step = run.captured() if run.on_gpu and captured else run.step
            looking, started = 0.0, time.perf_counter()
        run.shuffle(number)
        step()
        if number % TURN == 0:
            pass_on()
        looks_now = any(watches) and ((number + 1) % every == 0 or number + 1 == course.steps)
        keeps_now = keeper is not None and number + 1 < course.steps and keeper.due()
        if not looks_now and not keeps_now:
            continue
        enough = False
        run.settle()
        paused = time.perf_counter()
        reached = pace()
        if looks_now:
            with run.shown():
                for look in looks:
                    look.take()
            enough = patience is not None and all(look.since >= patience for look in looks)
        if keeps_now and keeper is not None and not enough:
            look = looks[0]
            keeper.keep(run.state(), reached, best=look.best, figures=look.figures, since=look.since)
        looking += time.perf_counter() - paused
        if enough:
            break
    losses = run.losses[: number + 1].reshape(number + 1, -1).T.tolist()
    reached = pace()
    if run.average is not None and not any(watches):
        run.average.put()
    for look in looks:
        if look.best:
            look.model.load_state_dict(look.best)
    ended = [_fitted(reached, made, look.figures) for look, made in zip(looks, losses, strict=True)]
    if keeper is not None and isinstance(ended[0], Fitted):
        keeper.end(run.models[0], reached, losses=losses[0], figures=looks[0].figures)
    return ended


def about_course(
    course: Course,
    model: nn.Module,
    cases: Mapping[str, Tensor],
    every: int,
    patience: int | None = None,
    lessons: Sequence[Lesson] = (),
) -> dict[str, Any]:
    """What tells a course from another one, but for its loss: settings, first weights and cases.

    Args:
        course: how to train.
        model: before its first step.
        cases: by name, or what is at hand of them.
        every: steps from one look to the next.
        patience: looks without a higher figure.
        lessons: what is shown when.
    """
    shown = {f"{first}": places for first, places in lessons}
    return {
        "course": asdict(course),
        "weights": content_sum(model.state_dict()),
        **{name: content_sum({name: each}) for name, each in cases.items()},
        "device": next(model.parameters()).device.type,
        "every": every,
        "patience": patience,
        "lessons": content_sum(shown),
    }


def _fitted(pace: Pace, losses: list[float], figures: list[float]) -> Fitted | BadInput:
    """What a course took, or what to raise for it."""
    if not isfinite(losses[-1]):
        return BadInput(f"fit_resident: the loss is {losses[-1]} after {len(losses)} steps; lower the lr")
    return Fitted(losses, figures, pace.seconds, pace.timed / max(pace.seconds, 1e-9), pace.peak)


class Steps(ABC):
    """Steps of a course for one model or several, with all that they read and write in fixed places.

    Args:
        models: that are trained, one or as many as there are seeds.
        y: targets of all cases.
        course: how to train.
        weights: that change, with their names and numbers of axes in one model.
        objective: from the cases of a batch to a loss, or to one of each model.
        seeds: of the orders of the cases, one a model.
        cases: of a model.
        shape: of the losses of a step; none for one model.
        lessons: by which cases are drawn, one after another; epochs of all cases without.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        y: Tensor,
        course: Course,
        weights: Sequence[tuple[str, nn.Parameter, int]],
        objective: Callable[[Inputs, Tensor], Tensor],
        *,
        seeds: Sequence[int],
        cases: int,
        shape: tuple[int, ...] = (),
        lessons: Sequence[Lesson] = (),
    ) -> None:
        self.models, self.y, self.course, self.objective = models, y, course, objective
        device, self.on_gpu = y.device, y.is_cuda
        self.rates, self.losses = course.rates().to(device), torch.zeros(course.steps, *shape, device=device)
        # Losses of several models are summed before they go back.
        self.ones = torch.ones(shape, device=device) if shape else None
        self.number, self.spot = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self.held, self.lessons = cases, lessons
        epoch = AHEAD if lessons else cases // course.batch
        self.ahead = -(-AHEAD // epoch)
        self.order = torch.zeros(self.ahead * epoch, *shape, course.batch, dtype=torch.int64, device=device)
        self.sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.weights = [weight for _, weight, _ in weights]
        self.lr = torch.tensor(course.lr, device=device) if self.on_gpu else course.lr
        self.optimiser = _optimiser(weights, course, self.lr, capturable=self.on_gpu)
        self.average = Average(self.weights, decay=course.ema, steps=course.steps) if course.ema > 0 else None

    @abstractmethod
    def cases(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """Inputs and targets of a batch."""

    @abstractmethod
    def shorten(self, longest: float) -> None:
        """Make gradients no longer than that."""

    def shuffle(self, number: int) -> None:
        """New orders of the cases where an epoch begins; of several where epochs are short."""
        if number % len(self.order) == 0:
            drawn = [
                torch.cat([self._drawn(source, number) for _ in range(self.ahead)]) for source in self.sources
            ]
            self.order.copy_(torch.stack(drawn, dim=1).view_as(self.order))
            self.spot.zero_()

    def _drawn(self, source: torch.Generator, number: int) -> Tensor:
        """An order of the cases, a batch a row; those of a lesson may come again."""
        batch = self.course.batch
        if self.lessons:
            _, places = [lesson for lesson in self.lessons if lesson[0] <= number][-1]
            return places[torch.randint(len(places), (AHEAD, batch), generator=source)]
        kept = self.held // batch * batch
        return torch.randperm(self.held, generator=source)[:kept].view(-1, batch)

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
        with products(self.course.precision):
            for part in index.chunk(self.course.accumulate, dim=-1):
                made = self.objective(*self.cases(part))
                made.backward(self.ones)
                self.losses.index_add_(0, self.number, made.detach().float()[None])
        if self.course.clip is not None:
            self.shorten(self.course.clip)
        self.optimiser.step()
        if self.average is not None:
            self.average.update(self.number)
        self.number += 1
        self.spot += 1

    def state(self) -> State:
        """All that the next step of a single model depends on."""
        places = {"order": self.order, "spot": self.spot, "losses": self.losses}
        if self.average is not None:
            places |= {f"average{place}": value for place, value in enumerate(self.average.values)}
        return State(self.models[0], self.optimiser, places, self.sources, self.y.device)

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


class Solo(Steps):
    """Steps of one model."""

    def __init__(
        self,
        model: nn.Module,
        x: Inputs,
        y: Tensor,
        course: Course,
        loss: Loss,
        compiled: bool,
        lessons: Sequence[Lesson] = (),
    ) -> None:
        made = objective_of(model, course, loss, y.device)
        super().__init__(
            [model],
            y,
            course,
            [(name, weight, weight.dim()) for name, weight in trained(model)],
            torch.compile(made, dynamic=False) if compiled else made,
            seeds=[course.seed],
            cases=len(y),
            lessons=lessons,
        )
        self.x = x

    def cases(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """Inputs and targets of a batch."""
        return _picked(self.x, index), self.y.index_select(0, index)

    def shorten(self, longest: float) -> None:
        """Make the gradient no longer than that."""
        nn.utils.clip_grad_norm_(self.weights, longest, foreach=True)


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The weights of a model that change, with their names."""
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def objective_of(
    model: nn.Module, course: Course, loss: Loss, device: torch.device
) -> Callable[[Inputs, Tensor], Tensor]:
    """What a step makes smaller: the loss of a part of a batch, with the KSVD penalty where there is one."""
    penalised = course.eta > 0 and any(isinstance(each, PRIMAL) for each in model.modules())

    def objective(inputs: Inputs, targets: Tensor) -> Tensor:
        with cast(device, course.precision):
            if not penalised:
                return loss(model, inputs, targets) / course.accumulate
            with record(model) as tape:
                made = loss(model, inputs, targets)
            made = made + course.eta * ksvd_penalty(tape, reduction=course.reduction)
            return made / course.accumulate

    return objective


def _optimiser(
    weights: Sequence[tuple[str, nn.Parameter, int]], course: Course, lr: float | Tensor, *, capturable: bool
) -> torch.optim.Optimizer:
    """The optimiser of a course for weights with their names and numbers of axes."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, weight, axes in weights:
        # Decay pulls matrices to zero; values (root), norms and biases have their own scale.
        (decayed if axes > 1 and not name.endswith("root") else kept).append(weight)
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
