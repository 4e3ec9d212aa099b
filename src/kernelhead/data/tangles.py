"""Dashed contours by the rules of the arena's Pathfinder: do two discs lie on one of them?"""

from functools import cache, partial
from itertools import product
from math import ceil, cos, pi, sin
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.images import SIDE, Images, read_images
from kernelhead.data.pathfinder import CLASSES
from kernelhead.data.sources import check_part, in_part, made_once, root_of
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

Numbers = NDArray[np.float32]
Whole = NDArray[np.int64]
Drawn = TypeVar("Drawn", Numbers, Whole)
# The arena's settings, in pixels: a dash, the room around it, how far apart contours begin, a disc's radius;
# how bright dashes of long and of short contours are where a disc is 1; and how much finer they are drawn.
DASH, MARGIN, APART, DISC, LONG, SHORT, FINE = 2, 1, 7, 1.5, 1.5, 2.0, 2
HARD = "pathfinder32/hard.npz"
TRIES = 3  # at a dash, before its contour is given up
FULL = 1.8  # room that two dashes may take of a pixel, 1 being all that one takes
LEAST = 1e-4  # weight of all places for a dash under which there is none
AGAIN = 5  # tries at a short contour
CHUNK, EACH = 4096, 32  # most pictures begun at a time, and so many for one that is wanted; most are given up
FEWEST = 2e-3  # share of them that is finished, or there is no room for so many dashes
EDGE = DASH + 1 + MARGIN  # pixels that a stamp reaches from where its dash begins
STAMP, WIDE = 2 * EDGE + 1, SIDE + 2 * EDGE
DEGREES = 360
INK, TAKEN = 0.2, 0.3  # of a pixel that is one of a contour, or where none may begin


class Marked(NamedTuple):
    """Pictures, and of every pixel (n, 32, 32) how many dashes its contour leads on to the nearer disc.

    That is 0 at a dash with a disc, as many as a long contour has where there is none, and -1 without ink.
    """

    images: Images
    steps: NDArray[np.int8]


class _Tips(NamedTuple):
    """Where contours end, one a picture: their last dash, what it hangs on, and which of all ways it lies."""

    place: Whole
    pivot: Whole
    way: Whole

    def take(self, kept: NDArray[np.bool_]) -> "_Tips":
        return _Tips(self.place[kept], self.pivot[kept], self.way[kept])

    def dash(self) -> Whole:
        return np.concatenate([self.place, self.way[:, None]], axis=1)


class _Rules(NamedTuple):
    """What does not hang on a picture. Ways are whole degrees, and behind them one for each place around.

    Shapes: around (k, 2); ahead, dash, back (w, 2); turn (w, k); ink, room (w, 81); disc (81,);
    filled (360, 9); begins (360,).
    """

    around: Whole
    ahead: Whole
    dash: Whole
    back: Whole
    turn: Numbers
    ink: Numbers
    room: Numbers
    disc: Numbers
    filled: Whole
    begins: NDArray[np.bool_]


def draw_tangled(count: int, *, seed: int, dashes: int = 14, distractors: int = 5) -> Images:
    """Draw pictures of two long dashed contours, short ones, and two discs at ends of the long ones.

    Label 1 where both discs end one contour, 0 where each ends another. The rules are those of the released
    generator at the arena's settings for 32 by 32 pixels: contours begin seven pixels apart near the middle,
    grow in turns, prefer to go straight on, and may touch where the room around dashes overlaps a little;
    short ones are brighter, and may touch as well. A picture cannot always be read. As released, the first
    contour and the short ones begin up and to the left, and elsewhere only in pictures that are turned.

    Shapes: x (count, 1, 32, 32).

    Args:
        count: how many pictures; some hundreds a second on one core, more where contours are short.
        seed: names the draw.
        dashes: of a long contour; short ones have a third of them, two at least.
        distractors: short contours that are tried; about one in four finds a place.

    Raises:
        BadInput: a number is out of range, or so many dashes find no place.

    Example:
        >>> drawn = draw_tangled(4, seed=0)
        >>> drawn.x.shape, drawn.classes
        ((4, 1, 32, 32), ('apart', 'joined'))
    """
    return draw_marked(count, seed=seed, dashes=dashes, distractors=distractors).images


def draw_marked(count: int, *, seed: int, dashes: int = 14, distractors: int = 5) -> Marked:
    """The pictures of `draw_tangled`, and for every pixel of a contour how far it is from a disc.

    Args:
        count: see `draw_tangled`, as for all others.
        seed: there too.
        dashes: there too.
        distractors: there too.

    Raises:
        BadInput: as there.

    Example:
        >>> drawn = draw_marked(8, seed=0, distractors=0)
        >>> (drawn.steps.max((1, 2)) == np.where(drawn.images.y == 1, 14, 13)).all()
        np.True_
    """
    who = "draw_tangled"
    check_size(who, "count", count)
    check_size(who, "dashes", dashes, least=2)
    check_size(who, "distractors", distractors, least=0)
    draws = np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))
    long: list[Whole] = []
    short: list[Whole] = []
    begun = finished = 0
    while finished < count:
        size = min(CHUNK, EACH * count)
        contours, room = _contours(draws, size, dashes)
        begun, finished = begun + size, finished + len(contours)
        if begun >= CHUNK and finished < FEWEST * begun:
            raise BadInput(
                f"{who}: {finished} of {begun} pictures had room for contours of {dashes} dashes; "
                "ask for fewer"
            )
        long.append(contours)
        short.append(_distractors(draws, room, distractors, max(dashes // 3, 2)))
    y = draws.permutation(np.arange(count) % 2)
    first = draws.integers(0, 2, count)
    ends = np.stack([first, np.where(y == 1, first, 1 - first)], axis=1)  # contours that have a disc
    drawn = [np.concatenate(each)[:count] for each in (long, short)]
    parts = [_painted(*(each[at : at + CHUNK] for each in (*drawn, ends))) for at in range(0, count, CHUNK)]
    x, steps = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Marked(Images("tangled", x[:, None], y, CLASSES), steps)


def read_pathfinder(
    split: str = "train",
    *,
    root: str | Path | None = None,
    validation: float = 0.1,
    seed: int = 0,
    drawn: int = 0,
) -> Images:
    """Read the pictures of `pathfinder32`, of which the arena has more than twenty times as many to train on.

    So many can be `drawn` by its rules, which takes minutes the first time (see `made_once`); the test part
    is that of the file.

    Shapes: x (n, 1, 32, 32).

    Args:
        split: train, validation or test.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.
        validation: share of every class that is held out of what there is to train on.
        seed: names the draw of the validation part.
        drawn: how many pictures of `draw_tangled`, seed 0, are in place of the 7,000; 0 for none.

    Raises:
        BadInput: a file is missing or is another one, or a number is out of range.
        UnknownName: there is no such split.
    """
    who, name = "read_pathfinder", "pathfinder32"
    if not check_size(who, "drawn", drawn, least=0) or check_part(who, split) == "test":
        return read_images(name, split=split, root=root, validation=validation, seed=seed)
    folder = (root_of(who, HARD, root) / HARD).parent
    with np.load(made_once(folder, f"drawn-{drawn}.npz", partial(_write_drawn, drawn))) as file:
        made = Images(name, file["x"], file["y"], CLASSES)
    return made.take(np.flatnonzero(in_part(who, made.y, split, validation=validation, seed=seed)))


def _write_drawn(count: int, path: Path) -> None:
    made = draw_tangled(count, seed=0)
    with path.open("wb") as file:
        np.savez_compressed(file, x=made.x, y=made.y)


def _contours(draws: np.random.Generator, count: int, dashes: int) -> tuple[Whole, Numbers]:
    """Two contours in all pictures that have room for them, (n, 2, dashes, 3), and the room they take."""
    rules = _rules()
    # The first dash lies in the middle; where it can begin hangs on its way alone.
    middle = np.ones((SIDE, SIDE), bool)
    middle[2 * APART : SIDE - 2 * APART, 2 * APART : SIDE - 2 * APART] = False
    every = np.arange(DEGREES)
    free = _free(np.broadcast_to(_canvas(middle), (DEGREES, WIDE * WIDE)), every)
    way = np.stack([draws.choice(np.flatnonzero(rules.begins), count), draws.integers(0, DEGREES, count)])
    place, found = _chosen(draws, free[way[0]])
    angle = np.deg2rad(draws.integers(0, DEGREES, count))
    other = np.rint(place + APART * np.stack([np.sin(angle), np.cos(angle)], axis=1)).astype(np.int64)
    tips = [_begun(*each) for each in zip((place, other), way, strict=True)]
    found &= _inside(tips[0]) & _inside(tips[1])
    tips = [tip.take(found) for tip in tips]
    room = np.repeat(_canvas(_frame())[None].astype(np.float32), int(found.sum()), axis=0)
    grown = np.zeros((len(room), 2, dashes, 3), np.int64)
    for number in range(dashes):
        for one in range(2):
            if number:
                tips[one], kept = _grown(draws, rules, room, tips[one])
                room, grown, tips = room[kept], grown[kept], [tip.take(kept) for tip in tips]
            grown[:, one, number] = tips[one].dash()
    _take(room, tips[1])
    return grown, room


def _distractors(draws: np.random.Generator, room: Numbers, most: int, dashes: int) -> Whole:
    """Short contours where there is room, which they take, (n, most, dashes, 3); ways are -1 where not."""
    rules = _rules()
    placed = np.full((len(room), most, dashes, 3), -1)
    for number, _ in product(range(most), range(AGAIN)):
        way = draws.integers(0, DEGREES, len(room))
        who = np.flatnonzero(rules.begins[way] & (placed[:, number, 0, 2] < 0))
        way = way[who]
        place, found = _chosen(draws, _free((room[who] > TAKEN) | _canvas(_frame()), way))
        tip = _begun(place, way)
        found &= _inside(tip)
        who, tip = who[found], tip.take(found)
        taken, grown = room[who], np.zeros((len(who), dashes, 3), np.int64)
        for dash in range(dashes):
            if dash:
                tip, kept = _grown(draws, rules, taken, tip)
                who, taken, grown, tip = who[kept], taken[kept], grown[kept], tip.take(kept)
            grown[:, dash] = tip.dash()
        _take(taken, tip)
        room[who], placed[who, number] = taken, grown
    return placed


def _begun(place: Whole, way: Whole) -> _Tips:
    """Contours of one dash."""
    rules = _rules()
    return _Tips(place, place + rules.dash[way] + rules.back[way], way)


def _inside(tips: _Tips) -> NDArray[np.bool_]:
    """Whether a first dash ends in the picture, and what it hangs on lies there."""
    ends = np.stack([tips.place + _rules().dash[tips.way], tips.pivot])
    return np.logical_and.reduce((ends >= 0) & (ends < SIDE), axis=(0, 2))


def _grown(
    draws: np.random.Generator, rules: _Rules, room: Numbers, tips: _Tips
) -> tuple[_Tips, NDArray[np.bool_]]:
    """Contours with one more dash, and in which pictures there was room for it; their last takes room now."""
    rows, pivot = np.arange(len(room)), tips.pivot + rules.ahead[tips.way]
    places = pivot[:, None] + rules.around  # (n, k, 2)
    within = ((places >= 0) & (places < SIDE)).all(-1)
    places = places.clip(0, SIDE - 1)
    near = room[rows[:, None, None], _flat(places)[..., None] + CROSS].max(-1)
    weight = within * (1 - near) * rules.turn[tips.way]
    total = weight.sum(1)
    shares = weight.cumsum(1) / np.maximum(total, LEAST)[:, None]
    kept, chosen = np.zeros(len(room), bool), np.zeros(len(room), np.int64)
    for _ in range(TRIES):
        tried = (shares > draws.random((len(room), 1))).argmax(1)
        there = np.take_along_axis(room, _window(places[rows, tried]), 1)
        chosen = np.where(kept, chosen, tried)
        kept |= (there + rules.room[DEGREES + tried]).max(1) < FULL
    _take(room, tips)
    return _Tips(places[rows, chosen], pivot, DEGREES + chosen), kept & (total >= LEAST)


def _take(room: Numbers, tips: _Tips) -> None:
    """The room around last dashes is taken from now on."""
    at = _window(tips.place)
    there = np.take_along_axis(room, at, 1)
    np.put_along_axis(room, at, np.maximum(there, _rules().room[tips.way]), 1)


def _free(taken: NDArray[np.bool_], way: Whole) -> NDArray[np.bool_]:
    """Where a dash can begin that way, (n, pixels): none of what it would fill is taken."""
    pixels = _flat(np.stack(np.divmod(np.arange(SIDE * SIDE), SIDE), axis=1))
    free = np.ones((len(taken), SIDE * SIDE), bool)
    for offset in _rules().filled[way].T:
        free &= ~np.take_along_axis(taken, pixels + offset[:, None], 1)
    return free


def _chosen(draws: np.random.Generator, free: NDArray[np.bool_]) -> tuple[Whole, NDArray[np.bool_]]:
    """One of the free pixels of every picture, and whether there is one."""
    counts = free.cumsum(1, dtype=np.int16)
    number = (draws.random(len(free)) * counts[:, -1]).astype(np.int16)
    at = (counts > number[:, None]).argmax(1)
    return np.stack(np.divmod(at, SIDE), axis=1), counts[:, -1] > 0


def _painted(long: Whole, short: Whole, ends: Whole) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    """Pictures with discs where the first contour of `ends` begins and the second ends, and their marks."""
    rules, rows, size = _rules(), np.arange(len(long)), long.shape[2]
    white = _canvases(len(long))
    for place in (long[rows, ends[:, 0], 0, :2], long[rows, ends[:, 1], -1, :2]):
        at = _window(place)
        np.put_along_axis(white, at, np.maximum(np.take_along_axis(white, at, 1), rules.disc), 1)
    drawn = [_inked(each) for each in (long[:, 0], long[:, 1], short.reshape(len(short), -1, 3))]
    ink = np.stack([bright * each for bright, (each, _) in zip((LONG, LONG, SHORT), drawn, strict=True)])
    whole = np.maximum(ink.max(0), _cut(white))
    x = 255 * whole / whole.max((1, 2), keepdims=True)
    steps = np.full(ink.shape, size)  # dashes on to a disc, or as many as there are where none is
    for one in range(2):
        begins, ended = ((ends[:, side] == one)[:, None, None] for side in range(2))
        number = drawn[one][1]
        steps[one] = np.minimum(np.where(begins, number, size), np.where(ended, size - 1 - number, size))
    steps = np.take_along_axis(steps, ink.argmax(0)[None], 0)[0]
    return np.floor(x + 0.5).astype(np.uint8), np.where(ink.max(0) > INK, steps, -1).astype(np.int8)


def _inked(dashes: Whole) -> tuple[Numbers, Whole]:
    """How bright dashes (n, m, 3) make each pixel, (n, 32, 32), and which most; none of way -1 is there."""
    rules, ink = _rules(), _canvases(len(dashes))
    most = np.zeros(ink.shape, np.int64)
    for number in range(dashes.shape[1]):
        here = np.flatnonzero(dashes[:, number, 2] >= 0)
        at = here[:, None], _window(dashes[here, number, :2])
        made = rules.ink[dashes[here, number, 2]]
        most[at] = np.where(made > ink[at], number, most[at])
        ink[at] = np.maximum(ink[at], made)
    return _cut(ink), _cut(most)


# Pictures have an edge as wide as a stamp reaches, and their pixels lie behind each other.


def _canvases(count: int) -> Numbers:
    return np.zeros((count, WIDE * WIDE), np.float32)


def _canvas(picture: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.pad(picture, EDGE).ravel()


def _cut(canvases: Drawn) -> Drawn:
    return canvases.reshape(-1, WIDE, WIDE)[:, EDGE:-EDGE, EDGE:-EDGE]


def _frame() -> NDArray[np.bool_]:
    """The outermost pixels of a picture."""
    frame = np.ones((SIDE, SIDE), bool)
    frame[1:-1, 1:-1] = False
    return frame


def _flat(places: Whole) -> Whole:
    return (places[..., 0] + EDGE) * WIDE + places[..., 1] + EDGE


def _window(places: Whole) -> Whole:
    """The pixels of a stamp at each place, (n, 81)."""
    return _flat(places)[:, None] + STAMPED


CROSS = np.array([0, 1, -1, WIDE, -WIDE])
STAMPED = np.add.outer(np.arange(-EDGE, EDGE + 1) * WIDE, np.arange(-EDGE, EDGE + 1)).ravel()


@cache
def _rules() -> _Rules:
    reach = DASH + MARGIN
    circle = np.arange(0, 2 * pi, 1 / reach)  # a pixel apart
    around = np.unique(
        np.floor(reach * np.stack([np.sin(circle), np.cos(circle)], axis=1)).astype(np.int64), axis=0
    )
    onward = np.arctan2(around[:, 0], around[:, 1])
    degrees = np.deg2rad(np.arange(DEGREES) - DEGREES // 2)
    ways = np.concatenate([degrees, onward])
    apart = np.abs(ways[:, None] - onward)
    turn = np.cos(np.minimum(np.minimum(apart, 2 * pi - apart), pi / 2)) ** 2
    # A later dash is drawn from its far end back.
    stamps = [_stamp(way) for way in np.concatenate([degrees, onward - pi])]
    ink, room = (np.stack([each[part].ravel() for each in stamps]) for part in range(2))
    y, x = np.ogrid[: FINE * STAMP, : FINE * STAMP]
    disc = _smaller(255.0 * ((y - FINE * EDGE) ** 2 + (x - FINE * EDGE) ** 2 <= (FINE * DISC) ** 2))
    return _Rules(
        around,
        np.array([_moved(way, DASH + 2 * MARGIN) for way in ways]),
        np.array([_moved(way, DASH) for way in ways]),
        np.array([_moved(way - pi, reach) for way in ways]),
        turn.astype(np.float32),
        ink.astype(np.float32),
        room.astype(np.float32),
        disc.ravel().astype(np.float32),
        np.array([_filled(each)[0] for each in room[:DEGREES]]),
        np.array([_filled(each)[1] for each in room[:DEGREES]]),
    )


def _moved(way: float, far: int) -> tuple[int, int]:
    """Pixels down and across of a way from one pixel to another, rounded up as released."""
    return ceil(round(far * sin(way), 9)), ceil(round(far * cos(way), 9))


def _filled(room: NDArray[np.float64]) -> tuple[Whole, bool]:
    """What a first dash fills wholly, from the pixel above and left of it, and whether a contour begins so.

    As released: the search for a place fails where at some pixel, which then is one in a corner, all that a
    dash fills would lie outside.
    """
    down, across = (each - EDGE + 1 for each in np.nonzero(room.reshape(STAMP, STAMP)[:-2, :-2] >= 1))
    corners = [(y, x) for y in (-1, 1) for x in (-1, 1)]
    begins = all(((y * down >= 0) & (x * across >= 0)).any() for y, x in corners)
    return np.resize(down * WIDE + across, STAMP), bool(begins)  # some come again


def _stamp(way: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How bright a dash that way makes the pixels around its beginning, and how much room it takes there."""
    fine = np.zeros((2 * FINE * EDGE + 1,) * 2)
    to = np.array(_moved(way, FINE * DASH))
    for share in np.linspace(0, 1, np.abs(to).max() + 1):
        down, across = (np.sign(to) * np.floor(np.abs(to) * share + 0.5)).astype(int) + FINE * EDGE
        fine[down, across] = 255
    room, reach = fine, FINE * MARGIN
    for down in range(-reach, reach + 1):
        for across in range(-reach, reach + 1):
            if down**2 + across**2 <= reach**2:
                room = np.maximum(room, np.roll(fine, (down, across), (0, 1)))
    return _smaller(fine), _smaller(room)


def _smaller(fine: NDArray[np.float64]) -> NDArray[np.float64]:
    """A picture of bytes as a stamp, by Lanczos weights over three pixels each way, in shares of 255."""
    middles = (np.arange(STAMP) + 0.5) * len(fine) / STAMP
    apart = (np.arange(len(fine)) + 0.5 - middles[:, None]) * STAMP / len(fine)
    weight = np.sinc(apart) * np.sinc(apart / 3) * (np.abs(apart) < 3)
    weight /= weight.sum(1, keepdims=True)
    across = np.floor(fine @ weight.T + 0.5).clip(0, 255)
    return np.floor(weight @ across + 0.5).clip(0, 255) / 255
