"""Independent jobs, one process each, side by side on this machine or on Ray, into a ledger."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import torch
from threadpoolctl import threadpool_limits

from kernelhead.errors import BadInput, UnknownName, missing_extra, unknown
from kernelhead.shapes import check_size
from kernelhead.training.ledger import DONE, FAILED, Ledger, Row, commit, digest, machine, peak_mib, versions
from kernelhead.training.progress import Journal, journal_of, kept_in
from kernelhead.training.store import prepare_folder
from kernelhead.training.turns import in_turns

LOCAL = "local:"


@dataclass(frozen=True)
class Job:
    """One cell of a grid under one seed: all that decides what it computes, in plain values.

    Args:
        field: whose job it is, such as "uea".
        data: name of the data set.
        variant: what is trained on it.
        protocol: how its figure is chosen.
        seed: of everything random.
        recipe: the other settings, as a table that JSON can hold.

    Example:
        >>> job = Job("uea", "JapaneseVowels", "primal", "clean", 0, {"rank": 40})
        >>> job.key, job.digest
        ('uea/JapaneseVowels/primal/clean/0', 'b1ec889d51bc0be0')
    """

    field: str
    data: str
    variant: str
    protocol: str
    seed: int
    recipe: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Its identity in words."""
        return f"{self.field}/{self.data}/{self.variant}/{self.protocol}/{self.seed}"

    @property
    def digest(self) -> str:
        """What stands for its recipe in the ledger."""
        return digest(self.recipe)

    @property
    def identity(self) -> tuple[Any, ...]:
        """By which a ledger knows it."""
        return self.data, self.variant, self.protocol, self.seed, self.digest

    def head(self) -> Row:
        """The part of its row that is known before it runs."""
        return {
            "field": self.field,
            "data": self.data,
            "variant": self.variant,
            "protocol": self.protocol,
            "seed": self.seed,
            "recipe_hash": self.digest,
        }


@dataclass(frozen=True)
class Outcome:
    """What a job found.

    Args:
        figures: by name; all finite.
        parameters: weights of the model, where it has such.
        seconds_per_epoch: of training, where there are epochs.
        curves: sequences by name, where it has such; all finite.
    """

    figures: Mapping[str, float]
    parameters: int | None = None
    seconds_per_epoch: float | None = None
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)


Run = Callable[[Job], Outcome]
Tell = Callable[[Row], None]


def run_jobs(
    run: Run,
    jobs: Sequence[Job],
    *,
    out: Path,
    workers: int = 1,
    together: int = 1,
    threads: int = 1,
    ray: str | None = None,
    fresh: bool = False,
    progress: Path | None = None,
    tell: Tell | None = None,
) -> list[Row]:
    """Run the jobs that a ledger does not have yet, each in a process of its own, or several in this one.

    A job that is done in the ledger under the same recipe is kept; one that failed is tried again. A
    row is written when its job ends, so that a grid which is killed loses the running jobs and no
    more. A job that raises, or whose process dies, leaves a row that says so, and the grid goes on.

    Args:
        run: from a job to its outcome; a function of a module or a partial of one, since it is pickled.
        jobs: all of one field.
        out: folder of the ledger, FIELD.json.
        workers: local processes at a time.
        together: jobs in this process, for a GPU that one does not fill; 1 for processes. They take turns,
            and where they differ in their seeds alone one step trains them all, see `fit_runs`. Their seconds
            and peak memory are those of all.
        threads: of each job; figures do not depend on `workers` as long as this is the same.
        ray: address of a Ray cluster, or "local:2" to start one with two workers here; a job takes
            a GPU where the cluster has one. None for local processes.
        fresh: run jobs anew that are done.
        progress: folder where courses of running jobs leave how far they have come, so that a job that is
            killed goes on there; with Ray one that all machines share. None for no such files.
        tell: is told each new row.

    Returns:
        The row of every job, in their order.

    Raises:
        BadInput: the jobs are of several fields or twice the same, the ledger is not one, or jobs are to
            run in several ways at once.
        MissingExtra: Ray is asked for and not installed.
    """
    check_size("run_jobs", "workers", workers)
    check_size("run_jobs", "threads", threads)
    if check_size("run_jobs", "together", together) > 1 and (workers > 1 or ray is not None):
        raise BadInput(
            f"run_jobs: together is {together}, which is in this process; leave out workers and ray"
        )
    keys = [job.key for job in jobs]
    if len({job.field for job in jobs}) > 1 or len({*keys}) < len(keys):
        raise BadInput(
            f"run_jobs: {len(keys)} jobs, {len({*keys})} different; expected those of one field, once"
        )
    if not jobs:
        return []
    ledger = Ledger(out / f"{jobs[0].field}.json")
    known = {} if fresh else ledger.by_job()
    found = {job.key: known.get(job.identity) for job in jobs}
    todo = [job for job in jobs if (found[job.key] or {}).get("status") != DONE]
    # Workers of a cluster may stand in other folders.
    progress = None if progress is None else progress.absolute()
    task = Task(run, threads, commit(), together, workers, progress)
    if progress is not None:
        prepare_folder(progress)
    for job in jobs if fresh else [job for job in jobs if job not in todo]:
        task.forget(job)  # left by tries that ended elsewhere, or before this one
    if ray is not None:
        rows = _on_ray(task, todo, ray)
    else:
        rows = rows_here(task, todo) if together > 1 else _locally(task, todo, workers)
    with closing(rows):
        for job, row in rows:
            ledger.add(row)
            if row["status"] == DONE:
                task.forget(job)
            found[job.key] = row
            if tell is not None:
                tell(row)
    return [row for row in found.values() if row is not None]


def select(jobs: Sequence[Job], only: Iterable[str]) -> list[Job]:
    """The jobs of these data sets and variants; of all where none is named.

    Args:
        only: names of data sets and of variants.

    Raises:
        UnknownName: a name that is neither a data set nor a variant of the jobs.

    Example:
        >>> jobs = [Job("uea", data, name, "clean", 0, {}) for data in "ab" for name in ("primal", "softmax")]
        >>> [job.key for job in select(jobs, ["b", "primal"])]
        ['uea/b/primal/clean/0']
    """
    names = {*only}
    sets, variants = {job.data for job in jobs}, {job.variant for job in jobs}
    for name in sorted(names - sets - variants):
        error = unknown("reproduce", "data set or variant", name, sets | variants)
        raise UnknownName(f"{error}; sets that the data folder lacks are left out")
    return [
        job
        for job in jobs
        if job.data in (names & sets or sets) and job.variant in (names & variants or variants)
    ]


@dataclass(frozen=True)
class Task:
    """What all jobs of a grid share.

    Args:
        run: from a job to its outcome.
        threads: of each job.
        commit: of the code, for the rows.
        together: jobs that share a process, see `rows_here`.
        workers: processes that share a machine.
        progress: folder of what running jobs leave, see `run_jobs`.

    Raises:
        BadInput: jobs that share a process are to leave progress.
    """

    run: Run
    threads: int
    commit: str | None
    together: int = 1
    workers: int = 1
    progress: Path | None = None

    def __post_init__(self) -> None:
        if self.progress is not None and self.together > 1:
            raise BadInput(
                f"run_jobs: together is {self.together}, and jobs in one process leave no progress; "
                "leave one out"
            )

    def row(self, job: Job) -> Row:
        """Run a job, in the process at hand, to its row."""
        torch.set_num_threads(self.threads)
        if torch.cuda.is_initialized():  # by an earlier job of this process
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        outcome, error, journal = Outcome({}), None, self.journal(job)
        with threadpool_limits(self.threads), kept_in(journal):
            try:
                outcome = self.run(job)
            except Exception as raised:  # whatever a job dies of, the others go on
                error = f"{type(raised).__name__}: {raised}"
        curves = {name: [*map(float, curve)] for name, curve in outcome.curves.items()}
        found = [*outcome.figures.items(), *((name, each) for name in curves for each in curves[name])]
        wrong = [f"{name} is {value}" for name, value in found if not isfinite(value)]
        if wrong:
            error = f"BadInput: {wrong[0]}"
        return self.signed(
            job,
            error,
            figures={} if error else dict(outcome.figures),
            **({"curves": curves} if curves and not error else {}),
            parameters=outcome.parameters,
            seconds_per_epoch=outcome.seconds_per_epoch,
            seconds=time.perf_counter() - started + (0.0 if journal is None else journal.spent),
            peak_memory_mib=peak_mib(),
            **({} if journal is None or journal.tries == 1 else {"tries": journal.tries}),
            **({} if journal is None or journal.origin in (None, self.commit) else {"begun": journal.origin}),
        )

    def journal(self, job: Job) -> Journal | None:
        """Where the courses of a job leave how far they have come."""
        if self.progress is None:
            return None
        return journal_of(self.progress, job.field, *job.identity, commit=self.commit)

    def forget(self, job: Job) -> None:
        """Take away what a job has left on its way."""
        journal = self.journal(job)
        if journal is not None:
            journal.forget()

    def signed(self, job: Job, error: str | None, **found: Any) -> Row:
        """A row with all that says where it comes from."""
        return {
            **job.head(),
            "status": FAILED if error else DONE,
            "error": error,
            "machine": machine(),
            **found,
            # What shared the machine: seconds hang on it.
            **({"together": self.together} if self.together > 1 else {}),
            **({"workers": self.workers} if self.workers > 1 else {}),
            "versions": versions(),
            "commit": self.commit,
            "date": datetime.now(UTC).date().isoformat(),
            "recipe": dict(job.recipe),
        }

    def lost(self, job: Job, why: str) -> Row:
        """The row of a job whose process died."""
        unknown_to_us = ("parameters", "seconds_per_epoch", "seconds", "peak_memory_mib", "machine")
        return self.signed(job, why, figures={}, **dict.fromkeys(unknown_to_us))


def _kind(job: Job) -> tuple[str, ...]:
    """All of a job but its seed."""
    return job.data, job.variant, job.protocol, job.digest


def rows_here(task: Task, jobs: Sequence[Job]) -> Generator[tuple[Job, Row]]:
    """Jobs in this process, one after another or as many at once as the task says; nothing is written.

    Yields:
        A job and its row, as they end.
    """
    if task.together == 1:
        yield from ((job, task.row(job)) for job in jobs)
        return
    # Limits are set for all, since of jobs in threads one may end before another.
    torch.set_num_threads(task.threads)
    with threadpool_limits(task.threads):
        yield from in_turns(task.row, jobs, at_once=task.together, kind=_kind)


def _locally(task: Task, jobs: Sequence[Job], workers: int) -> Generator[tuple[Job, Row]]:
    """Processes started afresh: a fork would share the parent's memory, and its peak."""
    context, waiting = get_context("spawn"), deque(jobs)
    running: dict[Any, tuple[Job, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.popleft()
                receive, send = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(send, task, job))
                # Known before it runs, so that Ctrl-C at any moment ends it.
                running[receive] = job, process
                process.start()
                send.close()
            for ready in cast(list[Connection], wait([*running])):
                job, process = running.pop(ready)
                with ready:
                    row = _received(ready, task, job, process)
                yield job, row
    finally:
        for _, process in running.values():
            if process.pid is not None:
                process.terminate()
                process.join()


def _received(ready: Connection, task: Task, job: Job, process: Any) -> Row:
    try:
        row: Row = ready.recv()
    except EOFError:
        process.join()
        return task.lost(job, f"the process ended with code {process.exitcode}")
    process.join()
    return row


def _child(send: Connection, task: Task, job: Job) -> None:
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        row = task.row(job)
    except KeyboardInterrupt:
        os._exit(130)  # the parent got Ctrl-C too and speaks for all
    send.send(row)


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _on_ray(task: Task, jobs: Sequence[Job], address: str) -> Generator[tuple[Job, Row]]:
    try:
        import ray
    except ImportError:
        raise missing_extra("run_jobs", "ray", "ray") from None
    if address.startswith(LOCAL):
        count = address.removeprefix(LOCAL)
        if not count.isdecimal() or not int(count):
            raise BadInput(f"run_jobs: ray is {address!r}, expected such as 'local:2' or an address")
        ray.init("local", num_cpus=int(count) * task.threads, include_dashboard=False, log_to_driver=False)
    else:
        try:
            ray.init(address, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise BadInput(f"run_jobs: no Ray cluster at {address!r}: {error}") from error
    try:
        gpus = int(bool(ray.cluster_resources().get("GPU")))
        # One call a process, so that its peak memory is its own; a job that dies is told, not tried again.
        remote = ray.remote(num_cpus=task.threads, num_gpus=gpus, max_calls=1, max_retries=0)(Task.row)
        running = {remote.remote(task, job): job for job in jobs}
        while running:
            for ready in ray.wait([*running])[0]:
                job = running.pop(ready)
                try:
                    row = ray.get(ready)
                except ray.exceptions.RayError as error:
                    row = task.lost(job, f"{type(error).__name__}: {str(error).splitlines()[0]}")
                yield job, row
    finally:
        ray.shutdown()
