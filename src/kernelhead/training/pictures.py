"""Images: classifiers of patches on sets that fit the device, shifted and mirrored there."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import Images, read_images
from kernelhead.errors import unknown
from kernelhead.models import ImageClassifier
from kernelhead.rng import seeded
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.lra import accuracy
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.table import Goal, Page

VARIANTS = ("softmax", "primal", "primal+", "linear")
SOURCES = {"MNIST": "mnist", "CIFAR-10 grey": "cifar10-gray", "CIFAR-10 colour": "cifar10"}
FOLDERS = {"ImageNet-100": "imagenet100"}  # sets that no reader knows by name: folders below the root


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `ImageClassifier` and `Course` for the words.

    Args:
        shift: most pixels that an image is moved up, down or aside in training.
        mirror: whether half of the images are mirrored in training.
        smoothing: share of a label that is spread over all classes.
        every: steps from one look at the validation part to the next.
    """

    attention: str = "softmax"
    patch: int = 4
    width: int = 192
    depth: int = 6
    heads: int = 3
    rank: int = 32
    dropout: float = 0.0
    drop_path: float = 0.1
    shift: int = 4
    mirror: bool = True
    smoothing: float = 0.1
    steps: int = 3000
    warmup: float = 0.1
    batch: int = 512
    every: int = 250
    lr: float = 1e-3
    weight_decay: float = 0.05
    eta: float = 0.0
    clip: float = 1.0
    precision: str = "bf16"
    init: str = "published"

    def __post_init__(self) -> None:
        if self.attention not in VARIANTS:
            raise unknown("image", "variant", self.attention, VARIANTS)

    def model(self, images: Images) -> ImageClassifier:
        """The classifier for such images; landmarks are ten times the rank and at most all points."""
        high, wide = images.size
        points = (high // self.patch) * (wide // self.patch) + 1
        return ImageClassifier(
            len(images.classes),
            channels=images.channels,
            size=images.size,
            patch=self.patch,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            attention=self.attention,
            rank=self.rank,
            landmarks=min(10 * self.rank, points),
            dropout=self.dropout,
            drop_path=self.drop_path,
            init=self.init,
        )


class Standardised(nn.Module):
    """A model after bytes became real numbers of mean 0 and deviation 1, channel by channel.

    Shapes: x (b, c, h, w) in uint8; returns what the model does.

    Args:
        model: takes real-valued images.
        pixels: (n, c, h, w) in uint8, from which mean and deviation are taken.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, pixels: Tensor) -> None:
        super().__init__()
        self.model = model
        # A channel at a time and in bytes: the set as real numbers may be larger than the device.
        counts = torch.stack([torch.bincount(each.flatten(), minlength=256) for each in pixels.unbind(1)])
        share = counts.double() / counts.sum(1, keepdim=True)  # (c, 256)
        levels = torch.arange(256, device=pixels.device)
        mean = (share * levels).sum(1, keepdim=True)
        deviation = (share * (levels - mean).square()).sum(1, keepdim=True).sqrt()
        self.register_buffer("mean", mean.float()[:, :, None])
        self.register_buffer("deviation", deviation.clamp_min(1.0).float()[:, :, None])

    def forward(self, x: Tensor) -> Tensor:
        """The model's answer."""
        return self.model((x.float() - self.mean) / self.deviation)


def moved(x: Tensor, *, shift: int, mirror: bool) -> Tensor:
    """Images moved by up to `shift` pixels each way, black coming in, and half of them mirrored.

    Draws are those of the device's global generator, one for each image.

    Shapes: x (b, c, h, w); returns the same.

    Example:
        >>> x = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
        >>> torch.equal(moved(x, shift=0, mirror=False), x)
        True
    """
    cases, channels, high, wide = x.shape
    down, aside = (torch.randint(0, 2 * shift + 1, (cases, 1), device=x.device) for _ in range(2))
    rows = torch.arange(high, device=x.device) + down  # (b, h)
    places = torch.arange(wide, device=x.device).expand(cases, wide)
    if mirror:
        places = torch.where(torch.rand(cases, 1, device=x.device) < 0.5, wide - 1 - places, places)
    columns = places + aside  # (b, w)
    case, channel = torch.arange(cases, device=x.device), torch.arange(channels, device=x.device)
    return F.pad(x, (shift,) * 4)[
        case[:, None, None, None],
        channel[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def image_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file; see `jobs_from`.

    ImageNet-100 is there where `root` has the folder imagenet100 with train.npz and test.npz.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set, variant or entry.
    """
    listed = jobs_from(
        "image",
        recipes,
        Settings,
        sets=(*SOURCES, *FOLDERS),
        protocol=protocol,
        seeds=seeds,
        variants=VARIANTS,
    )
    here = {name for name, folder in FOLDERS.items() if root is not None and (root / folder).is_dir()}
    return [job for job in listed if job.data in SOURCES or job.data in here]


def image_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train a classifier of images, take its best weights on validation data, and test them once.

    Raises:
        BadInput: the data are not here, or cannot be used.
        MissingExtra: Pillow is needed and not installed.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid, test = (read_part(job.data, part, root) for part in ("train", "validation", "test"))
    (x, y), (watched, labels) = _on(train, device), _on(valid, device)
    with seeded(job.seed):
        model = Standardised(settings.model(train).to(device), x)
    course = course_of(settings, job.seed, device)

    def loss(net: nn.Module, pixels: Tensor, targets: Tensor) -> Tensor:
        shown = moved(pixels, shift=settings.shift, mirror=settings.mirror)
        return F.cross_entropy(net(shown), targets, label_smoothing=settings.smoothing)

    fitted = fit_resident(
        model,
        x,
        y,
        course,
        loss=loss,
        watch=lambda net: accuracy(net, (watched,), labels, precision=course.precision),
        every=settings.every,
    )
    shown, right = _on(test, device)
    figures = {
        "test_accuracy": accuracy(model, (shown,), right, precision=course.precision),
        "valid_accuracy": max(fitted.watched),
        "train_loss": float(np.mean(fitted.losses[-100:])),
        "steps_a_second": fitted.steps_a_second,
        "peak_gib": fitted.peak_gib,
        "train_cases": float(len(train)),
    }
    return Outcome(figures, sum(each.numel() for each in model.parameters()))


def read_part(data: str, part: str, root: Path | None) -> Images:
    """One part of a set of this field, by its name here."""
    if data in FOLDERS and root is not None:
        return read_images(root / FOLDERS[data], split=part)
    return read_images(SOURCES[data], split=part, root=root)


def _on(images: Images, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(images.x).to(device), torch.from_numpy(images.y).to(device)


IMAGE_PAGE = Page(
    title="Images",
    about=(
        "Test accuracy in %, mean ± deviation over seeds, with the number of seeds. The same network with "
        "another attention: patches and a learned point in front; AdamW, cosine rate, shifted and mirrored "
        "images (digits are not mirrored), smoothed labels. CIFAR-10 colour has 8,000 of the 50,000 "
        "training images and 2,000 of the 10,000 test images. The published table has ImageNet alone, so "
        "that nothing here stands beside a published figure."
    ),
    figures={"clean": "test_accuracy"},
    labels={
        "clean": "A validation part, a tenth of the training part, chooses the weights; the test part is "
        "looked at once."
    },
    variants={
        "softmax": "softmax Transformer",
        "primal": "PrimalFormer",
        "primal+": "Primal.+",
        "linear": "linear",
    },
    goals=tuple(Goal(name, other) for other in ("softmax", "linear") for name in ("primal", "primal+")),
    beside={"steps_a_second": "steps/s"},
    scale=100.0,
    unit=" %",
)
