"""Long sequences: the paper's models of the Long Range Arena, trained with all data on the device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernelhead.data import Tokens, as_tokens, read_images, read_listops, read_pathfinder, read_reviews
from kernelhead.data.images import SIDE
from kernelhead.errors import BadInput, KernelheadError
from kernelhead.rng import seeded
from kernelhead.training.arena import Settings, token_loss
from kernelhead.training.course import Course
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.lessons import SCHOOLS, drawn_cases, lessons_from, with_lessons
from kernelhead.training.marked import Marking
from kernelhead.training.resident import fit_resident, scores_of
from kernelhead.training.rules import RULES, rule_run
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.steps import Lesson
from kernelhead.training.table import Goal, Page

Reader = Callable[[str, Path | None, int], Tokens]
VARIANTS = (
    "softmax",
    "primal",
    "primal+",
    "kernelhead",
    "linear",
    "nystrom",
    "performer",
    "convolution",
    *RULES,
)


PROTOCOLS = ("clean", "paper")
PUBLISHED = "softmax", "primal", "primal+"  # what the released code trains


def _listops(split: str, root: Path | None, drawn: int) -> Tokens:
    return read_listops(split, root=root, drawn=drawn)


def _text(split: str, root: Path | None, _: int) -> Tokens:
    return as_tokens(read_reviews(split, root=root))


def _image(split: str, root: Path | None, _: int) -> Tokens:
    return as_tokens(read_images("cifar10-gray", split=split, root=root))


def _pathfinder(split: str, root: Path | None, drawn: int) -> Tokens:
    return as_tokens(read_pathfinder(split, root=root, drawn=drawn))


READERS: dict[str, Reader] = {"ListOps": _listops, "Text": _text, "Image": _image, "Pathfinder": _pathfinder}
PICTURES = "Image", "Pathfinder"  # of SIDE by SIDE pixels


@lru_cache(maxsize=3)
def _part(read: Reader, split: str, root: Path | None, drawn: int) -> Tokens:
    """Of several jobs in one process the first reads for all."""
    return read(split, root, drawn)


def lra_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file.

    Args:
        recipes: TOML file; entries before the first table hold for all, those of [SET] for a set, and
            [SET.VARIANT] adds what a variant has of its own.
        protocol: "clean": a validation part, cut from the training part, chooses the weights; "paper" for
            the published variants with padding as the released code has it.
        seeds: how many, from 0 on.
        root: folder of data sets; unused here, the data are read when a job runs.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set, variant or entry.
    """
    jobs = jobs_from(
        "lra",
        recipes,
        Settings,
        sets=READERS,
        variants=VARIANTS,
        protocol=protocol,
        seeds=seeds,
        protocols=PROTOCOLS,
    )
    for job in jobs:
        settings = _settings_of(job)
        if job.variant not in RULES:
            _check_network(settings, job)
    return [job for job in jobs if protocol == "clean" or job.variant in PUBLISHED]


def _check_network(settings: Settings, job: Job) -> None:
    """Refuse what no network can be made of before a job runs, by making one without numbers in it.

    Raises:
        BadInput: there is no such network.
    """
    pixels = np.zeros((1, SIDE**2), np.uint8)
    picture = Tokens(job.data, pixels, np.zeros(1, np.int64), np.full(1, SIDE**2), 256, ("no", "yes"))
    try:
        with torch.device("meta"):
            settings.model(picture)
    except (KernelheadError, ValueError) as error:
        raise BadInput(f"lra: {job.data}, {job.variant}: {error}") from None


def _settings_of(job: Job) -> Settings:
    settings = settings_from(Settings, job.key, job.recipe)
    if job.data not in PICTURES and (settings.shift or settings.mirror or settings.turn):
        raise BadInput(
            f"lra: {job.data} has shift {settings.shift}, mirror {settings.mirror}, turn {settings.turn}; "
            f"expected none of them but for {' and '.join(PICTURES)}"
        )
    if job.data not in PICTURES and settings.brightness:
        raise BadInput(f"lra: {job.data} has brightness, expected it of {' and '.join(PICTURES)} alone")
    if job.data not in SCHOOLS and settings.marks:
        raise BadInput(f"lra: {job.data} has marks, expected them of {' and '.join(SCHOOLS)} alone")
    grades = lessons_from(job.data, settings.lessons)
    if grades and SCHOOLS[job.data].apart:
        batch = max(settings.lesson_batch(grade) for grade in grades)
        if batch > settings.lesson_cases:
            raise BadInput(
                f"lra: a batch of a lesson has {batch} cases, expected at most its {settings.lesson_cases}"
            )
    elif len(grades) * settings.lesson_steps > settings.steps:
        raise BadInput(
            f"lra: {job.data} has {len(grades)} lessons of {settings.lesson_steps} steps, expected at most "
            f"its {settings.steps} steps in all"
        )
    if job.variant in RULES and job.data not in RULES[job.variant].sets:
        raise BadInput(
            f"lra: {job.data} has the rule {job.variant!r}, expected it of "
            f"{' and '.join(RULES[job.variant].sets)} alone"
        )
    if settings.shift >= SIDE:
        raise BadInput(f"lra: shift is {settings.shift}, expected less than the {SIDE} pixels of an image")
    return settings


def lra_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train a classifier of tokens, take its best weights on validation data, and test them once.

    Under "paper" padding is what the released code makes of it, see `SequenceClassifier`; token 0 is padding
    in images too, which is black; and for Text the test part is the validation part, and all else is for
    training.

    The variants "first token" and "first level" are no networks, but rules that read little, see `RULES`.

    Raises:
        BadInput: the data are not here, or cannot be used.
    """
    settings = _settings_of(job)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid, test = (
        _part(READERS[job.data], part, root, settings.drawn) for part in ("train", "validation", "test")
    )
    paper = job.protocol == "paper"
    if paper and job.data == "Text":
        train, valid = _joined(train, valid), test
    if job.variant in RULES:
        return rule_run(job.variant, train, valid, test)
    model: nn.Module
    with seeded(job.seed):
        model = plain = settings.model(train, padding="published" if paper else "masked")
        if settings.marks:
            model, train = Marking(plain, SCHOOLS[job.data].marks), SCHOOLS[job.data].marked(train)
    model = model.to(device)
    course = course_of(settings, job.seed, device)
    real, lessons, grades = len(train), list[Lesson](), lessons_from(job.data, settings.lessons)
    drawn = 0
    if grades and SCHOOLS[job.data].apart:
        _teach(model, settings, course, train, job.data, grades, device, root)
        drawn = len(grades) * settings.lesson_cases
    elif grades:
        train, lessons = with_lessons(
            train, job.data, grades, steps=settings.lesson_steps, count=settings.lesson_cases, root=root
        )
        drawn = len(train) - real
    (watched, labels), (tested, truth) = (_on(part, device, zeros=paper) for part in (valid, test))
    x, y = _on(train, device, zeros=paper, marks=settings.marks > 0)
    fitted = fit_resident(
        model,
        x,
        y,
        course,
        loss=token_loss(settings, train.longest),
        compiled=settings.compiled and device.type == "cuda",
        watch=lambda net: accuracy(net, watched, labels, precision=course.precision),
        every=settings.every,
        lessons=lessons,
    )
    figures = {
        "test_accuracy": accuracy(model, tested, truth, precision=course.precision),
        "valid_accuracy": max(fitted.watched),
        "train_loss": float(np.mean(fitted.losses[-100:])),
        "steps_a_second": fitted.steps_a_second,
        "peak_gib": fitted.peak_gib,
        "train_cases": float(real),
    }
    if drawn:
        figures["drawn_cases"] = float(drawn)
    return Outcome(figures, sum(each.numel() for each in plain.parameters()))


def _teach(
    model: nn.Module,
    settings: Settings,
    course: Course,
    train: Tokens,
    data: str,
    grades: Sequence[int],
    device: torch.device,
    root: Path | None,
) -> None:
    """Lessons before the course, each a short one on drawn cases of its grade, too short to be compiled."""
    for grade in grades:
        short = replace(course, steps=settings.lesson_steps, batch=settings.lesson_batch(grade))
        drawn = drawn_cases(train, data, grade, count=settings.lesson_cases, root=root)
        x, y = _on(drawn, device, marks=settings.marks > 0)
        fit_resident(model, x, y, short, loss=token_loss(settings, drawn.longest), compiled=False)


def accuracy(
    model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor, *, precision: str = "32", batch: int = 256
) -> float:
    """The share of cases that a classifier gets right."""
    right = scores_of(model, inputs, batch=batch, precision=precision).argmax(-1) == targets
    return float(right.float().mean())


def _joined(first: Tokens, second: Tokens) -> Tokens:
    """The sequences of two parts of a set."""
    x, y, lengths = (
        np.concatenate([getattr(part, name) for part in (first, second)]) for name in ("x", "y", "lengths")
    )
    return replace(first, x=x, y=y, lengths=lengths)


def _on(
    tokens: Tokens, device: torch.device, *, zeros: bool = False, marks: bool = False
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Tokens, with a mask where some sequence is shorter than others or `zeros` are padding, and labels.

    With `marks` what is known of single tokens is the last of the inputs.
    """
    inputs: list[NDArray[Any]] = [tokens.x]
    if zeros or (tokens.lengths != tokens.longest).any():
        inputs.append(tokens.x != 0 if zeros else tokens.mask())
    if marks and tokens.marks is not None:
        inputs.append(tokens.marks)
    return tuple(torch.from_numpy(each).to(device) for each in inputs), torch.from_numpy(tokens.y).to(device)


def _published(**figures: float) -> dict[str, float]:
    return {name.replace("plus", "+"): figure for name, figure in figures.items()}


LRA_PAGE = Page(
    title="Long sequences",
    about=(
        "Test accuracy in %, mean ± deviation over seeds, with the number of seeds. Two layers of width 64 "
        "and two heads, the published recipe: AdamW, straight lines up and down for the learning rate, "
        "landmarks ten times the rank; `kernelhead` is a larger network with settings of its own, whose "
        "images are moved and mirrored in training. On ListOps and Pathfinder it learns from more cases and "
        "from answers for single tokens, which no other column has. ListOps is generated by the arena's "
        "rules, 86,400 lists to train on and 9,600 to choose by, and so are the pictures that other columns "
        "learn Pathfinder from, 144,000 and 16,000. Under `clean` black pixels are pixels, for the released "
        "code they are padding. Published figures are single runs."
    ),
    figures=dict.fromkeys(PROTOCOLS, "test_accuracy"),
    labels={
        "clean": "A validation part, cut from the training part, chooses the weights; the test part is "
        "looked at once. For Text the released pipeline chooses on the test part.",
        "paper": "**As released.** Primal layers take padded places for points, landmarks among them, means "
        "are over all places, black pixels are padding, and for Text **the test part chooses the weights**: "
        "for comparison with the published table alone.",
    },
    variants={
        "softmax": "softmax Transformer",
        "primal": "PrimalFormer",
        "primal+": "Primal.+",
        "kernelhead": "kernelhead",
        "linear": "linear",
        "nystrom": "Nystrom",
        "performer": "Performer",
        "convolution": "convolution alone",
        "first token": "first token alone",
        "first level": "first level alone",
    },
    published={
        "ListOps": _published(
            softmax=37.1, primal=37.3, primalplus=37.3, linear=37.3, nystrom=37.2, performer=18.8
        ),
        "Text": _published(
            softmax=65.0, primal=61.2, primalplus=65.4, linear=55.9, nystrom=65.5, performer=63.8
        ),
        "Image": _published(
            softmax=38.2, primal=43.0, primalplus=43.9, linear=37.8, nystrom=41.6, performer=37.1
        ),
        "Pathfinder": _published(
            softmax=74.2, primal=68.3, primalplus=74.3, linear=67.6, nystrom=70.9, performer=69.9
        ),
    },
    published_by="one run",
    goals=(
        *(Goal(name, name, published=True) for name in ("primal", "primal+")),
        *(Goal(name, "softmax") for name in ("primal", "primal+", "kernelhead")),
        *(Goal("primal+", rival) for rival in ("linear", "nystrom", "performer")),
        Goal("kernelhead", "primal+", published=True),
    ),
    beside={"steps_a_second": "steps/s", "peak_gib": "peak GiB"},
    scale=100.0,
    unit=" %",
)
