"""Scenes of a few objects on a grid, and captions of where they are, true or wrong in one thing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.images import Images
from kernelhead.data.series import Indices
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
PAD, CLS, SEP, MASK = range(len(SPECIAL))
# Two and two, each the other's opposite.
RELATIONS = ("left of", "right of", "above", "below")
PLACES = ("on the left", "on the right", "at the top", "at the bottom")
TURNED = (("left", "right"), ("above", "below"), ("top", "bottom"))
ABOUT = ("relation", "place")
FAULTS = ("none", "object", "where")
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 230), "yellow": (230, 210, 50)}
SHAPES = ("square", "circle", "triangle", "cross")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CELL, GLYPH = 8, 6  # pixels of a cell and of what is drawn in it


@dataclass(frozen=True, eq=False)
class Scenes:
    """Pictures, captions, and whether a caption is true of its picture.

    Shapes: x (n, c, h, w) in uint8; words (n, m), positions in `vocabulary`, [CLS] first, [SEP] after the
    last word, then [PAD]; y (n,), 1 where the caption is true; about (n,), positions in `ABOUT`; faults (n,),
    positions in `FAULTS`.

    Args:
        name: what they are called.
        x: the pictures.
        words: the captions.
        y: whether they match.
        about: what a caption tells.
        faults: what is wrong in it.
        vocabulary: the words, the special ones first.
        side: cells in a row of the grid and in a column.

    Example:
        >>> drawn = draw_scenes(4, seed=0)
        >>> drawn.x.shape, drawn.caption(0), FAULTS[drawn.faults[0]]
        ((4, 3, 24, 24), 'green triangle left of blue cross', 'where')
    """

    name: str
    x: NDArray[np.uint8]
    words: NDArray[np.int64]
    y: NDArray[np.int64]
    about: NDArray[np.int64]
    faults: NDArray[np.int64]
    vocabulary: tuple[str, ...]
    side: int

    def __len__(self) -> int:
        """How many scenes there are."""
        return len(self.x)

    @property
    def patch(self) -> int:
        """Pixels of a cell, one way."""
        return int(self.x.shape[2]) // self.side

    def caption(self, case: int) -> str:
        """The words of a caption without the special ones."""
        return " ".join(self.vocabulary[word] for word in self.words[case] if word >= len(SPECIAL))

    def opposite(self) -> NDArray[np.int64]:
        """The captions with the opposite relation or place, (n, m); true where these alone were wrong."""
        turned = np.arange(len(self.vocabulary))
        for pair in TURNED:
            places = [self.vocabulary.index(word) for word in pair]
            turned[places] = places[::-1]
        return turned[self.words]

    def take(self, indices: Indices) -> "Scenes":
        """The scenes at these positions, in this order."""
        kept = {name: getattr(self, name)[indices] for name in ("x", "words", "y", "about", "faults")}
        return replace(self, **kept)


def draw_scenes(cases: int, *, side: int = 3, objects: int = 3, seed: int) -> Scenes:
    """Coloured shapes on a grid, such as a red square left of a blue circle, and captions of this kind.

    No two objects of a scene are the same. Half of the captions are about two that share a row or a column,
    so that one of four relations holds and its opposite does not; the others tell where one object is. Half
    of the captions are true; of the rest half name an object that is not there, and half the opposite
    relation or place, which for a relation is as good as the two objects exchanged. Words alone and pictures
    alone tell nothing: who does not hold one against the other is right in half of the cases, and who sees
    which objects are there but not where in three quarters.

    Shapes: x (cases, 3, 8 side, 8 side); words (cases, 8).

    Args:
        cases: how many.
        side: cells in a row and in a column.
        objects: in a scene.
        seed: names the draw.

    Raises:
        BadInput: a number is out of range, or the grid has no room for so many.

    Example:
        >>> drawn = draw_scenes(8, side=4, objects=5, seed=1)
        >>> drawn.x.shape, sorted(drawn.faults.tolist())
        ((8, 3, 32, 32), [0, 0, 0, 0, 1, 1, 2, 2])
    """
    names = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
    draws = _source("draw_scenes", cases, side, objects, len(names), seed)
    bank = _shapes()  # (kinds, ways, c, h, w)
    ways = draws.integers(bank.shape[1], size=(cases, side * side))
    return _drawn("shapes", draws, names, cases, side, objects, lambda kinds: bank[kinds, ways])


def compose_digits(cases: int, digits: Images, *, side: int = 3, objects: int = 3, seed: int) -> Scenes:
    """The same with handwritten digits for objects: every scene has other images of them.

    Images are made smaller by half where their sides are even and of 16 pixels or more, by means of two by
    two pixels.

    Shapes: digits.x (n, c, h, w), one class a digit; x (cases, c, side h / 2, side w / 2); words (cases, 6).

    Args:
        cases: how many scenes.
        digits: labelled images to draw from.
        side: cells in a row and in a column.
        objects: in a scene.
        seed: names the draw.

    Raises:
        BadInput: a number is out of range, the images are not square, or a digit has none.

    Example:
        >>> from kernelhead.data import read_images
        >>> drawn = compose_digits(4, read_images("digits"), seed=0)
        >>> drawn.x.shape, drawn.caption(0)
        ((4, 1, 24, 24), 'four above seven')
    """
    who, count = "compose_digits", np.bincount(digits.y, minlength=len(NUMBERS))
    if len(digits.classes) != len(NUMBERS) or not count.all():
        raise BadInput(f"{who}: images by class are {count.tolist()}, expected some of each of ten digits")
    if digits.size[0] != digits.size[1]:
        raise BadInput(f"{who}: images are of {digits.size[0]} by {digits.size[1]}, expected square ones")
    draws = _source(who, cases, side, objects, len(NUMBERS), seed)
    bank = _smaller(np.asarray(digits.x))
    order, first = np.argsort(digits.y, kind="stable"), np.cumsum(count) - count
    share = draws.random((cases, side * side))

    def looks(kinds: NDArray[np.int64]) -> NDArray[np.uint8]:
        return bank[order[first[kinds] + (share * count[kinds]).astype(np.int64)]]

    return _drawn("digits", draws, NUMBERS, cases, side, objects, looks)


Looks = Callable[[NDArray[np.int64]], NDArray[np.uint8]]


def _source(who: str, cases: int, side: int, objects: int, kinds: int, seed: int) -> np.random.Generator:
    """The generator of checked sizes; one kind at least must be left for what is not in a scene."""
    check_size(who, "cases", cases)
    check_size(who, "side", side, least=2)
    most = min(side * side, kinds - 1)
    if not 2 <= check_size(who, "objects", objects) <= most:
        raise BadInput(
            f"{who}: objects is {objects}, expected 2 to {most} of {kinds} kinds on {side} by {side} cells"
        )
    return np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))


def _drawn(
    name: str,
    draws: np.random.Generator,
    names: Sequence[str],
    cases: int,
    side: int,
    objects: int,
    looks: Looks,
) -> Scenes:
    """Scenes of objects with these names; `looks` has pixels (n, cells, c, h, w) of kinds (n, cells)."""
    every = np.arange(cases)
    turn = draws.permutation(every % 8)
    about, faults = turn // 4, np.array([0, 1, 0, 2])[turn % 4]
    kinds = draws.random((cases, len(names))).argsort(1)  # (n, kinds), the first of them in the scene
    upright = draws.integers(2, size=cases)
    line = draws.integers(side, size=cases)  # the row or the column of the pair
    ends = np.sort(draws.random((cases, side)).argsort(1)[:, :2], axis=1)  # where they are on it
    # A place is on one side of the middle.
    half = side // 2
    high = draws.integers(2, size=cases)
    ends[:, 0] = np.where(about, draws.integers(half, size=cases) + high * (side - half), ends[:, 0])
    pair = np.where(upright[:, None], ends * side + line[:, None], line[:, None] * side + ends)  # (n, 2)
    order = draws.random((cases, side * side))
    order[every[about == 0], pair[about == 0, 1]] = -1.0
    order[every, pair[:, 0]] = -2.0
    place = order.argsort(1)[:, :objects]  # the cells that are told of first
    grid = np.full((cases, side * side), -1)
    grid[every[:, None], place] = kinds[:, :objects]

    turned = draws.integers(2, size=cases) * (1 - about)  # whether the second of the pair is named first
    said = np.where(turned[:, None], kinds[:, 1::-1], kinds[:, :2])
    wrong = np.flatnonzero(faults == 1)
    said[wrong, draws.integers(2 - about[wrong])] = kinds[wrong, objects]
    where = 2 * upright + (np.where(about, high, turned) ^ (faults == 2))

    pixels = np.where((grid >= 0)[..., None, None, None], looks(grid.clip(0)), 0)  # (n, cells, c, p, p)
    _, _, channels, patch, _ = pixels.shape
    tiles = pixels.reshape(cases, side, side, channels, patch, patch).transpose(0, 3, 1, 4, 2, 5)
    x = tiles.reshape(cases, channels, side * patch, side * patch)
    words, vocabulary = _worded(names, said, about, where)
    return Scenes(name, x, words, (faults == 0).astype(np.int64), about, faults, vocabulary, side)


def _worded(
    names: Sequence[str], said: NDArray[np.int64], about: NDArray[np.int64], where: NDArray[np.int64]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Captions (n, m) of two kinds and a relation, or of the first kind and a place, and the vocabulary."""
    vocabulary = (*SPECIAL, *dict.fromkeys(" ".join((*names, *RELATIONS, *PLACES)).split()))
    place = {word: number for number, word in enumerate(vocabulary)}
    every = [f"{one} {between} {other}" for one in names for between in RELATIONS for other in names]
    every += [f"{one} {at}" for one in names for at in PLACES]
    coded = [[CLS, *(place[word] for word in caption.split()), SEP] for caption in every]
    longest = max(map(len, coded))
    table = np.array([caption + [PAD] * (longest - len(caption)) for caption in coded])
    one, other = said.T
    related = (one * len(RELATIONS) + where) * len(names) + other
    placed = len(names) * len(RELATIONS) * len(names) + one * len(PLACES) + where
    return table[np.where(about, placed, related)], vocabulary


def _shapes() -> NDArray[np.uint8]:
    """Every coloured shape at the nine places of a cell where it fits, (kinds, ways, 3, 8, 8)."""
    along = np.arange(GLYPH) - (GLYPH - 1) / 2
    down, across = np.meshgrid(along, along, indexing="ij")
    forms = {
        "square": np.ones((GLYPH, GLYPH), dtype=np.bool_),
        "circle": down**2 + across**2 <= (GLYPH / 2) ** 2,
        "triangle": np.abs(across) <= (down + GLYPH / 2) / 2,
        "cross": np.abs(np.abs(down) - np.abs(across)) < 1,
    }
    free = CELL - GLYPH + 1
    bank = np.zeros((len(COLOURS), len(SHAPES), free, free, 3, CELL, CELL), np.uint8)
    for number, colour in enumerate(COLOURS.values()):
        for shape, name in enumerate(SHAPES):
            glyph = forms[name] * np.array(colour, np.uint8)[:, None, None]
            for top in range(free):
                for left in range(free):
                    bank[number, shape, top, left, :, top : top + GLYPH, left : left + GLYPH] = glyph
    return bank.reshape(-1, free * free, 3, CELL, CELL)


def _smaller(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images of half the size, where that leaves them 8 pixels or more."""
    n, channels, side, _ = x.shape
    if side < 16 or side % 2:
        return x
    quarters = x.reshape(n, channels, side // 2, 2, side // 2, 2)
    return quarters.mean(axis=(3, 5)).round().astype(np.uint8)
