"""rollout and play in environments of a few lines, and the words for what is missing."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, MissingExtra, UnknownName
from kernelhead.models import DecisionTransformer
from kernelhead.rng import seeded
from kernelhead.training import Rollout, make_environment, play, rollout


class Line:
    """A walk on a line: the reward is the action, the observation is the place; it ends where told to."""

    def __init__(self, *, falls: int = 99, late: int = 99) -> None:
        self.falls, self.late, self.seeds, self.acts = falls, late, [], []

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.acts = []
        return np.array([float(seed or 0), 1.0]), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.acts.append(action)
        now = len(self.acts)
        return np.array([float(now), 1.0]), np.float64(action[0]), now == self.falls, now == self.late, {}


class Drift:
    """A noisy drift that an action moves; the seed draws the noise and says how and when it ends."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self.seed, self.now, self.draws = seed or 0, 0, np.random.default_rng(seed)
        self.place = self.draws.normal(size=2)
        return self.place.copy(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.now += 1
        self.place += 0.3 * self.draws.normal(size=2) + 0.5 * float(action[0])
        ends = self.now == 2 + self.seed
        return self.place.copy(), self.place.sum(), ends and self.seed % 2 == 0, ends, {}


class Seen(DecisionTransformer):
    """Notes what it is shown."""

    def act(self, returns: Tensor, observations: Tensor, actions: Tensor, timesteps: Tensor) -> Tensor:
        self.shown = [*getattr(self, "shown", []), (returns, observations, actions, timesteps)]
        return super().act(returns, observations, actions, timesteps)


def policy(kind: type[DecisionTransformer] = DecisionTransformer, **options: Any) -> Any:
    with seeded(0):
        return kind(
            2, 1, **{"width": 8, "depth": 1, "heads": 1, "attention": "softmax", "longest": 9, **options}
        )


@pytest.mark.parametrize(
    ("ends", "steps", "fell"), [({"falls": 4}, 4, True), ({"late": 6}, 6, False), ({}, 9, False)]
)
def test_an_episode_ends_by_falling_by_time_or_by_the_longest(
    ends: dict[str, int], steps: int, fell: bool
) -> None:
    env = Line(**ends)
    done = rollout(policy(), env, target=3.0, scale=1.0)
    assert (done.steps, done.fell, len(env.acts)) == (steps, fell, steps)
    assert done.total == pytest.approx(sum(float(act[0]) for act in env.acts))


def test_the_model_is_shown_what_happened() -> None:
    model, env = policy(Seen, context=3, dropout=0.5).train(), Line(falls=5)
    rollout(model, env, target=30.0, scale=10.0, seed=4)
    acts = [float(act[0]) for act in env.acts]
    assert env.seeds == [4]
    assert model.training
    for step, (returns, observations, actions, times) in enumerate(model.shown):
        first = max(0, step - 2)
        assert times.tolist() == [list(range(first, step + 1))]
        asked = [3.0 - sum(acts[:place]) / 10 for place in range(first, step + 1)]
        assert returns[0].tolist() == pytest.approx(asked, abs=1e-6)
        seen = [4.0, 1.0, 2.0, 3.0, 4.0, 5.0][first : step + 1]
        assert observations[0, :, 0].tolist() == seen
        assert actions[0, :-1, 0].tolist() == pytest.approx(acts[first:step])
        assert float(actions[0, -1, 0]) == 0


@pytest.mark.parametrize("attention", ["primal", "softmax", "linear"])
def test_the_same_episode_comes_twice(attention: str) -> None:
    model = policy(attention=attention, dropout=0.5)
    state = torch.get_rng_state()
    assert rollout(model, Line(), target=2.0, seed=1) == rollout(model, Line(), target=2.0, seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("attention", ["softmax", "primal", "primal+", "linear"])
def test_side_by_side_is_one_at_a_time(attention: str) -> None:
    model = policy(attention=attention, depth=2, context=3, dropout=0.5).double()
    alone = [rollout(model, Drift(), target=2.0, scale=1.0, seed=seed) for seed in range(1, 10)]
    both = play(model, [Drift() for _ in alone], target=2.0, scale=1.0, seed=1)
    assert [done.steps for done in both] == [3, 4, 5, 6, 7, 8, 9, 9, 9]
    assert [done.fell for done in both] == [False, True, False, True, False, True, False, False, False]
    assert [done.steps for done in alone] == [done.steps for done in both]
    assert [done.fell for done in alone] == [done.fell for done in both]
    assert [done.total for done in both] == pytest.approx([done.total for done in alone], rel=1e-9)


def test_single_precision_is_as_near_as_its_rounding() -> None:
    model = policy(attention="primal+", depth=2)
    alone = [rollout(model, Drift(), target=2.0, seed=seed).total for seed in range(5)]
    both = play(model, [Drift() for _ in alone], target=2.0)
    assert [done.total for done in both] == pytest.approx(alone, rel=1e-4)
    assert both == play(model, [Drift() for _ in alone], target=2.0)


def test_a_batch_has_the_episodes_that_are_still_on() -> None:
    model = policy(Seen, context=4)
    play(model, [Drift(), Drift(), Drift()], target=2.0)
    assert [tuple(shown[1].shape) for shown in model.shown] == [(3, 1, 2), (3, 2, 2), (2, 3, 2), (1, 4, 2)]
    assert play(model, [], target=2.0) == []


def test_double_precision_acts_too() -> None:
    assert isinstance(rollout(policy().double(), Line(falls=2), target=1.0), Rollout)


@pytest.mark.parametrize("given", [{"target": float("nan")}, {"scale": 0.0}, {"scale": float("inf")}])
def test_numbers_out_of_range_are_named(given: dict[str, float]) -> None:
    sentence = "rollout: target is .*, scale .*; expected finite numbers, the scale above 0"
    with pytest.raises(BadInput, match=sentence):
        rollout(policy(), Line(), **{"target": 1.0, **given})
    with pytest.raises(BadInput, match="rollout: seed is -1, expected a whole number of at least 0"):
        rollout(policy(), Line(), target=1.0, seed=-1)


def test_environments_are_made_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", SimpleNamespace(make=lambda name: f"made {name}"))
    made: Any = make_environment("hopper-medium-expert")
    assert made == "made Hopper-v4"
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(
        MissingExtra, match=r'make_environment: needs gymnasium.*pip install "kernelhead\[rl\]"'
    ):
        make_environment("walker2d")
    with pytest.raises(
        UnknownName, match="make_environment: unknown environment 'hoper', did you mean 'hopper'"
    ):
        make_environment("hoper")
