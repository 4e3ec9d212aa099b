"""Several runs as one: models of one shape, stacked, and a step for all of them in one graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelhead.errors import BadInput
from kernelhead.rng import seeded
from kernelhead.training.course import Course
from kernelhead.training.progress import Keeper
from kernelhead.training.steps import (
    Fitted,
    Inputs,
    Lesson,
    Loss,
    Solo,
    Steps,
    Watch,
    fit_steps,
    objective_of,
    trained,
)

State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Run:
    """All that `fit_resident` was asked for."""

    model: nn.Module
    x: Inputs
    y: Tensor
    course: Course
    loss: Loss
    compiled: bool
    captured: bool
    watch: Watch | None
    every: int
    patience: int | None
    lessons: tuple[Lesson, ...] = ()
    keeper: Keeper | None = None


def fit_runs(runs: Sequence[Run]) -> list[Fitted | BadInput]:
    """Train several models, in one step for all where they are alike, else one after another.

    Alike are models whose weights have the same names and shapes, with one loss, as many cases of the same
    shapes and one course but for its seed. Each then has the weights that it began with and the cases in the
    order of its own seed, as alone; what is drawn in training, such as dropout, is drawn for all at once.

    Returns:
        What each took, or what to raise for it.
    """
    first = runs[0]
    if len(runs) == 1 or not alike(runs):
        return [made for run in runs for made in _alone(run)]
    with seeded(first.course.seed):
        stack = Stack(runs)
        made = fit_steps(stack, [run.watch for run in runs], first.every, None, captured=first.captured)
    stack.part()
    return made


def alike(runs: Sequence[Run]) -> bool:
    """Whether runs can be trained in one step; see `fit_runs`."""
    first = runs[0]
    for run in runs:
        if run.patience is not None or run.lessons or run.keeper or _asked(run) != _asked(first):
            return False
        if replace(run.course, seed=0) != replace(first.course, seed=0) or not _same(run.loss, first.loss):
            return False
        if _shapes(run) != _shapes(first) or type(run.model) is not type(first.model):
            return False
        if any(isinstance(each, nn.modules.batchnorm._NormBase) for each in run.model.modules()):
            return False  # its sums are kept between steps, of one model
    return len({id(run.model) for run in runs}) == len(runs)


class Stack(Steps):
    """A step of several models, whose weights are parts of stacked ones."""

    def __init__(self, runs: Sequence[Run]) -> None:
        first, count = runs[0], len(runs)
        named, models = trained(first.model), [run.model for run in runs]
        self.stacked = {name: _together(name, models) for name, _ in named}
        super().__init__(
            models,
            torch.cat([run.y for run in runs]),
            first.course,
            [(name, self.stacked[name], weight.dim()) for name, weight in named],
            _objective(runs, self.stacked),
            seeds=[run.course.seed for run in runs],
            cases=len(first.y),
            shape=(count,),
        )
        inputs = [run.x if isinstance(run.x, tuple) else (run.x,) for run in runs]
        # Cases of all models, one after another: (models cases, ...).
        self.x = tuple(torch.cat(parts) for parts in zip(*inputs, strict=True))
        self.several = isinstance(first.x, tuple)
        self.first = len(first.y) * torch.arange(count, device=first.y.device)[:, None]  # (models, 1)

    def cases(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """A batch of every model: (models, batch, ...)."""
        places = (index + self.first).flatten()
        *x, y = (part.index_select(0, places).unflatten(0, index.shape) for part in (*self.x, self.y))
        return tuple(x) if self.several else x[0], y

    def shorten(self, longest: float) -> None:
        """Make the gradient of each model no longer than that."""
        grads = [weight.grad for weight in self.weights if weight.grad is not None]
        norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads]).norm(dim=0)  # (models,)
        shares = (longest / (norms + 1e-6)).clamp_max(1.0)
        for grad in grads:
            grad.mul_(shares.view(-1, *[1] * (grad.dim() - 1)))

    def part(self) -> None:
        """Give every model weights of its own again."""
        for model in self.models:
            for weight in model.parameters():
                weight.data = weight.data.clone()


def _together(name: str, models: Sequence[nn.Module]) -> nn.Parameter:
    """The weights of that name in all models, which are views of it from now on."""
    weights = [model.get_parameter(name) for model in models]
    made = nn.Parameter(torch.stack([weight.detach() for weight in weights]))
    for number, weight in enumerate(weights):
        weight.data = made.data[number]
    return made


def _objective(runs: Sequence[Run], stacked: dict[str, nn.Parameter]) -> Callable[[Inputs, Tensor], Tensor]:
    """From a batch of every model to the loss of each, (models,)."""
    first, device = runs[0], runs[0].y.device
    shared, own = _held([run.model for run in runs])
    host = _Host(first.model, objective_of(first.model, first.course, first.loss, device))

    def one(weights: State, held: State, inputs: Inputs, targets: Tensor) -> Tensor:
        state = {f"model.{name}": tensor for name, tensor in {**weights, **shared, **held}.items()}
        with sdpa_kernel(SDPBackend.MATH):  # fused ones take no stack of models
            made: Tensor = functional_call(host, state, (inputs, targets))
        return made

    made = partial(vmap(one, randomness="different"), stacked, own)
    return torch.compile(made, dynamic=False) if first.compiled else made


def _held(models: Sequence[nn.Module]) -> tuple[State, State]:
    """What is not trained, by name: the same for all models, and stacked where it differs."""
    names = [name for name, _ in models[0].named_buffers()]
    names += [name for name, weight in models[0].named_parameters() if not weight.requires_grad]
    shared: State = {}
    own: State = {}
    for name in names:
        room, _, last = name.rpartition(".")
        first, *others = (getattr(model.get_submodule(room), last).detach() for model in models)
        if all(torch.equal(first, other) for other in others):
            shared[name] = first
        else:
            own[name] = torch.stack([first, *others])
    return shared, own


class _Host(nn.Module):
    """A model and what is made of it, so that its weights can be lent for a call."""

    def __init__(self, model: nn.Module, objective: Callable[[Inputs, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, inputs: Inputs, targets: Tensor) -> Tensor:
        return self.objective(inputs, targets)


def _alone(run: Run) -> list[Fitted | BadInput]:
    with seeded(run.course.seed):
        steps = Solo(run.model, run.x, run.y, run.course, run.loss, run.compiled, run.lessons)
        return fit_steps(
            steps, [run.watch], run.every, run.patience, captured=run.captured, keeper=run.keeper
        )


def _shapes(run: Run) -> tuple[object, ...]:
    parts = run.x if isinstance(run.x, tuple) else (run.x,)
    state = {**dict(run.model.named_parameters()), **dict(run.model.named_buffers())}
    return (
        isinstance(run.x, tuple),
        *((each.shape, each.dtype, each.device) for each in (*parts, run.y)),
        *((name, each.shape, each.dtype, each.requires_grad) for name, each in state.items()),
    )


def _asked(run: Run) -> tuple[int, bool, bool]:
    return run.every, run.compiled, run.captured


def _same(loss: Loss, other: Loss) -> bool:
    """One function, or one with the same settings."""
    if isinstance(loss, partial) and isinstance(other, partial):
        return (loss.func, loss.args, loss.keywords) == (other.func, other.args, other.keywords)
    return loss is other
