"""A run from its recipe to its folder, and a folder back to a model."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kernelhead.data import Series, Standardiser, has_test_part, padded, read_series, split
from kernelhead.errors import BadInput, CheckpointError, KernelheadError, unknown
from kernelhead.inspection import (
    Alignment,
    Flow,
    HeadPatterns,
    LayerMap,
    LayerSpectrum,
    alignment,
    attention_maps,
    flow_record,
    head_patterns,
    kpca_record,
    map_record,
    model_flow,
    sides_of,
    spectra,
    spectrum_record,
)
from kernelhead.inspection.flow import Group
from kernelhead.models import SequenceClassifier
from kernelhead.nn.penalties import REDUCTIONS
from kernelhead.records import CONFIG, MAPS, RESULT, SPECTRUM, WEIGHTS, read_json, write_json
from kernelhead.rng import seeded
from kernelhead.shapes import check_size
from kernelhead.training.loop import Watcher, accuracy_and_loss, fit, make_fabric, scores
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
from kernelhead.training.recipe import Recipe, recipe_from
from kernelhead.training.store import load_model, load_tensors, prepare_folder

LONGEST_READ = 1024
_Prepared: TypeAlias = tuple[Series, Series | None, Series, Series, SequenceClassifier]


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained classifier of series with all that it needs to read new ones.

    Models with learned positions or flattened pooling know no point beyond the longest training
    series; longer series are cut there, as in the published protocol.

    Args:
        recipe: what it was trained by.
        classes: labels in the order of the scores.
        columns: names of the channels, where the data has such.
        standardiser: of the channels.
    """

    model: SequenceClassifier
    recipe: Recipe
    classes: tuple[str, ...]
    standardiser: Standardiser
    columns: tuple[str, ...] = ()

    def scores(self, series: Series) -> Tensor:
        """Class scores of raw series, (cases, classes).

        Raises:
            BadInput: the series have other channels than the training part.
        """
        return scores(self.model, self._ready(series))

    def accuracy_and_loss(self, series: Series) -> tuple[float, float]:
        """On labelled raw series."""
        return accuracy_and_loss(self.model, self._ready(series), self.classes)

    def spectra(self, series: Series, *, cases: int = 16) -> tuple[list[LayerSpectrum], dict[str, Any]]:
        """Singular values of every attention on the first cases, and their JSON record.

        Dense patterns grow with the square of the length: series are read up to their first 1,024
        points, and fewer cases where many heads would make them large.
        """
        ready, x, mask = self._first("spectra", series, cases)
        found = spectra(self.model.cpu(), x, mask)
        return found, spectrum_record(found, cases=len(ready), length=ready.longest)

    def alignments(
        self, series: Series, *, cases: int = 16, seed: int = 0
    ) -> tuple[dict[str, Alignment], dict[str, Any]]:
        """Whether softmax layers are a kernel PCA of their keys, by path, and the JSON record of it.

        Series are read as by `spectra`; the seed is that of the baselines.

        Raises:
            BadInput: the model has no softmax layer to read, or no case has three points.
        """
        ready, x, mask = self._first("alignments", series, cases)
        read = sides_of(self.model.cpu(), x, mask)
        found = {
            path: alignment(s.query, s.key, s.value, mask=s.mask, points=s.points, seed=seed)
            for path, s in read.sides.items()
        }
        return found, kpca_record(read, found, cases=len(ready), length=ready.longest, seed=seed)

    def flow(
        self, series: Series, groups: Mapping[str, Group], *, cases: int = 16, rows: str = "stochastic"
    ) -> tuple[Flow, dict[str, Any]]:
        """The flow between groups of points, and its JSON record; series are read as by `spectra`.

        Raises:
            BadInput: as for `model_flow`.
        """
        _, x, mask = self._first("flow", series, cases)
        found = model_flow(self.model.cpu(), x, groups, mask, rows=rows)
        return found, flow_record(found)

    def maps(
        self, series: Series, *, case: int = 0, longest: int | None = None
    ) -> tuple[list[LayerMap], dict[str, Any]]:
        """Small pictures of every attention on one of raw series, and their JSON record: `attention_maps`.

        Args:
            longest: points to read, from the first; all of them by default.

        Raises:
            BadInput: there is no such case.
        """
        if not 0 <= case < len(series):
            raise BadInput(f"maps: case is {case}, expected one of {len(series)} of {series.name}")
        one = series.take([case])
        ready = self._ready(replace(one, cases=tuple(each[:longest] for each in one.cases)))
        values, mask = padded(ready, [0])
        kind = next(self.model.parameters()).dtype
        found = attention_maps(self.model.cpu(), torch.from_numpy(values).to(kind), torch.from_numpy(mask))
        return found, map_record(found, data=series.name, case=case)

    def patterns(self, series: Series, *, layer: int = -1, case: int = 0) -> tuple[HeadPatterns, list[str]]:
        """What one attention applies to one of raw series, and the names of its points; see `head_patterns`.

        Raises:
            BadInput: there is no such layer or case.
        """
        if not 0 <= case < len(series):
            raise BadInput(f"patterns: case is {case}, expected one of {len(series)} of {series.name}")
        _, x, mask = self._first("patterns", series.take([case]), 1)
        read = head_patterns(self.model.cpu(), x, mask, layer=layer)
        names = [f"t{place}" for place in range(int(mask.sum()))]
        return read, ["cls"] * (read.entries.shape[-2] - len(names)) + names

    def _first(self, who: str, series: Series, cases: int) -> tuple[Series, Tensor, Tensor]:
        """The first cases, ready and as a batch with its mask."""
        series = replace(series, cases=tuple(case[:LONGEST_READ] for case in series.cases))
        most = max(1, 2**25 // (self.recipe.heads * series.longest**2))
        ready = self._ready(series.take(range(min(check_size(who, "cases", cases), most, len(series)))))
        values, mask = padded(ready, range(len(ready)))
        kind = next(self.model.parameters()).dtype
        return ready, torch.from_numpy(values).to(kind), torch.from_numpy(mask)

    def _ready(self, series: Series) -> Series:
        expected = self.model.channels
        if series.channels != expected:
            raise BadInput(
                f"{series.name}: has {series.channels} channels, but the model was trained on {expected}"
            )
        longest = (
            self.model.longest
            if self.model.pooling == "flatten" or self.recipe.position == "learned"
            else None
        )
        cases = tuple(case[:longest] for case in series.cases)
        return self.standardiser.apply(replace(series, cases=cases).arranged(self.columns))


def train_run(
    recipe: Recipe,
    folder: Path,
    *,
    fresh: bool = False,
    watcher: Watcher | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """Train as a recipe says, into a run folder; goes on where a run of the same recipe stopped.

    The test part is looked at once, after training, with the weights of the best epoch on the
    validation part, which is cut from the training part.

    Args:
        recipe: the run's settings.
        folder: gets the configuration, metrics, checkpoint, best weights, spectrum, maps and result.
        fresh: throw away what the folder holds of an earlier run.
        watcher: is told how far the run is.
        root: folder of data sets.

    Returns:
        The result, as written to the folder.

    Raises:
        BadInput: the data cannot be used, or the folder holds a run of another recipe.
        CheckpointError: the folder cannot be written, another run is training into it, or its checkpoint
            is broken.
    """
    prepared = _prepared(recipe, root)
    if not fresh:
        check_folder(folder, recipe.to_dict())
    prepare_folder(folder)
    fabric = make_fabric(recipe)
    with alone_in(folder) if fabric.is_global_zero else nullcontext():
        return _trained_in(folder, recipe, prepared, fabric, fresh, watcher)


def _trained_in(
    folder: Path, recipe: Recipe, prepared: _Prepared, fabric: Any, fresh: bool, watcher: Watcher | None
) -> dict[str, Any]:
    """The run itself, alone in its folder."""
    train, test, part, valid, model = prepared
    standardiser, classes = Standardiser.fit(part), train.classes
    main = fabric.is_global_zero
    if main and fresh:
        for name in LEFT_BY_A_RUN:
            (folder / name).unlink(missing_ok=True)
    elif main:
        check_folder(folder, recipe.to_dict())
    fabric.barrier()
    if main:
        write_json(folder / CONFIG, recipe.to_dict())
    if (folder / RESULT).exists():
        return read_json(folder / RESULT)
    facts = {
        "recipe": recipe.to_dict(),
        "classes": list(classes),
        "channels": train.channels,
        "longest": train.longest,
        "mean": standardiser.mean.tolist(),
        "deviation": standardiser.deviation.tolist(),
        "columns": list(train.columns),
    }
    reset_peak(fabric.device)
    rows = fit(
        model,
        standardiser.apply(part),
        standardiser.apply(valid),
        classes,
        recipe,
        fabric=fabric,
        folder=folder,
        facts=facts,
        watcher=watcher,
    )
    peak = peak_on(fabric.device)
    fabric.barrier()
    best = max(rows, key=lambda row: (row["valid_accuracy"], -row["valid_loss"]))
    trained = Trained(model, recipe, classes, standardiser, train.columns)
    accuracy, loss = (None, None) if test is None else trained.accuracy_and_loss(test)
    result: dict[str, Any] = {
        "name": recipe.title,
        "data": train.name,
        "test_accuracy": accuracy,
        "test_loss": loss,
        "valid_accuracy": best["valid_accuracy"],
        "best_epoch": best["epoch"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds_per_epoch": sum(row["seconds"] for row in rows) / len(rows),
        "peak_memory_mib": peak,
        "seed": recipe.seed,
        "machine": machine_of(fabric.device),
        "versions": versions_here(),
        "date": datetime.now(UTC).date().isoformat(),
        "train_cases": len(part),
        "valid_cases": len(valid),
        "test_cases": 0 if test is None else len(test),
        "classes": len(classes),
    }
    if main:
        write_json(folder / SPECTRUM, trained.spectra(valid)[1])
        write_json(folder / MAPS, trained.maps(valid, longest=LONGEST_READ)[1], indent=None)
        write_json(folder / RESULT, result)
    fabric.barrier()
    return result


def check_recipe(recipe: Recipe, *, root: Path | None = None) -> None:
    """Find out whether a recipe can be trained, without training it.

    Raises:
        BadInput: its data or one of its options cannot be used.
        UnknownName: a name in it is not known.
    """
    _prepared(recipe, root)


def _prepared(recipe: Recipe, root: Path | None) -> _Prepared:
    """All that can be wrong with a recipe is found here, before any folder is touched."""
    train, test = _read(recipe, root)
    if recipe.reduction not in REDUCTIONS:
        raise unknown("train_run", "reduction", recipe.reduction, REDUCTIONS)
    part, valid = split(train, fraction=recipe.validation, seed=recipe.seed)
    model = build(recipe, classes=len(train.classes), channels=train.channels, longest=train.longest)
    return train, test, part, valid, model


def build(recipe: Recipe, *, classes: int, channels: int, longest: int) -> SequenceClassifier:
    """The model that a recipe describes, with weights drawn from its seed.

    Args:
        channels: of the series.
        classes: how many there are.
        longest: time stamps of the longest series.
    """
    with seeded(recipe.seed):
        return SequenceClassifier(
            classes,
            channels=channels,
            width=recipe.width,
            depth=recipe.depth,
            heads=recipe.heads,
            attention=recipe.attention,
            rank=recipe.rank,
            landmarks=recipe.landmarks or min(10 * recipe.rank, longest),
            inner=recipe.inner or None,
            norm=recipe.norm,
            pooling=recipe.pooling,
            activation=recipe.activation,
            position=recipe.position,
            longest=longest,
            dropout=recipe.dropout,
            init=recipe.init,
        )


def load_run(folder: Path) -> Trained:
    """The trained classifier of a run folder, on the CPU and in evaluation mode.

    Raises:
        CheckpointError: the folder holds no weights, or broken ones.
    """
    path = folder / WEIGHTS
    if not path.exists():
        raise CheckpointError(
            f"{folder} holds no {WEIGHTS}: not a run folder, or its first epoch is not done"
        )
    tensors, facts = load_tensors(path)
    if "events" in facts:
        raise BadInput(f"{folder} holds a run on events; evaluate, predict and report read it, and graph")
    try:
        recipe = recipe_from(facts["recipe"], str(path))
        standardiser = Standardiser(np.array(facts["mean"]), np.array(facts["deviation"]))
        classes, columns = tuple(facts["classes"]), tuple(facts["columns"])
        sizes = {"classes": len(classes), "channels": facts["channels"], "longest": facts["longest"]}
    except KernelheadError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} lacks what a run stores with its weights: {error}") from error
    check_own(path, facts["recipe"])
    model = load_model(path, lambda: build(recipe, **sizes), tensors, layers=recipe.depth)
    return Trained(model, recipe, classes, standardiser, columns)


def _read(recipe: Recipe, root: Path | None) -> tuple[Series, Series | None]:
    """The training part and, where there is one, the test part."""
    train = read_series(recipe.data, split="train", root=root)
    if train.labels is None:
        raise BadInput(f"{train.name}: has no labels, so nothing can be learned from it")
    if len(train.classes) < 2:
        raise BadInput(
            f"{train.name}: all {len(train)} cases are of class {train.classes[0]!r}, expected two classes"
        )
    source = recipe.test or recipe.data
    if not recipe.test and not has_test_part(source, root=root):
        return train, None
    test = read_series(source, split="test", root=root)
    if test.channels != train.channels:
        raise BadInput(
            f"{test.name}: the test part has {test.channels} channels, the training part {train.channels}"
        )
    strange = sorted(set(test.classes) - set(train.classes))
    if test.labels is None or strange:
        what = f"classes that the training part lacks: {', '.join(strange)}" if strange else "no labels"
        raise BadInput(f"{test.name}: the test part has {what}")
    return train, test.arranged(train.columns)
