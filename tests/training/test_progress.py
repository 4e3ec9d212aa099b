"""A course that is stopped and goes on is the one that nobody stopped, to the last bit; bad files."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernelhead.data import Images
from kernelhead.errors import BadInput, CheckpointError, MissingExtra
from kernelhead.models import SequenceClassifier
from kernelhead.rng import seeded
from kernelhead.training import FIELDS, Course, Job, Outcome, fit_resident, progress, reproduce, run_jobs
from kernelhead.training.fields import check_resumes
from kernelhead.training.grid import Task
from kernelhead.training.steps import Fitted, Inputs, Lesson
from kernelhead.training.store import load_tensors, save_tensors
from kernelhead.training.streamed import fit_streamed
from tests.inputs import points

pytest.importorskip("safetensors", reason="the extra cli is not installed")

STOPS = (5, 13, 17)  # losses that are begun before a course is stopped, each time


class Stop(Exception):
    """What a machine that goes away is played by."""


class Loss:
    """Cross-entropy that stops when it is asked for the so-manieth time; counts how often it was."""

    def __init__(self, stop: int = 0) -> None:
        self.stop, self.count = stop, 0

    def __call__(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        self.count += 1
        if self.count == self.stop:
            raise Stop
        return nn.functional.cross_entropy(net(x), y)


def cases() -> tuple[Tensor, Tensor]:
    x = points(48, 6, 2, dtype=torch.float32)
    return x, (x.mean((1, 2)) > 0).long()


def model() -> nn.Module:
    with seeded(0):
        return SequenceClassifier(
            2, channels=2, width=16, heads=2, depth=1, rank=3, landmarks=4, dropout=0.3, position="sinusoidal"
        )


def watch(net: nn.Module) -> float:
    x, y = cases()
    return float((net(x).argmax(-1) == y).float().mean())


def weights(net: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in net.state_dict().values()])


def fit(course: Course, path: Path | None, loss: Loss, **options: Any) -> tuple[nn.Module, Fitted]:
    net = model()
    return net, fit_resident(net, *cases(), course, keep=path, loss=loss, **options)


@pytest.fixture(autouse=True)
def _at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.0)


LESSONS: list[Lesson] = [(0, torch.arange(20)), (9, torch.arange(10, 48))]
KINDS: dict[str, tuple[Course, dict[str, Any]]] = {
    "plain": (Course(40, 16, lr=0.01, seed=1), {}),
    "penalised": (Course(40, 16, lr=0.01, eta=0.1, seed=1), {}),
    "watched": (Course(40, 16, lr=0.01, seed=2), {"watch": watch, "every": 7}),
    "averaged": (Course(40, 16, lr=0.01, ema=0.9, seed=1), {"watch": watch, "every": 6}),
    "averaged, unwatched": (Course(40, 16, lr=0.01, ema=0.9), {}),
    "radam": (Course(40, 16, lr=0.01, optimiser="radam", accumulate=1, clip=None), {}),
    "patient": (Course(400, 16, lr=1e-9, seed=3), {"watch": watch, "every": 9, "patience": 4}),
    "lessons": (Course(40, 16, lr=0.01, seed=1), {"lessons": LESSONS}),
    "bfloat16": (Course(40, 16, lr=0.01, precision="bf16", clip=1.0), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_as_if_nobody_had_stopped_it(kind: str, tmp_path: Path) -> None:
    course, options = KINDS[kind]
    path, whole = tmp_path / "runs" / "course.safetensors", Loss()
    net, fitted = fit(course, None, whole, **options)
    for stop in STOPS:
        with pytest.raises(Stop):
            fit(course, path, Loss(stop), **options)
    rest = Loss()
    again, made = fit(course, path, rest, **options)
    assert (made.losses, made.watched) == (fitted.losses, fitted.watched)
    assert torch.equal(weights(again), weights(net))
    assert rest.count == whole.count - sum(stop - 1 for stop in STOPS)
    # What has ended is only read.
    none = Loss()
    third, told = fit(course, path, none, **options)
    assert none.count == 0
    assert (told.losses, told.watched, told.steps_a_second) == (
        made.losses,
        made.watched,
        made.steps_a_second,
    )
    assert torch.equal(weights(third), weights(net))


def test_it_leaves_the_global_generator_and_writes_only_when_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course, path = KINDS["plain"][0], tmp_path / "course.safetensors"
    before = torch.get_rng_state()
    with pytest.raises(Stop):
        fit(course, path, Loss(9))
    fit(course, path, Loss())
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr(progress, "PAUSE", 3600.0)
    with pytest.raises(Stop):
        fit(course, tmp_path / "late.safetensors", Loss(9))
    assert [each.name for each in tmp_path.iterdir()] == ["course.safetensors"]


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    course, path = KINDS["plain"][0], tmp_path / "course.safetensors"
    with pytest.raises(Stop):
        fit(course, path, Loss(9))
    whole = path.read_bytes()
    another = r"course\.safetensors belongs to another course than this one, by its {}; take it away"
    with pytest.raises(CheckpointError, match=another.format("course")):
        fit(KINDS["penalised"][0], path, Loss())
    with pytest.raises(CheckpointError, match=another.format("weights")):
        fit_resident(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), *cases(), course, keep=path)
    with pytest.raises(CheckpointError, match=another.format("input 0, targets")):
        fit_resident(model(), -cases()[0], 1 - cases()[1], course, keep=path)
    tensors, facts = load_tensors(path)
    for name, wrong, said in (
        ("model.final_norm.bias", torch.zeros(3), r"does not fit the model: 'final_norm\.bias' is \(3,\)"),
        ("place.order", torch.zeros(3), "does not fit the course: order is of another shape"),
        ("draws.cpu", torch.zeros(3), "does not fit the course"),
    ):
        save_tensors(tmp_path / "bent.safetensors", {**tensors, name: wrong}, facts)
        with pytest.raises(CheckpointError, match=said):
            fit(course, tmp_path / "bent.safetensors", Loss())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        CheckpointError, match=r"is not a whole safetensors file.*; take it away to begin anew"
    ):
        fit(course, path, Loss())
    flipped = bytearray(whole)
    flipped[-3] ^= 4
    path.write_bytes(flipped)
    with pytest.raises(CheckpointError, match=r"is damaged|does not fit"):
        fit(course, path, Loss())
    path.write_bytes(whole)
    _, facts = load_tensors(path)
    other = tmp_path / "other.safetensors"
    save_tensors(other, {"a": torch.zeros(1)}, {"about": facts["about"]})
    with pytest.raises(CheckpointError, match="does not say how far a course has come"):
        fit(course, other, Loss())
    with pytest.raises(CheckpointError, match="cannot write to the run folder"):
        fit(course, path / "inside" / "a.safetensors", Loss())


def images() -> Images:
    draws = np.random.default_rng(0)
    y = draws.integers(0, 2, 50)
    x = draws.integers(0, 60, (50, 1, 4, 4))
    x[y == 1, :, :2] += 150
    return Images("drawn", x.astype(np.uint8), y, ("low", "high"))


def test_what_is_streamed_goes_on_too(tmp_path: Path) -> None:
    course, path = Course(30, 12, lr=0.01, seed=1), tmp_path / "course.safetensors"

    def run(keep: Path | None, stop: int = 0) -> tuple[Tensor, Fitted]:
        plain = Loss(stop)

        def loss(net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
            assert isinstance(x, Tensor)
            return plain(net, x.float() / 255, y)

        with seeded(0):
            net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.1), nn.Linear(8, 2))
        fitted = fit_streamed(net, images(), course, loss=loss, keep=keep)
        return weights(net), fitted

    whole, fitted = run(None)
    for stop in (4, 9):
        with pytest.raises(Stop):
            run(path, stop)
    for made, told in (run(path), run(path)):
        assert told.losses == fitted.losses
        assert torch.equal(made, whole)


def test_a_journal_has_a_file_for_each_course(tmp_path: Path) -> None:
    course = Course(12, 16, lr=0.01)

    def job(*stops: int) -> tuple[progress.Journal, list[float]]:
        journal = progress.journal_of(tmp_path, "lra", "ListOps", "primal+", "a b", 0)
        with progress.kept_in(journal):
            made = [fit(course, None, Loss(stop))[1].losses[-1] for stop in stops]
        return journal, made

    with pytest.raises(Stop):
        job(0, 5)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "lra.ListOps.primal-.a-b.0.1.safetensors",
        "lra.ListOps.primal-.a-b.0.2.safetensors",
    ]
    journal, made = job(1, 0)  # the first has ended: its loss is not asked
    assert made == [fit(course, None, Loss())[1].losses[-1]] * 2
    assert journal.tries == 2
    assert journal.seconds() > journal.spent > 0
    (tmp_path / "mine").touch()
    (tmp_path / f".{journal.name}.1.safetensors.x7f").touch()  # by a writer that was killed
    (tmp_path / f".{journal.name}.1.safetensors.x7g.folder").mkdir()
    journal.forget()
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


def test_courses_within_a_look_are_not_those_of_the_job(tmp_path: Path) -> None:
    def probe(net: nn.Module) -> float:
        head = nn.Linear(2, 2)
        for each in head.parameters():
            nn.init.zeros_(each)
        with torch.no_grad():
            shown = net(cases()[0])
        return -fit_resident(head, shown, cases()[1], Course(5, 16, lr=0.1)).losses[-1]

    course, watched = Course(30, 16, lr=0.01), {"watch": probe, "every": 5}
    whole = fit(course, None, Loss(), **watched)[1]
    with progress.kept_in(progress.journal_of(tmp_path, "probed")), pytest.raises(Stop):
        fit(course, None, Loss(17), **watched)
    with progress.kept_in(progress.journal_of(tmp_path, "probed")):
        assert fit(course, None, Loss(), **watched)[1].watched == whole.watched
    assert [each.name for each in tmp_path.iterdir()] == ["probed.1.safetensors"]


def test_patience_ends_where_it_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course, options = KINDS["patient"]
    path = tmp_path / "course.safetensors"
    whole = fit(course, None, Loss(), **options)[1]

    def stop(*_: Any, **__: Any) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(progress.Keeper, "end", stop)
        with pytest.raises(Stop):
            fit(course, path, Loss(), **options)
    made = fit(course, path, Loss(), **options)[1]
    assert (made.losses, made.watched) == (whole.losses, whole.watched)


def test_compiling_is_no_time_of_steps(tmp_path: Path) -> None:
    course, path = Course(30, 16, lr=0.01), tmp_path / "course.safetensors"

    class Slow(Loss):
        def __call__(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
            if self.count == 0:
                time.sleep(0.5)
            return super().__call__(net, x, y)

    for stop in (3, 26):  # before a step is timed, and when none is left to be
        with pytest.raises(Stop):
            fit(course, path, Slow(stop))
    assert 0 < fit(course, path, Slow())[1].seconds < 0.5


def test_numbers_of_numpy_and_figures_in_tensors(tmp_path: Path) -> None:
    course = Course(np.int64(6), 16, lr=np.float32(0.01))  # type: ignore[arg-type]
    watched: Any = {"watch": lambda _: torch.tensor(0.5), "every": 2}
    assert fit(course, tmp_path / "a.safetensors", Loss(), **watched)[1].watched == [0.5] * 3


def test_no_safetensors_is_said_before_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda _: None)
    loss = Loss()
    with pytest.raises(MissingExtra, match="keep: needs safetensors"):
        fit(KINDS["plain"][0], tmp_path / "a.safetensors", loss)
    assert loss.count == 0


def run(job: Job, *, notes: Path | None = None) -> Outcome:
    """Two courses; where no note tells of an earlier start, the process dies in the second of them."""
    progress.PAUSE = 0.0  # type: ignore[misc]
    first = notes is not None and not notes.exists()
    if notes is not None:
        notes.touch()

    def loss(net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(x), y)

    dying = Loss(7)

    def die(net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        try:
            return dying(net, x, y)
        except Stop:
            os.kill(os.getpid(), signal.SIGKILL)
            raise

    net, course = model(), Course(20, 16, lr=0.01, seed=job.seed)
    fit_resident(net, *cases(), course, loss=loss)
    fitted = fit_resident(net, *cases(), course, loss=die if first else loss)
    return Outcome({"loss": fitted.losses[-1]}, curves={"losses": fitted.losses})


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on(tmp_path: Path) -> None:
    jobs = [Job("tiny", "points", "primal", "clean", 1, {})]
    (whole,) = run_jobs(run, jobs, out=tmp_path / "whole")
    kept, dying = tmp_path / "kept", partial(run, notes=tmp_path / "notes")
    (lost,) = run_jobs(dying, jobs, out=tmp_path / "out", progress=kept)
    assert (lost["status"], lost["error"]) == ("failed", "the process ended with code -9")
    assert len([*kept.iterdir()]) == 2
    (row,) = run_jobs(dying, jobs, out=tmp_path / "out", progress=kept)
    assert (row["figures"], row["curves"]) == (whole["figures"], whole["curves"])
    assert row["tries"] == 2
    assert {"tries", "begun"}.isdisjoint(whole)
    assert [*kept.iterdir()] == []
    # What another try has left goes where the job is done, and where it is to run anew.
    left = Task(run, 1, None, progress=kept).journal(jobs[0])
    assert left is not None
    for fresh in (False, True):
        left.next().write_bytes(b"left")
        (again,) = run_jobs(run, jobs, out=tmp_path / "out", progress=kept, fresh=fresh)
        assert again["figures"] == whole["figures"]
        assert [*kept.iterdir()] == []


def test_a_row_says_which_code_began_it(tmp_path: Path) -> None:
    job = Job("tiny", "points", "primal", "clean", 0, {})
    old, new = (Task(run, 1, commit, progress=tmp_path) for commit in ("old", "new"))
    with progress.kept_in(old.journal(job)), pytest.raises(Stop):
        fit(Course(20, 16, lr=0.01, seed=0), None, Loss(5))
    row = new.row(job)
    assert (row["status"], row["commit"], row["begun"], row["tries"]) == ("done", "new", "old", 2)


def test_what_leaves_no_progress_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        BadInput, match=r"jobs of uea leave no progress, expected one of: lra, rl, image, text"
    ):
        reproduce("uea", [], out=tmp_path, progress=tmp_path / "kept")
    jobs = [Job("tiny", "points", "primal", "clean", seed, {}) for seed in (0, 1)]
    with pytest.raises(BadInput, match=r"together is 2, and jobs in one process leave no progress"):
        run_jobs(run, jobs, out=tmp_path, together=2, progress=tmp_path / "kept")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"file is a file, expected a folder"):
        reproduce("lra", [], out=tmp_path, progress=tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot write to the run folder"):
        run_jobs(run, jobs, out=tmp_path / "out", progress=tmp_path / "file" / "inside")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("kernelhead.training.fields.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match="reproduce, progress"):
        check_resumes("lra")
    assert {name for name, field in FIELDS.items() if field.resumes} == {
        "lra", "rl", "image", "text", "ablations", "scenes", "depth"
    }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_captured_steps_go_on(compiled: bool, tmp_path: Path) -> None:
    course, path = Course(30, 16, lr=0.01, eta=0.1, ema=0.9, seed=1), tmp_path / "course.safetensors"
    x, y = (each.cuda() for each in cases())

    def made(keep: Path | None, watched: Callable[[nn.Module], float]) -> tuple[Tensor, list[float]]:
        net = model().eval().cuda()
        for each in net.modules():
            if isinstance(each, nn.Dropout):
                each.p = 0.0
        fitted = fit_resident(net, x, y, course, compiled=compiled, watch=watched, every=10, keep=keep)
        return weights(net), fitted.losses

    def stop(_: nn.Module) -> float:
        raise Stop

    whole, losses = made(None, lambda _: 0.0)
    with pytest.raises(Stop):
        made(path, stop)
    again, rest = made(path, lambda _: 0.0)
    torch.testing.assert_close(torch.tensor(rest), torch.tensor(losses), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again, whole, rtol=1e-3, atol=1e-4)
