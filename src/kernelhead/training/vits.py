"""A vision Transformer trained here, and a primal layer in it: by graft and distillation, or from scratch."""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.data import Images, read_images
from kernelhead.errors import missing_extra, unknown
from kernelhead.rng import seeded
from kernelhead.surgery import batches, graft
from kernelhead.training.course import Course
from kernelhead.training.distil import distil
from kernelhead.training.grid import Job, Outcome
from kernelhead.training.lra import accuracy
from kernelhead.training.pictures import SOURCES, Standardised, image_loss
from kernelhead.training.pictures import Settings as Shown
from kernelhead.training.resident import fit_resident
from kernelhead.training.settings import course_of, jobs_from, settings_from
from kernelhead.training.table import Claim, Page

Labelled = tuple[Tensor, Tensor]
WAYS = ("host", "graft", "scratch")
STARTS = ("ksvd", "random")


@dataclass(frozen=True)
class Settings:
    """All that a run of this field is made from; see `Course` for the words of training.

    The `way` is the "host" as it was trained, a "graft" into it that is then distilled, or a graft into a
    fresh network that is trained from "scratch" by the host's own course.
    """

    way: str = "graft"
    start: str = "ksvd"
    where: str = "last"
    rank: int = 32
    landmarks: int = 0
    patch: int = 4
    width: int = 192
    depth: int = 6
    heads: int = 3
    steps: int = 3000
    every: int = 250
    batch: int = 512
    lr: float = 1e-3
    warmup: float = 0.1
    weight_decay: float = 0.05
    eta: float = 0.0
    precision: str = "bf16"
    compiled: bool = True
    calibration: int = 256
    learned: int = 10000
    layer_steps: int = 100
    layer_lr: float = 1e-3
    whole_steps: int = 300
    whole_lr: float = 3e-4
    train: str = "all"

    def model(self, images: Images) -> nn.Module:
        """The host: Hugging Face's own, without dropout."""
        try:
            from transformers import ViTConfig, ViTForImageClassification
        except ImportError:
            raise missing_extra("vit", "transformers", "hf") from None
        sizes: dict[str, Any] = {
            "image_size": images.size[0],
            "patch_size": self.patch,
            "num_channels": images.channels,
            "hidden_size": self.width,
            "num_hidden_layers": self.depth,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.width,
            "num_labels": len(images.classes),
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }
        return _Scores(ViTForImageClassification(ViTConfig(**sizes)))


class _Scores(nn.Module):
    """A model of Hugging Face that puts out its logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) to (b, classes)."""
        logits: Tensor = self.model(pixel_values=x).logits
        return logits


def vit_jobs(recipes: Path, *, protocol: str, seeds: int, root: Path | None = None) -> list[Job]:
    """The jobs of every set and variant in a recipe file; see `jobs_from`.

    Raises:
        BadInput: the file is not such a file.
        UnknownName: no such protocol, set or entry.
    """
    return jobs_from("vit", recipes, Settings, sets=SOURCES, protocol=protocol, seeds=seeds)


def vit_run(job: Job, *, root: Path | None = None) -> Outcome:
    """Train the host or the grafted network, graft and distil where that is the way, and test once.

    Raises:
        BadInput: the data are not here, or cannot be used.
        MissingExtra: transformers or Pillow is not installed.
        UnknownName: no such way or start.
    """
    settings = settings_from(Settings, job.key, job.recipe)
    for name, value, known in (("way", settings.way, WAYS), ("start", settings.start, STARTS)):
        if value not in known:
            raise unknown(job.key, name, value, known)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = {
        part: read_images(SOURCES[job.data], split=part, root=root)
        for part in ("train", "validation", "test")
    }
    train, valid, test = (
        (torch.from_numpy(each.x).to(device), torch.from_numpy(each.y).to(device)) for each in parts.values()
    )
    with seeded(job.seed):
        model = Standardised(settings.model(parts["train"]).to(device), train[0])
    if settings.way == "scratch":
        _grafted(model, settings, None, job.seed)
    seconds = {"host_seconds": _fit(model, settings, train, valid, job.seed, len(parts["train"].classes))}
    precision = settings.precision if device.type == "cuda" else "32"
    figures = {"host_accuracy": accuracy(model, (test[0],), test[1], precision=precision)}
    if settings.way == "graft":
        started = time.perf_counter()
        _grafted(model, settings, train[0], job.seed)
        figures["start_accuracy"] = accuracy(model, (test[0],), test[1], precision=precision)
        taught = _taught(model, settings, train[0], job.seed, precision)
        figures |= {
            "site_error": fmean(after for _, after in taught.sites.values()),
            "output_error": taught.output[2],
        }
        seconds["graft_seconds"] = time.perf_counter() - started
    figures["test_accuracy"] = accuracy(model, (test[0],), test[1], precision=precision)
    return Outcome({**figures, **seconds}, sum(each.numel() for each in model.parameters()))


def _fit(
    model: nn.Module, settings: Settings, train: Labelled, valid: Labelled, seed: int, classes: int
) -> float:
    """Train with labels, best weights on the validation part; how many seconds the steps took."""
    device = train[0].device
    course = course_of(settings, seed, device)
    fitted = fit_resident(
        model,
        train[0],
        train[1],
        course,
        loss=image_loss(Shown(), classes=classes, device=device),
        compiled=settings.compiled and device.type == "cuda",
        watch=lambda net: accuracy(net, (valid[0],), valid[1], precision=course.precision),
        every=settings.every,
    )
    return fitted.seconds


def _grafted(model: nn.Module, settings: Settings, pixels: Tensor | None, seed: int) -> None:
    given = None if pixels is None or settings.start == "random" else pixels[: settings.calibration]
    graft(
        model,
        "primal",
        settings.where,
        rank=settings.rank,
        landmarks=settings.landmarks or None,
        data=None if given is None else batches(given),
        seed=seed,
    )


def _taught(model: nn.Module, settings: Settings, pixels: Tensor, seed: int, precision: str) -> Any:
    shared: dict[str, Any] = {
        "batch": settings.batch,
        "weight_decay": 0.0,
        "precision": precision,
        "seed": seed,
    }
    return distil(
        model,
        pixels[: settings.learned],
        layers=Course(settings.layer_steps, lr=settings.layer_lr, **shared),
        whole=Course(
            settings.whole_steps, lr=settings.whole_lr, eta=settings.eta, reduction="sample", **shared
        ),
        train=settings.train,
    )


VIT_PAGE = Page(
    title="A primal layer in a trained vision Transformer",
    about=(
        "Test accuracy in %, mean ± deviation over seeds. A vision Transformer of Hugging Face, six layers "
        "of width 192, is trained on images; then primal cores take the place of its last attention, or of "
        "all, and are distilled for a few hundred steps on images without labels. Beside it the same network "
        "with those cores from the start, trained as the host was."
    ),
    figures={"clean": "test_accuracy"},
    labels={"clean": "A validation part chooses the weights of all that is trained with labels."},
    variants={
        "host": "softmax",
        "last-graft": "last layer, graft and distillation",
        "last-random": "last layer, random graft and distillation",
        "last-scratch": "last layer, from scratch",
        "all-graft": "all layers, graft and distillation",
        "all-scratch": "all layers, from scratch",
    },
    claims=(
        Claim(
            "A graft into the last layer is as good as training it from scratch", "last-graft", "last-scratch"
        ),
        Claim("Grafts into all layers are as good as training them from scratch", "all-graft", "all-scratch"),
        Claim("Starting from the kernel SVD beats a random start", "last-graft", "last-random"),
    ),
    beside={
        "start_accuracy": "accuracy at once",
        "output_error": "error of logits",
        "host_seconds": "seconds of training with labels",
        "graft_seconds": "seconds of graft and distillation",
    },
    scale=100.0,
    unit=" %",
)
