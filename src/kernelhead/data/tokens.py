"""Labelled sequences of tokens in one array: reviews as bytes, images as pixels."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.images import Images
from kernelhead.data.series import Indices
from kernelhead.data.text import Reviews
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

BYTES = 256


@dataclass(frozen=True, eq=False)
class Tokens:
    """Labelled sequences of tokens, padded behind to one length.

    Shapes: x (n, t), 0 behind the end of a sequence; y (n,), positions in `classes`; lengths (n,);
    marks (n, t).

    Args:
        name: what the set is called.
        x: the tokens, in whichever small type holds them.
        y: the labels.
        lengths: how many tokens of each sequence are real.
        vocabulary: how many tokens there are, padding counted.
        classes: one name a class.
        marks: what is known of single tokens, a number from 0 on, -1 where nothing is; None where nothing is
            known of any. They are answers, for training, and no part of what a model may see.

    Raises:
        BadInput: arrays of another kind or shape, a token, a label or a mark out of range, a length that
            does not fit, or padding that is not 0.

    Example:
        >>> x, y, lengths = np.array([[3, 1, 2], [4, 0, 0]]), np.array([0, 1]), np.array([3, 1])
        >>> pair = Tokens("pair", x, y, lengths, 5, ("no", "yes"))
        >>> len(pair), pair.longest, pair.mask().tolist()
        (2, 3, [[True, True, True], [True, False, False]])
    """

    name: str
    x: NDArray[np.integer[Any]]
    y: NDArray[np.int64]
    lengths: NDArray[np.int64]
    vocabulary: int
    classes: tuple[str, ...]
    marks: NDArray[np.int8] | None = None

    def __post_init__(self) -> None:
        who, x, marks = f"Tokens {self.name!r}", self.x, self.marks
        if marks is not None and (marks.shape != x.shape or marks.dtype != np.int8 or marks.min() < -1):
            raise BadInput(
                f"{who}: `marks` are {marks.dtype} of shape {marks.shape}, expected int8 of -1 and more and "
                f"shape {x.shape}"
            )
        if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "iu":
            raise BadInput(f"{who}: `x` is {x.dtype} of shape {x.shape}, expected whole numbers (n, t), no 0")
        bounds = {"x": (x, 0, self.vocabulary - 1), "y": (self.y, 0, len(self.classes) - 1)}
        for name, (held, low, high) in (bounds | {"lengths": (self.lengths, 1, x.shape[1])}).items():
            if name != "x" and (held.shape != x.shape[:1] or held.dtype.kind not in "iu"):
                raise BadInput(
                    f"{who}: `{name}` is {held.dtype} of shape {held.shape}, "
                    f"expected whole numbers ({len(x)},)"
                )
            if held.min() < low or held.max() > high:
                raise BadInput(
                    f"{who}: `{name}` runs from {held.min()} to {held.max()}, expected {low} to {high}"
                )
        for name in ("y", "lengths"):
            object.__setattr__(self, name, getattr(self, name).astype(np.int64))
        # A length at a time: a mask of the whole set may be larger than the set.
        for row, length in enumerate(self.lengths):
            if x[row, length:].any():
                raise BadInput(f"{who}: sequence {row} has tokens behind its {length}, expected 0 there")

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self.x)

    @property
    def longest(self) -> int:
        """Places of a sequence, t."""
        return int(self.x.shape[1])

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens are real, (n, t)."""
        return np.arange(self.longest) < self.lengths[:, None]

    def take(self, indices: Indices) -> "Tokens":
        """The sequences at these positions, in this order."""
        marks = None if self.marks is None else self.marks[indices]
        return replace(self, x=self.x[indices], y=self.y[indices], lengths=self.lengths[indices], marks=marks)


def as_tokens(source: Images | Reviews, *, longest: int | None = None) -> Tokens:
    """Images as sequences of pixels, or reviews as sequences of bytes.

    - Images of one channel, row by row: a pixel is its own token, black among them, and none is padding.
    - Reviews: a byte becomes itself plus one and 0 is padding; bytes from place `longest` on are left out.

    Shapes: returns x (n, height times width) or (n, longest), in uint8 where tokens fit, int16 elsewhere.

    Args:
        source: images, or reviews.
        longest: places of a sequence; 4096 for reviews and all pixels for images if left out.

    Raises:
        BadInput: images with several channels, `longest` out of range, or a review without a byte.

    Example:
        >>> review = Reviews("one", (np.frombuffer(b"Good.", np.uint8),), np.array([1]), ("no", "yes"))
        >>> as_tokens(review, longest=8).x.tolist()
        [[72, 112, 112, 101, 47, 0, 0, 0]]
    """
    return _pixels(source, longest) if isinstance(source, Images) else _bytes(source, longest)


def _pixels(images: Images, longest: int | None) -> Tokens:
    if images.channels != 1:
        raise BadInput(f"as_tokens: images {images.name!r} have {images.channels} channels, expected 1")
    x = np.asarray(images.x).reshape(len(images), -1)
    if longest not in (None, x.shape[1]):
        raise BadInput(
            f"as_tokens: longest is {longest!r}, but images {images.name!r} have {x.shape[1]} pixels"
        )
    return Tokens(images.name, x, images.y, np.full(len(x), x.shape[1]), BYTES, images.classes)


def _bytes(reviews: Reviews, longest: int | None) -> Tokens:
    longest = check_size("as_tokens", "longest", 4096 if longest is None else longest)
    cases = [case[:longest] for case in reviews.cases]
    top = max(int(case.max(initial=0)) for case in cases)
    # UTF-8 has no byte of 255, so that one more still fits.
    x = np.zeros((len(cases), longest), np.uint8 if top < BYTES - 1 else np.int16)
    for row, case in zip(x, cases, strict=True):
        row[: len(case)] = case.astype(x.dtype) + 1
    return Tokens(reviews.name, x, reviews.y, np.array([*map(len, cases)]), BYTES + 1, reviews.classes)
