"""The long-range field: its recipe file, one short job, and its words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernelhead.data import Tokens
from kernelhead.errors import BadInput, UnknownName
from kernelhead.training import lra
from kernelhead.training.grid import Job
from kernelhead.training.lra import Settings, accuracy, lra_jobs, lra_run, token_loss
from kernelhead.training.views import moved, turned

ROOT = Path(__file__).parents[2]


def drawn(split: str, root: Path | None, count: int) -> Tokens:
    """Sequences whose class is their first token, some of them shorter than the others."""
    draws = np.random.default_rng({"train": 0, "validation": 1, "test": 2}[split])
    lengths = draws.integers(4, 13, 64)
    x = draws.integers(1, 3, (64, 12)).astype(np.uint8)
    y = x[:, 0].astype(np.int64) - 1
    x[np.arange(12) >= lengths[:, None]] = 0
    return Tokens("drawn", x, y, lengths, 3, ("a", "b"))


def test_the_file_of_the_house_has_all_published_settings() -> None:
    jobs = lra_jobs(ROOT / "recipes" / "lra.toml", protocol="clean", seeds=2)
    assert len(jobs) == (4 * 8 + 1) * 2
    chosen = {(job.data, job.variant): job.recipe for job in jobs}
    assert chosen["ListOps", "primal"]["rank"] == 20
    assert chosen["Text", "primal+"]["eta"] == 0.1
    assert chosen["Image", "softmax"]["steps"] == 35_000
    assert chosen["Pathfinder", "primal+"]["batch"] == 256


@pytest.mark.parametrize("variant", ["primal", "softmax"])
def test_a_job(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "ListOps", drawn)
    recipe = {"attention": variant, "steps": 60, "batch": 16, "every": 30, "lr": 3e-3, "rank": 2, "eta": 0.1}
    made = lra_run(Job("lra", "ListOps", variant, "clean", 0, {**recipe, "width": 16, "inner": 16}))
    assert made.figures["valid_accuracy"] > 0.7
    assert made.figures["train_cases"] == 64
    again = lra_run(Job("lra", "ListOps", variant, "clean", 0, {**recipe, "width": 16, "inner": 16}))
    assert again.figures["test_accuracy"] == made.figures["test_accuracy"]


def test_a_rule_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "ListOps", drawn)
    made = lra_run(Job("lra", "ListOps", "first token", "clean", 0, {"attention": "first token"}))
    assert made.figures == {"test_accuracy": 1.0, "valid_accuracy": 1.0, "train_cases": 64.0}
    assert made.parameters is None


def test_a_job_with_neighbours_and_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "ListOps", drawn)
    recipe = {
        "attention": "primal",
        "steps": 40,
        "batch": 16,
        "every": 20,
        "lr": 3e-3,
        "rank": 2,
        "width": 16,
    }
    more = {"inner": 16, "landmarks": 6, "modes": 2, "window": 3, "dilations": "1,2", "drop_path": 0.1}
    made = lra_run(Job("lra", "ListOps", "kernelhead", "clean", 0, {**recipe, **more, "smoothing": 0.1}))
    assert made.figures["valid_accuracy"] > 0.7


def squares(split: str, root: Path | None, count: int) -> Tokens:
    """Pictures of 4 by 4 pixels, whose class is which tokens they have more of."""
    draws = np.random.default_rng({"train": 0, "validation": 1, "test": 2}[split])
    x = draws.integers(0, 2, (64, 16)).astype(np.uint8)
    return Tokens("squares", x, (x.sum(1) > 8).astype(np.int64), np.full(64, 16), 2, ("few", "many"))


def test_a_job_on_pictures_that_are_moved_and_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "Image", squares)
    recipe = {"attention": "softmax", "steps": 80, "batch": 16, "every": 40, "lr": 3e-3, "width": 16}
    views = {"mirror": True, "turn": True, "smoothing": 0.1}
    made = lra_run(Job("lra", "Image", "softmax", "clean", 0, {**recipe, **views}))
    assert made.figures["valid_accuracy"] > 0.8


@pytest.mark.parametrize("settings", [{"shift": 2}, {"mirror": True}, {"turn": True}])
def test_other_sequences_are_not_moved(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lra_run.__globals__["READERS"], "ListOps", drawn)
    with pytest.raises(BadInput, match=r"ListOps has shift .* none of them but for Image and Pathfinder"):
        lra_run(Job("lra", "ListOps", "softmax", "clean", 0, {"attention": "softmax", **settings}))


def test_a_file_that_moves_others_is_refused_before_a_job_runs(tmp_path: Path) -> None:
    path = tmp_path / "lra.toml"
    for table, sentence in (
        ("[Text]\nsoftmax = { mirror = true }", "Text has shift 0, mirror True"),
        ("[Image]\nsoftmax = { shift = 32 }", "shift is 32, expected less than the 32 pixels"),
    ):
        path.write_text(table)
        with pytest.raises(BadInput, match=sentence):
            lra_jobs(path, protocol="clean", seeds=1)


def test_the_loss_is_that_of_what_is_shown() -> None:
    tokens, targets = torch.arange(32).view(2, 16), torch.tensor([0, 1])
    net = torch.nn.Linear(16, 2)
    net.register_forward_pre_hook(lambda _, given: given[0].float())
    torch.manual_seed(0)
    found = token_loss(Settings(shift=1, turn=True), 16)(net, (tokens,), targets)
    torch.manual_seed(0)
    shown = turned(moved(tokens.view(2, 1, 4, 4), shift=1, mirror=False)).flatten(1)
    assert found == torch.nn.functional.cross_entropy(net(shown), targets)


def test_the_published_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Text all that is no test is learned from, and the test part is looked at; so it is the best look."""
    looks = []

    def watched(net: torch.nn.Module, inputs: tuple[torch.Tensor, ...], *rest: Any, **more: Any) -> float:
        looks.append(inputs[1])
        return accuracy(net, inputs, *rest, **more)

    monkeypatch.setitem(lra_run.__globals__["READERS"], "Text", drawn)
    monkeypatch.setitem(lra_run.__globals__, "accuracy", watched)
    recipe = {
        "attention": "primal+",
        "steps": 40,
        "batch": 16,
        "every": 10,
        "lr": 3e-3,
        "rank": 2,
        "width": 16,
    }
    made = lra_run(Job("lra", "Text", "primal+", "paper", 0, recipe))
    assert made.figures["train_cases"] == 128
    assert made.figures["test_accuracy"] == made.figures["valid_accuracy"]
    test = drawn("test", None, 0)
    assert all(torch.equal(mask, torch.from_numpy(test.x != 0)) for mask in looks)


def test_the_published_protocol_has_published_variants_alone() -> None:
    jobs = lra_jobs(ROOT / "recipes" / "lra.toml", protocol="paper", seeds=1)
    assert {job.variant for job in jobs} == {"softmax", "primal", "primal+"}
    assert len(jobs) == 12


def test_whole_sequences_have_no_mask() -> None:
    tokens = drawn("train", None, 0)
    (x, mask), y = lra._on(tokens, torch.device("cpu"))
    assert mask.shape == x.shape
    assert y.shape == (64,)
    whole = tokens.take(np.flatnonzero(tokens.lengths == 12))
    assert len(lra._on(whole, torch.device("cpu"))[0]) == 1


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("[Lists.primal]", UnknownName, r"unknown set 'Lists'"),
        ("[Text.prim]", UnknownName, r"unknown variant 'prim'"),
        ("[Text.primal]\nranks = 3", UnknownName, r"unknown entry 'ranks'"),
        ("[Text.primal]\ndilations = '1,x'", BadInput, r"dilations are '1,x', expected such as '1,4,16'"),
        ("[Text", BadInput, r"is not a readable TOML file"),
    ],
)
def test_files_that_are_refused(text: str, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=sentence):
        lra_jobs(path, protocol="clean", seeds=1)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none.toml does not exist; by default it is"):
        lra_jobs(tmp_path / "none.toml", protocol="clean", seeds=1)
    with pytest.raises(UnknownName, match=r"unknown protocol 'papers'"):
        lra_jobs(ROOT / "recipes" / "lra.toml", protocol="papers", seeds=1)
