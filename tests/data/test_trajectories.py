"""Trajectories, their windows and scores, and the words for what is wrong."""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data.trajectories import (
    DIGESTS,
    Trajectories,
    normalised_score,
    read_trajectories,
    windows,
)
from kernelhead.errors import BadInput, UnknownName

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")
# Steps, episodes, mean return and its normalised score, as collected.
COLLECTED = {
    "hopper-medium": (40085, 105, 1396, 43.5),
    "hopper-expert": (20958, 25, 3067, 94.9),
    "hopper-mixed": (40266, 165, 618, 19.6),
    "walker2d-medium": (40178, 55, 2845, 61.9),
    "walker2d-expert": (20750, 23, 4762, 103.7),
    "walker2d-mixed": (40011, 145, 698, 15.2),
    "halfcheetah-medium": (40000, 40, 5434, 46.0),
    "halfcheetah-expert": (20000, 20, 11547, 95.3),
    "halfcheetah-mixed": (40000, 40, 1804, 16.8),
}


def episodes(*lengths: int, seed: int = 0) -> Trajectories:
    draws, steps = np.random.default_rng(seed), sum(lengths)
    return Trajectories(
        "some",
        draws.standard_normal((steps, 3)),
        draws.standard_normal((steps, 2)),
        draws.standard_normal(steps),
        np.cumsum(lengths),
        np.arange(len(lengths)) % 2 == 0,
    )


lengths_of = st.lists(st.integers(1, 7), min_size=1, max_size=5)


@given(lengths=lengths_of)
def test_returns_to_go_fall_by_the_rewards(lengths: list[int]) -> None:
    whole = episodes(*lengths)
    assert whole.lengths.tolist() == lengths
    for start, end, total in zip(whole.starts, whole.ends, whole.returns, strict=True):
        to_go, rewards = whole.returns_to_go[start:end], whole.rewards[start:end].astype(float)
        assert to_go[0] == pytest.approx(total)
        assert to_go[-1] == rewards[-1]
        assert np.allclose(to_go[:-1] - to_go[1:], rewards[:-1])
        assert whole.timesteps[start:end].tolist() == list(range(end - start))


@given(lengths=lengths_of, seed=st.integers(0, 99))
def test_episodes_are_taken_whole(lengths: list[int], seed: int) -> None:
    whole = episodes(*lengths)
    order = np.random.default_rng(seed).permutation(len(lengths))
    taken = whole.take(order)
    assert np.array_equal(taken.returns, whole.returns[order])
    assert np.array_equal(taken.lengths, whole.lengths[order])
    assert np.array_equal(taken.fell, whole.fell[order])
    back = taken.take(np.argsort(order))
    assert np.array_equal(back.observations, whole.observations)
    assert np.array_equal(back.actions, whole.actions)


@given(lengths=lengths_of, k=st.integers(1, 9), count=st.integers(1, 20), seed=st.integers(0, 99))
def test_windows_are_stretches_of_one_episode(lengths: list[int], k: int, count: int, seed: int) -> None:
    whole = episodes(*lengths)
    drawn = windows(whole, k, count, seed, scale=2.0)
    assert len(drawn) == count
    assert drawn.observations.shape == (count, k, 3)
    rows = {row.tobytes(): place for place, row in enumerate(whole.observations)}
    for number, mask in enumerate(drawn.mask):
        start = rows[drawn.observations[number, 0].tobytes()]
        end = int(whole.ends[np.searchsorted(whole.ends, start, side="right")])
        span = slice(start, min(start + k, end))
        real = span.stop - start
        assert mask.tolist() == [place < real for place in range(k)]
        assert np.array_equal(drawn.observations[number, :real], whole.observations[span])
        assert np.array_equal(drawn.actions[number, :real], whole.actions[span])
        assert np.array_equal(drawn.timesteps[number, :real], whole.timesteps[span])
        assert np.allclose(drawn.returns[number, :real], whole.returns_to_go[span] / 2)
        for held in (drawn.observations, drawn.actions, drawn.timesteps, drawn.returns):
            assert not held[number, real:].any()


def test_every_step_begins_a_window_or_draws_follow_the_seed() -> None:
    whole = episodes(4, 3)
    every = windows(whole, 3)
    assert np.array_equal(every.observations[:, 0], whole.observations)
    assert every.mask.sum(1).tolist() == [3, 3, 2, 1, 3, 2, 1]
    first, same, other = (windows(whole, 3, 40, seed).observations for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    # Steps are drawn evenly, so long episodes more often: 40 draws of 7 steps.
    assert len(np.unique(first[:, 0], axis=0)) >= 6


def test_parts_come_in_the_order_of_models() -> None:
    shapes = [part.shape for part in windows(episodes(4, 3), 3, 5).parts()]
    assert shapes == [(5, 3), (5, 3, 3), (5, 3, 2), (5, 3), (5, 3)]


def test_moments_standardise() -> None:
    whole = episodes(50, 30)
    mean, spread = whole.moments()
    standard = (whole.observations - mean) / spread
    assert np.allclose(standard.mean(0), 0, atol=1e-5)
    assert np.allclose(standard.std(0), 1, atol=1e-4)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mujoco").mkdir()
    for seed, grade in enumerate(("medium", "expert")):
        made, place = episodes(*[3] * 10, seed=seed), f"mujoco/hopper-{grade}.npz"
        done = np.tile([0, 0, 1], 10).astype(np.uint8)
        done[-1] = 2
        held = {"observations": made.observations.astype(np.float16), "actions": made.actions}
        np.savez(tmp_path / place, rewards=made.rewards, done=done, **held)
        monkeypatch.setitem(DIGESTS, place, sha256((tmp_path / place).read_bytes()).hexdigest()[:16])
    return tmp_path


def test_sets_are_read_and_split_by_episode(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_trajectories("hopper-medium", root=root, validation=0)
    assert (len(whole), whole.observations.dtype, whole.fell.tolist()) == (
        10,
        np.float32,
        [True] * 9 + [False],
    )
    monkeypatch.setenv("KERNELHEAD_DATA", str(root))
    for seed in (0, 1):
        parts = [
            read_trajectories("hopper-medium", split=split, validation=0.3, seed=seed)
            for split in ("train", "validation")
        ]
        assert [len(part) for part in parts] == [7, 3]
        together = sorted(total for part in parts for total in part.returns)
        assert together == sorted(whole.returns)
    both = read_trajectories("hopper-medium-expert", validation=0)
    expert = read_trajectories("hopper-expert", validation=0)
    assert both.name == "hopper-medium-expert"
    assert both.returns.tolist() == [*whole.returns, *expert.returns]


def test_scores_run_from_0_to_100() -> None:
    assert normalised_score("hopper", -20.27) == 0
    assert normalised_score("walker2d-medium-expert", 4592.3) == pytest.approx(100)
    with pytest.raises(
        UnknownName, match="normalised_score: unknown environment 'hoper', did you mean 'hopper'"
    ):
        normalised_score("hoper-medium", 1.0)


@needs_shared
@pytest.mark.parametrize("name", COLLECTED)
def test_shared_sets_are_as_collected(name: str) -> None:
    whole = read_trajectories(name, root=SHARED, validation=0)
    mean = whole.returns.mean()
    found = len(whole.rewards), len(whole), round(mean), round(normalised_score(name, mean), 1)
    assert found == COLLECTED[name]
    assert whole.lengths.max() <= 1000
    assert np.abs(whole.actions).max() <= 1


SOME: Mapping[str, Any] = {
    "observations": np.zeros((4, 2)),
    "actions": np.zeros((4, 1)),
    "rewards": np.zeros(4),
    "ends": np.array([1, 4]),
    "fell": np.array([True, True]),
}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"observations": np.zeros((3, 2))}, r"`observations` has shape \(3, 2\), expected \(4, 1 or more\)"),
        ({"actions": np.zeros((4, 0))}, r"`actions` has shape \(4, 0\), expected \(4, 1 or more\)"),
        ({"rewards": np.zeros((4, 1))}, r"`rewards` has shape \(4, 1\), expected \(4,\)"),
        ({"rewards": np.full(4, np.nan)}, "`rewards` holds a number that is not finite"),
        ({"ends": np.array([1, 3])}, r"`ends` is \[1, 3\], expected to rise from above 0 to 4"),
        ({"ends": np.array([1, 1, 4])}, r"`ends` is \[1, 1, 4\], expected to rise"),
        ({"ends": np.array([0, 4])}, r"`ends` is \[0, 4\], expected to rise"),
        ({"ends": np.zeros(0)}, r"`ends` is \[\], expected to rise"),
        ({"fell": np.array([True])}, r"`fell` has shape \(1,\), expected \(2,\)"),
    ],
)
def test_arrays_that_do_not_fit_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"Trajectories 'some': {sentence}"):
        Trajectories("some", **{**SOME, **given})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"length": 0}, "length is 0, expected a whole number of at least 1"),
        ({"count": 0}, "count is 0, expected a whole number of at least 1"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
        ({"scale": 0.0}, "scale is 0.0, expected a finite number above 0"),
        ({"scale": float("nan")}, "scale is nan, expected a finite number above 0"),
    ],
)
def test_windows_that_cannot_be_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"windows: {sentence}"):
        windows(episodes(4), **{"length": 2, **given})


def test_sets_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownName, match="unknown set of trajectories 'hopper-medum', did you mean 'hopper-med"
    ):
        read_trajectories("hopper-medum")
    with pytest.raises(
        UnknownName, match=r"read_trajectories: unknown split 'test'\. Known: train, validation"
    ):
        read_trajectories("hopper-medium", split="test")
    with pytest.raises(
        BadInput, match=r"read_trajectories: .*hopper-medium.npz cannot be read: No such file"
    ):
        read_trajectories("hopper-medium", root=tmp_path)
