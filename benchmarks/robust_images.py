"""Image classifiers under attacks, corruptions, dropped patches and spoilt keys."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.robust_rows import ROWS, device, finite, train
from kernelhead.data import CORRUPTIONS, Images, corrupt, read_images
from kernelhead.inspection import (
    brier_score,
    calibration_error,
    contaminate_keys,
    drop_points,
    fgsm,
    negative_log_likelihood,
    pgd,
    spsa,
)
from kernelhead.models import ImageClassifier
from kernelhead.nn import evaluating
from kernelhead.rng import seeded
from kernelhead.training.resident import Course, scores_of

EVALUATION = 0  # names every draw of the evaluation, the same for all rows and seeds
DROPPED = (0.25, 0.5)
SPOILT = (0.02, 0.05)
FACTOR = 10.0


@dataclass(frozen=True)
class Recipe:
    """The sizes of a model, how it is trained, and how hard it is tried.

    Args:
        shift: pixels by which training images are moved at random.
        mirrored: whether training images are mirrored at random.
        budgets: of attacks, in 255ths of the range of a pixel.
        attacked: test images that are attacked and corrupted.
        asked: of them, those for the attack without gradients, at the largest budget.
        steps: of the attack with gradients.
        blind_steps: of the attack without.
        directions: of a slope of that one.
    """

    course: Course
    patch: int
    width: int
    depth: int
    heads: int
    rank: int
    landmarks: int
    shift: int
    mirrored: bool
    budgets: tuple[int, ...]
    attacked: int
    asked: int
    steps: int = 10
    blind_steps: int = 20
    directions: int = 32


_GRAY = Recipe(
    course=Course(2000, 512, lr=1e-3, weight_decay=0.05, eta=0.1, precision="bf16"),
    patch=4,
    width=128,
    depth=4,
    heads=4,
    rank=16,
    landmarks=32,
    shift=4,
    mirrored=True,
    budgets=(1, 2, 8),
    attacked=2000,
    asked=200,
)
RECIPES = {
    "cifar10-gray": _GRAY,
    "mnist": replace(_GRAY, shift=2, mirrored=False, budgets=(8, 26)),
    "digits": replace(
        _GRAY,
        course=Course(60, 64, lr=1e-2, eta=0.1),
        patch=2,
        width=16,
        depth=2,
        heads=2,
        rank=4,
        landmarks=8,
        shift=1,
        mirrored=False,
        budgets=(16,),
        attacked=60,
        asked=8,
        steps=3,
        blind_steps=3,
        directions=4,
    ),
}


class Normalised(nn.Module):
    """A classifier of pixels from 0 to 1, which are standardised inside it."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: ImageClassifier, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.model, self.patches = model, model.patches
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        scores: Tensor = self.model((x - self.mean) / self.deviation, keep)
        return scores


@dataclass(frozen=True, eq=False)
class Held:
    """A set on the device: bytes to train on, pixels from 0 to 1 for the rest, chosen ones corrupted."""

    images: Images
    x: Tensor
    y: Tensor
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    chosen: tuple[Tensor, Tensor]
    corrupted: dict[str, list[Tensor]]


@cache
def held(data: str) -> Held:
    """Read a set once; which test images are chosen depends on the set alone."""
    there, recipe = device(), RECIPES[data]
    train_part, validation, test = (
        read_images(data, split=split, seed=EVALUATION) for split in ("train", "validation", "test")
    )
    order = np.random.Generator(np.random.Philox(EVALUATION)).permutation(len(test))
    few = test.take(np.sort(order[: recipe.attacked]))
    x = _pixels(few.x)
    corrupted = {
        name: [
            torch.from_numpy(corrupt(x, name, severity=severity, seed=EVALUATION)).to(there)
            for severity in (1, 2, 3, 4, 5)
        ]
        for name in CORRUPTIONS
    }

    def placed(part: Images) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(_pixels(part.x)).to(there), torch.from_numpy(part.y).to(there)

    bytes_x, y = torch.from_numpy(train_part.x).to(there), torch.from_numpy(train_part.y).to(there)
    return Held(train_part, bytes_x, y, placed(validation), placed(test), placed(few), corrupted)


def image_figures(data: str, row: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train one row, keep its last weights, and try it in every way."""
    sets, recipe = held(data), RECIPES[data]
    course = replace(recipe.course, seed=seed)
    model = build(sets, recipe, row, seed)
    # The recipe tells of its course once only.
    sizes = {name: value for name, value in asdict(recipe).items() if name != "course"}
    cases = {"training": len(sets.x), "validating": len(sets.validation[0]), "testing": len(sets.test[0])}
    yield {"recipe": sizes, "cases": cases}
    loss = partial(_loss, shift=recipe.shift, mirrored=recipe.mirrored)
    yield train(model, sets.x, sets.y, course, loss)
    started = time.perf_counter()
    yield from tried(model, sets, recipe)
    yield {"evaluation_seconds": time.perf_counter() - started}


def build(sets: Held, recipe: Recipe, row: str, seed: int) -> Normalised:
    """The untrained model of a row; its weights depend on the seed."""
    images = sets.images
    with seeded(seed):
        model = ImageClassifier(
            len(images.classes),
            channels=images.channels,
            size=images.size,
            patch=recipe.patch,
            width=recipe.width,
            depth=recipe.depth,
            heads=recipe.heads,
            attention=ROWS[row].attention,
            rank=recipe.rank,
            landmarks=recipe.landmarks,
            iterations=ROWS[row].iterations,
        )
    pixels = images.x.astype(np.float64) / 255
    mean, deviation = (
        torch.from_numpy(np.asarray(each, np.float32).reshape(-1, 1, 1))
        for each in (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)))
    )
    return Normalised(model, mean, deviation).to(device())


def tried(model: Normalised, sets: Held, recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Shares of images that are told right, clean and in every trial, and calibration; in float32."""
    scores, y = scores_of(model, sets.test[0]), sets.test[1]
    yield {
        "validation": right(model, *sets.validation),
        "clean": _share(scores, y),
        "likelihood": finite(negative_log_likelihood(scores, y)),
        "brier": finite(brier_score(scores, y)),
        "calibration": finite(calibration_error(scores, y)),
    }
    x, y = sets.chosen
    yield {"chosen": right(model, x, y), "asked": right(model, x[: recipe.asked], y[: recipe.asked])}
    yield {"attacks": _attacked(model, x, y, recipe)}
    spoilt = {name: [scores_of(model, each) for each in parts] for name, parts in sets.corrupted.items()}
    yield {
        "corruptions": {name: [_share(each, y) for each in parts] for name, parts in spoilt.items()},
        "calibration_corrupted": finite(
            float(np.mean([calibration_error(each, y) for parts in spoilt.values() for each in parts]))
        ),
    }
    dropped = {}
    for share in DROPPED:
        keep = drop_points(len(x), model.patches, share=share, seed=EVALUATION).to(x.device)
        with evaluating(model), torch.no_grad():
            dropped[f"{share:.0%}"] = _share(model(x, keep), y)
    yield {"dropped": dropped}
    contaminated = {}
    for where, layers in (("first layer", [0]), ("all layers", None)):
        for share in SPOILT:
            with contaminate_keys(model, share=share, factor=FACTOR, layers=layers, seed=EVALUATION):
                contaminated[f"{share:.0%}, {where}"] = right(model, x, y)
    yield {"contaminated": contaminated}


def right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of images that a model tells right."""
    return _share(scores_of(model, x), y)


def augmented(x: Tensor, *, shift: int, mirrored: bool) -> Tensor:
    """Every image moved by up to `shift` pixels each way, black coming in, and mirrored half of the time.

    Shapes: x (b, c, h, w).
    """
    b, _, high, wide = x.shape
    down, across = torch.randint(0, 2 * shift + 1, (2, b, 1), device=x.device)
    place = torch.arange(wide, device=x.device).expand(b, wide)
    if mirrored:
        place = torch.where(torch.rand(b, 1, device=x.device) < 0.5, wide - 1 - place, place)
    rows = (torch.arange(high, device=x.device) + down)[:, :, None]  # (b, h, 1)
    columns = (place + across)[:, None]  # (b, 1, w)
    case = torch.arange(b, device=x.device)[:, None, None]
    return F.pad(x, (shift,) * 4)[case, :, rows, columns].permute(0, 3, 1, 2)


def _loss(model: nn.Module, x: Tensor, y: Tensor, *, shift: int, mirrored: bool) -> Tensor:
    return F.cross_entropy(model(augmented(x / 255, shift=shift, mirrored=mirrored)), y)


def _attacked(model: Normalised, x: Tensor, y: Tensor, recipe: Recipe) -> dict[str, float]:
    """The share told right after each attack, by its name and budget."""
    found = {}
    for number in recipe.budgets:
        name, budget = f"{number}/255", number / 255
        once = fgsm(model, x, y, budget=budget, batch=1000)
        found[f"FGSM {name}"] = right(model, once, y)
        often = pgd(model, x, y, budget=budget, generator=_draws(x), steps=recipe.steps, batch=1000)
        found[f"PGD {name}"] = right(model, often, y)
    few, labels, number = x[: recipe.asked], y[: recipe.asked], max(recipe.budgets)
    blind = spsa(
        model,
        few,
        labels,
        budget=number / 255,
        generator=_draws(x),
        steps=recipe.blind_steps,
        samples=recipe.directions,
        batch=8192,
    )
    return found | {f"SPSA {number}/255": right(model, blind, labels)}


def _draws(x: Tensor) -> torch.Generator:
    return torch.Generator(x.device).manual_seed(EVALUATION)


def _share(scores: Tensor, y: Tensor) -> float:
    return float((scores.argmax(-1) == y).double().mean())


def _pixels(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / np.float32(255)
