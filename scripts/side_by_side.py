"""Jobs of several fields in processes side by side, until a time is over; needs no command line's extra.

    python scripts/side_by_side.py PLAN OUT [--workers 2] [--seconds 600] [--commit SHA] [--progress FOLDER]

PLAN is a JSON object with a list of `tasks`, begun in their order: {"field": "lra", "seeds": [0, 1],
"only": ["Text", "primal"], "root": "data"}, and where wanted "protocol", "together", "keep" and "change",
settings in place of the recipe's. A task is a process that runs its jobs one after another into
OUT/FIELD.json; what is done there is not run again. What runs when the time is over is ended, and its running
job is lost, but for what it left in a folder of `--progress`, from where the same plan goes on (not with
"together"). On a GPU start NVIDIA's multi-process service first.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelhead.errors import BadInput, KernelheadError
from kernelhead.records import read_json
from kernelhead.training.fields import check_resumes, jobs_of, runner_of, standing
from kernelhead.training.grid import Task, rows_here
from kernelhead.training.grid import commit as commit_of
from kernelhead.training.ledger import DONE, Ledger
from kernelhead.training.store import prepare_folder

ONE = "--one"
Asked = dict[str, Any]


def read_plan(path: Path) -> list[Asked]:
    """The tasks of a file.

    Raises:
        BadInput: it is no such file.
    """
    tasks = read_json(path).get("tasks")
    for task in tasks if isinstance(tasks, list) else [tasks]:
        seeds = task.get("seeds") if isinstance(task, dict) and "field" in task else None
        whole = isinstance(seeds, list) and all(isinstance(seed, int) and seed >= 0 for seed in seeds)
        if not seeds or not whole:
            raise BadInput(
                f"{path}: {task!r} is no task, expected `tasks`, a list of objects with field and seeds"
            )
    return list(tasks)


def run_task(task: Asked, out: Path, commit: str | None, workers: int, progress: Path | None) -> None:
    """The jobs of a task in this process, each row into the ledger as it is done."""
    root, keep = (Path(task[name]) if name in task else None for name in ("root", "keep"))
    field, protocol, together = task["field"], task.get("protocol", "clean"), task.get("together", 1)
    jobs = jobs_of(
        field, protocol=protocol, seeds=max(task["seeds"]) + 1, only=task.get("only", ()), root=root
    )
    jobs = [
        replace(job, recipe={**job.recipe, **task.get("change", {})})
        for job in jobs
        if job.seed in task["seeds"]
    ]
    ledger, todo = Ledger(out / f"{field}.json"), [job for job, at in standing(jobs, out=out) if at != DONE]
    if progress is not None:
        check_resumes(field)
    shared = Task(runner_of(field, root, keep), 1, commit or commit_of(), together, workers, progress)
    for job, row in rows_here(shared, todo):
        ledger.add(row)
        if row["status"] == DONE:
            shared.forget(job)
        figures = {name: round(value, 4) for name, value in row["figures"].items()}
        print(f"{job.key}, {row['seconds']:.0f} s: {row['error'] or figures}", flush=True)


def run_all(tasks: list[Asked], words: list[str], workers: int, seconds: float) -> int:
    """So many processes at a time; how many tasks failed or were ended."""
    began, waiting, lost = time.monotonic(), list(tasks), 0
    running: list[tuple[Asked, subprocess.Popen[bytes]]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    while (waiting or running) and time.monotonic() - began < seconds:
        while waiting and len(running) < workers:
            task = waiting.pop(0)
            command = [sys.executable, __file__, *words, ONE, json.dumps(task)]
            running.append((task, subprocess.Popen(command, env=environment)))
        time.sleep(0.2)
        for task, process in [each for each in running if each[1].poll() is not None]:
            running.remove((task, process))
            if process.returncode:
                lost += 1
                print(f"failed with {process.returncode}: {task}", flush=True)
    for task, process in running:
        process.kill()
        print(f"ended: {task}", flush=True)
    for task in waiting:
        print(f"not begun: {task}", flush=True)
    return lost + len(running) + len(waiting)


def main() -> int:
    """0 where all tasks are done, 1 where one is not, 2 for a sentence about what was asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--commit", help="of the rows, where there is no repository")
    parser.add_argument("--progress", type=Path, help="folder where running jobs leave how far they are")
    parser.add_argument(ONE, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    words = [str(asked.plan), str(asked.out), "--workers", str(asked.workers)]
    words += [] if asked.commit is None else ["--commit", asked.commit]
    words += [] if asked.progress is None else ["--progress", str(asked.progress)]
    try:
        if asked.workers < 1:
            raise BadInput(f"workers is {asked.workers}, expected a whole number of at least 1")
        if asked.one is None:
            tasks = read_plan(asked.plan)
            asked.out.mkdir(parents=True, exist_ok=True)
            if asked.progress is not None:
                prepare_folder(asked.progress)
            return min(run_all(tasks, words, asked.workers, asked.seconds), 1)
        run_task(json.loads(asked.one), asked.out, asked.commit, asked.workers, asked.progress)
    except (KernelheadError, OSError) as error:
        print(f"side_by_side: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
