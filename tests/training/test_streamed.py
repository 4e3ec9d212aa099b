"""Streamed training: the batches, steps and figures of resident training, from data that stay on disk."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernelhead.data import Images, read_images
from kernelhead.errors import BadInput
from kernelhead.rng import seeded
from kernelhead.training import streamed
from kernelhead.training.course import Course
from kernelhead.training.lra import accuracy
from kernelhead.training.pictures import Standardised
from kernelhead.training.resident import fit_resident
from kernelhead.training.steps import Loss
from kernelhead.training.streamed import (
    AHEAD,
    fit_streamed,
    fits,
    orders,
    read_ahead,
    sampled_pixels,
    streamed_accuracy,
)
from kernelhead.training.views import moved

CPU = torch.device("cpu")


@pytest.fixture
def images(tmp_path: Path) -> Images:
    """Rows of a map, in an order that is not that of the file."""
    draws = np.random.default_rng(0)
    y = draws.integers(0, 2, 60)
    x = draws.integers(0, 60, (60, 1, 8, 8))
    x[y == 1, :, :4] += 150
    for part in ("train", "test"):
        np.save(tmp_path / f"{part}_x.npy", x.astype(np.uint8))
        np.save(tmp_path / f"{part}_y.npy", y)
    return read_images(tmp_path).take(np.random.default_rng(1).permutation(50))


def resident(images: Images, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.asarray(images.x)).to(device), torch.from_numpy(images.y).to(device)


def model(images: Images, device: torch.device = CPU) -> Standardised:
    with seeded(0):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 2))
    return Standardised(net.to(device), resident(images, device)[0])


def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(moved(x, shift=1, mirror=True)), y)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("steps", [1, 2, 3, 14])
def test_batches_and_steps_are_those_of_resident_training(
    images: Images, steps: int, accumulate: int
) -> None:
    x, y = resident(images)
    course = Course(steps, 16, lr=0.01, seed=3, accumulate=accumulate)
    seen: dict[str, list[Tensor]] = {"resident": [], "streamed": []}

    def noting(name: str) -> Loss:
        def noted(net: nn.Module, pixels: Tensor, targets: Tensor) -> Tensor:
            seen[name] += [pixels.clone(), targets.clone()]
            return loss(net, pixels, targets)

        return noted

    one, other = model(images), model(images)
    here = fit_resident(one, x, y, course, loss=noting("resident"))
    there = fit_streamed(other, images, course, loss=noting("streamed"))
    assert len(seen["resident"]) == len(seen["streamed"]) == 2 * steps * accumulate
    assert all(torch.equal(*pair) for pair in zip(*seen.values(), strict=True))
    assert here.losses == there.losses
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


def test_looks_are_those_of_resident_training(images: Images) -> None:
    x, y = resident(images)
    course = Course(20, 16, lr=0.01)
    one, other = model(images), model(images)
    here = fit_resident(
        one, x, y, course, loss=loss, watch=lambda net: accuracy(net, (x,), y, batch=7), every=4
    )
    there = fit_streamed(
        other,
        images,
        course,
        loss=loss,
        watch=lambda net: streamed_accuracy(net, images, device=CPU, batch=7),
        every=4,
    )
    assert here.watched == there.watched
    assert max(here.watched) > 0.9


def test_every_case_comes_once_an_epoch() -> None:
    drawn = [*orders(11, Course(7, 3, seed=5))]
    assert [len(each) for each in drawn] == [3] * 7
    for first in (0, 3):
        assert len({*np.concatenate(drawn[first : first + 3]).tolist()}) == 9
    assert [each.tolist() for each in orders(11, Course(7, 3, seed=5))] == [each.tolist() for each in drawn]
    assert drawn[0].tolist() != next(orders(11, Course(7, 3, seed=6))).tolist()


@pytest.mark.parametrize("count", [1, AHEAD, AHEAD + 1, 3 * AHEAD])
def test_batches_come_in_order_and_the_last_may_be_smaller(images: Images, count: int) -> None:
    order = [np.arange(place, place + 3) for place in range(count - 1)] + [np.array([7])]
    found = [(x.tolist(), y.tolist()) for x, y in read_ahead(images, order, CPU)]
    assert found == [(images.x[places].tolist(), images.y[places].tolist()) for places in order]


def test_what_a_thread_dies_of_is_raised(images: Images) -> None:
    with (
        closing(read_ahead(images, [np.array([0]), np.array([50])], CPU)) as feed,
        pytest.raises(IndexError, match="50 is out of bounds"),
    ):
        list(feed)


def test_means_are_those_of_all_images_in_pieces(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "PIECE", 7)
    whole, pieces = model(images), Standardised(nn.Identity(), sampled_pixels(images, CPU))
    assert torch.equal(whole.mean, pieces.mean)
    assert torch.equal(whole.deviation, pieces.deviation)
    monkeypatch.setattr(streamed, "SAMPLE", 24)
    assert sum(len(piece) for piece in sampled_pixels(images, CPU)) == 17


def test_a_set_fits_by_its_bytes(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "CPU_ROOM", 2 * 50 * 64)
    assert fits(CPU, images, images)
    assert not fits(CPU, images, images, images.take([0]))


def test_too_few_images_are_named(images: Images) -> None:
    with pytest.raises(BadInput, match="fit_streamed: 50 images, expected at least a batch of 51"):
        fit_streamed(model(images), images, Course(1, 51), loss=loss)


@pytest.mark.filterwarnings("ignore:\\s*Online softmax is disabled")  # of the compiler, on few classes
@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_graph_reads_what_is_streamed(images: Images, compiled: bool) -> None:
    device = torch.device("cuda")
    x, y = resident(images, device)
    course = Course(40, 16, lr=0.01, seed=3)
    one, other = model(images, device), model(images, device)
    here = fit_resident(one, x, y, course, loss=loss, compiled=compiled)
    there = fit_streamed(other, images, course, loss=loss, compiled=compiled)
    torch.testing.assert_close(torch.tensor(there.losses), torch.tensor(here.losses), atol=1e-4, rtol=1e-4)
    assert streamed_accuracy(other, images, device=device, batch=7) == accuracy(other, (x,), y)
