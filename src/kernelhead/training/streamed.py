"""Training on images that stay on disk: threads read ahead what the steps of `fit_resident` then use."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernelhead.data import Images
from kernelhead.errors import BadInput
from kernelhead.rng import seeded
from kernelhead.training.course import Course
from kernelhead.training.progress import keeper_of, kept_in
from kernelhead.training.resident import scores_of
from kernelhead.training.steps import Fitted, Loss, Solo, Watch, about_course, fit_steps

AHEAD = 4  # batches in memory, each read by a thread of its own
CPU_ROOM = 8 * 2**30  # bytes of a set that are taken into memory where there is no GPU
SAMPLE, PIECE = 2**17, 1024  # images from which a mean is taken, and how many at a time

Places = NDArray[np.int64]


def fits(device: torch.device, *parts: Images) -> bool:
    """Whether parts of a set may lie on a device together: in half of what is free, 8 GiB on the CPU.

    Example:
        >>> part = Images("two", np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1]), ("no", "yes"))
        >>> fits(torch.device("cpu"), part)
        True
    """
    room = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else CPU_ROOM
    return sum(part.x.nbytes for part in parts) <= room


def fit_streamed(
    model: nn.Module,
    images: Images,
    course: Course,
    *,
    loss: Loss,
    compiled: bool | None = None,
    watch: Watch | None = None,
    every: int = 500,
    keep: Path | None = None,
) -> Fitted:
    """Train a model on images that need not fit its device; see `fit_resident` for all but the images.

    Batches and their order are those of `fit_resident` under the same course. Threads read them ahead,
    for a GPU into pinned memory, and each is copied to the one place of the device that steps read.

    Args:
        model: on the device to train on, in training mode.
        images: all cases; mapped ones are read a batch at a time.

    Raises:
        BadInput: fewer images than a batch, or a loss that is not finite.

    Example:
        >>> images = Images("all", np.zeros((64, 1, 2, 2), np.uint8), np.arange(64) % 2, ("even", "odd"))
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> loss = lambda net, x, y: nn.functional.cross_entropy(net(x.float()), y)
        >>> len(fit_streamed(model, images, Course(5, 16), loss=loss).losses)
        5
    """
    if len(images) < course.batch:
        raise BadInput(f"fit_streamed: {len(images)} images, expected at least a batch of {course.batch}")
    device = next(model.parameters()).device
    compiled = device.type == "cuda" if compiled is None else compiled
    labels = {"targets": torch.from_numpy(np.require(images.y, requirements="W"))}
    keeper = keeper_of(keep, lambda: {**about_course(course, model, labels, every), "streamed": True})
    first = 0 if keeper is None or keeper.ended else keeper.pace.steps
    order = islice(orders(len(images), course), first, None)
    with kept_in(None), seeded(course.seed), closing(read_ahead(images, order, device)) as feed:
        steps = _Streamed(model, feed, course, loss, compiled, first)
        (made,) = fit_steps(steps, [watch], every, None, keeper=keeper)
    if isinstance(made, BadInput):
        raise made
    return made


def streamed_accuracy(
    model: nn.Module, images: Images, *, device: torch.device, precision: str = "32", batch: int = 256
) -> float:
    """The share of images that a classifier gets right, read a batch at a time."""
    right = [
        scores_of(model, x, batch=batch, precision=precision).argmax(-1) == y
        for x, y in read_ahead(images, _cut(np.arange(len(images)), batch), device)
    ]
    return float(torch.cat(right).float().mean())


def sampled_pixels(images: Images, device: torch.device) -> Iterator[Tensor]:
    """All images, or 131,072 at most at even distances, in pieces on a device; the next replaces one."""
    chosen = np.arange(0, len(images), -(-len(images) // SAMPLE))
    return (x for x, _ in read_ahead(images, _cut(chosen, PIECE), device))


def orders(cases: int, course: Course) -> Iterator[Places]:
    """The places of the cases of every step, as `fit_resident` draws them.

    Shapes: each (batch,).

    Example:
        >>> [len(places) for places in orders(10, Course(3, 4))]
        [4, 4, 4]
    """
    source, epoch = torch.Generator().manual_seed(course.seed), cases // course.batch
    for step in range(course.steps):
        if step % epoch == 0:
            drawn = torch.randperm(cases, generator=source).numpy()
        first = step % epoch * course.batch
        yield drawn[first : first + course.batch]


def read_ahead(
    images: Images, order: Iterable[Places], device: torch.device
) -> Generator[tuple[Tensor, Tensor]]:
    """Batches of images and labels on a device, read by threads before they are asked for.

    All lie in the same place of the device: a batch is gone when the next one is asked for.

    Shapes: yields (b, c, h, w) in uint8 and (b,) in int64.

    Args:
        order: places of each batch; none is larger than the first.
    """
    order = iter(order)
    begun, on_gpu = [*islice(order, AHEAD)], device.type == "cuda"
    shapes = {torch.uint8: (len(begun[0]), *images.x.shape[1:]), torch.int64: (len(begun[0]),)}
    held = [torch.empty(shape, dtype=kind, device=device) for kind, shape in shapes.items()]
    copied = torch.cuda.Event() if on_gpu else None

    # Threads make no call to CUDA: one would break a graph that is captured meanwhile.
    def read(places: Places, into: list[Tensor]) -> int:
        for part, source in zip(into, (images.x, images.y), strict=True):
            part.numpy()[: len(places)] = source[places]
        return len(places)

    with ThreadPoolExecutor(AHEAD) as pool:
        rooms = [
            [torch.empty(shape, dtype=kind, pin_memory=on_gpu) for kind, shape in shapes.items()]
            for _ in begun
        ]
        waiting = deque((pool.submit(read, *each), each[1]) for each in zip(begun, rooms, strict=True))
        while waiting:
            reading, room = waiting.popleft()
            count = reading.result()
            for there, here in zip(held, room, strict=True):
                there[:count].copy_(here[:count], non_blocking=True)
            if copied is not None:
                copied.record()
            yield held[0][:count], held[1][:count]
            # Copied, and not before, a room is read into again.
            if copied is not None:
                copied.synchronize()
            for places in islice(order, 1):
                waiting.append((pool.submit(read, places, room), room))


def _cut(places: Places, size: int) -> Iterator[Places]:
    return (places[first : first + size] for first in range(0, len(places), size))


class _Streamed(Solo):
    """A step whose cases are one batch, which is another one at every step."""

    def __init__(
        self,
        model: nn.Module,
        feed: Iterator[tuple[Tensor, Tensor]],
        course: Course,
        loss: Loss,
        compiled: bool,
        first: int,
    ) -> None:
        super().__init__(model, *next(feed), course, loss, compiled)
        self.feed, self.first = feed, first
        self.order = torch.arange(course.batch, device=self.order.device).view(1, -1)

    def shuffle(self, number: int) -> None:
        """The next batch in its place; the first is there."""
        if number != self.first:
            next(self.feed)
        self.spot.zero_()
