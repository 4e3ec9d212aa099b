"""Scenes and captions: visual encoders of equal size, what they learn, and what flows in the fusion."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from kernelhead.data import Scenes, compose_digits, draw_scenes, read_images
from kernelhead.data.scenes import ABOUT, TURNED
from kernelhead.errors import unknown
from kernelhead.inspection import Flow, model_flow
from kernelhead.models import VisionLanguageModel, vision_language_losses
from kernelhead.models.vision_language import MASK, REGIONS
from kernelhead.nn import SoftmaxAttention
from kernelhead.rng import seeded
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.resident import fit_resident, scores_of
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.table import Claim, Page

SETS = ("shapes", "digits", "digits, long")
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `VisionLanguageModel` and `Course` for the words.

    Args:
        regions: whose features are masked and told: "attention", "random" or "none".
        beside: patches masked beside a pivot.
        rate: share of words that are masked.
        side: cells in a row of a scene and in a column.
        objects: in a scene.
        cases: training scenes.
        held: scenes of the validation part and of the test part.
        read: test scenes on which flow is read.
    """

    encoder: str = "attention"
    regions: str = "none"
    attention: str = "softmax"
    width: int = 64
    heads: int = 4
    encoder_depth: int = 2
    depth: int = 2
    rank: int = 16
    beside: int = 2
    rate: float = 0.3
    side: int = 4
    objects: int = 6
    cases: int = 65536
    held: int = 4096
    read: int = 256
    steps: int = 3000
    warmup: float = 0.05
    batch: int = 256
    every: int = 250
    lr: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    precision: str = "tf32"
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.regions not in REGIONS:
            raise unknown("scenes", "regions", self.regions, REGIONS)

    def model(self, scenes: Scenes) -> VisionLanguageModel:
        """The model for such scenes, a patch a cell."""
        return VisionLanguageModel(
            len(scenes.vocabulary),
            channels=scenes.x.shape[1],
            size=scenes.x.shape[2],
            patch=scenes.patch,
            longest=scenes.words.shape[1],
            width=self.width,
            heads=self.heads,
            encoder=self.encoder,
            encoder_depth=self.encoder_depth,
            depth=self.depth,
            attention=self.attention,
            rank=self.rank,
            landmarks=scenes.words.shape[1] + scenes.side**2,
        )


def scene_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file; see `jobs_from`.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set or entry.
    """
    return jobs_from("scenes", recipes, Settings, sets=SETS, protocol=protocol, seeds=seeds)


def scene_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train a model, take its best weights on validation scenes, test them and read what flows, once.

    Raises:
        BadInput: the digits are not here, or a number is out of range.
        UnknownName: no such encoder, regions or attention.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid, test = (_part(job.data, part, root, job.seed, settings) for part in PARTS)
    with seeded(job.seed):
        model = settings.model(train).to(device)
    course = course_of(settings, job.seed, device)
    read = test.take(range(min(settings.read, len(test))))
    untrained = scene_flow(model, read)

    def loss(_: nn.Module, x: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        made = vision_language_losses(
            model, *x, y, rate=settings.rate, regions=settings.regions, beside=settings.beside
        )
        return made.matching + made.wording + made.regression

    fitted = fit_resident(
        model,
        *_on(train, device),
        course,
        loss=loss,
        compiled=settings.compiled and device.type == "cuda",
        watch=lambda _: scene_figures(model, valid, precision=course.precision)["accuracy"],
        every=settings.every,
    )
    figures = scene_figures(model, test, precision=course.precision)
    flow = scene_flow(model, read)
    return Outcome(
        {
            "test_accuracy": figures.pop("accuracy"),
            **figures,
            **_flow_figures(flow),
            **{f"untrained_{name}": figure for name, figure in _flow_figures(untrained).items()},
            "valid_accuracy": max(fitted.watched),
            "course_accuracy": fmean(fitted.watched),
            "steps_a_second": fitted.steps_a_second,
            "peak_gib": fitted.peak_gib,
        },
        sum(each.numel() for each in model.parameters()),
        curves={**_flow_curves(flow), "valid_accuracy": fitted.watched},
    )


def scene_figures(model: VisionLanguageModel, scenes: Scenes, *, precision: str = "32") -> dict[str, float]:
    """What a model gets right of scenes.

    - accuracy: whether captions match; chance 0.5, and 0.75 for who sees what is there but not where.
    - object_accuracy: the same for captions that are true or name a wrong object, each kind half of it.
    - relation_accuracy, place_accuracy: which fits better, a caption or its opposite; chance 0.5.
    - word_accuracy: the masked word that says where, in true captions; chance 0.5, as others tell the axis.
    """
    device = next(model.parameters()).device
    (x, words), y = _on(scenes, device)
    scores = scores_of(model, (x, words), precision=precision)
    other = scores_of(model, (x, torch.from_numpy(scenes.opposite()).to(device)), precision=precision)
    about, faults = (torch.from_numpy(each).to(device) for each in (scenes.about, scenes.faults))
    right = ((scores > 0).long() == y).double()
    chosen = ((scores > other).long() == y).double()
    whose = [chosen[(faults != 1) & (about == each)].mean() for each in range(len(ABOUT))]
    return {
        "accuracy": float(right.mean()),
        "object_accuracy": float((right[faults == 0].mean() + right[faults == 1].mean()) / 2),
        **{f"{name}_accuracy": float(figure) for name, figure in zip(ABOUT, whose, strict=True)},
        "word_accuracy": _word_accuracy(model, x[y == 1], words[y == 1], scenes, precision),
    }


def scene_flow(model: VisionLanguageModel, scenes: Scenes) -> Flow:
    """What flows between words and patches in the fusion, special and padded points left out."""
    (x, words), _ = _on(scenes, next(model.parameters()).device)
    soft = all(isinstance(block.attention, SoftmaxAttention) for block in model.fusion)
    rows = "stochastic" if soft else "absolute"
    return model_flow(model, (x, words), model.groups(words), under="fusion", rows=rows)


class _Words(nn.Module):
    """Scores of all words at all places of a caption, (b, m, vocabulary)."""

    def __init__(self, model: VisionLanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        model = self.model
        scores: Tensor = model.wording(model.fused(model.visual(image), words)[:, : model.longest])
        return scores


def _word_accuracy(
    model: VisionLanguageModel, x: Tensor, words: Tensor, scenes: Scenes, precision: str
) -> float:
    known = [scenes.vocabulary.index(word) for pair in TURNED for word in pair]
    asked = torch.isin(words, torch.tensor(known, device=words.device))
    scores = scores_of(_Words(model), (x, words.masked_fill(asked, MASK)), precision=precision)
    return float((scores.argmax(-1) == words)[asked].double().mean())


def _flow_figures(flow: Flow) -> dict[str, float]:
    """Both directions by the last layer, as they are and over those of uniform attention."""
    figures = {"imf": float(flow.imf[-1]), "relative_imf": float(flow.relative_imf[-1])}
    for reader, source in (("words", "image"), ("image", "words")):
        places = flow.names.index(reader), flow.names.index(source)
        figures[f"{reader}_from_{source}"] = flow.between(reader, source)
        figures[f"relative_{reader}_from_{source}"] = float(flow.relative[-1, *places])
    return figures


def _flow_curves(flow: Flow) -> dict[str, list[float]]:
    """Both directions by layer, of each alone and cumulated."""
    words, image = flow.names.index("words"), flow.names.index("image")
    return {
        f"{kind}_{name}": matrix[:, reader, source].tolist()
        for kind, matrix in (("single", flow.single), ("cumulative", flow.cumulative))
        for name, reader, source in (("words_from_image", words, image), ("image_from_words", image, words))
    }


def _part(data: str, part: str, root: Path | None, seed: int, settings: Settings) -> Scenes:
    """Other training scenes for every seed, the same validation and test scenes for all."""
    drawn, cases = (2 + seed, settings.cases) if part == "train" else (PARTS.index(part) - 1, settings.held)
    return _scenes(data, part, root, drawn, cases, settings.side, settings.objects)


@lru_cache(maxsize=3)
def _scenes(
    data: str, part: str, root: Path | None, seed: int, cases: int, side: int, objects: int
) -> Scenes:
    """Of several jobs in one process the first draws for all."""
    if data == "shapes":
        return draw_scenes(cases, side=side, objects=objects, seed=seed)
    digits = read_images("mnist", split=part, root=root)
    return compose_digits(cases, digits, side=side, objects=objects, seed=seed)


def _on(scenes: Scenes, device: torch.device) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Pictures and captions, and whether they match."""
    x, words, y = (torch.from_numpy(each).to(device) for each in (scenes.x, scenes.words, scenes.y))
    return (x, words), y


SCENES_PAGE = Page(
    title="Scenes and captions",
    about=(
        "Whether a caption is true of a picture, test accuracy in %, mean ± deviation over seeds. Six "
        "objects on a grid of four by four; captions tell where one is or how two relate, and half of them "
        "are wrong in an object or in where it is. Knowing nothing scores 50 %, knowing what is there but "
        "not where 75 %. Courses are short, 3,000 steps, where one encoder tells itself from another "
        "by how soon it learns, and 12,000 in the set digits, long; the mean over a course is that of "
        "the accuracy on validation scenes. All models have as many layers and parameters: two layers of a "
        "visual encoder and two of fusion, or four of fusion. The set shapes has coloured shapes, digits has "
        "those of MNIST. "
        "Flow is that by the last layer over that of uniform attention; untrained: before training."
    ),
    figures={"clean": "test_accuracy"},
    labels={"clean": "Validation scenes choose the weights; test scenes are looked at once."},
    variants={
        "attention": "self-attention encoder",
        "attention+mfr": "self-attention encoder, masked features by its attention",
        "attention+random": "self-attention encoder, masked features at random",
        "convolution": "convolutional encoder",
        "convolution+random": "convolutional encoder, masked features at random",
        "none": "no encoder",
        "none+random": "no encoder, masked features at random",
    },
    claims=(
        Claim("A self-attention encoder beats a convolutional one", "attention", "convolution"),
        Claim("A self-attention encoder beats none at equal depth", "attention", "none"),
        Claim("Masked feature regression helps", "attention+mfr", "attention"),
        Claim("Masks by attention beat random ones", "attention+mfr", "attention+random"),
    ),
    beside={
        "course_accuracy": "mean over the course",
        "object_accuracy": "objects",
        "place_accuracy": "places",
        "relation_accuracy": "relations",
        "word_accuracy": "masked word",
        "relative_words_from_image": "words from image",
        "relative_image_from_words": "image from words",
        "relative_imf": "both",
        "untrained_relative_imf": "both, untrained",
    },
    scale=100.0,
    unit=" %",
)
