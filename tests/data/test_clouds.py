"""gaussian_clouds: its sizes, means and spread, the known distance of its classes, its parts, its words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import gaussian_clouds
from kernelhead.errors import BadInput, UnknownName


@given(classes=st.sampled_from([2, 3]), separation=st.integers(1, 4), seed=st.integers(0, 99))
def test_sizes_classes_and_the_mean_distance_of_means(classes: int, separation: int, seed: int) -> None:
    drawn = gaussian_clouds(classes, separation, seed=seed)
    assert drawn.x.shape == (90, 20, 2)
    assert np.bincount(drawn.y).tolist() == [90 // classes] * classes
    gaps = [np.linalg.norm(a - b) for place, a in enumerate(drawn.means) for b in drawn.means[:place]]
    assert np.mean(gaps) == pytest.approx(2 * separation)


def test_points_are_normal_about_their_means() -> None:
    drawn = gaussian_clouds(3, 2, instances=300, points=50, seed=0)
    rows, labels, _ = drawn.points()
    for label, mean in enumerate(drawn.means):
        members = rows[labels == label]
        # Four standard errors of a mean and of a variance.
        assert np.allclose(members.mean(0), mean, atol=4 * (2 / len(members)) ** 0.5)
        assert np.allclose(np.cov(members.T), 2 * np.eye(2), atol=4 * 2 * (2 / len(members)) ** 0.5)


def test_parts_are_every_second_instance() -> None:
    drawn = gaussian_clouds(2, 1, instances=9, seed=0)
    train, test = drawn.part("train"), drawn.part("test")
    assert (len(train), len(test)) == (5, 4)
    assert np.array_equal(train.x, drawn.x[::2])
    rows, labels, owners = test.points()
    assert rows.shape == (80, 2)
    assert np.array_equal(labels, np.repeat(test.y, 20))
    assert np.array_equal(np.unique(owners), np.arange(4))


def test_a_seed_names_a_draw() -> None:
    one, same, other = (gaussian_clouds(2, 1, seed=seed).x for seed in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"classes": 4}, "classes is 4, expected 2 or 3"),
        ({"separation": 0}, "separation is 0, expected a number above 0"),
        ({"instances": 1}, "instances is 1"),
        ({"points": 0}, "points is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_words(changed: dict[str, int], words: str) -> None:
    with pytest.raises(BadInput, match=f"gaussian_clouds: {words}"):
        gaussian_clouds(**({"classes": 2, "separation": 1, "seed": 0} | changed))


def test_a_part_that_is_not_there() -> None:
    with pytest.raises(UnknownName, match="Clouds: unknown part 'valid'"):
        gaussian_clouds(2, 1, seed=0).part("valid")
