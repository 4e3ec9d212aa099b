"""draw_tangled: pictures whose label is that of their contours, alike at every call, and its words."""

from typing import Any

import numpy as np
import pytest

from kernelhead.data import draw_tangled
from kernelhead.data.tangles import _grown, _painted
from kernelhead.errors import BadInput
from tests.data.test_pathfinder import discs, joined


def test_short_contours_can_be_read_from_the_pixels() -> None:
    drawn = draw_tangled(200, seed=1, dashes=4, distractors=0)
    assert (drawn.x.shape, drawn.classes, drawn.name) == ((200, 1, 32, 32), ("apart", "joined"), "tangled")
    assert np.bincount(drawn.y).tolist() == [100, 100]
    read = np.array([_read(picture) for picture in drawn.x[:, 0]])
    # A picture whose discs touch, or whose contours cross, is read as joined.
    assert bool(read[drawn.y == 1].mean() > 0.95)
    assert bool(read[drawn.y == 0].mean() < 0.35)


def _read(picture: np.ndarray) -> bool:
    try:
        discs(picture)
    except AssertionError:
        return True
    return joined(picture)


def test_dashes_of_a_contour_follow_each_other() -> None:
    grown = _grown(np.random.default_rng(0), [6, 6, 2], 500)
    assert grown.shape == (500, 14, 3)
    steps = np.linalg.norm(np.diff(grown[..., :2], axis=1), axis=-1)
    own = [at for at in range(13) if at not in (5, 11)]  # the others lead from contour to contour
    wanted = np.array([3.0 if at == 12 else 4.0 for at in own])  # the last contour is a short one
    assert bool((steps[:, own] <= wanted + 1e-4).all())
    assert bool((steps[:, own] >= wanted * np.cos(0.7) - 1e-4).all())


def test_a_dash_lies_where_it_should() -> None:
    """One across and one down, in loops over pixels."""
    contours = np.array([[[8.5, 10.5, 0.0]], [[20.0, 5.0, np.pi / 2]]], np.float32)
    ends = np.full((2, 2, 2), -9, np.float32)
    made = _painted(contours, ends)
    for picture, (y, x, way) in zip(made, contours[:, 0], strict=True):
        for row in range(32):
            for column in range(32):
                down, across = row + 0.5 - y, column + 0.5 - x
                along = min(max(down * np.cos(way) + across * np.sin(way), -1.0), 1.0)
                away = np.hypot(down - along * np.cos(way), across - along * np.sin(way))
                wanted = 220 * min(max(0.85 - away, 0), 1)
                assert abs(float(picture[row, column]) - wanted) <= 0.51


def test_a_seed_gives_the_same_pictures() -> None:
    first, same, other = (draw_tangled(4, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.x, same.x)
    assert np.array_equal(first.y, same.y)
    assert not np.array_equal(first.x, other.x)


def test_dashes_and_distractors_add_ink() -> None:
    few, more = (draw_tangled(50, seed=0, distractors=count).x.mean() for count in (0, 3))
    assert few < more
    assert draw_tangled(50, seed=0, dashes=4).x.mean() < few


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"count": 0}, "draw_tangled: count is 0"),
        ({"dashes": 1}, "draw_tangled: dashes is 1"),
        ({"distractors": -1}, "draw_tangled: distractors is -1"),
        ({"seed": -1}, "draw_tangled: seed is -1"),
        ({"dashes": 150}, "no room for contours of"),
    ],
)
def test_what_cannot_be_drawn_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        draw_tangled(**{"count": 2, "seed": 0, **change})
