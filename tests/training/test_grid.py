"""run_jobs: what it keeps, what it survives, and that neither workers nor Ray change a figure."""

import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelhead.errors import BadInput, MissingExtra, UnknownName
from kernelhead.training import Job, Ledger, run_jobs, select
from kernelhead.training.grid import Task
from kernelhead.training.ledger import DONE
from tests.training.tiny_field import jobs, run

ROOT = Path(__file__).parents[2]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


def figures(rows: list[dict[str, Any]]) -> list[Any]:
    """What must not depend on where a job ran."""
    return [
        [row[name] for name in ("data", "variant", "seed", "recipe_hash", "figures", "status")]
        for row in rows
    ]


def started(folder: Path) -> list[str]:
    notes = folder / "notes"
    return [line.split()[0] for line in notes.read_text().splitlines()] if notes.exists() else []


def begin(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """The tiny field as a program of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.training.tiny_field", str(folder), *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        text=True,
        stderr=subprocess.PIPE,
    )


def wait_for(what: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0.05)


@pytest.mark.slow
def test_one_and_two_workers_find_the_same(tmp_path: Path) -> None:
    one = run_jobs(run, jobs(seeds=2), out=tmp_path / "one")
    two = run_jobs(run, jobs(seeds=2), out=tmp_path / "two", workers=2)
    assert figures(one) == figures(two)
    assert [row["seed"] for row in one] == [0, 1]
    assert figures(Ledger(tmp_path / "one" / "tiny.json").rows()) == figures(one)
    row = one[0]
    assert row["status"] == "done"
    assert row["error"] is None
    assert row["parameters"] == 6
    assert row["seconds"] > 0
    assert row["peak_memory_mib"] > 10
    assert row["machine"]["threads"] == "1"
    assert {"python", "torch", "kernelhead"} <= {*row["versions"]}
    assert row["recipe"] == {"sides": 6}


@pytest.mark.slow
def test_what_is_done_is_kept_and_fresh_runs_anew(tmp_path: Path) -> None:
    noted = partial(run, notes=tmp_path / "notes")
    told: list[Any] = []
    first = run_jobs(noted, jobs(seeds=1), out=tmp_path, tell=told.append)
    assert run_jobs(noted, jobs(seeds=1), out=tmp_path, tell=told.append) == first
    assert len(started(tmp_path)) == len(told) == 1
    run_jobs(noted, jobs(seeds=1), out=tmp_path, fresh=True)
    assert len(started(tmp_path)) == 2
    changed = [replace(job, recipe={"sides": 8}) for job in jobs(seeds=1)]
    assert run_jobs(noted, changed, out=tmp_path)[0]["parameters"] == 8
    assert len(started(tmp_path)) == 3
    assert len(Ledger(tmp_path / "tiny.json").rows()) == 1


@pytest.mark.slow
def test_failures_are_rows_and_the_rest_goes_on(tmp_path: Path) -> None:
    kinds = ("fails", "dies", "infinite", "draws")
    rows = run_jobs(run, jobs(kinds, seeds=1), out=tmp_path, workers=2)
    errors = {row["variant"]: row["error"] for row in rows}
    assert errors == {
        "fails": "ValueError: the dice fell off the table",
        "dies": "the process ended with code -9",
        "infinite": "BadInput: mean is inf",
        "draws": None,
    }
    assert [row["status"] for row in rows] == ["failed", "failed", "failed", "done"]
    assert rows[1]["machine"] is rows[1]["seconds"] is None
    assert [row["workers"] for row in rows] == [2] * 4
    again = run_jobs(partial(run, notes=tmp_path / "notes"), jobs(("fails", "draws"), seeds=1), out=tmp_path)
    assert [row["status"] for row in again] == ["failed", "done"]
    assert "workers" not in again[0]
    assert started(tmp_path) == ["tiny/dice/fails/clean/0"]


def test_curves_are_kept_where_they_are_finite() -> None:
    task = Task(run, threads=torch.get_num_threads(), commit=None)
    plain, bent, broken = (task.row(job) for job in [*jobs(seeds=1), *jobs(["bends"], seeds=2)])
    assert "curves" not in plain
    assert bent["curves"] == {"line": [0.75, 0.25]}
    assert bent["status"] == "done"
    assert broken["error"] == "BadInput: line is nan"
    assert broken["figures"] == {}
    assert "curves" not in broken


@pytest.mark.slow
def test_a_killed_grid_loses_the_running_jobs_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "tiny.json")
    grid = begin(tmp_path, "slow")
    wait_for(lambda: len(ledger.rows()) == 1 and len(started(tmp_path)) == 3)
    running = [int(line.split()[1]) for line in (tmp_path / "notes").read_text().splitlines()[-2:]]
    grid.send_signal(signal.SIGKILL)
    grid.communicate(timeout=60)
    wait_for(lambda: not any(alive(process) for process in running))
    (kept,) = ledger.rows()
    assert (kept["seed"], kept["status"]) == (0, "done")
    (tmp_path / "notes").unlink()
    grid = begin(tmp_path, "slow")
    wait_for(lambda: len(started(tmp_path)) == 2)
    assert {*started(tmp_path)} == {"tiny/dice/slow/clean/1", "tiny/dice/slow/clean/2"}
    grid.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in grid.communicate(timeout=60)[1]
    running = [int(line.split()[1]) for line in (tmp_path / "notes").read_text().splitlines()]
    wait_for(lambda: not any(alive(process) for process in running))
    assert ledger.rows() == [kept]


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@needs_ray
@pytest.mark.slow
def test_two_workers_of_a_local_cluster_find_the_same(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    grid = begin(tmp_path / "ray", "draws", "local:2")
    _, words = grid.communicate(timeout=240)
    assert grid.returncode == 0, words
    rows = Ledger(tmp_path / "ray" / "tiny.json").rows()
    assert figures(rows) == figures(run_jobs(run, jobs(), out=tmp_path / "here"))
    processes = {line.split()[1] for line in (tmp_path / "ray" / "notes").read_text().splitlines()}
    assert len(processes) == 3, "a process ran two jobs"


@needs_ray
@pytest.mark.slow
def test_a_job_that_dies_on_a_cluster_is_a_row(tmp_path: Path) -> None:
    grid = begin(tmp_path, "dies", "local:2")
    _, words = grid.communicate(timeout=240)
    assert grid.returncode == 0, words
    rows = Ledger(tmp_path / "tiny.json").rows()
    assert [row["status"] for row in rows] == ["failed"] * 3
    assert all("Error" in row["error"] for row in rows)


def test_ray_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"run_jobs: needs ray, .* pip install \"kernelhead\[ray\]\""):
        run_jobs(run, jobs(), out=tmp_path, ray="local:2")


@pytest.mark.parametrize("address", ["local:", "local:0", "local:two"])
def test_a_local_cluster_has_a_size(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with pytest.raises(BadInput, match=f"ray is '{address}', expected such as 'local:2'"):
        run_jobs(run, jobs(), out=tmp_path, ray=address)


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with pytest.raises(BadInput, match=r"no Ray cluster at 'there:1': nobody is at there:1"):
        run_jobs(run, jobs(), out=tmp_path, ray="there:1")


class FakeRay:
    """A Ray that finds nobody."""

    def init(self, address: str, *, log_to_driver: bool) -> None:
        raise ConnectionError(f"nobody is at {address}")


def test_jobs_are_of_one_field_and_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="2 jobs, 1 different; expected those of one field, once"):
        run_jobs(run, [*jobs(seeds=1), *jobs(seeds=1)], out=tmp_path)
    with pytest.raises(BadInput, match="2 jobs, 2 different; expected those of one field, once"):
        run_jobs(run, [*jobs(seeds=1), Job("other", "a", "b", "clean", 0, {})], out=tmp_path)


def test_no_job_is_no_work(tmp_path: Path) -> None:
    assert run_jobs(run, [], out=tmp_path) == []
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["workers", "threads"])
def test_counts_are_checked(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"run_jobs: `?{name}`? is 0"):
        run_jobs(run, jobs(), out=tmp_path, **{name: 0})


def test_identity_knows_the_recipe_but_not_its_order() -> None:
    job = Job("tiny", "dice", "draws", "clean", 0, {"a": 1, "b": 2})
    assert replace(job, recipe={"b": 2, "a": 1}).identity == job.identity
    assert replace(job, recipe={"a": 1, "b": 3}).identity != job.identity
    assert replace(job, recipe={"a": 1, "b": 3}).key == job.key


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(
        UnknownName,
        match=r"data set or variant 'drws', did you mean 'draws'\?.*; sets that the data",
    ):
        select(jobs(), ["drws"])
    assert select(jobs(), []) == jobs()


def side_by_side(plan: object, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A plan through the script, in processes of its own."""
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, str(ROOT / "scripts" / "side_by_side.py"), "plan.json", "out", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_plan_of_tasks_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    iris = {"field": "transport", "only": ["iris", "logistic"]}
    plan = {"tasks": [{**iris, "seeds": [1]}, {**iris, "seeds": [0], "together": 2}]}
    made = side_by_side(plan, tmp_path, "--workers", "2", "--commit", "abc")
    assert made.returncode == 0, made.stderr
    rows = Ledger(tmp_path / "out" / "transport.json").rows()
    assert sorted((row["seed"], row["status"], row["commit"], row["workers"]) for row in rows) == [
        (0, DONE, "abc", 2),
        (1, DONE, "abc", 2),
    ]
    late = side_by_side({"tasks": [{**iris, "seeds": [2]}]}, tmp_path, "--seconds", "0.1")
    assert late.returncode == 1
    assert late.stdout.startswith("ended: ")


NAMED = [{"field": "transport", "seeds": ["first"]}]


@pytest.mark.parametrize(
    "tasks", [{}, 3, [{"field": "transport"}], [{"field": "transport", "seeds": []}], NAMED]
)
def test_a_plan_that_is_none(tasks: object, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"tasks": tasks}))
    read_plan = runpy.run_path(str(ROOT / "scripts" / "side_by_side.py"))["read_plan"]
    with pytest.raises(BadInput, match=r"plan\.json: .* is no task, expected `tasks`"):
        read_plan(tmp_path / "plan.json")


def test_no_plan_is_a_sentence(tmp_path: Path) -> None:
    made = side_by_side({"tasks": []}, tmp_path, "--workers", "0")
    assert made.stderr == "side_by_side: workers is 0, expected a whole number of at least 1\n"
    made = side_by_side({"tasks": [3]}, tmp_path)
    assert (made.returncode, made.stdout) == (2, "")
    assert (
        made.stderr
        == "side_by_side: plan.json: 3 is no task, expected `tasks`, a list of objects with field and seeds\n"
    )
    assert not (tmp_path / "out").exists()
