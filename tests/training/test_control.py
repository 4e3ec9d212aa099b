"""The field of control: its recipe file, short jobs with and without an environment, kept policies, words."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from kernelhead.data import Trajectories, normalised_score
from kernelhead.errors import BadInput, CheckpointError, MissingExtra, UnknownName
from kernelhead.training import Rollout, control, fields, markdown, reproduce
from kernelhead.training.control import COSTS, RL_PAGE, SETS, VARIANTS, rl_jobs, rl_run
from kernelhead.training.fields import FIELDS
from kernelhead.training.grid import Job
from kernelhead.training.ledger import digest
from kernelhead.training.store import load_tensors, save_tensors

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

    def __init__(self, seeds: list[int | None]) -> None:
        self.seeds, self.left = seeds, 0

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.left = 8
        return np.ones(3), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.ones(3), float(action[0]), self.left == 0, False, {}


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Those that environments were given."""
    given: list[int | None] = []
    monkeypatch.setattr(control, "read_trajectories", drawn)
    monkeypatch.setattr(control, "make_environment", lambda name: Line(given))
    return given


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
def test_a_job_learns_the_actions(variant: str, seeds: list[int | None]) -> None:
    made = rl_run(job(variant, "clean"))
    assert made.figures["explained"] > 70
    assert 0 < made.figures["valid_loss"] < 0.2
    assert made.figures["train_episodes"] == 12
    assert "score" not in made.figures
    assert seeds == []


def test_returns_are_those_of_seeded_episodes(seeds: list[int | None]) -> None:
    made = rl_run(job("primal+", "returns", seed=2, steps=20))
    assert seeds == [6, 7, 8]
    assert "trained_elsewhere" not in made.figures
    assert made.figures["episode_steps"] == 8
    assert made.figures["fell"] == 1
    total = made.figures["return"]
    assert made.figures["score"] == pytest.approx(normalised_score("hopper", total))
    again = rl_run(job("primal+", "returns", seed=2, steps=20))
    assert {**again.figures, "steps_a_second": 0} == {**made.figures, "steps_a_second": 0}
    assert rl_run(job("primal+", "clean", seed=2, steps=20)).figures["valid_loss"] == pytest.approx(
        made.figures["valid_loss"]
    )


def test_more_episodes_than_are_played_at_once(
    seeds: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rl_run(job("softmax", "returns", seed=1, steps=4)).figures["return"]
    monkeypatch.setattr(control, "AT_ONCE", 2)
    assert rl_run(job("softmax", "returns", seed=1, steps=4)).figures["return"] == pytest.approx(whole)
    assert seeds == [3, 4, 5] * 2


def test_the_best_return_of_the_data_is_asked_for_by_default(
    seeds: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def note(model: Any, envs: list[Line], *, target: float, scale: float, seed: int) -> list[Rollout]:
        asked.append(target)
        return [Rollout(1.0, 1, False) for _ in envs]

    monkeypatch.setattr(control, "play", note)
    rl_run(job("softmax", "returns", steps=4))
    rl_run(job("softmax", "returns", steps=4, target=None))
    best = float(drawn("", split="train", root=None).returns.max())
    assert asked == [6.0, best]


def test_padding_and_its_actions_do_not_count() -> None:
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


def test_a_kept_policy_acts_as_one_trained_here(
    seeds: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = tmp_path / "kept"
    trained = rl_run(job("primal+", "returns", seed=2, steps=20), keep=keep).figures
    assert not keep.exists()
    clean = rl_run(job("primal+", "clean", seed=2, steps=20), keep=keep).figures
    (path,) = keep.iterdir()
    assert path.name == "hopper-mixed.primal-plus.2.safetensors"
    weights, facts = load_tensors(path)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert facts["digest"] == digest(facts["settings"])
    assert facts["settings"].items() >= {"data": "hopper-mixed", "variant": "primal+", "seed": 2}.items()
    assert facts["settings"]["steps"] == 20
    assert facts["figures"] == {name: value for name, value in clean.items() if name not in COSTS}

    monkeypatch.delattr(control, "fit_resident")
    taken = rl_run(job("primal+", "returns", seed=2, steps=20), keep=keep).figures
    assert taken.pop("trained_elsewhere") == 1
    assert taken == pytest.approx({name: value for name, value in trained.items() if name not in COSTS})
    assert seeds == [6, 7, 8] * 2
    other = rl_run(job("primal+", "returns", seed=2, steps=20, target=1.0, episodes=2), keep=keep)
    assert other.figures["trained_elsewhere"] == 1


@pytest.mark.parametrize("protocol", ["clean", "returns"])
def test_a_policy_of_other_settings_is_refused(
    protocol: str, seeds: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rl_run(job("softmax", "clean", steps=4), keep=tmp_path)
    (path,) = tmp_path.iterdir()
    rl_run(job("softmax", "clean", steps=4), keep=tmp_path)  # the same again is not

    monkeypatch.delattr(control, "fit_resident")
    sentence = r"softmax\.0\.safetensors holds a policy of other settings \(lr 0.01 -> 0.02, steps 4 -> 5\);"
    with pytest.raises(BadInput, match=sentence):
        rl_run(job("softmax", protocol, steps=5, lr=0.02), keep=tmp_path)
    path.rename(tmp_path / "hopper-mixed.softmax.1.safetensors")
    with pytest.raises(BadInput, match=r"other settings \(seed 0 -> 1\)"):
        rl_run(job("softmax", protocol, steps=4, seed=1), keep=tmp_path)
    save_tensors(path, {}, {"epoch": 3})
    with pytest.raises(CheckpointError, match=r"0\.safetensors is not a policy: it holds no settings"):
        rl_run(job("softmax", protocol, steps=4), keep=tmp_path)


def test_a_folder_that_cannot_be_written_is_named_before_training(
    seeds: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(control, "fit_resident")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write to the run folder .*file"):
        rl_run(job("softmax", "clean", steps=4), keep=tmp_path / "file")


def test_reproduce_hands_the_folder_on(
    seeds: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "run_jobs", lambda run, jobs, **_: [run(each) for each in jobs])
    for protocol in ("clean", "returns"):
        (found,) = reproduce("rl", [job("softmax", protocol, steps=4)], out=tmp_path, keep=tmp_path / "kept")
        assert ("trained_elsewhere" in found.figures) == (protocol == "returns")
    (found,) = reproduce("rl", [job("softmax", "returns", steps=4)], out=tmp_path)
    assert "trained_elsewhere" not in found.figures
    with pytest.raises(BadInput, match="reproduce: jobs of uea keep no weights, expected one of: rl"):
        reproduce("uea", [], out=tmp_path, keep=tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtra, match=r'keep: needs safetensors.*pip install "kernelhead\[cli\]"'):
        reproduce("rl", [], out=tmp_path, keep=tmp_path)


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
    with pytest.raises(BadInput, match=r"none.toml does not exist; by default it is"):
        rl_jobs(tmp_path / "none.toml", protocol="clean", seeds=1)
    with pytest.raises(UnknownName, match=r"unknown protocol 'return', did you mean 'returns'"):
        rl_jobs(FILE, protocol="return", seeds=1)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    for places in ({"out": taken}, {"out": tmp_path, "keep": taken}):
        with pytest.raises(BadInput, match=r"reproduce: .*taken is a file, expected a folder"):
            reproduce("rl", [], **places)
