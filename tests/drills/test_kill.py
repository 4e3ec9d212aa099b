"""SIGKILL at every touch of a folder and at random moments: nothing half-written, nothing lost."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn

from kernelhead.cli.__main__ import main
from kernelhead.errors import BadInput
from kernelhead.records import REPORT
from kernelhead.report import write_report
from kernelhead.rng import seeded
from kernelhead.training import (
    Course,
    event_recipe_from,
    fit_resident,
    progress,
    run_jobs,
    train_event_run,
    train_run,
)
from tests.drills.crashes import check_whole, held_by, killed_after, killed_at, touched_by
from tests.surgery.saved import saved_bert, text
from tests.training import tiny_events, tiny_field
from tests.training.tiny import options, recipe, series, start, write_csv

Train = Callable[..., object]
Tell = Callable[[str, object], None]
SEED = 9  # of the random moments; how far a process is by then depends on the machine


def of_series(files: Path, folder: Path, *, fresh: bool = False, seed: int = 0) -> object:
    made = recipe(files / "train.csv", test=str(files / "test.csv"), save_steps=2, seed=seed, dropout=0.2)
    return train_run(made, folder, fresh=fresh)


def of_events(files: Path, folder: Path, *, fresh: bool = False, seed: int = 0) -> object:
    table = {"data": str(files / "events.csv"), "epochs": 3, "width": 8, "heads": 2, "seed": seed}
    return train_event_run(event_recipe_from({**table, "accelerator": "cpu"}, "drill"), folder, fresh=fresh)


RUNS = pytest.mark.parametrize("train", [of_series, of_events], ids=["series", "events"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a run of each kind that nobody killed."""
    folder = tmp_path_factory.mktemp("files")
    write_csv(folder / "train.csv", series(24, seed=0))
    write_csv(folder / "test.csv", series(12, seed=1))
    tiny_events.write(folder / "events.csv", tiny_events.drawn())
    for train in (of_series, of_events):
        for seed in (0, 1):
            train(folder, folder / f"{train.__name__}{seed}", seed=seed)
    return folder


def straight(files: Path, train: Train, seed: int = 0) -> Path:
    return files / f"{train.__name__}{seed}"


def places(work: Callable[[], object], folder: Path, step: int) -> range:
    """Every `step`-th touch that the work makes, where it is not killed."""
    count = touched_by(work, folder)
    assert count > 5
    return range(1, count + 1, step)


def check_every_touch(files: Path, folder: Path, train: Train, step: int) -> int:
    """Kill a run at its touches, take it up again, and compare with the one that nobody killed."""
    expected, killed = held_by(straight(files, train)), 0
    work = partial(train, files, folder)
    for place in places(work, folder, step):
        shutil.rmtree(folder, ignore_errors=True)
        killed += killed_at(work, folder, place)
        check_whole(folder)
        work()
        assert held_by(folder) == expected, f"killed at touch {place}"
    assert killed
    return killed


def check_every_touch_of_fresh(files: Path, folder: Path, train: Train, step: int) -> int:
    """The same where --fresh takes the place of a run of another seed: no old figure under the new recipe."""
    old, killed = straight(files, train, seed=1), 0
    expected = held_by(straight(files, train))

    fresh = partial(train, files, folder, fresh=True)
    shutil.copytree(old, folder)
    for place in places(fresh, folder, step):
        shutil.rmtree(folder)
        shutil.copytree(old, folder)
        killed += killed_at(fresh, folder, place)
        check_whole(folder)
        try:
            train(files, folder)
        except BadInput as error:
            if "holds a run of another recipe (seed 1 -> 0)" not in str(error):
                raise
            fresh()
        assert held_by(folder) == expected, f"killed at touch {place}"
    assert killed
    return killed


@RUNS
def test_a_run_killed_at_some_touches_goes_on(files: Path, tmp_path: Path, train: Train) -> None:
    check_every_touch(files, tmp_path / "run", train, 41)


@RUNS
def test_a_run_made_anew_and_killed_at_some_touches_goes_on(
    files: Path, tmp_path: Path, train: Train
) -> None:
    check_every_touch_of_fresh(files, tmp_path / "run", train, 41)


@pytest.mark.drill
@RUNS
def test_a_run_killed_at_every_touch_goes_on(
    files: Path, tmp_path: Path, train: Train, record_property: Tell
) -> None:
    record_property("kills", check_every_touch(files, tmp_path / "run", train, 1))


@pytest.mark.drill
@RUNS
def test_a_run_made_anew_and_killed_at_every_touch_goes_on(
    files: Path, tmp_path: Path, train: Train, record_property: Tell
) -> None:
    record_property("kills", check_every_touch_of_fresh(files, tmp_path / "run", train, 1))


@pytest.mark.drill
@RUNS
def test_a_run_killed_at_random_moments_again_and_again_goes_on(
    files: Path, tmp_path: Path, train: Train, record_property: Tell
) -> None:
    draws, expected, kills = random.Random(SEED), held_by(straight(files, train)), 0
    for number in range(12):
        folder = tmp_path / str(number)
        work = partial(train, files, folder)
        for _ in range(4):
            kills += killed_after(work, draws.uniform(0.02, 0.5), folder)
            check_whole(folder)
        work()
        assert held_by(folder) == expected
    assert kills
    record_property("kills", kills)


def reported(files: Path, out: Path) -> None:
    write_report([straight(files, of_series), straight(files, of_events)], out, title="new")


def check_report(files: Path, folder: Path, step: int) -> int:
    """The page is the old one or the new one; a second try writes the new one and nothing beside it."""
    out, killed = folder / REPORT, 0
    folder.mkdir()
    for place in places(partial(reported, files, out), folder, step):
        out.write_text("<html>old</html>", encoding="utf-8")
        killed += killed_at(partial(reported, files, out), folder, place)
        check_whole(folder)
        page = out.read_text(encoding="utf-8")
        assert page == "<html>old</html>" or "<title>new" in page
        reported(files, out)
        assert "<title>new" in out.read_text(encoding="utf-8")
        for left in folder.glob(f".{REPORT}.*"):
            left.unlink()
    assert killed
    return killed


def test_a_report_killed_at_some_touches_is_old_or_new(files: Path, tmp_path: Path) -> None:
    check_report(files, tmp_path / "out", 7)


@pytest.mark.drill
def test_a_report_killed_at_any_time_is_old_or_new(
    files: Path, tmp_path: Path, record_property: Tell
) -> None:
    kills, draws = check_report(files, tmp_path / "out", 1), random.Random(SEED)
    work = partial(reported, files, tmp_path / "out" / REPORT)
    for _ in range(60):
        kills += killed_after(work, draws.uniform(0.0, 0.6), tmp_path / "out")
        check_whole(tmp_path / "out")
    record_property("kills", kills)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model, a graft for it, a text, and what distillation makes of them where nobody kills it."""
    folder = tmp_path_factory.mktemp("host")
    saved_bert(folder / "bert")
    text(folder / "text.txt", 30)
    words = ["--to", "primal", "--rank", "2", "--out", str(folder / "graft.safetensors")]
    assert main(["graft", str(folder / "bert"), *words]) == 0
    distilled(folder, folder / "straight")
    return folder


def distilled(host: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    words = ["distil", str(host / "bert"), str(host / "graft.safetensors"), "--data", str(host / "text.txt")]
    short = ["--steps", "6", "--whole-steps", "6", "--batch", "4"]
    assert main([*words, *short, "--out", str(folder / "taught.safetensors")]) == 0


def check_distil(host: Path, folder: Path, step: int) -> int:
    expected, killed = held_by(host / "straight"), 0
    work = partial(distilled, host, folder)
    for place in places(work, folder, step):
        shutil.rmtree(folder, ignore_errors=True)
        killed += killed_at(work, folder, place)
        check_whole(folder)
        work()
        assert held_by(folder, hidden=False) == expected
    assert killed
    return killed


def test_distillation_killed_at_some_touches_is_done_again(host: Path, tmp_path: Path) -> None:
    check_distil(host, tmp_path / "out", 8)


@pytest.mark.drill
def test_distillation_killed_at_any_time_is_done_again(
    host: Path, tmp_path: Path, record_property: Tell
) -> None:
    kills, draws = check_distil(host, tmp_path / "out", 1), random.Random(SEED)
    work = partial(distilled, host, tmp_path / "out")
    for _ in range(20):
        kills += killed_after(work, draws.uniform(0.02, 1.2), tmp_path / "out")
        check_whole(tmp_path / "out")
    work()
    assert held_by(tmp_path / "out", hidden=False) == held_by(host / "straight")
    record_property("kills", kills)


def course(folder: Path | None) -> tuple[list[float], list[float], torch.Tensor]:
    """A short course with dropout and looks, which writes at every step where there is a folder."""
    with patch.object(progress, "PAUSE", 0.0), seeded(0):
        net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.ReLU(), nn.Linear(4, 2))
        x = torch.randn(12, 3)
        fitted = fit_resident(
            net, x, (x[:, 0] > 0).long(), Course(12, 4, lr=0.01, ema=0.9),
            watch=lambda each: -each(x).square().sum().item(), every=5,
            keep=None if folder is None else folder / "course.safetensors",
        )  # fmt: skip
    return fitted.losses, fitted.watched, torch.cat([each.detach().flatten() for each in net.parameters()])


def check_course(folder: Path, step: int) -> int:
    losses, watched, weights = course(None)
    killed = 0
    for place in places(partial(course, folder), folder, step):
        shutil.rmtree(folder, ignore_errors=True)
        # Twice: a course that has gone on is killed too.
        for _ in range(2):
            killed += killed_at(partial(course, folder), folder, place)
            check_whole(folder)
        made = course(folder)
        assert made[:2] == (losses, watched), f"killed at touch {place}"
        assert torch.equal(made[2], weights)
    assert killed
    return killed


def test_a_course_killed_at_some_touches_goes_on(tmp_path: Path) -> None:
    check_course(tmp_path / "kept", 7)


@pytest.mark.drill
def test_a_course_killed_at_every_touch_goes_on(tmp_path: Path, record_property: Tell) -> None:
    record_property("kills", check_course(tmp_path / "kept", 1))


def grid(folder: Path) -> None:
    """Jobs in threads of this process, whose touches can be counted."""
    run_jobs(tiny_field.run, tiny_field.jobs(["draws"], seeds=4), out=folder, together=2)


def figures(folder: Path) -> list[object]:
    held = held_by(folder)["tiny.json"]["rows"]
    return [(row["seed"], row["status"], row["figures"]) for row in held]


def check_grid(folder: Path, step: int) -> int:
    grid(folder)
    expected, killed = figures(folder), 0
    shutil.rmtree(folder)
    for place in places(partial(grid, folder), folder, step):
        shutil.rmtree(folder, ignore_errors=True)
        killed += killed_at(partial(grid, folder), folder, place)
        check_whole(folder)
        grid(folder)
        assert figures(folder) == expected
        assert [each.name for each in folder.iterdir()] == ["tiny.json"]
    assert killed
    return killed


def test_a_grid_killed_at_some_touches_goes_on(tmp_path: Path) -> None:
    check_grid(tmp_path / "out", 13)


@pytest.mark.drill
def test_a_grid_killed_at_every_touch_goes_on(tmp_path: Path, record_property: Tell) -> None:
    record_property("kills", check_grid(tmp_path / "out", 1))


@pytest.mark.drill
def test_a_grid_of_processes_killed_at_random_moments_keeps_its_rows(
    tmp_path: Path, record_property: Tell
) -> None:
    draws, before, kills = random.Random(SEED), set[int](), 0
    words = [sys.executable, "-m", "tests.training.tiny_field", str(tmp_path), "draws"]
    for _ in range(8):
        with subprocess.Popen(words, start_new_session=True) as process:
            limit = time.monotonic() + draws.uniform(2.0, 9.0)
            while time.monotonic() < limit and process.poll() is None:
                check_whole(tmp_path)
                time.sleep(0.01)
            process.kill()
        kills += process.returncode == -signal.SIGKILL
        check_whole(tmp_path)
        done = {row["seed"] for row in held_by(tmp_path).get("tiny.json", {"rows": []})["rows"]}
        assert before <= done
        before = done
    subprocess.run(words, check=True)
    assert {row["seed"] for row in held_by(tmp_path)["tiny.json"]["rows"]} == {0, 1, 2}
    record_property("kills", kills)


@pytest.mark.drill
@pytest.mark.parametrize("kind", ["series", "events"])
def test_the_command_line_killed_at_random_moments_goes_on(
    files: Path, tmp_path: Path, kind: str, record_property: Tell
) -> None:
    """Whole processes, from the first import to the last word."""
    draws, kills = random.Random(SEED), 0
    data = {"series": "train.csv", "events": "events.csv"}[kind]
    given = options(epochs=30, batch=4) if kind == "series" else ["--epochs", "30", "--accelerator", "cpu"]
    words = ["train", files / data, *given, "--out"]
    with start(*words, tmp_path / "straight", cwd=tmp_path) as process:
        began = time.monotonic()
        process.communicate(timeout=300)
        whole = time.monotonic() - began
    for _ in range(8):
        with start(*words, tmp_path / "killed", cwd=tmp_path) as process:
            limit = time.monotonic() + draws.uniform(0.3, 1.0) * whole
            while time.monotonic() < limit and process.poll() is None:
                check_whole(tmp_path)
                time.sleep(0.02)
            process.kill()
            process.communicate()
        kills += process.returncode == -signal.SIGKILL
        check_whole(tmp_path)
    with start(*words, tmp_path / "killed", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, out + err
    assert held_by(tmp_path / "killed") == held_by(tmp_path / "straight")
    assert kills
    record_property("kills", kills)
