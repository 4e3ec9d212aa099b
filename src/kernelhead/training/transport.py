"""Attention as transport: simulations with every null, and tables against what tables are classified with."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data.sources import in_part
from kernelhead.errors import unknown
from kernelhead.inspection import TrajectoryRecorder, TransportReport, transport_report
from kernelhead.models import CloudClassifier, mean_anchors, ring_anchors
from kernelhead.nn import evaluating
from kernelhead.rng import generator, seeded
from kernelhead.training.course import Course
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import jobs_from, settings_from
from kernelhead.training.steps import Fitted
from kernelhead.training.table import Claim, Page
from kernelhead.training.transport_maps import RADIUS, MapSettings, fit_map, pretrain_head
from kernelhead.training.transport_parts import FIELD, SIMULATIONS, TABLES, Parts, parts_of

MODELS = ("transformer", "map", "logistic", "boosting")
HEADS = ("learned", "ring", "means", "rotated")


@dataclass(frozen=True)
class TransportRecipe:
    """What a job trains; see `CloudClassifier`, `Course` and `MapSettings` for the words.

    Args:
        model: "transformer", "map", "logistic" or "boosting".
        head: of a transformer: "learned", or taught on dummies and frozen, which lie on a "ring", as the
            "means" of the classes, or as these with labels "rotated" by one.
        match: of a map.
        dummies: of a map.
        radius: of dummy classes; 0 for three times the number of classes.
        batch: instances of a step of the transformer, at most.
        validation: share of the training instances that chooses the weights.
        tracked: training instances whose projections are read, at most.
        permutations: draws of pairings at random.

    Raises:
        UnknownName: no such model or head.
    """

    model: str = "transformer"
    head: str = "learned"
    match: str = "ot"
    dummies: str = "ring"
    radius: float = 0.0
    blocks: int = 1
    heads: int = 10
    head_width: int = 16
    inner: int = 32
    hidden: int = 8
    dropout: float = 0.1
    head_dropout: float = 0.4
    lr: float = 3e-2
    steps: int = 200
    batch: int = 512
    epochs: int = 100
    validation: float = 0.2
    tracked: int = 1000
    permutations: int = 20

    def __post_init__(self) -> None:
        for name, value, known in (("model", self.model, MODELS), ("head", self.head, HEADS)):
            if value not in known:
                raise unknown("TransportRecipe", name, value, known)


def transport_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every simulation, table and variant in a recipe file; a seed is a draw or a split.

    Args:
        recipes: TOML file; entries before the first table hold for all, those of [SET] for a set, and
            [SET.VARIANT] adds what a variant has of its own.
        protocol: "clean": a part of the training instances chooses the weights.
        seeds: how many, from 0 on.
        root: folder of data sets; unused here, the data are read when a job runs.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set, variant or entry.
    """
    jobs = jobs_from(
        FIELD, recipes, TransportRecipe, sets=[*SIMULATIONS, *TABLES], protocol=protocol, seeds=seeds
    )
    for job in jobs:
        if job.variant not in TRANSPORT_PAGE.variants:
            raise unknown(f"{recipes}, [{job.data}]", "variant", job.variant, TRANSPORT_PAGE.variants)
    return jobs


def transport_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train and score what a job says, and read it as transport where it moves points.

    Raises:
        BadInput: the data are not here, or cannot be used.
    """
    recipe = settings_from(TransportRecipe, job.key, job.recipe)
    parts = parts_of(job.data, job.seed, root)
    if recipe.model == "transformer":
        return _transformer(recipe, parts, job.seed)
    if recipe.model == "map":
        return _map(recipe, parts, job.seed)
    return _peer(recipe, parts, job.seed)


def _transformer(recipe: TransportRecipe, parts: Parts, seed: int) -> Outcome:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, new = (torch.from_numpy(each).float().to(device) for each in (parts.x, parts.new))
    y = torch.from_numpy(parts.y).to(device)
    with seeded(seed):
        model = CloudClassifier(
            x.shape[-1],
            parts.classes,
            blocks=recipe.blocks,
            heads=recipe.heads,
            head_width=recipe.head_width,
            inner=recipe.inner,
            hidden=recipe.hidden,
            dropout=recipe.dropout,
            head_dropout=recipe.head_dropout,
        )
    if recipe.head != "learned":
        pretrain_head(model.head, head_anchors(recipe, parts), seed=seed)
    model = model.to(device)
    held = torch.from_numpy(~in_part(FIELD, parts.y, "train", validation=recipe.validation, seed=seed))
    held = held.to(device)
    seen, labels = _tracked(recipe, x, y, seed)
    recorder = TrajectoryRecorder(model, "blocks", seen, labels=labels)
    figure = _held_out(x[held], y[held])
    fitted = fit_resident(
        model,
        x[~held],
        y[~held],
        Course(
            recipe.steps,
            min(recipe.batch, int((~held).sum())),
            lr=recipe.lr,
            schedule="constant",
            warmup=0.0,
            weight_decay=0.0,
            clip=None,
            seed=seed,
        ),
        loss=point_loss,
        compiled=False,
        watch=recorder.watching(figure),
        every=max(recipe.steps // 200, 1),
    )
    best = int(np.argmax(fitted.watched)) + 1
    with torch.no_grad(), evaluating(model):
        shares = model(new).log_softmax(-1).flatten(0, 1).double().cpu().numpy()
    report = recorder.report(last=best, permutations=recipe.permutations, seed=seed)
    trace = recorder.trace(last=best, looks=10)
    names = ("optimality", "matching", "efficiency")
    return Outcome(
        {
            **parts.scored(shares, rule="mean"),
            **figures_from(report),
            "fit_seconds": _whole_seconds(fitted),
            "best_look": float(best),
        },
        sum(each.numel() for each in model.parameters()),
        curves={
            "look": [float(look) for look in trace],
            **{name: [getattr(each, name) for each in trace.values()] for name in names},
        },
    )


def head_anchors(recipe: TransportRecipe, parts: Parts) -> Tensor:
    """Where the dummy classes of a pretrained head lie, in the space of the points.

    Example:
        >>> head_anchors(TransportRecipe(head="ring"), parts_of("2 classes, 1", 0)).abs().max().item()
        6.0
    """
    radius = recipe.radius or RADIUS * parts.classes
    width = parts.x.shape[-1]
    if recipe.head == "ring":
        return ring_anchors(parts.classes, width, radius=radius)
    points = torch.from_numpy(parts.x).float().flatten(0, 1)
    labels = torch.from_numpy(parts.y).repeat_interleave(parts.x.shape[1])
    anchors = mean_anchors(points, labels, radius=radius)
    return anchors.roll(1, 0) if recipe.head == "rotated" else anchors


def point_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy over all points of all instances, each of its instance's class.

    Shapes: x (b, n, c), y (b,).
    """
    scores = model(x)
    return F.cross_entropy(scores.flatten(0, 1), y.repeat_interleave(scores.shape[1]))


def figures_from(report: TransportReport) -> dict[str, float]:
    """Figures of a report for a ledger, with each null beside.

    Example:
        >>> start = torch.tensor([[0.0], [1.0], [4.0]])
        >>> made = figures_from(transport_report([start, 2 * start], torch.tensor([0, 0, 0])))
        >>> made["matching"], made["straight_efficiency"], "untrained_matching" in made
        (1.0, 1.0, False)
    """
    whole = report.figures
    found = {
        "optimality": whole.optimality,
        "normalised_optimality": whole.normalised_optimality,
        "matching": whole.matching,
        "monge_gap": whole.monge_gap,
        "cost_gap": whole.cost_gap,
        "centred_gap": whole.centred_gap,
        "direct": whole.direct,
        "wasserstein": whole.wasserstein,
        "path": whole.path,
        "efficiency": whole.efficiency,
        "thesis_efficiency": whole.thesis_efficiency,
    }
    for name, null in report.nulls.items():
        short = {"permutation": "permuted", "straight line": "straight"}.get(name, name)
        for figure in ("optimality", "normalised_optimality", "matching", "efficiency", "thesis_efficiency"):
            found[f"{short}_{figure}"] = getattr(null, figure)
    if report.difficulty is not None:
        found["difficulty"] = report.difficulty
    return found


def _tracked(recipe: TransportRecipe, x: Tensor, y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Training instances whose projections are noted: all, or some drawn by the seed."""
    if len(x) <= recipe.tracked:
        return x, y
    drawn = torch.randperm(len(x), generator=generator(seed, recipe.tracked))[: recipe.tracked].to(x.device)
    return x[drawn], y[drawn]


def _held_out(x: Tensor, y: Tensor) -> Callable[[nn.Module], float]:
    def figure(model: nn.Module) -> float:
        with torch.no_grad(), evaluating(model):
            return -float(point_loss(model, x, y))

    return figure


def _whole_seconds(fitted: Fitted) -> float:
    """Seconds of all steps, those included that were not timed."""
    return fitted.steps / fitted.steps_a_second if fitted.steps_a_second else fitted.seconds


def _map(recipe: TransportRecipe, parts: Parts, seed: int) -> Outcome:
    count, width = parts.x.shape[1:]
    x, new = (each.reshape(-1, width) for each in (parts.x, parts.new))
    y = np.repeat(parts.y, count)
    settings = MapSettings(
        dummies=recipe.dummies, radius=recipe.radius, match=recipe.match, epochs=recipe.epochs
    )
    started = time.perf_counter()
    made = fit_map(x, y, settings, seed=seed)
    seconds = time.perf_counter() - started
    scores = made.scores(new)
    shares = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    seen, labels = _tracked(
        replace(recipe, tracked=recipe.tracked * count), torch.from_numpy(x), torch.from_numpy(y), seed
    )
    start, end = made.standardised(seen.numpy()), torch.from_numpy(made.carried(seen.numpy()))
    report = transport_report([start, end], labels, permutations=recipe.permutations, seed=seed)
    parameters = sum(each.numel() for each in made.model.parameters())
    figures = {**parts.scored(shares), **figures_from(report), "fit_seconds": seconds}
    # A map has no path: it goes from rows to dummies in one step.
    return Outcome({name: each for name, each in figures.items() if "efficiency" not in name}, parameters)


def _peer(recipe: TransportRecipe, parts: Parts, seed: int) -> Outcome:
    """An estimator of scikit-learn with its own defaults, of points."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    count, width = parts.x.shape[1:]
    x, new, y = parts.x.reshape(-1, width), parts.new.reshape(-1, width), np.repeat(parts.y, count)
    peer: Any = LogisticRegression(max_iter=1000)
    if recipe.model == "boosting":
        peer = HistGradientBoostingClassifier(
            random_state=seed, categorical_features=[*parts.categorical] or None
        )
        if parts.ordinal is not None and parts.new_ordinal is not None:
            x, new = parts.ordinal, parts.new_ordinal
    started = time.perf_counter()
    peer.fit(x, y)
    seconds = time.perf_counter() - started
    shares = np.log(np.maximum(peer.predict_proba(new), 1e-12))
    return Outcome({**parts.scored(shares), "fit_seconds": seconds})


TRANSPORT_PAGE = Page(
    title="Attention as transport",
    about=(
        "Accuracy on the test part in %, point by point, mean ± deviation over seeds, with their number. "
        "Simulations have 45 training and 45 test instances of 20 points in the plane; *2 classes, 1* is the "
        "hardest of two classes and *4* the easiest, with a mean Bures distance of twice that number. Tables "
        "have one point an instance, their row; three tenths of every class are tested, and adult has its "
        "own test part. The transformer is one block in the space of its input; a fifth of the training "
        "instances chooses its weights. A map learns to carry points to dummy classes; what it is paired "
        "with is its name. A claim holds where the means differ its way by more than two standard errors of "
        "their difference, does not hold where they differ the other way by as much, and cannot be told "
        "otherwise."
    ),
    figures={"clean": "test_accuracy"},
    labels={
        "clean": "Beside the costs stand transport figures of the training points, and after them their "
        "nulls: *permuted*, ends swapped at random inside classes; *untrained*, the network before its first "
        "step; *straight*, the same ends reached straight. Seconds to fit are those of training alone."
    },
    variants={
        "transformer": "transformer",
        "two blocks": "transformer, two blocks",
        "frozen means": "transformer, frozen head, dummies as class means",
        "frozen rotated": "the same, labels of dummies rotated",
        "frozen ring": "the same, dummies on a ring",
        "ot": "map, least-cost pairing",
        "random": "map, random pairing",
        "mean": "map, means of dummy classes",
        "ot means": "map, least-cost pairing, dummies as class means",
        "logistic": "logistic regression",
        "boosting": "HistGradientBoosting",
    },
    claims=(
        Claim("Least-cost pairing classifies better than random pairing", "ot", "random"),
        Claim("Least-cost pairing classifies better than the means", "ot", "mean"),
        Claim("The transformer beats the map", "transformer", "ot"),
        Claim("A frozen head helps: dummies as class means", "frozen means", "transformer"),
        Claim("A frozen head helps: dummies on a ring", "frozen ring", "transformer"),
        Claim("The map beats logistic regression", "ot", "logistic"),
        Claim("The map beats boosted trees", "ot", "boosting"),
    ),
    beside={
        "fit_seconds": "s to fit",
        "instance_accuracy": "accuracy of instances",
        "optimality": "optimality",
        "permuted_optimality": "permuted",
        "untrained_optimality": "untrained",
        "normalised_optimality": "normalised optimality",
        "untrained_normalised_optimality": "untrained",
        "matching": "matching",
        "permuted_matching": "permuted",
        "untrained_matching": "untrained",
        "monge_gap": "Monge gap",
        "cost_gap": "gap of costs",
        "centred_gap": "centred gap",
        "efficiency": "efficiency",
        "straight_efficiency": "straight",
        "untrained_efficiency": "untrained",
        "thesis_efficiency": "thesis efficiency",
        "straight_thesis_efficiency": "straight",
        "difficulty": "Bures distance, standardised",
    },
    scale=100.0,
    unit="%",
)
