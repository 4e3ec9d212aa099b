"""Events in time: which encoding tells what happens next, under softmax and under primal attention."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kernelhead.data import lag_lookup, read_events
from kernelhead.models import EventModel
from kernelhead.rng import seeded
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.questions import Questions
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.table import Claim, Page

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `EventModel` and `Course` for the words.

    Args:
        shortest: period at the start, in days.
        longest: likewise.
        length: events that a question sees at most.
        at: when the next badge is asked about, at the "last" event or at the "target"'s own time.
        cases: training sequences of the lag lookup; a fifth as many validate and test.
        every: steps from one look at the validation part to the next.
        compiled: whether the loss is compiled on a GPU.
    """

    time: str = "bochner"
    attention: str = "softmax"
    mix: str = "concatenate"
    width: int = 32
    time_width: int = 32
    depth: int = 1
    heads: int = 4
    rank: int = 16
    landmarks: int = 32
    shortest: float = 0.1
    longest: float = 100.0
    harmonics: int = 5
    length: int = 40
    at: str = "target"
    cases: int = 20000
    dropout: float = 0.0
    steps: int = 1000
    warmup: float = 0.05
    batch: int = 200
    every: int = 100
    lr: float = 3e-3
    weight_decay: float = 0.01
    eta: float = 0.0
    precision: str = "32"
    compiled: bool = False

    def model(self, data: "Data") -> EventModel:
        """The model of such data."""
        return EventModel(
            data.types,
            data.types,
            width=self.width,
            time_width=self.time_width,
            depth=self.depth,
            heads=self.heads,
            attention=self.attention,
            time=self.time,
            mix=self.mix,
            periods=(self.shortest, self.longest),
            harmonics=self.harmonics,
            longest=self.length,
            rank=self.rank,
            landmarks=min(self.landmarks, self.length + 1),
            dropout=self.dropout,
        )


@dataclass(frozen=True, eq=False)
class Data:
    """Questions of the three parts, whose answers are types of events, and how many types there are."""

    train: Questions
    valid: Questions
    test: Questions
    types: int


def _lag_lookup(settings: Settings, seed: int, root: Path | None) -> Data:
    counts = settings.cases, -(-settings.cases // 5), -(-settings.cases // 5)
    drawn = [lag_lookup(count, seed=3 * seed + number) for number, count in enumerate(counts)]
    train, valid, test = (Questions.of_last(each, each.kinds, length=settings.length) for each in drawn)
    return Data(train, valid, test, types=len(drawn[0].kinds))


def _stackoverflow(settings: Settings, seed: int, root: Path | None) -> Data:
    sets = [read_events("stackoverflow", split=part, root=root).converted("days") for part in PARTS]
    train, valid, test = (Questions.of_next(each, length=settings.length, at=settings.at) for each in sets)
    return Data(train, valid, test, types=len(sets[0].kinds))


READERS: dict[str, Callable[[Settings, int, Path | None], Data]] = {
    "lag lookup": _lag_lookup,
    "StackOverflow": _stackoverflow,
}


def event_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file; see `jobs_from`.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set or entry.
    """
    return jobs_from("events", recipes, Settings, sets=READERS, protocol=protocol, seeds=seeds)


def event_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train a model of events, take its best weights on validation data, and test them once.

    Sequences lie on the device once; windows of all prefixes are gathered there by their places.

    Raises:
        BadInput: the data are not here, or an option does not go with another.
        UnknownName: no such encoding, attention or mix.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = READERS[job.data](settings, job.seed, root)
    train, valid, test = (each.on(device) for each in (data.train, data.valid, data.test))
    with seeded(job.seed):
        model = settings.model(data).to(device)
    course = course_of(settings, job.seed, device)
    fitted = fit_resident(
        model,
        train.inputs,
        train.answers,
        course,
        loss=train.loss,
        compiled=settings.compiled and device.type == "cuda",
        watch=lambda net: -valid.accuracy_and_loss(net, precision=course.precision)[1],
        every=settings.every,
    )
    accuracy, loss = test.accuracy_and_loss(model, precision=course.precision)
    figures = {
        "test_accuracy": accuracy,
        "test_loss": loss,
        "valid_loss": -max(fitted.watched),
        "train_loss": float(np.mean(fitted.losses[-100:])),
        "steps_a_second": fitted.steps_a_second,
        "peak_gib": fitted.peak_gib,
        "train_questions": float(len(train)),
        "test_questions": float(len(test)),
    }
    return Outcome(figures, sum(each.numel() for each in model.parameters()))


_ENCODINGS = {
    "none": "neither time nor position",
    "position": "learned position",
    "scalar": "scalar log-time",
    "fixed": "fixed random Fourier features",
    "bochner": "Bochner, free spectrum",
    "normal": "Bochner, normal spectrum",
    "inverse_cdf": "Bochner, inverse CDF",
    "mercer": "Mercer",
    "bochner-published": "Bochner, as released",
    "mercer-published": "Mercer, as released",
}

EVENTS_PAGE = Page(
    title="Events in time",
    about=(
        "Test accuracy in %, mean ± deviation over seeds, with the number of seeds. One layer of width 32 "
        "with 32 features of time beside, 44 for Mercer, and four heads. The lag lookup has 24 events, a day "
        "apart on average, and asks for the type of the one closest to seven days before the question. "
        "StackOverflow asks which badge a user wins at a time that is given: all prefixes of all users, of "
        "which the last 40 events are seen; users of the three parts are disjoint. Time is in days and "
        "enters as the lag before the question. A claim holds where the means differ its way by more than "
        "two standard errors of their difference, does not hold where they differ the other way by as "
        "much, and cannot be told otherwise."
    ),
    figures={"clean": "test_accuracy"},
    labels={
        "clean": "The lowest cross-entropy on validation sequences chooses the weights; the test part is "
        "looked at once."
    },
    variants={
        **_ENCODINGS,
        **{f"{name}-primal": f"{title}, primal attention" for name, title in _ENCODINGS.items()},
    },
    claims=(
        Claim("Time is better than position: Bochner", "bochner", "position"),
        Claim("Time is better than position: Mercer", "mercer", "position"),
        Claim("Time is better than position: scalar log-time", "scalar", "position"),
        Claim("Functional time is better than a scalar: Bochner", "bochner", "scalar"),
        Claim("Learning the spectrum is better than a fixed random one", "bochner", "fixed"),
        Claim("Mercer is better than Bochner", "mercer", "bochner"),
        Claim(
            "Mercer as released is better than Bochner as released", "mercer-published", "bochner-published"
        ),
        Claim("One spectrum for sines and cosines is better than two", "bochner", "bochner-published"),
        Claim("Non-negative coefficients are better than collapsed free ones", "mercer", "mercer-published"),
        Claim(
            "Under primal attention time is better than position: Bochner",
            "bochner-primal",
            "position-primal",
        ),
        Claim(
            "Under primal attention time is better than position: Mercer", "mercer-primal", "position-primal"
        ),
        Claim("Under primal attention learning the spectrum is better", "bochner-primal", "fixed-primal"),
        Claim("Primal attention is better than softmax: Bochner", "bochner-primal", "bochner"),
        Claim("Primal attention is better than softmax: Mercer", "mercer-primal", "mercer"),
    ),
    beside={"test_loss": "cross-entropy", "steps_a_second": "steps/s"},
    scale=100.0,
    unit=" %",
)
