"""Easy cases first: drawn ones that grow harder from lesson to lesson, before those of a data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from kernelhead.data import Tokens, as_tokens, draw_listops, draw_marked, listops_marks
from kernelhead.data.listops import LONGEST
from kernelhead.data.sources import made_once, root_of
from kernelhead.errors import BadInput
from kernelhead.training.steps import Lesson

PARTS = "x", "y", "lengths", "marks"  # of `Tokens`, all that drawn cases have of their own
REACH = 4  # lessons before it whose cases a lesson shows too
DASHES = 20  # most of a contour
SHORTER = 4  # a list has more than one of so many parts of the most tokens of its grade


def _contours(count: int, dashes: int) -> Tokens:
    """Pictures whose pixels are marked with the dashes on to a disc, or with one number where none is."""
    drawn = draw_marked(count, seed=dashes, dashes=dashes)
    steps = np.where(drawn.steps == dashes, DASHES, drawn.steps).astype(np.int8)
    return replace(as_tokens(drawn.images), marks=steps.reshape(count, -1))


def _lists(count: int, longest: int) -> Tokens:
    return _read(draw_listops(count, seed=longest, shortest=longest // SHORTER, longest=longest))


def _read(lists: Tokens) -> Tokens:
    """Lists of operations, their tokens marked with what their lists are worth so far."""
    return replace(lists, marks=np.stack([listops_marks(row) for row in lists.x]))


def _unknown(pictures: Tokens) -> Tokens:
    """Nobody knows which contour a pixel of the set belongs to."""
    return replace(pictures, marks=np.full(pictures.x.shape, -1, np.int8))


@dataclass(frozen=True)
class School:
    """How a data set can be drawn at growing grades.

    Args:
        what: its grades count, for sentences.
        place: a file of the set; drawn cases are kept beside it.
        draw: so many cases of a grade.
        least: the lowest grade.
        most: the highest.
        marks: numbers that a token can be marked with.
        marked: cases of the set with what is known of their tokens.
        apart: whether a lesson is a course of its own, on sequences as short as its grade; if not, all
            lessons are parts of one course.
    """

    what: str
    place: str
    draw: Callable[[int, int], Tokens]
    least: int
    most: int
    marks: int
    marked: Callable[[Tokens], Tokens]
    apart: bool


SCHOOLS = {
    "ListOps": School("tokens", "listops/train.npz", _lists, 8, LONGEST, marks=20, marked=_read, apart=True),
    "Pathfinder": School(
        "dashes",
        "pathfinder32/hard.npz",
        _contours,
        2,
        DASHES,
        marks=DASHES + 1,
        marked=_unknown,
        apart=False,
    ),
}


def lessons_from(data: str, words: str) -> list[int]:
    """Grades of a set, joined by commas, one a lesson.

    Raises:
        BadInput: not such numbers, not growing, out of range, or the set has no lessons.

    Example:
        >>> lessons_from("Pathfinder", "3,5,9"), lessons_from("Image", "")
        ([3, 5, 9], [])
    """
    if not words:
        return []
    if data not in SCHOOLS:
        raise BadInput(f"lra: {data} has lessons {words!r}, expected them of {' and '.join(SCHOOLS)} alone")
    school, parts = SCHOOLS[data], [part.strip() for part in words.split(",")]
    grades = [int(part) if part.isdecimal() else 0 for part in parts]
    if grades != sorted(set(grades)) or not school.least <= grades[0] <= grades[-1] <= school.most:
        raise BadInput(
            f"lra: lessons of {data} are {words!r}, expected growing numbers of {school.what} from "
            f"{school.least} to {school.most}, such as '9,12'"
        )
    return grades


def drawn_cases(train: Tokens, data: str, grade: int, *, count: int, root: Path | None) -> Tokens:
    """Cases of a grade, no longer than they must be; drawn the first time and then kept beside the data.

    Args:
        train: cases of the set, of which these are a kind.
        data: its name in `SCHOOLS`.
        grade: theirs.
        count: how many.
        root: folder of data sets.
    """
    school = SCHOOLS[data]
    folder = (root_of("lra", school.place, root) / school.place).parent
    path = made_once(folder, f"marked-{grade}-{count}.npz", partial(_write, school.draw, count, grade))
    with np.load(path, allow_pickle=False) as file:
        return replace(train, **{name: file[name] for name in PARTS})


def with_lessons(
    train: Tokens, data: str, lessons: Sequence[int], *, steps: int, count: int, root: Path | None
) -> tuple[Tokens, list[Lesson]]:
    """Cases of a set with drawn ones behind them, and when each is shown.

    Args:
        train: cases of the set, all as long as drawn ones are.
        data: its name in `SCHOOLS`.
        lessons: of each the grade; those of up to four lessons before it come too. After the last lesson the
            set is shown, and beside it the last grade.
        steps: of a lesson.
        count: drawn cases of every lesson.
        root: folder of data sets.
    """
    drawn = [drawn_cases(train, data, grade, count=count, root=root) for grade in lessons]
    parts = [SCHOOLS[data].marked(train), *drawn]
    whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in PARTS}

    def places(first: int, last: int) -> torch.Tensor:
        """Where the cases of these lessons lie, behind those of the set."""
        return len(train) + torch.arange(max(first, 0) * count, (last + 1) * count)

    shown = [(number * steps, places(number - REACH, number)) for number in range(len(lessons))]
    last = len(lessons) - 1
    shown.append((len(lessons) * steps, torch.cat([torch.arange(len(train)), places(last, last)])))
    return replace(train, **whole), shown


def _write(draw: Callable[[int, int], Tokens], count: int, grade: int, path: Path) -> None:
    drawn = draw(count, grade)
    with path.open("wb") as file:
        np.savez_compressed(file, **{name: getattr(drawn, name) for name in PARTS})
