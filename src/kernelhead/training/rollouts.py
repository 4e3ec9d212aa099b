"""Policies in their environment: one episode towards a return that is asked for."""

from dataclasses import dataclass
from importlib import import_module
from math import inf, isfinite
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

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


@torch.no_grad()
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
    check_size("rollout", "seed", seed, least=0)
    if not isfinite(target) or not 0 < scale < inf:
        raise BadInput(
            f"rollout: target is {target!r}, scale {scale!r}; expected finite numbers, the scale above 0"
        )
    kind, device = model.head.weight.dtype, model.head.weight.device
    width = model.head.out_features
    observation, _ = env.reset(seed=seed)
    returns, observations, actions = [target / scale], [observation], [np.zeros(width)]
    total, fell = 0.0, False
    for step in range(model.longest):
        first = max(0, step + 1 - model.context)
        asked, seen, acted = (_batch(held[first:], kind, device) for held in (returns, observations, actions))
        times = torch.arange(first, step + 1, device=device)[None]
        action = model.act(asked, seen, acted, times)[0].float().cpu().numpy()
        observation, reward, fell, late, _ = env.step(action)
        total += float(reward)
        if fell or late:
            break
        actions[-1] = action
        returns.append(returns[-1] - float(reward) / scale)
        observations.append(observation)
        actions.append(np.zeros(width))
    return Rollout(total, step + 1, bool(fell))


def _batch(held: list[Any], kind: torch.dtype, device: torch.device) -> Tensor:
    return torch.as_tensor(np.array(held), dtype=kind, device=device)[None]
