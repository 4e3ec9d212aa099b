"""Corruptions: in range, repeatable, further off with every severity; words swapped where it is said."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernelhead.data import CORRUPTIONS, corrupt, read_images, swap_words
from kernelhead.errors import BadInput, UnknownName

each_corruption = pytest.mark.parametrize("name", CORRUPTIONS)


def images(side: int = 16, *, channels: int = 2, cases: int = 12) -> NDArray[np.float32]:
    """Smooth images with noise on them, in all of [0, 1]."""
    draws = np.random.default_rng(0)
    waves = np.sin(np.arange(side) * draws.uniform(0.1, 1, (cases, channels, 1, 1)))
    x = waves * waves.swapaxes(2, 3) + 0.3 * draws.standard_normal((cases, channels, side, side))
    return np.clip(0.5 + 0.3 * x, 0, 1).astype(np.float32)


@each_corruption
@pytest.mark.parametrize("kind", ["waves", "digits", "white", "black"])
def test_distance_grows_with_severity(name: str, kind: str) -> None:
    x = {
        "waves": images,
        "digits": lambda: read_images("digits").x[:200] / np.float32(255),
        "white": lambda: np.ones((3, 1, 9, 7), np.float32),
        "black": lambda: np.zeros((3, 1, 9, 7), np.float32),
    }[kind]()
    spoilt = [corrupt(x, name, severity=severity, seed=3) for severity in (1, 2, 3, 4, 5)]
    far = [float(np.sqrt(np.square(each - x, dtype=np.float64).mean())) for each in spoilt]
    assert all(near <= further + 1e-6 for near, further in pairwise(far)), far
    assert far[-1] > 1.5 * far[0] or kind != "waves"


@each_corruption
@given(h=st.integers(1, 9), w=st.integers(1, 9), severity=st.integers(1, 5), seed=st.integers(0, 99))
def test_images_keep_shape_dtype_and_range_and_are_not_touched(
    name: str, h: int, w: int, severity: int, seed: int
) -> None:
    x = np.random.default_rng(seed).random((2, 3, h, w)).astype(np.float32)
    before = x.copy()
    spoilt = corrupt(x, name, severity=severity, seed=seed)
    assert (spoilt.shape, spoilt.dtype) == (x.shape, x.dtype)
    assert 0 <= spoilt.min() <= spoilt.max() <= 1
    assert np.array_equal(x, before)
    assert np.array_equal(spoilt, corrupt(x, name, severity=severity, seed=seed))


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "occlusion"])
def test_another_seed_draws_anew(name: str) -> None:
    assert not np.array_equal(*(corrupt(images(), name, severity=3, seed=seed) for seed in (0, 1)))


def test_noise_has_the_width_it_says() -> None:
    x = np.full((4, 1, 64, 64), 0.5)
    assert corrupt(x, "gaussian_noise", severity=2).std() == pytest.approx(0.08, rel=0.02)
    assert (corrupt(x, "impulse_noise", severity=4) != 0.5).mean() == pytest.approx(0.11, rel=0.1)
    # Of Poisson noise the variance is the mean times the size of one count.
    assert corrupt(x, "shot_noise", severity=3).var() == pytest.approx(0.5 * 0.015, rel=0.05)


def test_a_square_is_covered() -> None:
    spoilt = corrupt(np.ones((5, 2, 20, 20)), "occlusion", severity=5)
    assert ((spoilt == 0.5).sum((2, 3)) == 11 * 11).all()
    assert (np.ptp(np.argwhere(spoilt[0, 0] == 0.5), axis=0) == 10).all()


def test_means_stay_where_nothing_is_added() -> None:
    x = images()
    for name in ("blur", "contrast", "pixelate"):
        assert corrupt(x, name, severity=4).mean() == pytest.approx(x.mean(), abs=0.01)
    flat = np.full((1, 1, 8, 8), 0.3)
    for name in ("blur", "contrast", "pixelate"):
        assert corrupt(flat, name, severity=5) == pytest.approx(flat)


@pytest.mark.parametrize(
    ("x", "how", "error", "sentence"),
    [
        (images(), {"name": "blurr"}, UnknownName, r"unknown corruption 'blurr', did you mean 'blur'"),
        (images(), {"severity": 6}, BadInput, r"corrupt: severity is 6, expected 1 to 5"),
        (images(), {"severity": 0}, BadInput, r"severity is 0, expected a whole number of at least 1"),
        (images(), {"seed": -1}, BadInput, r"seed is -1, expected a whole number of at least 0"),
        (images() * 2, {}, BadInput, r"pixels run from 0.* to 2, expected 0 to 1"),
        (np.zeros((2, 2, 2, 2), np.uint8), {}, BadInput, r"`x` is uint8 of shape \(2, 2, 2, 2\), expected"),
        (images()[0], {}, BadInput, r"`x` is float32 of shape \(2, 16, 16\), expected real numbers"),
    ],
    ids=["name", "severity", "no severity", "seed", "range", "dtype", "axes"],
)
def test_what_does_not_fit_is_named(
    x: NDArray[np.float32], how: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        corrupt(x, **{"name": "blur", "severity": 1, **how})


@given(share=st.floats(0, 1), seed=st.integers(0, 99), generic=st.one_of(st.none(), st.integers(0, 6)))
def test_words_are_swapped_where_it_is_said(share: float, seed: int, generic: int | None) -> None:
    text = np.arange(60) % 7
    swapped, struck = swap_words(text, share, vocabulary=7, generic=generic, seed=seed)
    assert np.array_equal(swapped[~struck], text[~struck])
    assert generic is None or (swapped[struck] == generic).all()
    assert 0 <= swapped.min() <= swapped.max() < 7
    more = swap_words(text, min(2 * share, 1), vocabulary=7, generic=generic, seed=seed)[1]
    assert (more | ~struck).all()


def test_the_share_of_words_is_met() -> None:
    text = np.zeros(20_000, np.int64)
    swapped, struck = swap_words(text, 0.05, vocabulary=1000)
    assert struck.mean() == pytest.approx(0.05, abs=0.01)
    assert len(np.unique(swapped)) > 500


@pytest.mark.parametrize(
    ("text", "how", "sentence"),
    [
        (np.arange(3), {"share": 1.5}, r"swap_words: share is 1.5, expected a number from 0 to 1"),
        (np.arange(3), {"generic": 9}, r"swap_words: generic is 9, expected a token from 0 to 8"),
        (np.arange(3), {"vocabulary": 0}, r"vocabulary is 0, expected a whole number of at least 1"),
        (np.zeros((2, 2), int), {}, r"`tokens` has shape \(2, 2\), expected \(n,\)"),
    ],
    ids=["share", "generic", "vocabulary", "axes"],
)
def test_a_text_that_cannot_be_swapped_is_named(
    text: NDArray[np.int64], how: dict[str, object], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        swap_words(text, **{"share": 0.1, "vocabulary": 9, **how})
