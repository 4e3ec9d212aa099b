"""draw_pathfinder: pictures whose label a search over their pixels finds, and its words."""

from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from kernelhead.data.pathfinder import draw_pathfinder
from kernelhead.errors import BadInput

FINE = 4  # each way, points that a pixel is read at


def discs(picture: np.ndarray) -> np.ndarray:
    """Where the two discs are, 1 and 2."""
    marked, count = ndimage.label(ndimage.zoom(picture.astype(float), FINE, order=1) > 210)
    assert count == 2
    return marked


def joined(picture: np.ndarray) -> bool:
    """Whether ink that is spread by 0.8 pixels leads from disc to disc."""
    ink = ndimage.zoom(picture.astype(float), FINE, order=1) > 60
    spread, _ = ndimage.label(ndimage.distance_transform_edt(~ink) <= 0.8 * FINE)
    return len(set(spread[discs(picture) > 0].tolist())) == 1


def test_the_label_is_what_a_search_over_the_pixels_finds() -> None:
    drawn = draw_pathfinder(60, seed=1)
    assert (drawn.x.shape, drawn.classes, drawn.name) == ((60, 1, 32, 32), ("apart", "joined"), "pathfinder")
    assert np.bincount(drawn.y).tolist() == [30, 30]
    assert [joined(picture) for picture in drawn.x[:, 0]] == (drawn.y == 1).tolist()


def test_the_distance_between_discs_tells_nothing() -> None:
    drawn = draw_pathfinder(100, seed=2)
    ways = []
    for picture in drawn.x[:, 0]:
        marked = discs(picture)
        one, other = ndimage.center_of_mass(marked > 0, marked, [1, 2])
        ways.append(np.hypot(*np.subtract(one, other)) / FINE)
    found = np.array(ways)
    both = [found[drawn.y == label] for label in (0, 1)]
    error = np.sqrt(sum(side.var() / len(side) for side in both))
    assert abs(both[0].mean() - both[1].mean()) < 3 * error


def test_a_seed_gives_the_same_pictures() -> None:
    first, same, other = (draw_pathfinder(4, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.x, same.x)
    assert np.array_equal(first.y, same.y)
    assert not np.array_equal(first.x, other.x)


def test_dashes_and_distractors_add_ink() -> None:
    few, more = (draw_pathfinder(6, seed=0, distractors=count).x.mean() for count in (0, 3))
    short = draw_pathfinder(6, seed=0, dashes=4).x.mean()
    assert short < draw_pathfinder(6, seed=0).x.mean()
    assert few < more


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": 0}, "count is 0, expected a whole number of at least 1"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
        ({"dashes": 1}, "dashes is 1, expected a whole number of at least 2"),
        ({"distractors": -1}, "distractors is -1, expected a whole number of at least 0"),
    ],
)
def test_sizes_out_of_range_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"draw_pathfinder: {sentence}"):
        draw_pathfinder(**{"count": 1, "seed": 0, **given})


def test_contours_without_room_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(draw_pathfinder.__globals__, "PICTURES", 2)
    sentence = (
        r"draw_pathfinder: 2 pictures in a row had no room for contours of \[60, 60\] dashes; ask for fewer"
    )
    with pytest.raises(BadInput, match=sentence):
        draw_pathfinder(1, seed=0, dashes=60, distractors=0)
