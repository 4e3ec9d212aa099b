"""Images and texts spoilt on purpose: seeded, in five severities, and further off the higher it is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelhead.errors import BadInput, unknown
from kernelhead.shapes import check_size

SEVERITIES = (1, 2, 3, 4, 5)
GREY = 0.5

Pixels = NDArray[np.floating[Any]]


class Corruption(NamedTuple):
    """How images are spoilt, and how strongly at each severity."""

    spoil: Callable[[Pixels, float, np.random.Generator], Pixels]
    strengths: tuple[float, float, float, float, float]


def corrupt(x: Pixels, name: str, *, severity: int, seed: int = 0) -> Pixels:
    """Images spoilt in one of the ways of `CORRUPTIONS`.

    - ``gaussian_noise``, ``shot_noise`` (Poisson) and ``impulse_noise`` (pixels of all channels black or
      white) draw anew for every pixel; at a higher severity impulses strike more of the same pixels.
    - ``blur`` is Gaussian, of a width that counts from the shorter side; ``pixelate`` averages blocks.
    - ``contrast`` draws pixels towards the mean of their image; ``brightness`` lifts them.
    - ``occlusion`` puts a grey square somewhere; a higher severity covers the square of a lower one.

    Shapes: x (n, c, h, w) in [0, 1]; returns the same shape and dtype, in [0, 1].

    Args:
        x: the images, real-valued.
        name: the way.
        severity: 1 to 5.
        seed: names the draw.

    Raises:
        UnknownName: no corruption has that name.
        BadInput: the images are of another kind or range, or the severity is none.

    Example:
        >>> x = np.linspace(0, 1, 64).reshape(1, 1, 8, 8)
        >>> far = [float(abs(corrupt(x, "contrast", severity=s) - x).mean()) for s in (1, 5)]
        >>> far[0] < far[1]
        True
    """
    who = "corrupt"
    if name not in CORRUPTIONS:
        raise unknown(who, "corruption", name, CORRUPTIONS)
    if check_size(who, "severity", severity) not in SEVERITIES:
        raise BadInput(f"{who}: severity is {severity}, expected 1 to {SEVERITIES[-1]}")
    if x.ndim != 4 or 0 in x.shape or not np.issubdtype(x.dtype, np.floating):
        raise BadInput(
            f"{who}: `x` is {x.dtype} of shape {x.shape}, expected real numbers (n, c, h, w), none of them 0"
        )
    if not 0 <= x.min() <= x.max() <= 1:
        raise BadInput(f"{who}: pixels run from {x.min():g} to {x.max():g}, expected 0 to 1")
    way = CORRUPTIONS[name]
    draws = _draws(who, seed, [*CORRUPTIONS].index(name))
    return np.clip(way.spoil(x, way.strengths[severity - 1], draws), 0, 1).astype(x.dtype)


def swap_words(
    tokens: NDArray[np.int64], share: float, *, vocabulary: int, generic: int | None = None, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A text with a share of its tokens replaced, and which they are.

    Every token is struck with probability `share`; a struck one may by chance be drawn again.

    Shapes: tokens (n,); returns (n,) and (n,), True where a token was struck.

    Args:
        tokens: the text.
        share: from 0 to 1.
        vocabulary: how many tokens there are; random ones are drawn from all of them alike.
        generic: one token that replaces all struck ones; random ones if None.
        seed: names the draw; a higher share strikes the tokens of a lower one and more.

    Raises:
        BadInput: the share or a token is out of range, or the text has more than one axis.

    Example:
        >>> text, struck = swap_words(np.arange(8), 0.5, vocabulary=8, generic=0, seed=2)
        >>> text.tolist(), int(struck.sum())
        ([0, 1, 2, 3, 0, 5, 0, 7], 2)
    """
    who = "swap_words"
    check_size(who, "vocabulary", vocabulary)
    if not 0 <= share <= 1:
        raise BadInput(f"{who}: share is {share!r}, expected a number from 0 to 1")
    if tokens.ndim != 1:
        raise BadInput(f"{who}: `tokens` has shape {tokens.shape}, expected (n,)")
    if generic is not None and not 0 <= generic < vocabulary:
        raise BadInput(f"{who}: generic is {generic}, expected a token from 0 to {vocabulary - 1}")
    draws = _draws(who, seed, 0)
    struck = draws.random(len(tokens)) < share
    drawn = draws.integers(vocabulary, size=len(tokens)) if generic is None else np.array(generic)
    return np.where(struck, drawn, tokens).astype(np.int64), struck


def _gaussian_noise(x: Pixels, strength: float, draws: np.random.Generator) -> Pixels:
    return x + strength * draws.standard_normal(x.shape)


def _shot_noise(x: Pixels, strength: float, draws: np.random.Generator) -> Pixels:
    return draws.poisson(x / strength) * strength


def _impulse_noise(x: Pixels, strength: float, draws: np.random.Generator) -> Pixels:
    place, white = draws.random((2, len(x), 1, *x.shape[2:]))
    return np.where(place < strength, white < 0.5, x)


def _blur(x: Pixels, strength: float, _: np.random.Generator) -> Pixels:
    width = strength * min(x.shape[2:])
    high, wide = (_bell(side, width) for side in x.shape[2:])
    return high @ x @ wide.T


def _contrast(x: Pixels, strength: float, _: np.random.Generator) -> Pixels:
    return x + strength * (x.mean((1, 2, 3), keepdims=True) - x)


def _brightness(x: Pixels, strength: float, _: np.random.Generator) -> Pixels:
    return x + strength


def _pixelate(x: Pixels, strength: float, _: np.random.Generator) -> Pixels:
    high, wide = (_blocks(side, strength) for side in x.shape[2:])
    return high @ x @ wide.T


def _occlusion(x: Pixels, strength: float, draws: np.random.Generator) -> Pixels:
    inside = np.ones((len(x), 1, 1, 1), dtype=bool)
    for axis in (2, 3):
        side = x.shape[axis]
        covered = round(strength * side)
        start = np.floor(draws.random(len(x)) * (side - covered + 1))[:, None]
        place = np.arange(side) - start  # (n, side)
        inside = inside & np.expand_dims((place >= 0) & (place < covered), (1, 5 - axis))
    return np.where(inside, GREY, x)


def _bell(side: int, width: float) -> Pixels:
    """Weights (side, side) of a Gaussian around every pixel, rows that sum to one."""
    place = np.arange(side)
    weights = np.exp(-0.5 * ((place[:, None] - place) / width) ** 2)
    return weights / weights.sum(1, keepdims=True)


def _blocks(side: int, strength: float) -> Pixels:
    """Weights (side, side) of the mean over a pixel's block; `strength` of the pixels are left."""
    block = np.arange(side) * max(round(strength * side), 1) // side
    same = block[:, None] == block
    return same / same.sum(1, keepdims=True)


def _draws(who: str, seed: int, place: int) -> np.random.Generator:
    numbers = np.random.SeedSequence((check_size(who, "seed", seed, least=0), place))
    return np.random.Generator(np.random.Philox(numbers))


CORRUPTIONS = {
    "gaussian_noise": Corruption(_gaussian_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "shot_noise": Corruption(_shot_noise, (0.002, 0.006, 0.015, 0.04, 0.1)),
    "impulse_noise": Corruption(_impulse_noise, (0.01, 0.03, 0.06, 0.11, 0.17)),
    "blur": Corruption(_blur, (0.014, 0.02, 0.028, 0.04, 0.06)),
    "contrast": Corruption(_contrast, (0.25, 0.4, 0.6, 0.75, 0.9)),
    "brightness": Corruption(_brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "pixelate": Corruption(_pixelate, (0.75, 0.5, 0.375, 0.25, 0.16)),
    "occlusion": Corruption(_occlusion, (0.15, 0.25, 0.35, 0.45, 0.55)),
}
