"""The field of control: its recipe file, short jobs with and without an environment, and its words."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from kernelhead.data import Trajectories, normalised_score
from kernelhead.errors import BadInput, MissingExtra, UnknownName
from kernelhead.training import Rollout, control, markdown
from kernelhead.training.control import RL_PAGE, SETS, VARIANTS, rl_jobs, rl_run
from kernelhead.training.fields import FIELDS
from kernelhead.training.grid import Job

FILE = Path(__file__).parents[2] / "recipes" / "rl.toml"
SHORT: dict[str, Any] = {
    "width": 16, "depth": 2, "heads": 2, "inner": 32, "rank": 4, "context": 4, "longest": 12, "dropout": 0.0,
    "steps": 150, "batch": 16, "lr": 1e-2, "eta": 0.01, "scale": 10.0, "target": 6.0, "episodes": 3,
}  # fmt: skip


def drawn(name: str, *, split: str, root: Path | None) -> Trajectories:
    """Episodes of 12 steps, some shorter, whose action is a function of what is seen."""
    draws = np.random.default_rng({"train": 0, "validation": 1}[split])
    ends = np.cumsum(draws.integers(6, 13, 12))
    seen = draws.normal(size=(ends[-1], 3)).astype(np.float32)
    acted = np.tanh(seen[:, :2])
    return Trajectories(name, seen, acted, acted[:, 0], ends, np.ones(12, bool))


class Line:
    """A walk on a line of eight steps: the reward is the first action."""

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self.left = 0

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.left = 8
        return np.ones(3), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.ones(3), float(action[0]), self.left == 0, False, {}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    env = Line()
    monkeypatch.setattr(control, "read_trajectories", drawn)
    monkeypatch.setattr(control, "make_environment", lambda name: env)
    return env


def job(variant: str, protocol: str, *, seed: int = 0, **changed: Any) -> Job:
    return Job("rl", "hopper-mixed", variant, protocol, seed, {**SHORT, "attention": variant, **changed})


def test_the_file_of_the_house_has_all_published_settings() -> None:
    jobs = rl_jobs(FILE, protocol="clean", seeds=2)
    assert [*dict.fromkeys(each.data for each in jobs)] == [*SETS]
    assert len(jobs) == 9 * 3 * 2
    chosen = {(each.data, each.variant): each.recipe for each in jobs}
    assert chosen["halfcheetah-mixed", "primal+"]["rank"] == 32
    assert chosen["hopper-expert", "primal"]["rank"] == 64
    assert chosen["walker2d-medium", "primal+"]["eta"] == 0.05
    assert chosen["halfcheetah-medium", "softmax"]["target"] == 12_000
    assert "eta" not in chosen["hopper-medium", "softmax"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_job_learns_the_actions(variant: str, line: Line) -> None:
    made = rl_run(job(variant, "clean"))
    assert made.figures["explained"] > 70
    assert 0 < made.figures["valid_loss"] < 0.2
    assert made.figures["train_episodes"] == 12
    assert "score" not in made.figures
    assert line.seeds == []


def test_returns_are_those_of_seeded_episodes(line: Line) -> None:
    made = rl_run(job("primal+", "returns", seed=2, steps=20))
    assert line.seeds == [6, 7, 8]
    assert made.figures["episode_steps"] == 8
    assert made.figures["fell"] == 1
    total = made.figures["return"]
    assert made.figures["score"] == pytest.approx(normalised_score("hopper", total))
    again = rl_run(job("primal+", "returns", seed=2, steps=20))
    assert {**again.figures, "steps_a_second": 0} == {**made.figures, "steps_a_second": 0}
    assert rl_run(job("primal+", "clean", seed=2, steps=20)).figures["valid_loss"] == pytest.approx(
        made.figures["valid_loss"]
    )


def test_the_best_return_of_the_data_is_asked_for_by_default(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def note(*_: Any, target: float, scale: float, seed: int) -> Rollout:
        asked.append(target)
        return Rollout(1.0, 1, False)

    monkeypatch.setattr(control, "rollout", note)
    rl_run(job("softmax", "returns", steps=4))
    rl_run(job("softmax", "returns", steps=4, target=None))
    best = float(drawn("", split="train", root=None).returns.max())
    assert asked == [6.0] * 3 + [best] * 3


def test_padding_and_its_actions_do_not_count(line: Line) -> None:
    """The error is that of windows cut to their real steps."""
    device = torch.device("cpu")
    settings = control.Settings(**{**SHORT, "context": 12})
    valid = drawn("hopper-mixed", split="validation", root=None)
    model = settings.model(valid).eval()
    steps, actions = control._on(valid, settings, device)
    missed = [
        (model(*(part[n : n + 1, :k] for part in steps)) - actions[n : n + 1, :k]).detach().flatten(0, 1)
        for n, k in enumerate(steps[-1].sum(1).tolist())
    ]
    by_hand = float(torch.cat(missed).square().mean())
    found = control._held_out(model, steps, actions, precision="32")
    assert found["valid_loss"] == pytest.approx(by_hand, rel=1e-4)


def test_the_page_shows_both_protocols_and_nothing_published() -> None:
    rows = [
        {**job(variant, protocol).head(), "status": "done", "figures": {figure: 40.0 + place}}
        for protocol, figure in RL_PAGE.figures.items()
        for place, variant in enumerate(VARIANTS)
    ]
    page = markdown(RL_PAGE, rows)
    assert page.count("| hopper-mixed | 40.0 (1) | 41.0 (1) | 42.0 (1) |") == 2
    assert page.count("Primal.+ against softmax Transformer of this ledger: met, 41.0 to 40.0") == 2
    assert "**not D4RL**" in page
    assert "published:" not in page
    assert FIELDS["rl"].page is RL_PAGE


@pytest.mark.parametrize("package", ["gymnasium", "mujoco"])
def test_returns_say_what_is_missing(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in control.NEEDED:
        there = ModuleType(name)
        there.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, there)
    assert len(rl_jobs(FILE, protocol="returns", seeds=1)) == 27
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingExtra, match=rf'protocol returns: needs {package}.*pip install "kernelhead\[rl\]"'
    ):
        rl_jobs(FILE, protocol="returns", seeds=1)
    assert len(rl_jobs(FILE, protocol="clean", seeds=1)) == 27


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("[hoper-medium.primal]", UnknownName, r"unknown set 'hoper-medium', did you mean 'hopper-medium'"),
        ("[hopper-medium.prim]", UnknownName, r"unknown variant 'prim'"),
        ("[hopper-medium.primal]\nranks = 3", UnknownName, r"unknown entry 'ranks'"),
        ("[hopper", BadInput, r"is not a readable TOML file"),
    ],
)
def test_files_that_are_refused(text: str, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=sentence):
        rl_jobs(path, protocol="clean", seeds=1)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none.toml does not exist; a checkout of kernelhead has it"):
        rl_jobs(tmp_path / "none.toml", protocol="clean", seeds=1)
    with pytest.raises(UnknownName, match=r"unknown protocol 'return', did you mean 'returns'"):
        rl_jobs(FILE, protocol="return", seeds=1)
