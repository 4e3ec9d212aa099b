"""Runs on events: from sequences to a trained model, into a run folder, and back."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from kernelhead.data import Events, read_events
from kernelhead.data.events import SETS
from kernelhead.data.sources import in_part
from kernelhead.errors import BadInput, CheckpointError, KernelheadError, unknown
from kernelhead.inspection import (
    HeadPatterns,
    attention_maps,
    head_patterns,
    map_record,
    spectra,
    spectrum_record,
)
from kernelhead.models import EventModel
from kernelhead.models.events import ENCODINGS
from kernelhead.nn.time import width_share
from kernelhead.records import (
    CONFIG,
    MAPS,
    METRICS,
    RESULT,
    SPECTRUM,
    WEIGHTS,
    read_json,
    write_json,
    write_lines,
)
from kernelhead.rng import seeded
from kernelhead.shapes import check_size
from kernelhead.training.course import Course
from kernelhead.training.loop import Watcher
from kernelhead.training.places import (
    LEFT_BY_A_RUN,
    alone_in,
    check_folder,
    check_own,
    machine_of,
    peak_on,
    reset_peak,
    versions_here,
)
from kernelhead.training.questions import ASKED, Questions
from kernelhead.training.recipe import Recipe, checked_entries, recipe_from
from kernelhead.training.resident import fit_resident
from kernelhead.training.store import load_model, load_tensors, prepare_folder, save_tensors

_Parts: TypeAlias = tuple[Events, Events, Events | None]
TARGETS = ("", "label", "next")
PRECISIONS = {"32-true": "32", "32": "32", "bf16-mixed": "bf16", "16-mixed": "fp16"}
LEAST_WIDTH = 32  # of a time, where none is said
# What a recipe says that a run on events does not heed.
UNHEEDED = ("norm", "pooling", "activation", "position", "devices", "save_steps")
# Where a run on events starts from, in place of a recipe's own defaults.
DEFAULTS: dict[str, Any] = {
    **{"attention": "softmax", "width": 32, "depth": 1, "penalty": 0.0},
    **{"epochs": 20, "batch": 128, "lr": 3e-3, "clip": 1.0},
}


@dataclass(frozen=True)
class EventOptions:
    """What a run on events adds to a recipe.

    Args:
        unit: of the times in the file, and of periods: seconds, minutes, hours, days, weeks or years.
        time: encoding of time: bochner, normal, inverse_cdf, fixed, mercer, scalar, position, none,
            published_bochner or published_mercer.
        mix: of the kernels of events and of times: concatenate, add or multiply.
        time_width: features of a time; 0 for the least from 32 on that its encoding and the heads divide.
        shortest: period at the start; 0 for twice the tenth percentile of waiting times.
        longest: likewise; 0 for twice the longest span of a window.
        harmonics: of a period of mercer.
        length: events that a question sees at most.
        target: what is asked for, the label of a sequence or the next type; the label by default, where
            there is one.
        at: when the next type is asked about, at the last event or at the target's own time.

    Raises:
        BadInput: a number is out of range.
        UnknownName: no such target or `at`; other names are looked at when a model is made.
    """

    unit: str = "days"
    time: str = "bochner"
    mix: str = "concatenate"
    time_width: int = 0
    shortest: float = 0.0
    longest: float = 0.0
    harmonics: int = 5
    length: int = 100
    target: str = ""
    at: str = "last"

    def __post_init__(self) -> None:
        for name, value, known in (("target", self.target, TARGETS), ("at", self.at, ASKED)):
            if value not in known:
                raise unknown("EventOptions", name, value, known)
        for name in ("harmonics", "length"):
            check_size("EventOptions", name, getattr(self, name))
        check_size("EventOptions", "time_width", self.time_width, least=0)
        if not self.shortest >= 0 or not self.longest >= 0:
            raise BadInput(
                f"EventOptions: shortest is {self.shortest}, longest {self.longest}; expected 0 or more"
            )

    def settled(self, events: Events) -> "EventOptions":
        """The same with what was left to the data: target and periods.

        Raises:
            BadInput: labels are asked for and there are none.
        """
        target = self.target or ("label" if events.labels is not None else "next")
        if target == "label" and events.labels is None:
            raise BadInput(f"{events.name}: has no labels, so that they cannot be learned; say target next")
        waits = np.concatenate([np.diff(times) for times in events.times])
        waits = waits[waits > 0] if (waits > 0).any() else np.ones(1)
        spans = [times[-1] - times[max(len(times) - self.length, 0)] for times in events.times]
        shortest = self.shortest or 2 * float(np.quantile(waits, 0.1))
        longest = max(self.longest or 2 * float(max(*spans, waits.max())), shortest)
        return replace(self, target=target, shortest=shortest, longest=longest)


@dataclass(frozen=True)
class EventRecipe:
    """A recipe with its options of events: everything that decides what a run computes."""

    recipe: Recipe
    options: EventOptions

    @property
    def title(self) -> str:
        """The run's name in tables."""
        return self.recipe.name or f"{self.recipe.attention}, {self.options.time}"

    def to_dict(self) -> dict[str, Any]:
        """As a table, the options in one of their own."""
        return {**self.recipe.to_dict(), "events": asdict(self.options)}


def event_recipe_from(table: dict[str, Any], who: str) -> EventRecipe:
    """A recipe of events from a table, what it lacks filled in.

    Raises:
        BadInput: an entry of the wrong type, no `data`, or one that a run on events does not heed.
        UnknownName: an entry that no such recipe has.

    Example:
        >>> event_recipe_from({"data": "log.csv", "events": {"time": "mercer"}}, "example").title
        'softmax, mercer'
    """
    table = dict(table)
    options = EventOptions(**checked_entries(EventOptions, table.pop("events", {}), f"{who}, events"))
    recipe = recipe_from({**DEFAULTS, **table}, who)
    plain = Recipe(data=recipe.data)
    for name in UNHEEDED:
        if getattr(recipe, name) != getattr(plain, name):
            raise BadInput(
                f"{who}: {name} is {getattr(recipe, name)!r}, which a run on events does not heed; "
                "leave it out"
            )
    if recipe.precision not in PRECISIONS:
        raise unknown(who, "precision", recipe.precision, PRECISIONS)
    return EventRecipe(recipe, options)


@dataclass(frozen=True, eq=False)
class TrainedEvents:
    """A trained model of events with all that it needs to read new ones.

    Args:
        model: the model.
        recipe: how it was trained, and on what.
        options: with target and periods settled.
        kinds: names of types.
        classes: names of answers: labels, or types.
    """

    model: EventModel
    recipe: Recipe
    options: EventOptions
    kinds: tuple[str, ...]
    classes: tuple[str, ...]

    def read(self, data: str | None, *, split: str, root: Path | None = None) -> Events:
        """Events of a file or a known set, with times in the unit of the run; its own if None.

        Raises:
            BadInput: the run has no such part, or the file cannot be read.
        """
        recipe = self.recipe
        if data is None and split == "test" and not recipe.test and recipe.data.lower() not in SETS:
            raise BadInput(f"{recipe.data} has no test part; name a file of events, or say --split train")
        own = recipe.test if split == "test" and recipe.test else recipe.data
        return read_events(
            data or own,
            split=split,
            unit=self.options.unit,
            root=root,
            validation=recipe.validation,
            seed=recipe.seed,
        )

    def scores(self, events: Events) -> Tensor:
        """Class scores of whole sequences, (sequences, classes), in float32.

        Raises:
            BadInput: a type is not known, or the time of the next event is and was not said.
        """
        given = events.asked is not None
        if self.options.target == "next" and self.options.at == "target" and not given:
            raise BadInput(
                f"{events.name}: the model was trained to know when the next event comes; say when (asked)"
            )
        ready = replace(self._ready(events), labels=None)
        asked = self.options.target == "label" or self.options.at == "target"
        made = Questions.of_last(ready, self.classes, length=self.options.length, asked=asked)
        return made.on(self._device).scores(self.model).cpu()

    def questions(self, events: Events) -> Questions:
        """All questions with an answer: of labelled sequences, or of every event but the first ones.

        Raises:
            BadInput: a type or a label is not known, or there are no labels.
        """
        ready = self._ready(events)
        if self.options.target == "next":
            return Questions.of_next(ready, length=self.options.length, at=self.options.at)
        if ready.labels is None:
            raise BadInput(f"{events.name}: has no labels")
        return Questions.of_last(ready, self.classes, length=self.options.length)

    def accuracy_and_loss(self, events: Events) -> tuple[float, float]:
        """Over all questions with an answer."""
        return self.questions(events).on(self._device).accuracy_and_loss(self.model)

    def spectra(self, events: Events, *, cases: int = 16) -> dict[str, Any]:
        """Singular values of every attention on the first questions, as a JSON record."""
        asked = self.questions(events).on(self._device)
        batch = asked.windows(*(each[:cases] for each in asked.inputs))
        return spectrum_record(spectra(self.model, batch), cases=len(batch[0]), length=asked.length + 1)

    def maps(self, events: Events) -> dict[str, Any]:
        """Small pictures of every attention on the first question, as a JSON record; see `attention_maps`."""
        asked = self.questions(events).on(self._device)
        batch = asked.windows(*(each[:1] for each in asked.inputs))
        return map_record(attention_maps(self.model, batch), data=events.name, case=0)

    def patterns(self, events: Events, *, layer: int = -1, case: int = 0) -> tuple[HeadPatterns, list[str]]:
        """What one attention applies to a sequence and the question behind it, and the names of its points.

        Raises:
            BadInput: there is no such layer or case, or a type is not known.
        """
        if not 0 <= case < len(events):
            raise BadInput(f"patterns: case is {case}, expected one of {len(events)} of {events.name}")
        ready = replace(self._ready(events.take([case])), labels=None)
        made = Questions.of_last(ready, self.classes, length=self.options.length).on(self._device)
        window = made.windows(*made.inputs)
        read = head_patterns(self.model, window, layer=layer)
        return read, [*(self.kinds[each] for each in window[0][window[3]].tolist()), "question"]

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _ready(self, events: Events) -> Events:
        return events.known_as(self.kinds).converted(self.options.unit)


def fit_events(
    train: Events,
    valid: Events | None,
    made: EventRecipe,
    *,
    classes: tuple[str, ...] | None = None,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[TrainedEvents, list[dict[str, Any]]]:
    """Train a model of events; where there are validation sequences, those choose the epoch.

    Args:
        train: what is learned from.
        valid: what chooses the epoch of the lowest cross-entropy; the last is kept if None.
        made: recipe and options.
        classes: names of the labels, those of `train` by default.
        tell: is told the row of every epoch.

    Returns:
        The trained model, and a row of figures an epoch.

    Raises:
        BadInput: the events cannot be used, or an option does not go with another.
        UnknownName: no such encoding, attention, mix or unit.

    Example:
        >>> from kernelhead.data import lag_lookup
        >>> made = event_recipe_from({"data": "memory", "epochs": 2, "width": 8}, "example")
        >>> trained, rows = fit_events(lag_lookup(30, types=2, seed=0), None, made)
        >>> trained.scores(lag_lookup(3, types=2, seed=1)).shape, len(rows)
        (torch.Size([3, 2]), 2)
    """
    trained, device = _untrained(train, made, classes or train.classes), _device(made.recipe)
    recipe, options, model = trained.recipe, trained.options, trained.model.to(device)
    questions = trained.questions(train).on(device)
    batch = min(recipe.batch, len(questions))
    every = len(questions) // batch
    rows: list[dict[str, Any]] = []
    seen: list[Tensor] = []
    held_out = None if valid is None else trained.questions(valid).on(device)

    def loss(net: nn.Module, x: Any, y: Tensor) -> Tensor:
        found = questions.loss(net, x, y)
        seen.append(found.detach())
        return found

    def watch(net: nn.Module) -> float:
        row = {"epoch": len(rows) + 1, "train_loss": float(torch.stack(seen).mean())}
        seen.clear()
        if held_out is not None:
            accuracy, entropy = held_out.accuracy_and_loss(net)
            if not isfinite(entropy):
                raise BadInput(
                    f"{train.name}: the validation loss is {entropy} after epoch {len(rows) + 1}; a smaller "
                    f"lr than {recipe.lr}, or times in another unit than {options.unit}, may help"
                )
            row |= {"valid_loss": entropy, "valid_accuracy": accuracy}
        rows.append(row)
        if tell is not None:
            tell(row)
        # Without validation data the latest weights are the best.
        return float(len(rows)) if held_out is None else -row["valid_loss"]

    course = Course(
        recipe.epochs * every,
        batch,
        lr=recipe.lr,
        schedule=recipe.schedule,
        weight_decay=recipe.decay,
        optimiser=recipe.optimiser,
        eta=recipe.penalty,
        reduction=recipe.reduction,
        clip=recipe.clip or None,
        precision=PRECISIONS[recipe.precision] if device.type == "cuda" else "32",
        seed=recipe.seed,
    )
    fitted = fit_resident(
        model,
        questions.inputs,
        questions.answers,
        course,
        loss=loss,
        compiled=False,
        captured=False,
        watch=watch,
        every=every,
    )
    for row in rows:
        row["seconds"] = fitted.seconds / len(rows)
    return replace(trained, model=model.eval()), rows


def train_event_run(
    made: EventRecipe,
    folder: Path,
    *,
    fresh: bool = False,
    watcher: Watcher | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """Train on events into a run folder; a finished run of the same recipe is kept.

    The test part is looked at once, with the weights of the epoch that validation sequences chose; those
    are cut from the training sequences and share none with them.

    Args:
        made: recipe and options.
        folder: gets the configuration, metrics, best weights, spectrum, maps and result.
        fresh: throw away what the folder holds of an earlier run.
        watcher: is told every epoch.
        root: folder of data sets.

    Returns:
        The result, as written to the folder.

    Raises:
        BadInput: the data cannot be used, or the folder holds a run of another recipe.
        CheckpointError: the folder cannot be written, or another run is training into it.
    """
    parts = _parts(made, root)
    _untrained(parts[0], made, _classes(*parts[:2]))
    if not fresh:
        check_folder(folder, made.to_dict())
    prepare_folder(folder)
    with alone_in(folder):
        return _trained_in(folder, made, parts, fresh, watcher)


def _trained_in(
    folder: Path, made: EventRecipe, parts: _Parts, fresh: bool, watcher: Watcher | None
) -> dict[str, Any]:
    """The run itself, alone in its folder."""
    recipe, (train, valid, test) = made.recipe, parts
    if fresh:
        for name in LEFT_BY_A_RUN:
            (folder / name).unlink(missing_ok=True)
    else:
        check_folder(folder, made.to_dict())
    write_json(folder / CONFIG, made.to_dict())
    if (folder / RESULT).exists():
        return read_json(folder / RESULT)
    device = _device(recipe)
    reset_peak(device)
    tell = (watcher or Watcher()).epoch
    trained, rows = fit_events(train, valid, made, classes=_classes(train, valid), tell=tell)
    best = min(rows, key=lambda row: row["valid_loss"])
    accuracy, loss = (None, None) if test is None else trained.accuracy_and_loss(test)
    result: dict[str, Any] = {
        "name": made.title,
        "data": train.name,
        "test_accuracy": accuracy,
        "test_loss": loss,
        "valid_accuracy": best["valid_accuracy"],
        "best_epoch": best["epoch"],
        "parameters": sum(p.numel() for p in trained.model.parameters()),
        "seconds_per_epoch": rows[0]["seconds"],
        "peak_memory_mib": peak_on(device),
        "seed": recipe.seed,
        "machine": machine_of(device),
        "versions": versions_here(),
        "date": datetime.now(UTC).date().isoformat(),
        "train_cases": len(train),
        "valid_cases": len(valid),
        "test_cases": 0 if test is None else len(test),
        "classes": len(trained.classes),
    }
    facts = {
        "recipe": recipe.to_dict(),
        "events": asdict(trained.options),
        "kinds": list(trained.kinds),
        "classes": list(trained.classes),
    }
    save_tensors(folder / WEIGHTS, {n: t.cpu() for n, t in trained.model.state_dict().items()}, facts)
    write_lines(folder / METRICS, rows)
    write_json(folder / SPECTRUM, trained.spectra(valid))
    write_json(folder / MAPS, trained.maps(valid), indent=None)
    write_json(folder / RESULT, result)
    return result


def is_event_run(folder: Path) -> bool:
    """Whether a run folder is one of a run on events."""
    return (folder / CONFIG).is_file() and "events" in read_json(folder / CONFIG)


def load_event_run(folder: Path) -> TrainedEvents:
    """The trained model of a run folder, on the CPU and in evaluation mode.

    Raises:
        CheckpointError: the folder holds no weights, or broken ones.
    """
    path = folder / WEIGHTS
    if not path.exists():
        raise CheckpointError(f"{folder} holds no {WEIGHTS}: not a run folder, or its run is not done")
    tensors, facts = load_tensors(path)
    try:
        options = EventOptions(**checked_entries(EventOptions, facts["events"], str(path)))
        kinds, classes = tuple(facts["kinds"]), tuple(facts["classes"])
        recipe = recipe_from(facts["recipe"], str(path))
    except KernelheadError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} lacks what a run stores with its weights: {error}") from error
    check_own(path, facts["recipe"])
    sizes = len(kinds), len(classes)
    model = load_model(path, lambda: _built(recipe, options, *sizes), tensors, layers=recipe.depth)
    return TrainedEvents(model, recipe, options, kinds, classes)


def _time_width(recipe: Recipe, options: EventOptions) -> int:
    """The least from 32 on of whole periods whose sum with the width splits into heads, where it must."""
    kind = ENCODINGS.get(options.time, {"kind": options.time})  # what is none the model names
    share = width_share(kind["kind"], preset=kind.get("preset"), harmonics=options.harmonics)
    least = -(-LEAST_WIDTH // share) * share
    beside = recipe.width if options.mix == "concatenate" else 0
    widths = range(least, least + share * recipe.heads, share)
    fits = (width for width in widths if not beside or (beside + width) % recipe.heads == 0)
    return next(fits, least)


def _untrained(train: Events, made: EventRecipe, classes: tuple[str, ...]) -> TrainedEvents:
    """A model with its first weights; all that can be wrong with options is found here."""
    recipe, options = made.recipe, made.options.settled(train)
    names = train.kinds if options.target == "next" else classes
    if len(names) < 2:
        raise BadInput(f"{train.name}: all answers are {names[0]!r}, expected two classes")
    with seeded(recipe.seed):
        model = _built(recipe, options, len(train.kinds), len(names))
    return TrainedEvents(model, recipe, options, train.kinds, names)


def _classes(train: Events, valid: Events) -> tuple[str, ...]:
    return tuple(sorted({*train.classes, *valid.classes}, key=(train.classes + valid.classes).index))


def _built(recipe: Recipe, options: EventOptions, types: int, classes: int) -> EventModel:
    return EventModel(
        types,
        classes,
        width=recipe.width,
        time_width=options.time_width or _time_width(recipe, options),
        depth=recipe.depth,
        heads=recipe.heads,
        attention=recipe.attention,
        time=options.time,
        mix=options.mix,
        periods=(options.shortest, options.longest),
        harmonics=options.harmonics,
        unit=options.unit,
        longest=options.length,
        rank=recipe.rank,
        landmarks=recipe.landmarks or min(10 * recipe.rank, options.length + 1),
        inner=recipe.inner or None,
        dropout=recipe.dropout,
        init=recipe.init,
    )


def _parts(made: EventRecipe, root: Path | None) -> _Parts:
    """Training, validation and, where there is one, test sequences."""
    recipe, unit = made.recipe, made.options.unit
    if recipe.data.lower() in SETS:
        train, valid, held = (
            read_events(recipe.data, split=part, root=root, validation=recipe.validation, seed=recipe.seed)
            for part in ("train", "validation", "test")
        )
        return train.converted(unit), valid.converted(unit), held.converted(unit)
    whole = read_events(recipe.data, unit=unit)
    settled = made.options.settled(whole)
    strata = np.zeros(len(whole), np.int64)
    if settled.target == "label" and whole.labels is not None:
        strata = np.unique(whole.labels, return_inverse=True)[1]
    validates = in_part("train", strata, "validation", validation=recipe.validation, seed=recipe.seed)
    test = read_events(recipe.test, unit=unit).known_as(whole.kinds) if recipe.test else None
    return whole.take(np.flatnonzero(~validates)), whole.take(np.flatnonzero(validates)), test


def _device(recipe: Recipe) -> torch.device:
    if recipe.accelerator == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda")
