"""What can be reproduced: one table from a field to the functions that list and run its jobs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from kernelhead.errors import BadInput, missing_extra, unknown
from kernelhead.shapes import check_size
from kernelhead.training.ablations import ABLATIONS_PAGE, ablation_jobs, ablation_run
from kernelhead.training.causal import CAUSAL_PAGE, causal_jobs, causal_run
from kernelhead.training.control import RL_PAGE, rl_jobs, rl_run
from kernelhead.training.cooccurrence import COOCCURRENCE_PAGE, cooccurrence_jobs, cooccurrence_run
from kernelhead.training.depth import DEPTH_PAGE, depth_jobs, depth_run
from kernelhead.training.events import EVENTS_PAGE, event_jobs, event_run
from kernelhead.training.grid import Job, Outcome, Tell, run_jobs, select
from kernelhead.training.ledger import Ledger, Row
from kernelhead.training.lra import LRA_PAGE, lra_jobs, lra_run
from kernelhead.training.pictures import IMAGE_PAGE, image_jobs, image_run
from kernelhead.training.reranking import RERANK_PAGE, rerank_jobs, rerank_run
from kernelhead.training.scenes import SCENES_PAGE, scene_jobs, scene_run
from kernelhead.training.table import Page, write_page
from kernelhead.training.transplants import GRAFT_PAGE, graft_jobs, graft_run
from kernelhead.training.transport import TRANSPORT_PAGE, transport_jobs, transport_run
from kernelhead.training.uci import TABLES_PAGE, table_jobs, table_run
from kernelhead.training.uea import UEA_PAGE, uea_jobs, uea_run
from kernelhead.training.vits import VIT_PAGE, vit_jobs, vit_run
from kernelhead.training.words import TEXT_PAGE, text_jobs, text_run


class Lists(Protocol):
    """A function that lists the jobs of a field."""

    def __call__(
        self, recipes: Path, *, protocol: str, seeds: int, root: Path | None = None
    ) -> list[Job]:  # pragma: no cover
        """From a recipe file to jobs."""
        ...


class Runs(Protocol):
    """A function of a module that runs one job; the same job gives the same figures."""

    def __call__(self, job: Job, *, root: Path | None = None) -> Outcome:  # pragma: no cover
        """From a job to what it found."""
        ...


class Keeps(Protocol):
    """The same with a folder of trained weights, which some protocols leave and others take."""

    def __call__(
        self, job: Job, *, root: Path | None = None, keep: Path | None = None
    ) -> Outcome:  # pragma: no cover
        """From a job to what it found."""
        ...


@dataclass(frozen=True)
class Field:
    """A field: how its jobs are listed, run, run with a folder of weights where they have such, and shown.

    Args:
        keeping: runs a job with a folder of weights.
        page: writes the table.
        resumes: whether a job that is killed may go on in another process: those who watch its courses
            keep nothing for themselves.
    """

    jobs: Lists
    run: Runs
    page: Page
    keeping: Keeps | None = None
    resumes: bool = False


# A field is added here and nowhere else.
FIELDS: dict[str, Field] = {
    "uea": Field(uea_jobs, uea_run, UEA_PAGE),
    "lra": Field(lra_jobs, lra_run, LRA_PAGE, resumes=True),
    "rl": Field(rl_jobs, rl_run, RL_PAGE, keeping=rl_run, resumes=True),
    "image": Field(image_jobs, image_run, IMAGE_PAGE, resumes=True),
    "text": Field(text_jobs, text_run, TEXT_PAGE, resumes=True),
    "ablations": Field(ablation_jobs, ablation_run, ABLATIONS_PAGE, resumes=True),
    "graft": Field(graft_jobs, graft_run, GRAFT_PAGE),
    "vit": Field(vit_jobs, vit_run, VIT_PAGE),
    "events": Field(event_jobs, event_run, EVENTS_PAGE),
    "tables": Field(table_jobs, table_run, TABLES_PAGE),
    "rerank": Field(rerank_jobs, rerank_run, RERANK_PAGE),
    "causal": Field(causal_jobs, causal_run, CAUSAL_PAGE),
    "transport": Field(transport_jobs, transport_run, TRANSPORT_PAGE),
    "scenes": Field(scene_jobs, scene_run, SCENES_PAGE, resumes=True),
    "depth": Field(depth_jobs, depth_run, DEPTH_PAGE, resumes=True),
    "cooccurrence": Field(cooccurrence_jobs, cooccurrence_run, COOCCURRENCE_PAGE),
}


def field_of(name: str) -> Field:
    """The field of a name.

    Raises:
        UnknownName: there is no such field.

    Example:
        >>> field_of("uea").page.title
        'Time series of the UEA archive'
    """
    if name in FIELDS:
        return FIELDS[name]
    raise unknown("reproduce", "field", name, FIELDS)


def jobs_of(
    name: str,
    *,
    recipes: Path | None = None,
    protocol: str = "clean",
    seeds: int = 3,
    only: Sequence[str] = (),
    root: Path | None = None,
) -> list[Job]:
    """The jobs of a field, all or those of some data sets and variants.

    Args:
        name: of the field.
        recipes: its file, recipes/NAME.toml by default.
        protocol: how a figure is chosen.
        seeds: how many.
        only: names of data sets and of variants; all where none is given.
        root: folder of data sets.

    Raises:
        BadInput: its file cannot be read.
        UnknownName: a name that is not known.
    """
    listed = field_of(name).jobs(
        recipes or Path("recipes") / f"{name}.toml",
        protocol=protocol,
        seeds=check_size("reproduce", "seeds", seeds),
        root=root,
    )
    return select(listed, only)


def reproduce(
    name: str,
    jobs: Sequence[Job],
    *,
    out: Path,
    workers: int = 1,
    together: int = 1,
    threads: int = 1,
    ray: str | None = None,
    fresh: bool = False,
    root: Path | None = None,
    keep: Path | None = None,
    progress: Path | None = None,
    tell: Tell | None = None,
) -> list[Row]:
    """Run jobs of a field into out/NAME.json and write the page out/NAME.md; see `run_jobs`, `write_page`.

    Args:
        name: of the field.
        jobs: of it, as `jobs_of` lists them.
        out: folder of the ledger and the page.
        workers: local processes at a time.
        together: jobs that take turns in this process.
        threads: of each job.
        ray: address of a Ray cluster; None for local processes.
        fresh: run jobs anew that are done.
        root: folder of data sets.
        keep: folder of trained weights, for fields whose jobs leave and take such.
        progress: folder where running jobs leave how far they have come, see `run_jobs`.
        tell: is told each new row.

    Returns:
        The row of every job.

    Raises:
        BadInput: jobs of this field keep no weights or leave no progress, a folder is a file; or as
            `run_jobs`.
        MissingExtra: weights or progress are to be kept and safetensors is not installed; or as `run_jobs`.
        UnknownName: there is no such field.
    """
    run = runner_of(name, root, keep)
    if progress is not None:
        check_resumes(name)
    for folder in (out, keep, progress):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise BadInput(f"reproduce: {folder} is a file, expected a folder")
    try:
        return run_jobs(
            run,
            jobs,
            out=out,
            workers=workers,
            together=together,
            threads=threads,
            ray=ray,
            fresh=fresh,
            progress=progress,
            tell=tell,
        )
    finally:
        rows = Ledger(out / f"{name}.json").rows()
        if rows:
            write_page(field_of(name).page, rows, out / f"{name}.md")


def standing(jobs: Sequence[Job], *, out: Path) -> list[tuple[Job, str]]:
    """Each job with where it stands in the ledger: done, failed or to do.

    Args:
        out: folder of the ledger.
    """
    if not jobs:
        return []
    rows = Ledger(out / f"{jobs[0].field}.json").by_job()
    return [(job, rows[job.identity]["status"] if job.identity in rows else "to do") for job in jobs]


def check_resumes(name: str) -> None:
    """See that a job of a field that is killed may go on.

    Raises:
        BadInput: it may not.
        MissingExtra: safetensors is not installed.
        UnknownName: there is no such field.

    Example:
        >>> check_resumes("lra")
    """
    if not field_of(name).resumes:
        others = ", ".join(other for other, each in FIELDS.items() if each.resumes)
        raise BadInput(f"reproduce: jobs of {name} leave no progress, expected one of: {others}")
    if find_spec("safetensors") is None:
        raise missing_extra("reproduce, progress", "safetensors", "cli")


def runner_of(name: str, root: Path | None = None, keep: Path | None = None) -> Callable[[Job], Outcome]:
    """What runs the jobs of a field.

    Args:
        name: of the field.
        root: folder of data sets.
        keep: folder of trained weights, for fields whose jobs leave and take such.

    Raises:
        BadInput: jobs of this field keep no weights.
        MissingExtra: weights are to be kept and safetensors is not installed.
        UnknownName: there is no such field.
    """
    field = field_of(name)
    if keep is None:
        return partial(field.run, root=root)
    if field.keeping is None:
        others = ", ".join(other for other, each in FIELDS.items() if each.keeping is not None)
        raise BadInput(f"reproduce: jobs of {name} keep no weights, expected one of: {others}")
    if find_spec("safetensors") is None:
        raise missing_extra("reproduce, keep", "safetensors", "cli")
    return partial(field.keeping, root=root, keep=keep)
