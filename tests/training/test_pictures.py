"""The image field: its recipe file, its moved and mixed images, one short job, and its words."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernelhead.data import Images
from kernelhead.errors import BadInput, UnknownName
from kernelhead.rng import seeded
from kernelhead.training import markdown, pictures
from kernelhead.training.course import Course
from kernelhead.training.grid import Job
from kernelhead.training.pictures import (
    CELLS,
    IMAGE_PAGE,
    Settings,
    Standardised,
    beta_quantiles,
    image_jobs,
    image_loss,
    image_run,
    mixed,
    sampled,
)
from kernelhead.training.resident import fit_resident
from kernelhead.training.views import moved
from tests.tolerance import assert_exact

RECIPES = Path(__file__).parents[2] / "recipes" / "image.toml"
SMALL = {"patch": 4, "width": 16, "depth": 2, "heads": 2, "rank": 2, "shift": 1, "drop_path": 0.0, "lr": 3e-3}


def drawn(data: str, part: str, root: Path | None) -> Images:
    """Images whose class is whether their upper half is bright."""
    draws = np.random.default_rng({"train": 0, "validation": 1, "test": 2}[part])
    y = draws.integers(0, 2, 64)
    x = draws.integers(0, 60, (64, 1, 8, 8))
    x[y == 1, :, :4] += 150
    return Images(data, x.astype(np.uint8), y, ("dark", "bright"))


def test_the_file_of_the_house() -> None:
    jobs = image_jobs(RECIPES, protocol="clean", seeds=3)
    assert len(jobs) == 3 * 4 * 3
    chosen = {(job.data, job.variant): job.recipe for job in jobs}
    assert chosen["CIFAR-10 grey", "primal+"]["steps"] == 3000
    assert chosen["MNIST", "primal"]["mirror"] is False
    assert {job.variant for job in jobs} == {*IMAGE_PAGE.variants}


def test_a_folder_is_listed_where_it_is_and_read(tmp_path: Path) -> None:
    assert "ImageNet-100" not in {job.data for job in image_jobs(RECIPES, protocol="clean", seeds=1)}
    (tmp_path / "imagenet100").mkdir()
    images = drawn("", "train", None)
    for name in ("train", "test"):
        np.savez(tmp_path / "imagenet100" / f"{name}.npz", x=images.x, y=images.y)
    listed = image_jobs(RECIPES, protocol="clean", seeds=1, root=tmp_path)
    assert [job.variant for job in listed if job.data == "ImageNet-100"] == ["softmax", "primal+"]
    assert len(pictures.read_part("ImageNet-100", "test", tmp_path)) == 64


@pytest.mark.parametrize("variant", pictures.VARIANTS)
def test_a_job(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(image_run.__globals__, "read_part", drawn)
    recipe = {**SMALL, "attention": variant, "steps": 40, "batch": 16, "every": 20, "eta": 0.05}
    job = Job("image", "MNIST", variant, "clean", 0, recipe)
    made = image_run(job)
    assert made.figures["test_accuracy"] > 0.9
    assert made.figures["train_cases"] == 64
    again = image_run(job)
    assert again.figures["test_accuracy"] == made.figures["test_accuracy"]
    assert again.figures["train_loss"] == made.figures["train_loss"]


def test_a_job_with_mixed_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(image_run.__globals__, "read_part", drawn)
    recipe = {**SMALL, "attention": "primal", "steps": 40, "batch": 16, "every": 20}
    jobs = [
        Job("image", "MNIST", "primal", "clean", 0, {**recipe, "mixup": mixup}) for mixup in (0.0, 0.2, 0.2)
    ]
    plain, made, again = (image_run(job).figures for job in jobs)
    assert made["test_accuracy"] > 0.9
    assert again["train_loss"] == made["train_loss"] != plain["train_loss"]


def scores(x: Tensor) -> Tensor:
    """Of two classes, from the mean of an image."""
    mean = x.float().mean((1, 2, 3)) / 255
    return torch.stack([mean, 1 - mean], -1)


class Scores(nn.Module):
    """The same as a model."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(x)


def test_a_mixed_case_has_a_share_of_both_losses() -> None:
    images = drawn("", "train", None)
    x, y = torch.from_numpy(images.x), torch.from_numpy(images.y)
    settings = Settings(mixup=0.4, smoothing=0.1, shift=1)
    with seeded(0):
        made = image_loss(settings, classes=2, device=x.device)(Scores(), x, y)
    with seeded(0):
        shown = moved(x, shift=1, mirror=True).float()
        share = sampled(beta_quantiles(0.4), len(x))
    keeps = share[:, None, None, None]
    blend = scores(keeps * shown + (1 - keeps) * shown.roll(1, 0))
    own, other = (
        nn.functional.cross_entropy(blend, labels, reduction="none", label_smoothing=0.1)
        for labels in (y, y.roll(1, 0))
    )
    torch.testing.assert_close(made, (share * own + (1 - share) * other).mean())


def test_without_mixing_the_loss_is_that_of_moved_images() -> None:
    images = drawn("", "train", None)
    x, y = torch.from_numpy(images.x), torch.from_numpy(images.y)
    with seeded(0):
        made = image_loss(Settings(), classes=2, device=x.device)(Scores(), x, y)
    with seeded(0):
        shown = moved(x, shift=4, mirror=True)
    assert torch.equal(made, nn.functional.cross_entropy(scores(shown), y, label_smoothing=0.1))


def test_a_case_that_keeps_all_is_itself() -> None:
    x, y = torch.randint(0, 256, (5, 1, 2, 2), dtype=torch.uint8), torch.tensor([2, 0, 1, 1, 0])
    shown, labels = mixed(x, y, torch.ones(5), classes=3)
    assert torch.equal(shown, x.float())
    assert torch.equal(labels, nn.functional.one_hot(y).float())
    shown, labels = mixed(x, y, torch.zeros(5), classes=3)
    assert torch.equal(shown, x.roll(1, 0).float())
    assert torch.equal(labels, nn.functional.one_hot(y.roll(1)).float())


def test_quantiles_are_those_of_the_distribution() -> None:
    share = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64)
    for alpha, below in (
        (0.5, lambda x: x.sqrt().asin() * 2 / torch.pi),
        (1.0, lambda x: x),
        (2.0, lambda x: 3 * x**2 - 2 * x**3),
        (3.0, lambda x: 10 * x**3 - 15 * x**4 + 6 * x**5),
    ):
        # The quantiles are float32, and that of 1/2 is infinitely steep at 1: the root of a rounding.
        assert_exact(below(beta_quantiles(alpha).double()), share, bound=2e-4)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 0.2, 0.4, 1.0, 8.0])
def test_draws_have_the_mean_and_the_variance(alpha: float) -> None:
    quantiles = beta_quantiles(alpha)
    assert (quantiles.diff() >= 0).all()
    torch.testing.assert_close(quantiles + quantiles.flip(0), torch.ones(CELLS + 1))
    with seeded(0):
        made = sampled(quantiles, 40_000)
    assert 0 <= made.min() <= made.max() <= 1
    variance = 1 / (8 * alpha + 4)
    assert abs(made.mean() - 0.5) < 4 * (variance / 40_000) ** 0.5
    assert abs(made.var() / variance - 1) < 0.05


def test_a_large_alpha_is_nearly_normal_around_a_half() -> None:
    deviation = (8e4 + 4) ** -0.5
    quarters = beta_quantiles(1e4)[:: CELLS // 4][1:-1]
    torch.testing.assert_close(
        (quarters - 0.5) / deviation, torch.tensor([-0.6745, 0, 0.6745]), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_every_step_draws_anew(device: str) -> None:
    quantiles = beta_quantiles(0.2).to(device)

    def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return sampled(quantiles, len(x)).mean() + 0 * net(x).sum()

    x = torch.ones(512, 1, device=device)
    made, again = (
        fit_resident(nn.Linear(1, 1, device=device), x, x[:, 0], Course(20, 512), loss=loss, compiled=False)
        for _ in range(2)
    )
    assert again.losses == made.losses
    assert len({*made.losses}) == 20
    assert abs(np.mean(made.losses) - 0.5) < 4 * (1 / 5.6 / (20 * 512)) ** 0.5


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_step_mixes(compiled: bool) -> None:
    images = drawn("", "train", None)
    x, y = torch.from_numpy(images.x).cuda(), torch.from_numpy(images.y).cuda()
    settings = Settings(**{**SMALL, "mixup": 0.2})  # type: ignore[arg-type]
    with seeded(0):
        model = Standardised(settings.model(images).cuda(), x)
    loss = image_loss(settings, classes=2, device=x.device)
    fitted = fit_resident(model, x, y, Course(60, 16, lr=3e-3, ema=0.9), loss=loss, compiled=compiled)
    assert np.mean(fitted.losses[-10:]) < np.mean(fitted.losses[:10])


def test_channels_are_standardised_by_the_training_part() -> None:
    draws = np.random.default_rng(0)
    pixels = torch.from_numpy(draws.integers(0, 256, (50, 3, 4, 4), dtype=np.uint8))
    made = Standardised(nn.Identity(), pixels)(pixels)
    torch.testing.assert_close(made.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(made.std((0, 2, 3), correction=0), torch.ones(3))
    flat = torch.full((2, 1, 2, 2), 7, dtype=torch.uint8)
    assert not Standardised(nn.Identity(), flat)(flat).any()


def test_an_unknown_variant_is_named() -> None:
    with pytest.raises(UnknownName, match=r"image: unknown variant 'nystrom'"):
        Settings(attention="nystrom")


@pytest.mark.parametrize("mixup", [-0.1, float("nan"), float("inf")])
def test_a_mixup_that_cannot_be(mixup: float) -> None:
    with pytest.raises(BadInput, match=rf"image: mixup is {mixup}, expected 0 or more"):
        Settings(mixup=mixup)


def test_the_page() -> None:
    row = {"data": "MNIST", "protocol": "clean", "seed": 0, "status": "done"}
    figures = {"test_accuracy": 0.99, "steps_a_second": 120.0}
    page = markdown(
        IMAGE_PAGE, [{**row, "variant": name, "figures": figures} for name in ("primal", "softmax")]
    )
    assert "| MNIST | 99.0 (1) | 99.0 (1) |" in page
    assert "| MNIST | PrimalFormer | - | - | - | - | 120.0 | - |" in page


def test_images_on_disk_are_listed_and_trained_on_streamed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELHEAD_DATA", str(tmp_path))
    assert "ImageNet-1K" not in {job.data for job in image_jobs(RECIPES, protocol="clean", seeds=1)}
    (tmp_path / "imagenet1k").mkdir()
    for part in ("train", "test"):
        images = drawn("", part, None)
        np.save(tmp_path / "imagenet1k" / f"{part}_x.npy", images.x)
        np.save(tmp_path / "imagenet1k" / f"{part}_y.npy", images.y)
    listed = image_jobs(RECIPES, protocol="clean", seeds=1)
    jobs = {job.variant: job for job in listed if job.data == "ImageNet-1K"}
    assert [*jobs] == ["softmax", "primal+"]
    recipe = jobs["primal+"].recipe
    assert (recipe["batch"], recipe["rank"], recipe["eta"], recipe["mixup"]) == (1024, 96, 0.05, 0.8)
    short = {**recipe, **SMALL, "steps": 40, "batch": 16, "every": 20}
    job = Job("image", "ImageNet-1K", "primal+", "clean", 0, short)
    made = image_run(job)
    assert made.figures["train_cases"] == 57
    assert made.figures["test_accuracy"] > 0.9
    monkeypatch.setattr("kernelhead.training.streamed.CPU_ROOM", 0)
    again = image_run(job, root=tmp_path)
    same = ("test_accuracy", "valid_accuracy", "train_loss")
    assert [again.figures[name] for name in same] == [made.figures[name] for name in same]
