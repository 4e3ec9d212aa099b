"""Images: classifiers of patches, shifted, mirrored and mixed on the device, which need not hold them all."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import Images, folder_of, read_images
from kernelhead.errors import BadInput, unknown
from kernelhead.models import ImageClassifier
from kernelhead.rng import seeded
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.lra import accuracy
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.steps import Loss, Watch
from kernelhead.training.streamed import fit_streamed, fits, sampled_pixels, streamed_accuracy
from kernelhead.training.table import Goal, Page
from kernelhead.training.views import moved

VARIANTS = ("softmax", "primal", "primal+", "linear")
SOURCES = {"MNIST": "mnist", "CIFAR-10 grey": "cifar10-gray", "CIFAR-10 colour": "cifar10"}
FOLDERS = {"ImageNet-100": "imagenet100", "ImageNet-1K": "imagenet1k"}  # brought along, below the root
CELLS = 4096  # of a table of quantiles; a power of two, by which a number below one stays below it


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `ImageClassifier` and `Course` for the words.

    Args:
        shift: most pixels that an image is moved up, down or aside in training.
        mirror: whether half of the images are mirrored in training.
        smoothing: share of a label that is spread over all classes.
        mixup: alpha of the Beta distribution by which two images and their labels are mixed in training;
            0 for none.
        every: steps from one look at the validation part to the next.
        cpu_precision: of runs without a GPU.
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
    cpu_precision: str = "32"
    init: str = "published"
    mixup: float = 0.0

    def __post_init__(self) -> None:
        if self.attention not in VARIANTS:
            raise unknown("image", "variant", self.attention, VARIANTS)
        if not 0 <= self.mixup < inf:
            raise BadInput(f"image: mixup is {self.mixup}, expected 0 or more")

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

    Shapes: x (b, c, h, w) in uint8, or mixed from such; returns what the model does.

    Args:
        model: takes real-valued images.
        pixels: (n, c, h, w) in uint8, from which mean and deviation are taken; or several such.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, pixels: Tensor | Iterable[Tensor]) -> None:
        super().__init__()
        self.model = model
        pieces = (pixels,) if isinstance(pixels, Tensor) else pixels
        # A channel at a time and in bytes: the set as real numbers may be larger than the device.
        found = [
            torch.stack([torch.bincount(each.flatten(), minlength=256) for each in piece.unbind(1)])
            for piece in pieces
        ]
        counts = torch.stack(found).sum(0)  # (c, 256)
        share = counts.double() / counts.sum(1, keepdim=True)
        levels = torch.arange(256, device=share.device)
        mean = (share * levels).sum(1, keepdim=True)
        deviation = (share * (levels - mean).square()).sum(1, keepdim=True).sqrt()
        self.register_buffer("mean", mean.float()[:, :, None])
        self.register_buffer("deviation", deviation.clamp_min(1.0).float()[:, :, None])

    def forward(self, x: Tensor) -> Tensor:
        """The model's answer."""
        return self.model((x.float() - self.mean) / self.deviation)


def mixed(x: Tensor, y: Tensor, share: Tensor, *, classes: int) -> tuple[Tensor, Tensor]:
    """Images and their labels, each mixed with those of the case before it.

    Shapes: x (b, c, h, w); y (b,); share (b,), what a case keeps of itself; returns (b, c, h, w) and the
    probabilities of classes (b, classes), both in float32.

    Example:
        >>> x, y = torch.tensor([0.0, 8.0]).view(2, 1, 1, 1), torch.tensor([0, 1])
        >>> shown, labels = mixed(x, y, torch.tensor([0.5, 0.75]), classes=2)
        >>> shown.flatten().tolist(), labels.tolist()
        ([4.0, 6.0], [[0.5, 0.5], [0.25, 0.75]])
    """
    labels = (y[:, None] == torch.arange(classes, device=y.device)).float()
    return (
        torch.lerp(x.roll(1, 0).float(), x.float(), share[:, None, None, None]),
        torch.lerp(labels.roll(1, 0), labels, share[:, None]),
    )


def beta_quantiles(alpha: float) -> Tensor:
    r"""The quantiles of Beta(alpha, alpha) at even steps from 0 to 1, for draws without rejection.

    Below 1/2 the density is integrated in $y = x^p$ with $p = \min(\alpha, 1)$, in which it is bounded;
    above, the distribution is its own mirror image.

    Shapes: returns (CELLS + 1,).

    Example:
        >>> [round(each, 3) for each in beta_quantiles(1.0)[:: CELLS // 4].tolist()]
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    power = min(alpha, 1.0)
    y, step = np.linspace(0, 0.5**power, 2**14 + 1, retstep=True)
    x = (y[:-1] + step / 2) ** (1 / power)
    # Up to a factor; the 4 keeps a power of a large alpha in range.
    density = (1 - x if alpha < 1 else 4 * x * (1 - x)) ** (alpha - 1)
    below = np.append(0, np.cumsum(density))
    lower = np.interp(np.linspace(0, 0.5, CELLS // 2 + 1), below / below[-1] / 2, y) ** (1 / power)
    return torch.from_numpy(np.append(lower, 1 - lower[-2::-1])).float()


def sampled(quantiles: Tensor, cases: int) -> Tensor:
    """Draws from a distribution by its quantiles, in operations that a graph can hold.

    What is drawn comes from the device's global generator.

    Shapes: quantiles (CELLS + 1,); returns (cases,).

    Example:
        >>> sampled(torch.full((CELLS + 1,), 0.5), 3).tolist()
        [0.5, 0.5, 0.5]
    """
    place = torch.rand(cases, device=quantiles.device) * CELLS
    cell = place.long()
    return torch.lerp(quantiles[cell], quantiles[cell + 1], place - cell)


def image_loss(settings: Settings, *, classes: int, device: torch.device) -> Loss:
    """Cross-entropy of images as training shows them: moved, and mixed where that is asked for."""
    quantiles = beta_quantiles(settings.mixup).to(device) if settings.mixup else None

    def loss(net: nn.Module, pixels: Tensor, targets: Tensor) -> Tensor:
        shown = moved(pixels, shift=settings.shift, mirror=settings.mirror)
        if quantiles is not None:
            share = sampled(quantiles, len(shown))
            shown, targets = mixed(shown, targets, share, classes=classes)
        return F.cross_entropy(net(shown), targets, label_smoothing=settings.smoothing)

    return loss


def image_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file; see `jobs_from`.

    ImageNet-100 and ImageNet-1K are there where `root` has the folders imagenet100 and imagenet1k; see
    `read_images` for what these hold.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set, variant or entry.
    """
    return jobs_from(
        "image",
        recipes,
        Settings,
        sets=SOURCES,
        protocol=protocol,
        seeds=seeds,
        variants=VARIANTS,
        folders=FOLDERS,
        root=root,
    )


def image_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train a classifier of images, take its best weights on validation data, and test them once.

    A set lies on the device where it fits, see `fits`, and is streamed there where it does not, in the same
    batches.

    Raises:
        BadInput: the data are not here, or cannot be used.
        MissingExtra: Pillow is needed and not installed.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid, test = (read_part(job.data, part, root) for part in ("train", "validation", "test"))
    resident = fits(device, train, valid, test)
    with seeded(job.seed):
        net = settings.model(train).to(device)
    course = course_of(settings, job.seed, device)
    loss = image_loss(settings, classes=len(train.classes), device=device)
    watch = _judge(valid, device, course.precision, resident=resident)
    if resident:
        x, y = _on(train, device)
        model = Standardised(net, x)
        fitted = fit_resident(model, x, y, course, loss=loss, watch=watch, every=settings.every)
    else:
        model = Standardised(net, sampled_pixels(train, device))
        fitted = fit_streamed(model, train, course, loss=loss, watch=watch, every=settings.every)
    figures = {
        "test_accuracy": _judge(test, device, course.precision, resident=resident)(model),
        "valid_accuracy": max(fitted.watched),
        "train_loss": float(np.mean(fitted.losses[-100:])),
        "steps_a_second": fitted.steps_a_second,
        "peak_gib": fitted.peak_gib,
        "train_cases": float(len(train)),
    }
    return Outcome(figures, sum(each.numel() for each in model.parameters()))


def read_part(data: str, part: str, root: Path | None) -> Images:
    """One part of a set of this field, by its name here."""
    folder = folder_of(FOLDERS[data], root) if data in FOLDERS else None
    return read_images(folder or (SOURCES | FOLDERS)[data], split=part, root=root)


def _judge(images: Images, device: torch.device, precision: str, *, resident: bool) -> Watch:
    """From a classifier to its accuracy on a part, which lies on the device or is read at every call."""
    if not resident:
        return lambda net: streamed_accuracy(net, images, device=device, precision=precision)
    shown, right = _on(images, device)
    return lambda net: accuracy(net, (shown,), right, precision=precision)


def _on(images: Images, device: torch.device) -> tuple[Tensor, Tensor]:
    # A tensor can be written to, what is mapped cannot.
    x = np.require(np.asarray(images.x), requirements="W")
    return torch.from_numpy(x).to(device), torch.from_numpy(images.y).to(device)


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
