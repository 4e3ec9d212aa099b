"""A quick generator of dashed contours that may cross: do two discs lie on one of them?"""

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.images import SIDE, Images
from kernelhead.data.pathfinder import CLASSES
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

Numbers = NDArray[np.float32]
# In pixels: from dash to dash of long contours and of short ones, which look whole; half a dash without its
# round ends, half its width, a disc's radius, the distance that dashes keep where they can, and that to the
# edge. Distances of dashes are those of the arena's hard pictures, read off their autocorrelation.
STEP, SHORT, HALF, STROKE, DISC, APART, MARGIN = 4.0, 3.0, 1.0, 0.35, 1.4, 3.0, 2.0
TURN = 0.6, 1.4  # most that a contour turns between two dashes, in radians: the first choice and the last
LONG = 2  # long contours of a picture
TRIES = 12  # choices for a dash
CHUNK = 2048  # most pictures drawn at a time
INK, BRIGHT = 220, 240
FEWEST = 0.01  # share of pictures that have all dashes inside, or there is no room for so many


def draw_tangled(count: int, *, seed: int, dashes: int = 14, distractors: int = 2) -> Images:
    """Draw pictures of two long dashed contours, short ones, and two discs at ends of the long ones.

    Label 1 where both discs end one contour, 0 where each ends another. Dashes keep away from earlier ones
    where they can, and else contours cross and touch: much as in the arena's hard pictures, and unlike those
    of `draw_pathfinder` not always to be read. Discs of short contours lie closer together where they are
    joined, so that their distance tells something.

    Shapes: x (count, 1, 32, 32).

    Args:
        count: how many pictures; some 500 a second on one core, more where contours are short.
        seed: names the draw.
        dashes: of a long contour; short ones have a third of them, two at least.
        distractors: short contours in a picture.

    Raises:
        BadInput: a number is out of range, or so many dashes find no place.

    Example:
        >>> drawn = draw_tangled(4, seed=0)
        >>> drawn.x.shape, sorted(drawn.y.tolist()), drawn.classes
        ((4, 1, 32, 32), [0, 0, 1, 1], ('apart', 'joined'))
    """
    who = "draw_tangled"
    check_size(who, "count", count)
    check_size(who, "dashes", dashes, least=2)
    check_size(who, "distractors", distractors, least=0)
    draws = np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))
    sizes = [dashes] * LONG + [max(dashes // 3, 2)] * distractors
    kept: list[Numbers] = []
    while sum(map(len, kept)) < count:
        grown = _grown(draws, sizes, min(CHUNK, 2 * count + 30))
        inside = ((grown[..., :2] >= 1) & (grown[..., :2] <= SIDE - 1)).all((1, 2))
        if inside.mean() < FEWEST:
            raise BadInput(f"{who}: pictures had no room for contours of {sizes} dashes; ask for fewer")
        kept.append(grown[inside])
    contours = np.concatenate(kept)[:count]
    y = draws.permutation(np.arange(count) % 2)
    first = draws.integers(0, 2, count) * (dashes - 1)
    second = np.where(y == 1, dashes - 1 - first, dashes + draws.integers(0, 2, count) * (dashes - 1))
    ends = contours[np.arange(count)[:, None], np.stack([first, second], 1), :2]
    x = np.concatenate(
        [_painted(contours[at : at + CHUNK], ends[at : at + CHUNK]) for at in range(0, count, CHUNK)]
    )
    return Images("tangled", x[:, None], y, CLASSES)


def _grown(draws: np.random.Generator, sizes: list[int], count: int) -> Numbers:
    """Contours of so many pictures one behind the other, (count, dashes, 3): where and which way."""
    most = np.linspace(*TURN, TRIES)
    grown = np.zeros((count, 0, 3), np.float32)
    for number, size in enumerate(sizes):
        step = STEP if number < LONG else SHORT
        for dash in range(size):
            if dash == 0:
                far, way = grown, draws.uniform(0, 2 * np.pi, (count, TRIES))
                place = draws.uniform(MARGIN + 2, SIDE - MARGIN - 2, (count, TRIES, 2))
            else:
                far, last = grown[:, :-1], grown[:, -1]
                way = last[:, 2:] + draws.uniform(-1, 1, (count, TRIES)) * most
                # Half of the way along either dash: the contour bends between them.
                place = last[:, None, :2] + step / 2 * (_along(last[:, 2:]) + _along(way))
            chosen = _best(place.astype(np.float32), way.astype(np.float32), far)
            grown = np.concatenate([grown, chosen[:, None]], axis=1)
    return grown


def _along(way: NDArray[np.floating]) -> NDArray[np.floating]:
    """Steps of one pixel that way."""
    return np.stack([np.cos(way), np.sin(way)], axis=-1)


def _best(place: Numbers, way: Numbers, far: Numbers) -> Numbers:
    """Of every picture's choices the first that has room, now and later, or else the one with most of it."""
    room = np.full(place.shape[:2], APART, np.float32)
    if far.shape[1]:
        apart = ((place[:, :, None] - far[:, None, :, :2]) ** 2).sum(-1).min(-1)
        room = np.minimum(np.sqrt(apart), APART)
    outside = np.zeros_like(room)
    for steps, beyond in ((0.0, 0.0), (1.0, 1.0), (2.0, 3.0)):
        ahead = place + steps * STEP * _along(way)
        within = np.minimum(ahead.min(-1) - MARGIN, SIDE - MARGIN - ahead.max(-1)) + beyond
        outside = np.minimum(outside, within)
    free = (room >= APART) & (outside >= 0)
    score = np.where(free, 100.0 - np.arange(TRIES), room + 10 * outside)
    chosen = score.argmax(1)[:, None]
    at = np.take_along_axis(place, chosen[..., None], 1)[:, 0]
    return np.concatenate([at, np.take_along_axis(way, chosen, 1)], axis=1)


def _painted(contours: Numbers, ends: Numbers) -> NDArray[np.uint8]:
    """Dashes (b, n, 3) and discs (b, 2, 2) on black pictures; where dashes cross, ink adds up."""
    middles = np.arange(SIDE, dtype=np.float32) + 0.5
    down, across = middles[:, None], middles[None, :]
    ink = np.zeros((len(contours), SIDE, SIDE), np.float32)
    for dash in contours.transpose(1, 2, 0)[..., None, None]:  # (3, b, 1, 1)
        y, x = down - dash[0], across - dash[1]
        cos, sin = np.cos(dash[2]), np.sin(dash[2])
        along = np.clip(y * cos + x * sin, -HALF, HALF)
        ink += INK * np.clip(STROKE + 0.5 - np.hypot(y - along * cos, x - along * sin), 0, 1)
    for disc in ends.transpose(1, 2, 0)[..., None, None]:
        from_disc = np.hypot(down - disc[0], across - disc[1])
        ink = np.maximum(ink, BRIGHT * np.clip(DISC + 0.5 - from_disc, 0, 1))
    return np.minimum(ink, 255).round().astype(np.uint8)
