"""Ablations: what of the primal layer matters, one change at a time, on images and on series."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kernelhead.data import Series, Standardiser, as_tokens, padded, read_images, read_series, split
from kernelhead.errors import BadInput, unknown
from kernelhead.inspection import LayerSpectrum, spectra
from kernelhead.kernels import KERNELS
from kernelhead.models import SequenceClassifier
from kernelhead.nn import PrimalAttention
from kernelhead.rng import seeded
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.lra import accuracy
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.table import Claim, Page, Shares

ATTENTIONS = ("primal", "primal+", "softmax")
SCORES = ("both", "left", "right")
CASES = 8  # of the validation part, for the spectrum
KEPT = 256  # values of a spectrum that a row keeps at most, the largest
CLOSE = 0.02  # how far the weights of a matched model may be from those it is matched with


@dataclass(frozen=True, eq=False)
class Part:
    """Cases of one length, on the CPU.

    Shapes: x (n, t) tokens or (n, t, a) real-valued, mask (n, t) or None where all are real, y (n,).
    """

    x: Tensor
    mask: Tensor | None
    y: Tensor

    def on(self, device: torch.device) -> tuple[tuple[Tensor, ...], Tensor]:
        """Inputs and labels on a device."""
        held = (self.x,) if self.mask is None else (self.x, self.mask)
        return tuple(each.to(device) for each in held), self.y.to(device)


@dataclass(frozen=True, eq=False)
class Parts:
    """A data set: its three parts, and what a model of it must know."""

    train: Part
    valid: Part
    test: Part
    classes: int
    vocabulary: int | None
    channels: int | None

    @property
    def longest(self) -> int:
        """Points of a case."""
        return self.train.x.shape[1]


def _image(root: Path | None) -> Parts:
    sets = [
        as_tokens(read_images("cifar10-gray", split=part, root=root))
        for part in ("train", "validation", "test")
    ]
    train, valid, test = (Part(torch.from_numpy(each.x), None, torch.from_numpy(each.y)) for each in sets)
    return Parts(train, valid, test, len(sets[0].classes), vocabulary=sets[0].vocabulary, channels=None)


def _series(name: str, root: Path | None) -> Parts:
    whole, test = (read_series(name, split=part, root=root) for part in ("train", "test"))
    train, valid = split(whole, fraction=0.2, seed=0)
    scale, places = Standardiser.fit(train), {name: place for place, name in enumerate(whole.classes)}

    def part(series: Series) -> Part:
        values, mask = padded(scale.apply(series), range(len(series)), length=whole.longest)
        labels = [places[label] for label in series.labels or ()]
        return Part(torch.from_numpy(values), torch.from_numpy(mask), torch.tensor(labels))

    test = replace(test, cases=tuple(case[: whole.longest] for case in test.cases))
    sides = part(train), part(valid), part(test)
    return Parts(*sides, len(whole.classes), vocabulary=None, channels=whole.channels)


SERIES = ("JapaneseVowels", "SpokenArabicDigits")
READERS: dict[str, Callable[[Path | None], Parts]] = {
    "Image": _image,
    **{name: partial(_series, name) for name in SERIES},
}


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `SequenceClassifier` and `Course` for the words.

    Args:
        landmarks: points that weights are spread over; 0 for weights that do not depend on the data.
        feature_map: of primal layers.
        scores: which of them reach the output of primal layers, "both", "left" or "right"; the KSVD
            term has both always.
        hidden: middle width of a head of two layers; 0 for one layer.
        match: an attention, with whose number of weights the model is given; its own if empty.
        every: steps from one look at the validation part to the next.
    """

    attention: str = "primal"
    width: int = 64
    depth: int = 2
    heads: int = 2
    inner: int = 128
    hidden: int = 0
    rank: int = 30
    landmarks: int = 300
    feature_map: str = "cosine"
    scores: str = "both"
    match: str = ""
    position: str = "learned"
    dropout: float = 0.1
    steps: int = 4000
    warmup: float = 0.05
    batch: int = 256
    every: int = 200
    lr: float = 5e-4
    weight_decay: float = 0.0
    eta: float = 0.1
    reduction: str = "batch"
    precision: str = "bf16"
    schedule: str = "one_cycle"
    init: str = "published"

    def __post_init__(self) -> None:
        for what, name, known in (
            ("attention", self.attention, ATTENTIONS),
            ("scores", self.scores, SCORES),
            ("feature map", self.feature_map, KERNELS),
            ("match", self.match, ("", *ATTENTIONS)),
        ):
            if name not in known:
                raise unknown("ablations", what, name, known)

    def model(self, parts: Parts) -> SequenceClassifier:
        """The classifier for such data, its primal layers as these settings say."""
        chosen = self.matched(parts) if self.match else self
        model = SequenceClassifier(
            parts.classes,
            channels=parts.channels,
            vocabulary=parts.vocabulary,
            width=chosen.width,
            depth=chosen.depth,
            heads=chosen.heads,
            attention=chosen.attention,
            rank=chosen.rank,
            inner=chosen.inner,
            position=chosen.position,
            longest=parts.longest,
            dropout=chosen.dropout,
            hidden=chosen.hidden or None,
        )
        for block in model.blocks:
            if isinstance(block.attention, PrimalAttention):
                block.attention = chosen.layer()
        return model

    def layer(self) -> PrimalAttention:
        """One primal layer."""
        layer = PrimalAttention(
            self.width,
            heads=self.heads,
            rank=self.rank,
            landmarks=self.landmarks or None,
            feature_map=self.feature_map,
            init=self.init,
        )
        if self.scores != "both":
            only_side(layer, self.scores)
        return layer

    def matched(self, parts: Parts) -> "Settings":
        """These settings, wider, with as many weights as a model of the attention to match.

        The width grows as far as it can in steps of the heads, the feed-forward's middle takes the rest.

        Raises:
            BadInput: no such width comes near enough.
        """
        wanted = weights_of(replace(self, attention=self.match, match="").model(parts))
        chosen = replace(self, match="")
        for width in count(self.width + self.heads, self.heads):
            wider = replace(chosen, width=width)
            if weights_of(wider.model(parts)) > wanted:
                break
            chosen = wider
        had = weights_of(chosen.model(parts))
        one = weights_of(replace(chosen, inner=chosen.inner + 1).model(parts)) - had
        chosen = replace(chosen, inner=max(chosen.inner + round((wanted - had) / one), 1))
        found = weights_of(chosen.model(parts))
        if abs(found / wanted - 1) > CLOSE:
            raise BadInput(
                f"ablations: {self.attention} has {found:,} weights at width {chosen.width}, "
                f"but {self.match} has {wanted:,}; expected at most {CLOSE:.0%} between them"
            )
        return chosen


def only_side(layer: PrimalAttention, side: str) -> None:
    """Take the scores of the other side out of a layer's output, for good: its half of the join is zero.

    Training leaves it at zero, since its gradient is; decay does as well.

    Args:
        layer: with a shared join; changed in place, before training.
        side: "left" or "right", the one that stays.

    Example:
        >>> layer = PrimalAttention(8, heads=2, rank=3)
        >>> only_side(layer, "left")
        >>> layer.join.weight[:, 3:].abs().sum().item()
        0.0
    """

    def kept(whole: Tensor) -> Tensor:
        left, right = whole.split(layer.rank, dim=-1)
        halves = (left, right * 0) if side == "left" else (left * 0, right)
        return torch.cat(halves, dim=-1)

    weight: Tensor = layer.join.weight  # (d, 2 s)
    with torch.no_grad():
        weight.copy_(kept(weight))
    weight.register_hook(kept)


def weights_of(model: nn.Module) -> int:
    """How many weights a model has."""
    return sum(each.numel() for each in model.parameters())


def ablation_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file; see `jobs_from`.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set or entry, or none of the names an entry may have.
    """
    return jobs_from("ablations", recipes, Settings, sets=READERS, protocol=protocol, seeds=seeds)


def ablation_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train a classifier, test its best weights on validation data once, and read its last layer.

    Raises:
        BadInput: the data are not here or cannot be used, or no width matches.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = READERS[job.data](root)
    with seeded(job.seed):
        model = settings.model(parts).to(device)
    course = course_of(settings, job.seed, device)
    (x, y), (watched, labels) = parts.train.on(device), parts.valid.on(device)
    fitted = fit_resident(
        model,
        x,
        y,
        course,
        watch=lambda net: accuracy(net, watched, labels, precision=course.precision),
        every=settings.every,
    )
    cases = [each[:CASES] for each in watched]
    last = spectra(model, *cases)[-1]
    curves = {"spectrum": curve_of(last)}
    if isinstance(model.blocks[-1].attention, PrimalAttention):
        curves["learned"] = curve_of(spectra(model, *cases, learned=True)[-1])
    figures = {
        "test_accuracy": accuracy(model, *parts.test.on(device), precision=course.precision),
        "valid_accuracy": max(fitted.watched),
        "effective_rank": float(np.mean(last.effective_rank)),
        "energy_rank_90": float(np.mean(last.energy_rank_90)),
        "train_loss": float(np.mean(fitted.losses[-100:])),
        "steps_a_second": fitted.steps_a_second,
        "peak_gib": fitted.peak_gib,
    }
    return Outcome(figures, weights_of(model), curves=curves)


def curve_of(layer: LayerSpectrum) -> list[float]:
    """The largest shares of a spectrum, `KEPT` at most, of the whole sum and to six digits.

    Example:
        >>> curve_of(LayerSpectrum("", "", [[2.0, 1.0]], [], [], [], []))
        [0.666667, 0.333333]
    """
    return [float(f"{share:.6g}") for share in layer.shares[:KEPT]]


ABLATIONS_PAGE = Page(
    title="Ablations of the primal layer",
    about=(
        "Test accuracy in %, mean ± deviation over seeds, with the number of seeds. Each variant is the "
        "PrimalFormer of the first row with one change. Image is CIFAR-10 in grey, a pixel a point, with the "
        "long-range network and a course about a tenth as long, at a higher rate; JapaneseVowels "
        "and SpokenArabicDigits, of 370 and 2,200 test cases, are small networks. A claim holds where the "
        "means differ its way by more than two standard errors of their difference, does not hold where they "
        "differ the other way by as much, and cannot be told otherwise; with three seeds that is a coarse "
        "rule. The effective rank is that of the last layer on eight "
        "validation cases: of the kernel that a primal layer stands for, of the pattern of a softmax layer."
    ),
    figures={"clean": "test_accuracy"},
    labels={
        "clean": "A validation part, cut from the training part, chooses the weights; the test part is "
        "looked at once."
    },
    variants={
        "primal": "PrimalFormer: rank 30, eta 0.1, both scores, data-dependent, cosine",
        "eta-0": "eta 0",
        "eta-0.05": "eta 0.05",
        "eta-0.5": "eta 0.5",
        "left": "left scores alone",
        "right": "right scores alone",
        "independent": "weights that do not depend on the data",
        "rank-5": "rank 5",
        "rank-10": "rank 10",
        "rank-20": "rank 20",
        "rank-60": "rank 60",
        "exponential": "exponential feature map",
        "polynomial": "polynomial feature map",
        "softmax": "softmax Transformer",
        "softmax-matched": "softmax Transformer with as many weights",
    },
    claims=(
        Claim("The KSVD term helps: eta 0.05 against 0", "eta-0.05", "eta-0"),
        Claim("The KSVD term helps: eta 0.1 against 0", "primal", "eta-0"),
        Claim("The KSVD term helps: eta 0.5 against 0", "eta-0.5", "eta-0"),
        Claim("Both scores are better than the left alone", "primal", "left"),
        Claim("Both scores are better than the right alone", "primal", "right"),
        Claim("Weights that depend on the data are better", "primal", "independent"),
        Claim("Rank 30 is better than 5", "primal", "rank-5"),
        Claim("Rank 30 is better than 10", "primal", "rank-10"),
        Claim("Rank 30 is better than 20", "primal", "rank-20"),
        Claim("Rank 60 is better than 30", "rank-60", "primal"),
        Claim("The cosine map is better than the exponential", "primal", "exponential"),
        Claim("The cosine map is better than the polynomial", "primal", "polynomial"),
        Claim("Primal is better than softmax of one width", "primal", "softmax"),
        Claim("Primal is better than softmax of as many weights", "primal", "softmax-matched"),
    ),
    beside={"effective_rank": "effective rank", "steps_a_second": "steps/s"},
    shares=(
        Shares(
            "spectrum",
            "Singular values of the last layer",
            "Singular values of the kernel that a primal layer stands for and of the pattern of a softmax "
            "layer, sorted and divided by their sum: mean over eight validation cases, then over heads. The "
            "figure cumulates them, mean and deviation over seeds; a faster rise is a lower effective rank. "
            "The kernel's rank is at most the width of a head, the pattern's the number of points, so that a "
            f"faster rise of the first is in part by construction. A row keeps the largest {KEPT} values; "
            "shares are of the sum of all.",
            {
                "softmax": "softmax",
                "eta-0": "primal, eta 0",
                "primal": "primal, eta 0.1",
                "eta-0.5": "primal, eta 0.5",
            },
        ),
        Shares(
            "learned",
            "Singular values of the learned pattern",
            "The same of the pattern that a primal layer learned in place of its kernel, whose rank is at "
            "most that of the layer. Its values are learned by the KSVD term alone: with eta 0 they stay as "
            "they were drawn.",
            {"eta-0": "primal, eta 0", "primal": "primal, eta 0.1", "eta-0.5": "primal, eta 0.5"},
        ),
    ),
    scale=100.0,
    unit=" %",
)
