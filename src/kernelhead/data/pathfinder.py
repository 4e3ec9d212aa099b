"""A generator of dashed contours: do two discs lie on one of them?"""

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.images import SIDE, Images
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size

CLASSES = ("apart", "joined")
# In pixels: from dash to dash, half a dash without its round ends, half its width, a disc's radius, the
# least distance between dashes that are no neighbours, and that between a dash and the edge.
STEP, HALF, STROKE, DISC, APART, MARGIN = 3.0, 0.6, 0.5, 1.5, 4.2, 2.0
TURN = 0.7, 1.2  # most that a contour turns between two dashes, in radians: at the first try and the last
TRIES = 16  # at a dash, before its contour is begun anew
CONTOURS, PICTURES = 20, 1000  # begun in a row before the picture is begun anew, or given up
CLOSE = 0.5  # pixels by which distances between discs may differ
BRIGHT = 200

# Points along a dash: both ends and the middle.
_ALONG = np.array([-HALF, 0.0, HALF])


def draw_pathfinder(count: int, *, seed: int, dashes: int = 9, distractors: int = 2) -> Images:
    """Draw pictures of two long dashed contours, short ones, and two discs at ends of the long ones.

    Label 1 where both discs end one contour, 0 where each ends another. Contours neither cross nor touch:
    the gaps within one are narrower than the way to the next, so that the label can be read from the
    picture. Discs lie equally far apart in both classes, which differ by at most one in their counts.

    Shapes: x (count, 1, 32, 32).

    Args:
        count: how many pictures.
        seed: names the draw.
        dashes: of a long contour; short ones have a quarter of them, two at least.
        distractors: short contours in a picture.

    Raises:
        BadInput: a number is out of range, or so many dashes find no place.

    Example:
        >>> drawn = draw_pathfinder(4, seed=0)
        >>> drawn.x.shape, sorted(drawn.y.tolist()), drawn.classes
        ((4, 1, 32, 32), [0, 0, 1, 1], ('apart', 'joined'))
    """
    who = "draw_pathfinder"
    check_size(who, "count", count)
    check_size(who, "dashes", dashes, least=2)
    check_size(who, "distractors", distractors, least=0)
    draws = np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))
    sizes = [dashes, dashes] + [max(dashes // 4, 2)] * distractors
    y = draws.permutation(np.arange(count) % 2)
    x = np.zeros((count, 1, SIDE, SIDE), np.uint8)
    for picture, joined in zip(x[:, 0], y, strict=True):
        contours = _placed(draws, sizes)
        if not joined:
            # Discs on two contours lie as far apart as on one, so that their distance tells nothing.
            contours = _placed(draws, sizes, gap=_gap(contours[0], contours[0][::-1]))
        ends = contours[0][[0, -1], 1] if joined else np.array([each[0, 1] for each in contours[:2]])
        picture[:] = _painted(np.concatenate(contours), ends)
    return Images("pathfinder", x, y, CLASSES)


def _placed(
    draws: np.random.Generator, sizes: list[int], gap: float | None = None
) -> list[NDArray[np.float64]]:
    """One contour a size, each (dashes, 3, 2), points of dashes by place; the first two may have to begin
    so far apart."""
    for _ in range(PICTURES):
        contours: list[NDArray[np.float64]] = []
        for size in sizes:
            others = np.concatenate([np.zeros((0, 2)), *(each.reshape(-1, 2) for each in contours)])
            grown = (_grown(draws, size, others) for _ in range(CONTOURS))
            contour = next((each for each in grown if each is not None), None)
            if contour is None:
                break
            contours.append(contour)
            if len(contours) == 2 and gap is not None:
                both = ((each, each[::-1]) for each in contours)
                turned = [pair for pair in product(*both) if abs(_gap(*pair) - gap) < CLOSE]
                if not turned:
                    break
                contours = [*turned[0]]
        else:
            return contours
    raise BadInput(
        f"draw_pathfinder: {PICTURES} pictures in a row had no room for contours of {sizes} dashes; "
        "ask for fewer"
    )


def _gap(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The way from where one contour begins to where another does."""
    return float(np.linalg.norm(one[0, 1] - other[0, 1]))


def _grown(draws: np.random.Generator, size: int, others: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """A contour dash by dash, away from the edge, from other points and from its own earlier dashes."""
    grown: list[NDArray[np.float64]] = []
    place, angle = np.zeros(2), 0.0
    while len(grown) < size:
        far = np.concatenate([others, *grown[:-1]])
        for next_place, next_angle in _offered(draws, place, angle, first=not grown):
            dash = next_place + _ALONG[:, None] * np.array([np.cos(next_angle), np.sin(next_angle)])
            inside = dash.min() >= MARGIN and dash.max() <= SIDE - MARGIN
            if inside and ((dash[:, None] - far) ** 2).sum(-1).min(initial=np.inf) >= APART**2:
                break
        else:
            return None
        grown.append(dash)
        place, angle = next_place, next_angle
    return np.stack(grown)


def _offered(
    draws: np.random.Generator, place: NDArray[np.float64], angle: float, *, first: bool
) -> Iterator[tuple[NDArray[np.float64], float]]:
    """Where the next dash may be and how it may lie; the first of a contour anywhere."""
    for most in np.linspace(*TURN, TRIES):
        if first:
            yield draws.uniform(MARGIN, SIDE - MARGIN, 2), float(draws.uniform(0, 2 * np.pi))
            continue
        turned = angle + float(draws.uniform(-most, most))
        # Half of the way along either dash: the contour bends between them.
        ways = np.array([[np.cos(each), np.sin(each)] for each in (angle, turned)])
        yield place + STEP / 2 * ways.sum(0), turned


def _painted(dashes: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Dashes (n, 3, 2) and discs (2, 2) on a black picture, their edges smooth over one pixel."""
    middles = np.arange(SIDE) + 0.5
    pixels = np.stack(np.meshgrid(middles, middles, indexing="ij"), axis=-1)[:, :, None]  # (h, w, 1, 2)
    way = (dashes[:, 2] - dashes[:, 0]) / (2 * HALF)
    offset = pixels - dashes[:, 1]  # (h, w, n, 2)
    along = (offset * way).sum(-1, keepdims=True).clip(-HALF, HALF)
    from_dash = np.linalg.norm(offset - along * way, axis=-1).min(-1)
    from_disc = np.linalg.norm(pixels - ends, axis=-1).min(-1)
    ink = BRIGHT * (STROKE + 0.5 - from_dash).clip(0, 1), 255 * (DISC + 0.5 - from_disc).clip(0, 1)
    return np.maximum(*ink).round().astype(np.uint8)
