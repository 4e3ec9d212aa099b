"""Scenes: captions hold what pictures show, half of them; nothing else tells; digits, words of refusal."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Images, Scenes, compose_digits, draw_scenes, read_images
from kernelhead.data.scenes import (
    ABOUT,
    CELL,
    CLS,
    COLOURS,
    FAULTS,
    GLYPH,
    MASK,
    NUMBERS,
    PAD,
    SEP,
    SHAPES,
    SPECIAL,
    _shapes,
)
from kernelhead.errors import BadInput

SHARED = os.environ.get("KERNELHEAD_DATA")
Found = dict[str, tuple[int, int]]


def seen(scenes: Scenes, case: int) -> Found:
    """Row and column of every object, read off the pixels."""
    bank = _shapes()
    known = {
        bank[kind, way].tobytes(): f"{colour} {shape}"
        for kind, (colour, shape) in enumerate((c, s) for c in COLOURS for s in SHAPES)
        for way in range(bank.shape[1])
    }
    found: Found = {}
    for row in range(scenes.side):
        for column in range(scenes.side):
            cell = scenes.x[case, :, row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
            if cell.any():
                name = known[np.ascontiguousarray(cell).tobytes()]
                assert name not in found
                found[name] = row, column
    return found


def is_true(caption: str, found: Found, side: int) -> bool:
    """Whether a caption holds, word by word."""
    words = caption.split()
    one, rest = " ".join(words[:2]), words[2:]
    if one not in found:
        return False
    row, column = found[one]
    if rest[0] in ("on", "at"):
        value, low = (column, rest[-1] == "left") if rest[0] == "on" else (row, rest[-1] == "top")
        return value < (side - 1) / 2 if low else value > (side - 1) / 2
    other = " ".join(rest[-2:])
    if other not in found:
        return False
    below, beyond = found[other]
    return {"left": column < beyond, "right": column > beyond, "above": row < below, "below": row > below}[
        rest[0]
    ]


@given(
    side=st.integers(2, 5), objects=st.integers(2, 6), cases=st.integers(1, 40), seed=st.integers(0, 2**40)
)
def test_captions_hold_what_pictures_show(side: int, objects: int, cases: int, seed: int) -> None:
    objects = min(objects, side * side)
    scenes = draw_scenes(cases, side=side, objects=objects, seed=seed)
    assert scenes.x.shape == (cases, 3, CELL * side, CELL * side)
    assert scenes.patch == CELL
    opposite = scenes.opposite()
    for case in range(cases):
        found, caption = seen(scenes, case), scenes.caption(case)
        assert len(found) == objects
        assert is_true(caption, found, side) == bool(scenes.y[case]) == (scenes.faults[case] == 0)
        turned = " ".join(scenes.vocabulary[word] for word in opposite[case] if word >= len(SPECIAL))
        assert is_true(turned, found, side) == (FAULTS[scenes.faults[case]] == "where")
        words = caption.split()
        assert (len(words) == 5 and words[3] == "the") == (ABOUT[scenes.about[case]] == "place")


def test_captions_are_framed_and_padded() -> None:
    scenes = draw_scenes(64, seed=0)
    for row in scenes.words:
        length = int((row != PAD).sum())
        assert row[0] == CLS
        assert row[length - 1] == SEP
        assert (row[1 : length - 1] > MASK).all()
        assert (row[length:] == PAD).all()
    assert {int((row != PAD).sum()) for row in scenes.words} == {7, 8}
    assert scenes.vocabulary[: len(SPECIAL)] == SPECIAL


def test_words_alone_and_kinds_alone_tell_nothing() -> None:
    scenes = draw_scenes(16000, seed=3)
    assert scenes.y.mean() == 0.5
    for about in range(len(ABOUT)):
        counts = np.bincount(scenes.faults[scenes.about == about], minlength=len(FAULTS))
        assert counts.tolist() == [4000, 2000, 2000]
    # Of every word the share of true captions is a half, within five deviations.
    for word in range(len(SPECIAL), len(scenes.vocabulary)):
        y = scenes.y[(scenes.words == word).any(1)]
        assert abs(y.mean() - 0.5) < 2.5 / np.sqrt(len(y))


def test_a_seed_names_a_draw() -> None:
    first, again, other = (draw_scenes(20, seed=seed) for seed in (1, 1, 2))
    for name in ("x", "words", "y", "about", "faults"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.x, other.x)
    some = first.take([3, 1])
    assert len(some) == 2
    assert some.caption(0) == first.caption(3)
    assert np.array_equal(some.x, first.x[[3, 1]])


def test_shapes_differ_and_lie_within_their_cell() -> None:
    bank = _shapes()
    assert bank.shape == (len(COLOURS) * len(SHAPES), (CELL - GLYPH + 1) ** 2, 3, CELL, CELL)
    assert len({each.tobytes() for kind in bank for each in kind}) == bank.shape[0] * bank.shape[1]


def marked(side: int = 8, copies: int = 3) -> Images:
    """Digit k is painted in levels that say k and which copy it is."""
    y = np.tile(np.arange(10), copies)
    levels = (20 * y + np.repeat(np.arange(copies), 10) + 1).astype(np.uint8)
    return Images("marked", np.tile(levels[:, None, None, None], (1, 1, side, side)), y, tuple("0123456789"))


@pytest.mark.parametrize("side", [8, 16], ids="side{}".format)
def test_digits_are_those_of_the_caption(side: int) -> None:
    scenes = compose_digits(200, marked(side), side=3, objects=4, seed=0)
    assert scenes.x.shape == (200, 1, 24, 24)
    copies = set()
    for case in range(200):
        grid = scenes.x[case, 0, ::8, ::8].astype(int)
        assert (np.kron(grid, np.ones((8, 8), int)) == scenes.x[case, 0]).all()
        found = {NUMBERS[(v - 1) // 20]: np.argwhere(grid == v)[0] for v in grid[grid > 0]}
        copies |= {(v - 1) % 20 for v in grid[grid > 0]}
        assert len(found) == 4
        words = scenes.caption(case).split()
        if scenes.faults[case] == 1:
            named = [word for word in words if word in NUMBERS]
            assert sum(word in found for word in named) == len(named) - 1
            continue
        row, column = found[words[0]]
        if words[1] in ("on", "at"):
            place = {"left": column < 1, "right": column > 1, "top": row < 1, "bottom": row > 1}[words[-1]]
        else:
            below, beyond = found[words[-1]]
            place = {
                "left": column < beyond,
                "right": column > beyond,
                "above": row < below,
                "below": row > below,
            }[words[1]]
        assert place == bool(scenes.y[case])
    assert copies == {0, 1, 2}


@pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")
def test_real_digits_make_scenes() -> None:
    scenes = compose_digits(32, read_images("mnist", split="test"), seed=0)
    assert scenes.x.shape == (32, 1, 42, 42)
    assert scenes.patch == 14


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cases": 0}, "cases is 0, expected a whole number of at least 1"),
        ({"side": 1}, "side is 1, expected a whole number of at least 2"),
        ({"objects": 1}, "objects is 1, expected 2 to 9 of 16 kinds on 3 by 3 cells"),
        ({"objects": 10}, "objects is 10, expected 2 to 9"),
        ({"side": 5, "objects": 16}, "objects is 16, expected 2 to 15 of 16 kinds on 5 by 5 cells"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
    ],
    ids=str,
)
def test_wrong_sizes_are_said(options: dict[str, int], words: str) -> None:
    given = {"cases": 4, "seed": 0, **options}
    with pytest.raises(BadInput, match=f"draw_scenes: {words}"):
        draw_scenes(given.pop("cases"), **given)


def test_wrong_digits_are_said() -> None:
    some = marked()
    with pytest.raises(BadInput, match=r"images by class are \[3, 3, .*, 0\], expected some of each of ten"):
        compose_digits(4, some.take(np.flatnonzero(some.y < 9)), seed=0)
    with pytest.raises(BadInput, match="images are of 8 by 6, expected square ones"):
        compose_digits(4, Images("flat", some.x[..., :6], some.y, some.classes), seed=0)
