"""The one training loop: any number of processes, repeatable by its seed, resumable at any step."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import ceil, cos, pi
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer, RAdam

from kernelhead.data import Series, batches, epoch_order, padded
from kernelhead.errors import BadInput, CheckpointError, missing_extra
from kernelhead.nn import PrimalAttention, evaluating, ksvd_parts, ksvd_penalty, record
from kernelhead.records import CHECKPOINT, METRICS, WEIGHTS, write_lines
from kernelhead.rng import seeded
from kernelhead.training.recipe import Recipe
from kernelhead.training.store import (
    check_fit,
    load_into,
    load_tensors,
    optimiser_tensors,
    restore_optimiser,
    save_tensors,
)

Row = dict[str, Any]
PARTS = ("objective_left", "objective_right", "objective_trace")  # J is the first two less the third


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed; the run stopped after a step and was saved."""


@dataclass(frozen=True)
class Watcher:
    """Who is told how far a run is: called after each step and after each epoch."""

    step: Callable[[int, int], None] = lambda done, total: None
    epoch: Callable[[Row], None] = lambda row: None


@dataclass
class Progress:
    """Where a run stands; all that a checkpoint holds beside tensors."""

    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    best: list[float] = field(default_factory=list)
    best_epoch: int = 0
    rows: list[Row] = field(default_factory=list)


def make_fabric(recipe: Recipe) -> Any:
    """The engine of a run; starts the other processes where a recipe asks for them.

    Raises:
        MissingExtra: lightning-fabric is not installed.
        BadInput: it refuses the accelerator or the precision.
    """
    try:
        from lightning_fabric import Fabric
    except ImportError:
        raise missing_extra("training", "lightning-fabric", "cli") from None
    strategy, precision = ("ddp" if recipe.devices > 1 else "auto"), cast(Any, recipe.precision)
    try:
        fabric = Fabric(
            accelerator=recipe.accelerator,
            devices=recipe.devices,
            strategy=strategy,
            precision=precision,
        )
        fabric.launch()
    except (ValueError, RuntimeError, ImportError) as error:
        raise BadInput(f"training: {str(error).strip().splitlines()[0]}") from error
    return fabric


def is_main() -> bool:
    """Whether this process speaks for all: the only one, or the first of several."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def fit(
    model: nn.Module,
    train: Series,
    valid: Series,
    classes: tuple[str, ...],
    recipe: Recipe,
    *,
    fabric: Any,
    folder: Path | None = None,
    facts: dict[str, Any] | None = None,
    extras: dict[str, Tensor] | None = None,
    watcher: Watcher | None = None,
) -> list[Row]:
    """Train a model and leave in it the weights of its best epoch on the validation part.

    Every random number comes from the seed, the epoch and the step, so a run that was killed and
    taken up again ends with the same weights. A step over several processes has the gradient of
    the same step over one.

    Args:
        model: maps values (b, n, a) and a mask (b, n) to class scores.
        train: what is learned from.
        valid: what chooses the best epoch.
        classes: names of the classes, in the order of the model's scores.
        recipe: the run's settings.
        fabric: from `make_fabric`.
        folder: where checkpoints, metrics and the best weights go; None keeps all in memory.
        facts: JSON that is stored with the weights.
        extras: tensors that are stored with the weights.
        watcher: is told how far the run is.

    Returns:
        One row of figures an epoch.

    Raises:
        BadInput: the loss is not finite.
        CheckpointError: the folder holds a checkpoint that does not fit.
        Interrupted: Ctrl-C; the folder holds a checkpoint of the step.
    """
    run = _Run(
        model, train, valid, classes, recipe, fabric, folder, facts or {}, extras or {}, watcher or Watcher()
    )
    run.resume()
    with torch.inference_mode(False), torch.enable_grad(), _patient_interrupt() as interrupted:
        while run.at.epoch < recipe.epochs:
            run.train_epoch(interrupted)
            run.close_epoch()
            if run.stop and run.at.epoch < recipe.epochs:
                raise Interrupted
    run.restore_best()
    return run.at.rows


@torch.no_grad()
def scores(model: nn.Module, series: Series, *, batch: int = 64) -> Tensor:
    """Class scores of every case, (cases, classes), in evaluation mode.

    Args:
        model: that scores the cases.
        series: the cases.
        batch: cases at a time.
    """
    like = next(model.parameters())
    made = []
    with evaluating(model):
        for indices in batches(np.arange(len(series)), batch):
            values, mask = (torch.from_numpy(part).to(like.device) for part in padded(series, indices))
            made.append(model(values.to(like.dtype), mask).float().cpu())
    return torch.cat(made)


def accuracy_and_loss(model: nn.Module, series: Series, classes: tuple[str, ...]) -> tuple[float, float]:
    """Share of right answers and mean cross-entropy over a labelled set.

    Args:
        model: that scores the cases.
        series: the labelled set.
        classes: labels in the order of the scores.
    """
    made, target = scores(model, series), targets(series, classes)
    return (made.argmax(-1) == target).double().mean().item(), F.cross_entropy(made, target).item()


def targets(series: Series, classes: tuple[str, ...]) -> Tensor:
    """Labels as positions in `classes`, (cases,).

    Raises:
        BadInput: no labels, or one that is not a known class.
    """
    if series.labels is None:
        raise BadInput(f"{series.name}: has no labels")
    place = {name: index for index, name in enumerate(classes)}
    for number, label in enumerate(series.labels):
        if label not in place:
            raise BadInput(
                f"{series.name}: case {number} has class {label!r}, expected one of {', '.join(classes)}"
            )
    return torch.tensor([place[label] for label in series.labels])


class _Run:
    """One run: its parts, where it stands, and how it is saved."""

    def __init__(
        self,
        model: nn.Module,
        train: Series,
        valid: Series,
        classes: tuple[str, ...],
        recipe: Recipe,
        fabric: Any,
        folder: Path | None,
        facts: dict[str, Any],
        extras: dict[str, Tensor],
        watcher: Watcher,
    ) -> None:
        self.model, self.train, self.valid, self.classes = model, train, valid, classes
        self.recipe, self.fabric, self.folder, self.watcher = recipe, fabric, folder, watcher
        self.facts, self.extras = facts, extras
        self.targets = targets(train, classes)
        if recipe.penalty == 0:
            # Without the penalty nothing reads the values; a wrapper would wait for their gradient.
            for module in model.modules():
                if isinstance(module, PrimalAttention):
                    module.root.requires_grad_(False)
        self.penalised = recipe.penalty > 0 and any(isinstance(m, PrimalAttention) for m in model.modules())
        self.wrapped, self.optimiser = fabric.setup(model, _optimiser(recipe, model))
        self.at = Progress()
        self.best: dict[str, Tensor] = {}
        self.stop = False
        self.steps = ceil(len(train) / recipe.batch)

    def train_epoch(self, interrupted: threading.Event) -> None:
        order = list(
            batches(
                epoch_order(len(self.train), seed=self.recipe.seed, epoch=self.at.epoch), self.recipe.batch
            )
        )
        self.wrapped.train()
        started = time.perf_counter()
        for indices in order[self.at.step :]:
            for name, value in self._step(indices, interrupted).items():
                self.at.sums[name] = self.at.sums.get(name, 0.0) + value
            self.at.step += 1
            if self.fabric.is_global_zero:
                self.watcher.step(self.at.epoch * self.steps + self.at.step, self.recipe.epochs * self.steps)
            due = self.recipe.save_steps and self.at.step % self.recipe.save_steps == 0
            if self.at.step < self.steps and (due or self.stop):
                self.at.seconds += time.perf_counter() - started
                started = time.perf_counter()
                self._save()
                if self.stop:
                    raise Interrupted
        self.at.seconds += time.perf_counter() - started

    def _step(self, indices: Any, interrupted: threading.Event) -> dict[str, float]:
        recipe, rank, world = self.recipe, self.fabric.global_rank, self.fabric.world_size
        mine = indices[rank::world]
        # A share of nothing still takes part in the step, with one case of no weight.
        chosen = mine if len(mine) else indices[:1]
        weight = len(mine) * world / len(indices)
        values, mask = (torch.from_numpy(part).to(self.fabric.device) for part in padded(self.train, chosen))
        target = self.targets[torch.as_tensor(chosen)].to(self.fabric.device)
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.lr * self._warmth()
        self.optimiser.zero_grad()
        tape_of = record(self.model) if self.penalised else nullcontext()
        with seeded(recipe.seed, self.at.epoch, self.at.step, rank), tape_of as tape:
            made = self.wrapped(values.to(next(self.model.parameters()).dtype), mask)
            task = F.cross_entropy(made.float(), target) * weight
            penalty, parts = task.new_zeros(()), task.new_zeros(len(PARTS))
            if tape is not None:
                counts = torch.full((len(chosen),), float(bool(len(mine))), device=values.device)
                penalty = ksvd_penalty(tape, reduction=recipe.reduction, weights=counts)
                penalty = penalty * (weight if recipe.reduction == "sample" else 1)
                parts = ksvd_parts(tape) * weight
            self.fabric.backward(task + recipe.penalty * penalty)
        if recipe.clip:
            self.fabric.clip_gradients(
                self.wrapped, self.optimiser, max_norm=recipe.clip, error_if_nonfinite=False
            )
        right = (made.argmax(-1) == target).sum() * bool(len(mine))
        # Processes notice Ctrl-C at different steps; they must stop after the same one.
        asked = torch.full_like(right, interrupted.is_set())
        figures = torch.stack(
            [part.detach().double() for part in (task, penalty, right * world, asked, *parts)]
        )
        loss, penalised, correct, stop, *parted = self.fabric.all_reduce(figures, reduce_op="mean").tolist()
        self.stop = stop > 0
        if not loss + penalised < float("inf"):
            raise BadInput(
                f"training: the loss is {loss} and the penalty {penalised} in epoch {self.at.epoch + 1}, "
                f"step {self.at.step + 1}; a smaller lr than {recipe.lr} may help"
            )
        self.optimiser.step()
        sums = {"loss": loss, "penalty": penalised, **dict(zip(PARTS, parted, strict=True))}
        return {"right": correct, **{name: each * len(indices) for name, each in sums.items()}}

    def _warmth(self) -> float:
        """What the learning rate is multiplied by in this step."""
        if self.recipe.schedule == "constant":
            return 1.0
        done = (self.at.epoch * self.steps + self.at.step) / (self.recipe.epochs * self.steps)
        return 0.5 * (1 + cos(pi * done))

    def close_epoch(self) -> None:
        accuracy, loss = accuracy_and_loss(self.model, self.valid, self.classes)
        count, at = len(self.train), self.at
        if not loss < float("inf"):
            raise BadInput(
                f"training: the validation loss is {loss} after epoch {at.epoch + 1}; "
                f"a smaller lr than {self.recipe.lr} may help"
            )
        row: Row = {
            "epoch": at.epoch + 1,
            "train_loss": at.sums["loss"] / count,
            "train_accuracy": at.sums["right"] / count,
            "valid_loss": loss,
            "valid_accuracy": accuracy,
            "seconds": at.seconds,
        }
        if self.penalised:
            row |= {name: at.sums[name] / count for name in ("penalty", *PARTS)}
        at.rows.append(row)
        if not at.best or [accuracy, -loss] > at.best:
            at.best, at.best_epoch = [accuracy, -loss], at.epoch + 1
            self.best = {
                name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()
            }
            if self.folder is not None and self.fabric.is_global_zero:
                save_tensors(self.folder / WEIGHTS, {**self.best, **self.extras}, self.facts)
        at.epoch, at.step, at.sums, at.seconds = at.epoch + 1, 0, {}, 0.0
        self._save()
        if self.fabric.is_global_zero:
            self.watcher.epoch(row)

    def _save(self) -> None:
        if self.folder is None or not self.fabric.is_global_zero:
            return
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"optimiser.{name}": tensor for name, tensor in optimiser_tensors(self.optimiser).items()}
        # Killed in between, the rows are ahead of the checkpoint, which makes the last one again.
        write_lines(self.folder / METRICS, self.at.rows)
        save_tensors(self.folder / CHECKPOINT, tensors, {"progress": vars(self.at), "facts": self.facts})

    def resume(self) -> None:
        if self.folder is None or not (self.folder / CHECKPOINT).exists():
            return
        path = self.folder / CHECKPOINT
        tensors, facts = load_tensors(path)
        if facts.get("facts") != self.facts:
            raise CheckpointError(f"{path} belongs to another run than this one")
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimiser": {}}
        try:
            for name, tensor in tensors.items():
                part, rest = name.split(".", 1)
                parts[part][rest] = tensor
            at = Progress(**facts["progress"])
            if any(type(getattr(at, each)) is not type(value) for each, value in vars(Progress()).items()):
                raise TypeError("its progress is of other types")
            if not len(at.rows) == at.epoch <= self.recipe.epochs or not 0 <= at.step < self.steps:
                raise ValueError(f"it stands at epoch {at.epoch}, step {at.step}, after {len(at.rows)} rows")
            for row in at.rows:
                _ = row["epoch"], row["valid_accuracy"] + row["valid_loss"] + row["seconds"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is no checkpoint of a run: {error}") from error
        for part in ("model", "best") if at.epoch else ("model",):
            check_fit(path, self.model, parts[part])
        try:
            restore_optimiser(self.optimiser, parts["optimiser"])
        except (KeyError, TypeError, ValueError, CheckpointError) as error:
            raise CheckpointError(f"{path} is no checkpoint of a run: {error}") from error
        load_into(path, self.model, parts["model"])
        self.best, self.at = parts["best"], at

    def restore_best(self) -> None:
        self.model.load_state_dict(self.best)


def _optimiser(recipe: Recipe, model: nn.Module) -> Optimizer:
    # Decay pulls matrices to zero; values (root), norms and biases have their own scale.
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (decayed if parameter.dim() > 1 and not name.endswith("root") else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.decay}, {"params": kept, "weight_decay": 0.0}]
    if recipe.optimiser == "radam":
        return RAdam(groups, lr=recipe.lr, decoupled_weight_decay=True)
    return AdamW(groups, lr=recipe.lr)


@contextmanager
def _patient_interrupt() -> Iterator[threading.Event]:
    """Let Ctrl-C finish the step at hand; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
