"""Time series of the UEA archive: what the paper's table trains, and two peers on the same parts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import Series, Standardiser, has_test_part, padded, read_series, split
from kernelhead.errors import BadInput, MissingExtra, missing_extra, unknown
from kernelhead.training.course import Course
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.landmarks import LandmarkRidge
from kernelhead.training.loop import Row, fit, make_fabric, targets
from kernelhead.training.recipe import Recipe, parted, read_toml, recipe_from
from kernelhead.training.resident import fit_resident, scores_of
from kernelhead.training.runs import Trained, build
from kernelhead.training.settings import ELSEWHERE
from kernelhead.training.table import Goal, Page

VARIANTS = ("softmax", "primal", "primal+")
SETTINGS = ("paper", "ours")
PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "MultiRocketHydra": ("convolution_based", "MultiRocketHydraClassifier", {"n_kernels": 8, "n_groups": 64}),
    "QUANT": ("interval_based", "QUANTClassifier", {"interval_depth": 6, "quantile_divisor": 4}),
}
LONG = 10_000  # steps from which on compiling takes less time than it saves
# What the released model has between its last norm and its head, for runs by its own protocol.
RELEASED = {"activation": "gelu"}
OURS: dict[str, dict[str, Any]] = {"kernelhead": {"marks": 16, "groups": 16}}
CONTAMINATED = (
    "the released script names no training file there and takes whichever comes first, the test file on "
    "some file systems; 100 % is left out of what is judged"
)


def uea_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set in a recipe file that can be read here.

    Under `clean` these are the published settings, ours where the file has any that differ, and the
    peers; under `paper` the published settings alone, with the GELU that the released model has before its
    head.

    Args:
        recipes: TOML file; entries before the first table hold for all, and [SET.VARIANT] holds the
            tables `paper` and, as changes of it, `ours`.
        protocol: "clean" or "paper".
        seeds: how many, from 0 on.
        root: folder of data sets.

    Raises:
        BadInput: the file is not such a file, or no set of it is here.
        UnknownName: no such protocol, variant or entry.
    """
    if protocol not in _PROTOCOLS:
        raise unknown("uea_jobs", "protocol", protocol, _PROTOCOLS)
    tables = read_tables(recipes)
    sets = [name for name in tables if _is_here(name, root)]
    if not sets:
        raise BadInput(
            f"uea: none of {', '.join(tables)} is here; KERNELHEAD_DATA or --root names their folder"
        )
    return [
        Job("uea", data, variant, protocol, seed, table)
        for data in sets
        for variant, table in _listed(tables[data], protocol)
        for seed in range(seeds)
    ]


def uea_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train and score what a job says.

    Raises:
        BadInput: the data cannot be used.
        MissingExtra: a peer needs aeon, a network lightning-fabric.
    """
    train, test = (read_series(job.data, split=part, root=root) for part in ("train", "test"))
    # Learned positions and a flattened head know no point beyond the longest training series.
    test = replace(test, cases=tuple(case[: train.longest] for case in test.cases))
    if job.variant in PEERS:
        return _peer(job, train, test)
    if job.variant in OURS:
        return _landmarks(job, train, test)
    recipe = recipe_from({**job.recipe, "data": job.data, "seed": job.seed}, job.key)
    return _PROTOCOLS[job.protocol](recipe, train, test)


def _is_here(name: str, root: Path | None) -> bool:
    try:
        return has_test_part(name, root=root)
    except MissingExtra:
        return False  # the folder lacks it, and aeon, which brings it, is not installed


def read_tables(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Tables of a recipe file, by set and by variant; `primal-ours` is there where ours differs.

    Raises:
        BadInput: not a readable TOML file, or a set without `paper` for one of the variants.
        UnknownName: a variant, a setting or an entry that is not known.
    """
    shared, sets = parted(read_toml(path, ELSEWHERE))
    return {data: dict(_variants(f"{path}, [{data}]", data, table, shared)) for data, table in sets.items()}


def _variants(
    who: str, data: str, table: Mapping[str, Any], shared: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for variant in table:
        if variant not in VARIANTS:
            raise unknown(who, "variant", variant, VARIANTS)
    for variant in VARIANTS:
        settings = table.get(variant)
        if not isinstance(settings, dict) or "paper" not in settings:
            raise BadInput(f"{who}: no table {variant}.paper")
        for setting in settings:
            if setting not in SETTINGS:
                raise unknown(f"{who}, {variant}", "setting", setting, SETTINGS)
        paper = {**shared, "attention": variant, **settings["paper"]}
        ours = {**paper, **settings.get("ours", {})}
        for each in (paper, ours):
            recipe_from({**each, "data": data}, f"{who}, {variant}")
        yield variant, paper
        if ours != paper:
            yield f"{variant}-ours", ours


def _listed(tables: Mapping[str, dict[str, Any]], protocol: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for variant, table in tables.items():
        if protocol == "clean":
            yield variant, table
        elif variant in VARIANTS:
            yield variant, {**RELEASED, **table}
    if protocol == "clean":
        yield from OURS.items()
        for name, (_, _, arguments) in PEERS.items():
            yield name, arguments


def _clean(recipe: Recipe, train: Series, test: Series) -> Outcome:
    """A part of the training part chooses the epoch; the test part is looked at once."""
    part, valid = split(train, fraction=recipe.validation, seed=recipe.seed)
    trained, rows = _fitted(recipe, train, part, valid)
    accuracy, loss = trained.accuracy_and_loss(test)
    best = max(rows, key=lambda row: (row["valid_accuracy"], -row["valid_loss"]))
    figures = {
        "test_accuracy": accuracy,
        "test_loss": loss,
        "valid_accuracy": best["valid_accuracy"],
        "best_epoch": best["epoch"],
    }
    return _outcome(trained, rows, figures)


def _paper(recipe: Recipe, train: Series, test: Series) -> Outcome:
    """The published protocol: the best of many looks at the test part, after 1, 2, 4, 6, ... epochs.

    It exists to be compared with the published table; its figure has a name of its own.
    """
    trained, rows = _fitted(recipe, train, train, test)
    looks = [row for row in rows if row["epoch"] % 2 == 0 or row["epoch"] in (1, recipe.epochs)]
    best = max(looks, key=lambda row: float(row["valid_accuracy"]))
    figures = {
        "best_test_accuracy": best["valid_accuracy"],
        "last_test_accuracy": rows[-1]["valid_accuracy"],
        "best_epoch": best["epoch"],
    }
    return _outcome(trained, rows, figures)


def _fitted(recipe: Recipe, train: Series, part: Series, chooses: Series) -> tuple[Trained, list[Row]]:
    """Trained on a part of the training part, at the best epoch on the set that chooses it."""
    standardiser, classes = Standardiser.fit(part), train.classes
    model = build(recipe, classes=len(classes), channels=train.channels, longest=train.longest)
    ready = standardiser.apply(part), standardiser.apply(chooses)
    if torch.cuda.is_available() and recipe.accelerator != "cpu":
        rows = on_device(model, *ready, classes, recipe, torch.device("cuda"))
    else:
        rows = fit(model, *ready, classes, recipe, fabric=make_fabric(recipe))
    return Trained(model, recipe, classes, standardiser), rows


def on_device(
    model: nn.Module,
    train: Series,
    valid: Series,
    classes: tuple[str, ...],
    recipe: Recipe,
    device: torch.device,
) -> list[Row]:
    """`fit` with all series on one device, a step as one graph where that is a GPU.

    What differs: a batch that an epoch does not fill is left out, series are as long as the longest
    of all instead of the longest of a batch, which is masked, and products on CUDA are in TF32.

    Returns:
        One row of figures an epoch.
    """
    length = max(train.longest, valid.longest)
    model.to(device)
    (x, y), (watched, labels) = (_whole(each, classes, length, device) for each in (train, valid))
    batch = min(recipe.batch, len(train))
    stretch = len(train) // batch
    course = Course(
        recipe.epochs * stretch,
        batch,
        lr=recipe.lr,
        schedule=recipe.schedule,
        warmup=0.0,
        weight_decay=recipe.decay,
        optimiser=recipe.optimiser,
        eta=recipe.penalty,
        reduction=recipe.reduction,
        clip=recipe.clip or None,
        precision="tf32",
        seed=recipe.seed,
    )
    rows: list[Row] = []

    def watch(net: nn.Module) -> float:
        scores = scores_of(net, watched, batch=256, precision="tf32")
        accuracy = float((scores.argmax(-1) == labels).float().mean())
        loss = float(F.cross_entropy(scores, labels))
        rows.append({"epoch": len(rows) + 1, "valid_accuracy": accuracy, "valid_loss": loss})
        # Of epochs with the same accuracy the one of the smaller loss.
        return accuracy - 1e-6 * min(loss, 1e3)

    compiled = device.type == "cuda" and course.steps >= LONG
    fitted = fit_resident(model, x, y, course, compiled=compiled, watch=watch, every=stretch)
    return [{**row, "seconds": fitted.seconds / recipe.epochs} for row in rows]


def _whole(
    series: Series, classes: tuple[str, ...], length: int, device: torch.device
) -> tuple[tuple[Tensor, ...], Tensor]:
    """All series, with a mask where some are shorter than others, and their classes."""
    values, mask = (
        torch.from_numpy(each).to(device) for each in padded(series, range(len(series)), length=length)
    )
    labels = targets(series, classes).to(device)
    return ((values,) if bool(mask.all()) else (values, mask)), labels


def _outcome(trained: Trained, rows: list[Row], figures: Mapping[str, float]) -> Outcome:
    count = sum(each.numel() for each in trained.model.parameters())
    return Outcome(figures, count, sum(row["seconds"] for row in rows) / len(rows))


def _peer(job: Job, train: Series, test: Series) -> Outcome:
    """A classifier of aeon: no epoch to choose, so it learns from the whole training part."""
    room, name, _ = PEERS[job.variant]
    try:
        kind = getattr(import_module(f"aeon.classification.{room}"), name)
    except ImportError:
        raise missing_extra(job.key, "aeon", "ts") from None
    arguments = {**job.recipe, "random_state": job.seed}
    if kind.get_class_tag("capability:multithreading"):
        arguments["n_jobs"] = torch.get_num_threads()
    model = kind(**arguments)
    model.fit(_cube(train, train.longest), np.array(train.labels))
    right = model.predict(_cube(test, train.longest)) == np.array(test.labels)
    return Outcome({"test_accuracy": float(np.mean(right))})


def _landmarks(job: Job, train: Series, test: Series) -> Outcome:
    """Attention to landmark patches and a ridge, learned from the whole training part as by the peers."""
    model = LandmarkRidge.fit(train, seed=job.seed, **job.recipe)
    found = model.scores(test).argmax(1)
    right = [model.classes[place] == label for place, label in zip(found, test.labels or (), strict=True)]
    return Outcome({"test_accuracy": float(np.mean(right))})


def _cube(series: Series, length: int) -> NDArray[np.float32]:
    """Cases by channels by time, as aeon has them; shorter series end in zeros, as for the networks."""
    return padded(series, range(len(series)), length=length)[0].swapaxes(1, 2)


_PROTOCOLS = {"clean": _clean, "paper": _paper}


def _published(softmax: float, primal: float, plus: float) -> dict[str, float]:
    return {"softmax": softmax, "primal": primal, "primal+": plus}


UEA_PAGE = Page(
    title="Time series of the UEA archive",
    about=(
        "Test accuracy in %, mean ± deviation over seeds, with the number of seeds. The peers of aeon and "
        "`kernelhead`, attention to landmark patches with a ridge, have no epoch to choose and learn from "
        "the whole training part; networks under `clean` learn from what the validation part leaves. "
        "Series end in zeros at the longest training series and are cut there. On a GPU "
        "all series lie on it, products are in TF32, and a batch that an epoch does not fill is left out."
    ),
    figures={"clean": "test_accuracy", "paper": "best_test_accuracy"},
    labels={
        "clean": "A validation part, cut from the training part, chooses the epoch; the test part is "
        "looked at once. Published figures are best test epochs, which is easier.",
        "paper": "**Best test epoch.** The test part chooses the epoch, as in the published table, and the "
        "figures are for comparison with that table alone: they overstate what the models can do.",
    },
    variants={
        "softmax": "softmax Transformer",
        "primal": "PrimalFormer",
        "primal+": "Primal.+",
        "softmax-ours": "softmax Transformer, our settings",
        "primal-ours": "PrimalFormer, our settings",
        "primal+-ours": "Primal.+, our settings",
        "kernelhead": "kernelhead",
        "MultiRocketHydra": "MultiRocketHydra",
        "QUANT": "QUANT",
    },
    published={
        "EthanolConcentration": _published(32.7, 33.1, 35.4),
        "FaceDetection": _published(67.3, 67.1, 63.8),
        "Handwriting": _published(32.0, 29.6, 28.7),
        "Heartbeat": _published(76.1, 76.1, 77.1),
        "JapaneseVowels": _published(98.7, 98.4, 98.9),
        "PEMS-SF": _published(82.1, 89.6, 90.2),
        "SelfRegulationSCP1": _published(92.2, 92.5, 92.5),
        "SelfRegulationSCP2": _published(53.9, 57.2, 56.1),
        "SpokenArabicDigits": _published(98.4, 100.0, 100.0),
        "UWaveGestureLibrary": _published(85.6, 86.3, 88.4),
    },
    published_by="best test epoch, one seed",
    doubtful={"SpokenArabicDigits": CONTAMINATED},
    goals=(
        *(Goal(name, name, published=True) for name in VARIANTS),
        *(
            Goal(f"{name}{ending}", f"softmax{ending}")
            for ending in ("", "-ours")
            for name in ("primal", "primal+")
        ),
        *(Goal(f"{name}-ours", name, published=True) for name in VARIANTS),
        *(Goal(name, other) for name in OURS for other in (*PEERS, *VARIANTS)),
        *(
            Goal(f"{name}{ending}", peer)
            for ending in ("", "-ours")
            for name in ("primal", "primal+")
            for peer in PEERS
        ),
    ),
    scale=100.0,
    unit=" %",
)
