"""draw_tangled: pictures by the arena's rules, held to the rules step by step, to Pillow and to the set."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelhead.data import draw_marked, draw_tangled, read_images, read_pathfinder
from kernelhead.data.tangles import EDGE, STAMP, _contours, _distractors, _moved, _rules
from kernelhead.errors import BadInput, UnknownName

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")


def _room(way: int) -> np.ndarray:
    return _rules().room[way].reshape(STAMP, STAMP)


def _fits(taken: np.ndarray, y: int, x: int, way: int) -> bool:
    """Whether no pixel around a dash would be taken for more than 1.8."""
    for down in range(STAMP):
        for across in range(STAMP):
            at = y + down - EDGE, x + across - EDGE
            if 0 <= min(at) <= max(at) < 32 and taken[at] + _room(way)[down, across] >= 1.8:
                return False
    return True


def _put(taken: np.ndarray, y: int, x: int, way: int) -> None:
    for down in range(STAMP):
        for across in range(STAMP):
            at = y + down - EDGE, x + across - EDGE
            if 0 <= min(at) <= max(at) < 32:
                taken[at] = max(taken[at], _room(way)[down, across])


def _framed() -> np.ndarray:
    taken = np.zeros((32, 32))
    taken[[0, -1]] = taken[:, [0, -1]] = 1
    return taken


def test_contours_grow_in_turns_where_there_is_room() -> None:
    """Every picture again, dash by dash and pixel by pixel."""
    grown, room = _contours(np.random.default_rng(0), 200, 9)
    assert len(grown) > 10
    rules = _rules()
    for picture, left in zip(grown, room, strict=True):
        taken = _framed()
        (y, x), other = picture[0, 0, :2], picture[1, 0, :2]
        assert 14 <= min(y, x) <= max(y, x) < 18
        assert abs(np.hypot(*(other - (y, x))) - 7) < 0.8
        pivots = [each[0, :2] + rules.dash[each[0, 2]] + rules.back[each[0, 2]] for each in picture]
        for dash in range(1, 9):
            for one in range(2):
                last, place, way = picture[one, dash - 1], picture[one, dash, :2], picture[one, dash, 2]
                pivots[one] = pivots[one] + rules.ahead[last[2]]
                assert tuple(place - pivots[one]) == tuple(rules.around[way - 360])
                assert rules.turn[last[2], way - 360] > 0
                assert _fits(taken, *place, way)
                _put(taken, *last)
        _put(taken, *picture[1, -1])
        assert np.allclose(taken, left.reshape(40, 40)[EDGE:-EDGE, EDGE:-EDGE])


def test_short_contours_begin_where_nothing_is_and_fit() -> None:
    draws = np.random.default_rng(1)
    _, room = _contours(draws, 2000, 9)
    before = room.copy()
    placed = _distractors(draws, room, 1, 3)
    there = placed[:, 0, 0, 2] >= 0
    assert 0.1 < there.mean() < 0.4
    assert np.array_equal(np.flatnonzero(_rules().begins) - 180, np.arange(-150, -119))
    assert np.array_equal(room[~there], before[~there])
    for short, left in zip(placed[there, 0], before[there], strict=True):
        taken = left.reshape(40, 40)[EDGE:-EDGE, EDGE:-EDGE].astype(float)
        for dash, last in zip(short[1:], [None, *short[1:-1]], strict=True):
            if last is not None:
                _put(taken, *short[0])
            assert _fits(taken, *dash)


def test_dashes_look_as_pillow_draws_them() -> None:
    from PIL import Image, ImageDraw

    for degree in range(360):
        down, across = _moved(np.deg2rad(degree - 180), 4)
        fine = Image.new("L", (17, 17))
        ImageDraw.Draw(fine).line([(8, 8), (8 + across, 8 + down)], fill=255)
        small = np.asarray(fine.resize((STAMP, STAMP), Image.Resampling.LANCZOS)) / 255
        assert np.allclose(_rules().ink[degree].reshape(STAMP, STAMP), small, atol=1e-6)


def test_marks_lead_from_dash_to_dash_to_a_disc() -> None:
    drawn = draw_marked(60, seed=2, distractors=0)
    x, y, steps = drawn.images.x[:, 0], drawn.images.y, drawn.steps
    assert (x.shape, steps.shape, drawn.images.classes) == ((60, 32, 32), (60, 32, 32), ("apart", "joined"))
    assert np.bincount(y).tolist() == [30, 30]
    assert (x.max((1, 2)) == 255).all()
    # With both discs no dash of a contour is more than six from one, and the other contour has none.
    for each, label in zip(steps, y, strict=True):
        assert set(np.unique(each)) <= ({-1, *range(7), 14} if label else {-1, *range(14)})
        assert (each == 0).any()
    assert (x[steps >= 0] > 25).all()
    assert bool((x[steps < 0] < 25).mean() > 0.95)  # all else is black, but for the rims of discs and dashes
    assert (draw_marked(60, seed=2, distractors=9).steps[y == 0] == 14).any()  # short contours have no disc


def test_a_seed_gives_the_same_pictures() -> None:
    first, same, other = (draw_tangled(4, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.x, same.x)
    assert np.array_equal(first.y, same.y)
    assert not np.array_equal(first.x, other.x)


def test_dashes_and_distractors_add_ink() -> None:
    few, more = (draw_tangled(50, seed=0, distractors=count).x.mean() for count in (0, 9))
    assert few < more
    assert draw_tangled(50, seed=0, dashes=4, distractors=0).x.mean() < few


def test_drawn_pictures_are_made_once_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "pathfinder32").mkdir()
    (tmp_path / "pathfinder32" / "hard.npz").touch()
    parts = [read_pathfinder(split, root=tmp_path, drawn=20) for split in ("train", "validation")]
    assert [len(part) for part in parts] == [18, 2]
    drawn = draw_tangled(20, seed=0)
    read = sorted(picture.tobytes() for part in parts for picture in np.asarray(part.x))
    assert read == sorted(picture.tobytes() for picture in np.asarray(drawn.x))
    made = tmp_path / "pathfinder32" / "cache" / "drawn-20.npz"
    before = made.stat().st_mtime_ns
    assert np.array_equal(read_pathfinder("train", root=tmp_path, drawn=20).y, parts[0].y)
    assert made.stat().st_mtime_ns == before
    with pytest.raises(BadInput, match="read_pathfinder: drawn is -1, expected a whole number of at least 0"):
        read_pathfinder(root=tmp_path, drawn=-1)
    with pytest.raises(UnknownName, match="unknown split 'tests'"):
        read_pathfinder("tests", root=tmp_path, drawn=20)
    with pytest.raises(BadInput, match=r"hard\.npz"):
        read_pathfinder("test", root=tmp_path, drawn=20)  # an empty file


@needs_shared
def test_the_test_part_is_that_of_the_file() -> None:
    for drawn in (0, 5):
        test = read_pathfinder("test", root=SHARED, drawn=drawn)
        assert np.array_equal(test.x, read_images("pathfinder32", split="test", root=SHARED).x)
    assert len(read_pathfinder(root=SHARED)) == 6_300


@needs_shared
def test_pictures_are_like_those_of_the_set() -> None:
    """Pixels with ink, from the emptiest to the fullest picture, and where ink lies, from the middle out."""
    theirs = read_images("pathfinder32", split="train", root=SHARED).x[:2000, 0]
    ours = draw_tangled(1000, seed=3).x[:, 0]
    counts = [np.quantile((each > 60).sum((1, 2)), [0.1, 0.25, 0.5, 0.75, 0.9]) for each in (theirs, ours)]
    assert np.abs(counts[0] - counts[1]).max() < 5
    away = np.abs(np.indices((32, 32)) - 15.5).max(0).astype(int)
    means = [np.array([each[:, away == ring].mean() for ring in range(3, 14)]) for each in (theirs, ours)]
    assert np.abs(means[0] - means[1]).max() < 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"count": 0}, "draw_tangled: count is 0"),
        ({"dashes": 1}, "draw_tangled: dashes is 1"),
        ({"distractors": -1}, "draw_tangled: distractors is -1"),
        ({"seed": -1}, "draw_tangled: seed is -1"),
        (
            {"dashes": 60},
            "draw_tangled: 0 of 4096 pictures had room for contours of 60 dashes; ask for fewer",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        draw_tangled(**{"count": 2, "seed": 0, **change})
