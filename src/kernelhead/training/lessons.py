"""Easy pictures first: drawn contours that grow longer from lesson to lesson, before those of a data set."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kernelhead.data import Tokens, draw_tangled
from kernelhead.data.sources import made_once, root_of
from kernelhead.errors import BadInput
from kernelhead.training.steps import Lesson

SHORTEST, REACH = 2, 4  # dashes of the easiest pictures, and how many fewer a lesson has too
DISTRACTORS = 2


def lessons_from(words: str) -> list[int]:
    """Numbers of dashes, joined by commas: of every lesson the most that its contours have.

    Raises:
        BadInput: not such numbers, or not growing.

    Example:
        >>> lessons_from("3,5,9"), lessons_from("")
        ([3, 5, 9], [])
    """
    parts = [part.strip() for part in words.split(",")] if words else []
    dashes = [int(part) if part.isdecimal() else 0 for part in parts]
    if dashes != sorted(set(dashes)) or any(each < SHORTEST for each in dashes):
        raise BadInput(f"lra: lessons are {words!r}, expected growing numbers of dashes such as '3,5,9'")
    return dashes


def with_lessons(
    train: Tokens, dashes: Sequence[int], *, steps: int, count: int, root: Path | None
) -> tuple[Tokens, list[Lesson]]:
    """Pictures of a set with drawn ones behind them, and when each is shown.

    Args:
        train: pictures of 32 by 32 pixels as tokens.
        dashes: of every lesson the most that its contours have; contours of up to four fewer come too. After
            the last lesson the set is shown, and beside it the longest that were drawn.
        steps: of a lesson.
        count: drawn pictures of every number of dashes; they are drawn once and kept beside the data.
        root: folder of data sets.
    """
    folder = root_of("lra", "pathfinder32/hard.npz", root) / "pathfinder32"
    path = made_once(
        folder, f"tangled-{dashes[-1]}-{count}.npz", partial(_write_drawn, most=dashes[-1], count=count)
    )
    with np.load(path, allow_pickle=False) as file:
        x, y = file["x"], file["y"].astype(np.int64)
    real, longest = len(train), dashes[-1]
    lessons = [
        (number * steps, _places(real, count, max(SHORTEST, most - REACH), most))
        for number, most in enumerate(dashes)
    ]
    whole = torch.cat([torch.arange(real), _places(real, count, longest, longest)])
    lessons.append((len(dashes) * steps, whole))
    x, y = np.concatenate([train.x, x]), np.concatenate([train.y, y])
    lengths = np.full(len(x), train.longest)
    return Tokens(train.name, x, y, lengths, train.vocabulary, train.classes), lessons


def _places(real: int, count: int, least: int, most: int) -> torch.Tensor:
    """Where pictures of so many dashes lie, behind the real ones."""
    return real + torch.arange((least - SHORTEST) * count, (most - SHORTEST + 1) * count)


def _write_drawn(path: Path, *, most: int, count: int) -> None:
    x: list[NDArray[np.uint8]] = []
    y: list[NDArray[np.integer]] = []
    for dashes in range(SHORTEST, most + 1):
        drawn = draw_tangled(count, seed=dashes, dashes=dashes, distractors=DISTRACTORS)
        x.append(np.asarray(drawn.x).reshape(count, -1))
        y.append(drawn.y)
    with path.open("wb") as file:
        np.savez_compressed(file, x=np.concatenate(x), y=np.concatenate(y).astype(np.uint8))
