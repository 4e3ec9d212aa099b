"""The image field: its recipe file, its moved images, one short job, and its words."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kernelhead.data import Images
from kernelhead.errors import UnknownName
from kernelhead.rng import seeded
from kernelhead.training import markdown, pictures
from kernelhead.training.grid import Job
from kernelhead.training.pictures import IMAGE_PAGE, Settings, Standardised, image_jobs, image_run, moved

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


def test_a_moved_image_is_a_window_of_it_in_black_or_mirrored() -> None:
    x = torch.arange(1, 13, dtype=torch.uint8).view(1, 1, 3, 4).repeat(64, 2, 1, 1)
    with seeded(0):
        made = moved(x, shift=1, mirror=True)
    assert made.shape == x.shape
    assert made.dtype == torch.uint8
    around = nn.functional.pad(x[0], (1,) * 4)
    windows = [around[:, down : down + 3, aside : aside + 4] for down in range(3) for aside in range(3)]
    known = {tuple(each.flatten().tolist()) for window in windows for each in (window, window.flip(-1))}
    found = {tuple(each.flatten().tolist()) for each in made}
    assert found <= known
    assert len(found) > 12


def test_no_shift_and_no_mirror_change_nothing() -> None:
    x = torch.randint(0, 256, (3, 1, 4, 5), dtype=torch.uint8)
    assert torch.equal(moved(x, shift=0, mirror=False), x)


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


def test_the_page() -> None:
    row = {"data": "MNIST", "protocol": "clean", "seed": 0, "status": "done"}
    figures = {"test_accuracy": 0.99, "steps_a_second": 120.0}
    page = markdown(
        IMAGE_PAGE, [{**row, "variant": name, "figures": figures} for name in ("primal", "softmax")]
    )
    assert "| MNIST | 99.0 (1) | 99.0 (1) |" in page
    assert "| MNIST | PrimalFormer | - | - | - | - | 120.0 | - |" in page
