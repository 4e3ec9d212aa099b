"""Policies in their environment: episodes towards a return that is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf, isfinite
from typing import Any, Protocol

import numpy as np
import torch

from kernelhead.errors import BadInput, missing_extra, unknown
from kernelhead.models import DecisionTransformer
from kernelhead.shapes import check_size

# The versions that the trajectories were collected in.
ENVIRONMENTS = {"hopper": "Hopper-v4", "walker2d": "Walker2d-v4", "halfcheetah": "HalfCheetah-v4"}


class Environment(Protocol):
    """What a rollout needs of an environment; those of gymnasium have it."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; return the first observation, and anything else."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act; return observation, reward, whether it ended, whether its time is up, anything else."""


@dataclass(frozen=True)
class Rollout:
    """What became of an episode.

    Attributes:
        total: sum of the rewards.
        steps: how many there were.
        fell: whether the environment ended the episode, not its time limit or the model's longest.
    """

    total: float
    steps: int
    fell: bool


def make_environment(name: str) -> Environment:
    """The environment that a set of trajectories comes from.

    Args:
        name: hopper, walker2d or halfcheetah, alone or as a set is called, such as hopper-medium.

    Raises:
        UnknownName: no environment has that name.
        MissingExtra: gymnasium is not installed.
    """
    task = name.split("-")[0]
    if task not in ENVIRONMENTS:
        raise unknown("make_environment", "environment", task, ENVIRONMENTS)
    try:
        gymnasium = import_module("gymnasium")
    except ImportError:
        raise missing_extra("make_environment", "gymnasium", "rl") from None
    made: Environment = gymnasium.make(ENVIRONMENTS[task])
    return made


def rollout(
    model: DecisionTransformer, env: Environment, *, target: float, scale: float = 1000.0, seed: int = 0
) -> Rollout:
    """One episode of a policy, which is told at each step the return that is still to come.

    Args:
        model: the policy; it acts in evaluation mode, on its own device.
        env: where it acts.
        target: the return to ask for at the first step; rewards are taken off it as they come.
        scale: returns are divided by it, as in training.
        seed: given to the environment.

    Raises:
        BadInput: a number is out of range.

    Example:
        >>> class Line:  # a walk on a line; the reward is how far a step goes to the right
        ...     def reset(self, *, seed=None):
        ...         return np.zeros(1), {}
        ...
        ...     def step(self, action):
        ...         return np.zeros(1), float(action[0]), False, False, {}
        >>> model = DecisionTransformer(1, 1, width=8, depth=1, heads=1, attention="softmax", longest=6)
        >>> rollout(model, Line(), target=3.0, scale=1.0).steps
        6
    """
    return play(model, [env], target=target, scale=scale, seed=seed)[0]


@torch.no_grad()
def play(
    model: DecisionTransformer,
    envs: Sequence[Environment],
    *,
    target: float,
    scale: float = 1000.0,
    seed: int = 0,
) -> list[Rollout]:
    """An episode in each of several environments, side by side: every step is one batch.

    Each is what `rollout` finds alone, but for the rounding of a larger batch.

    Args:
        model: the policy, as for `rollout`.
        envs: where it acts, no two of them the same.
        target: the return to ask for at the first step.
        scale: returns are divided by it, as in training.
        seed: given to the first environment; each after it is given the next number.

    Raises:
        BadInput: a number is out of range.

    Example:
        >>> class Line:  # the episode of seed 3 has three steps
        ...     def reset(self, *, seed=None):
        ...         self.left = seed
        ...         return np.zeros(1), {}
        ...
        ...     def step(self, action):
        ...         self.left -= 1
        ...         return np.zeros(1), 1.0, self.left == 0, False, {}
        >>> model = DecisionTransformer(1, 1, width=8, depth=1, heads=1, attention="softmax")
        >>> [done.steps for done in play(model, [Line(), Line(), Line()], target=3.0, seed=2)]
        [2, 3, 4]
    """
    check_size("rollout", "seed", seed, least=0)
    if not isfinite(target) or not 0 < scale < inf:
        raise BadInput(
            f"rollout: target is {target!r}, scale {scale!r}; expected finite numbers, the scale above 0"
        )
    if not envs:
        return []
    kind, device = model.head.weight.dtype, model.head.weight.device
    begun = np.stack([env.reset(seed=seed + place)[0] for place, env in enumerate(envs)])  # (b, o)
    asked = np.zeros((len(envs), model.longest + 1))
    seen = np.zeros((*asked.shape, begun.shape[-1]))
    acted = np.zeros((*asked.shape, model.head.out_features))
    asked[:, 0], seen[:, 0] = target / scale, begun
    totals, live, done = [0.0] * len(envs), [*range(len(envs))], {}
    for step in range(model.longest):
        first = max(0, step + 1 - model.context)
        returns, observations, actions = (
            torch.as_tensor(held[live, first : step + 1], dtype=kind, device=device)
            for held in (asked, seen, acted)
        )
        times = torch.arange(first, step + 1, device=device).expand(len(live), -1)
        chosen = model.act(returns, observations, actions, times).float().cpu().numpy()  # (live, a)
        for place, action in zip([*live], chosen, strict=True):
            observation, reward, fell, late, _ = envs[place].step(action)
            totals[place] += float(reward)
            done[place] = Rollout(totals[place], step + 1, bool(fell))
            if fell or late:
                live.remove(place)
            asked[place, step + 1] = asked[place, step] - float(reward) / scale
            seen[place, step + 1], acted[place, step] = observation, action
        if not live:
            break
    return [done[place] for place in range(len(envs))]
