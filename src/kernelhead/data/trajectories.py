"""Trajectories of control: their type, the sets that are read by name, and windows drawn from them."""

from dataclasses import dataclass, replace
from io import BytesIO
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.series import Indices
from kernelhead.data.sources import in_part, read_checked
from kernelhead.errors import BadInput, unknown
from kernelhead.shapes import check_size

PARTS = ("train", "validation")
# First 16 hexadecimal digits of the SHA-256 of every file.
DIGESTS = {
    "mujoco/hopper-medium.npz": "5df429b6a35c5653",
    "mujoco/hopper-expert.npz": "2f2bb01d37f05cae",
    "mujoco/hopper-mixed.npz": "31ae5d6277c8f936",
    "mujoco/walker2d-medium.npz": "988da4bd5344d087",
    "mujoco/walker2d-expert.npz": "650fb5e894c6a1a3",
    "mujoco/walker2d-mixed.npz": "0a9658c986a5e1c3",
    "mujoco/halfcheetah-medium.npz": "27a8903c693b05f3",
    "mujoco/halfcheetah-expert.npz": "c103735fecd6693c",
    "mujoco/halfcheetah-mixed.npz": "e65fce88ceffc233",
}
# Returns of a random and of an expert policy, the 0 and the 100 of a normalised score.
REFERENCES = {"hopper": (-20.27, 3234.3), "walker2d": (1.63, 4592.3), "halfcheetah": (-280.18, 12135.0)}
FELL = 1  # how the files mark an episode that ended before its time limit


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Episodes of an environment, one behind the other.

    Shapes: observations (n, o), actions (n, a), rewards (n,) for n steps; ends (e,), where each of e
    episodes ends, the last at n; fell (e,).

    Args:
        name: what the set is called.
        observations: what was seen before each action.
        actions: what was done.
        rewards: what came of it.
        ends: the position behind the last step of every episode.
        fell: whether an episode ended by itself, not by its time limit.

    Raises:
        BadInput: arrays of other shapes, a number that is not finite, or ends that do not rise to n.

    Example:
        >>> ends, fell = np.array([2, 5]), np.array([True, False])
        >>> two = Trajectories("two", np.zeros((5, 3)), np.zeros((5, 1)), np.arange(5.0), ends, fell)
        >>> two.lengths.tolist(), two.returns.tolist(), two.timesteps.tolist(), two.returns_to_go.tolist()
        ([2, 3], [1.0, 9.0], [0, 1, 0, 1, 2], [1.0, 1.0, 9.0, 7.0, 4.0])
    """

    name: str
    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]
    ends: NDArray[np.int64]
    fell: NDArray[np.bool_]

    def __post_init__(self) -> None:
        who, steps = f"Trajectories {self.name!r}", len(self.rewards)
        for name, axes in (("observations", 2), ("actions", 2), ("rewards", 1)):
            held = getattr(self, name)
            if held.ndim != axes or len(held) != steps or 0 in held.shape:
                expected = (steps,) if axes == 1 else f"({steps}, 1 or more)"
                raise BadInput(f"{who}: `{name}` has shape {held.shape}, expected {expected}")
            held = held.astype(np.float32)
            if not np.isfinite(held).all():
                raise BadInput(f"{who}: `{name}` holds a number that is not finite")
            object.__setattr__(self, name, held)
        object.__setattr__(self, "ends", self.ends.astype(np.int64))
        if (
            self.ends.ndim != 1
            or (np.diff(self.ends, prepend=0) < 1).any()
            or self.ends[-1:].tolist() != [steps]
        ):
            raise BadInput(f"{who}: `ends` is {self.ends.tolist()}, expected to rise from above 0 to {steps}")
        if self.fell.shape != self.ends.shape:
            raise BadInput(f"{who}: `fell` has shape {self.fell.shape}, expected {self.ends.shape}")

    def __len__(self) -> int:
        """How many episodes there are."""
        return len(self.ends)

    @property
    def starts(self) -> NDArray[np.int64]:
        """The position of the first step of every episode, (e,)."""
        return self.ends - self.lengths

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Steps of every episode, (e,)."""
        return np.diff(self.ends, prepend=0)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Sum of the rewards of every episode, (e,)."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.starts)

    @property
    def timesteps(self) -> NDArray[np.int64]:
        """The place of every step in its episode, from 0, (n,)."""
        return np.arange(len(self.rewards)) - np.repeat(self.starts, self.lengths)

    @property
    def returns_to_go(self) -> NDArray[np.float64]:
        """Sum of the rewards of every step and of those behind it in its episode, (n,)."""
        parts = np.split(self.rewards.astype(np.float64), self.ends[:-1])
        return np.concatenate([part[::-1].cumsum()[::-1] for part in parts])

    def moments(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation of every entry of an observation, (o,) each; no deviation is 0."""
        wide = self.observations.astype(np.float64)
        return wide.mean(0).astype(np.float32), (wide.std(0) + 1e-6).astype(np.float32)

    def take(self, episodes: Indices) -> "Trajectories":
        """These episodes, in this order."""
        chosen = np.asarray(episodes, dtype=np.int64)
        steps = np.concatenate([np.arange(self.starts[e], self.ends[e]) for e in chosen])
        return replace(
            self,
            observations=self.observations[steps],
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            ends=np.cumsum(self.lengths[chosen]),
            fell=self.fell[chosen],
        )


@dataclass(frozen=True, eq=False)
class Windows:
    """Stretches of episodes, padded behind with zeros to one length.

    Shapes: returns (n, k), observations (n, k, o), actions (n, k, a), timesteps (n, k), mask (n, k),
    True where a step is real.
    """

    returns: NDArray[np.float32]
    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    timesteps: NDArray[np.int64]
    mask: NDArray[np.bool_]

    def __len__(self) -> int:
        """How many windows there are."""
        return len(self.mask)

    def parts(self) -> tuple[NDArray[Any], ...]:
        """Returns, observations, actions, time steps and mask, in the order in which models take them."""
        return self.returns, self.observations, self.actions, self.timesteps, self.mask


def read_trajectories(
    name: str,
    *,
    split: str = "train",
    root: str | Path | None = None,
    validation: float = 0.1,
    seed: int = 0,
) -> Trajectories:
    """Read the trajectories of an environment and a grade of policy.

    Names are ``hopper-medium``, ``walker2d-expert``, ``halfcheetah-mixed`` and so on; ``NAME-medium-expert``
    is both sets, one behind the other. There is no test part: policies are tested in the environment.

    Args:
        split: train or validation; whole episodes are held out.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.
        validation: share of the episodes that is held out; 0 keeps all for training.
        seed: names the draw of the validation part.

    Raises:
        BadInput: a file is missing or is another one, or a number is out of range.
        UnknownName: no set has that name, or there is no such split.
    """
    who = "read_trajectories"
    pairs = {f"{task}-medium-expert": (f"{task}-medium", f"{task}-expert") for task in REFERENCES}
    known = {place[7:-4]: (place[7:-4],) for place in DIGESTS} | pairs
    if name not in known:
        raise unknown(who, "set of trajectories", name, known)
    if split not in PARTS:
        raise unknown(who, "split", split, PARTS)
    arrays = [_arrays(who, f"mujoco/{grade}.npz", root) for grade in known[name]]
    joined = {key: np.concatenate([held[key] for held in arrays]) for key in arrays[0]}
    done = joined.pop("done")
    last = np.flatnonzero(done)
    whole = Trajectories(name, ends=last + 1, fell=done[last] == FELL, **joined)
    labels = np.zeros(len(whole), np.int64)
    return whole.take(np.flatnonzero(in_part(who, labels, split, validation=validation, seed=seed)))


def windows(
    trajectories: Trajectories, length: int, count: int | None = None, seed: int = 0, *, scale: float = 1.0
) -> Windows:
    """Stretches of `length` steps, each from a step drawn evenly from all; shorter where an episode ends.

    Args:
        trajectories: the episodes.
        length: steps of a window, k.
        count: how many windows, drawn with repetition; None for one from every step, in order.
        seed: names the draw.
        scale: returns to go are divided by it.

    Raises:
        BadInput: a number is out of range.

    Example:
        >>> one = Trajectories(
        ...     "one", np.zeros((3, 2)), np.zeros((3, 1)), np.ones(3), np.array([3]), np.array([True])
        ... )
        >>> windows(one, 2).returns.tolist(), windows(one, 2).mask[-1].tolist()
        ([[3.0, 2.0], [2.0, 1.0], [1.0, 0.0]], [True, False])
    """
    check_size("windows", "length", length)
    if not 0 < scale < inf:
        raise BadInput(f"windows: scale is {scale!r}, expected a finite number above 0")
    steps = len(trajectories.rewards)
    draws = np.random.Generator(np.random.Philox(check_size("windows", "seed", seed, least=0)))
    starts = (
        np.arange(steps)
        if count is None
        else draws.integers(steps, size=check_size("windows", "count", count))
    )
    places = starts[:, None] + np.arange(length)  # (n, k)
    mask = places < np.repeat(trajectories.ends, trajectories.lengths)[starts][:, None]
    places = np.where(mask, places, 0)
    return Windows(
        (trajectories.returns_to_go / scale).astype(np.float32)[places] * mask,
        trajectories.observations[places] * mask[..., None],
        trajectories.actions[places] * mask[..., None],
        trajectories.timesteps[places] * mask,
        mask,
    )


def normalised_score(name: str, total: float) -> float:
    """A return as a share of the way from a random policy, 0, to an expert, 100.

    Args:
        name: an environment, or a set of its trajectories.
        total: sum of the rewards of an episode.

    Raises:
        UnknownName: the environment has no references.

    Example:
        >>> round(normalised_score("hopper-medium", 1396), 1)
        43.5
    """
    task = name.split("-")[0]
    if task not in REFERENCES:
        raise unknown("normalised_score", "environment", task, REFERENCES)
    low, high = REFERENCES[task]
    return 100 * (total - low) / (high - low)


def _arrays(who: str, place: str, root: str | Path | None) -> dict[str, NDArray[np.float32]]:
    with np.load(BytesIO(read_checked(who, place, DIGESTS[place], root)), allow_pickle=False) as file:
        return {key: file[key] for key in ("observations", "actions", "rewards", "done")}
