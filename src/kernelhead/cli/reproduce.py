"""kernelhead reproduce: the grid of a field into its ledger and its page."""

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FILE, FOLDER
from kernelhead.cli.terminal import note, say, say_json
from kernelhead.training import FIELDS, jobs_of, reproduce, standing

HELP = "train the grid of a field, going on where it stopped, into a ledger and a table"
EXAMPLE = """kernelhead reproduce uea --only JapaneseVowels primal --seeds 3 --workers 2
kernelhead reproduce uea --list --json"""


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("field", help=f"one of {', '.join(FIELDS)}")
    parser.add_argument("--only", nargs="+", default=[], help="names of data sets and of variants")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument(
        "--protocol",
        default="clean",
        help="clean: validation data choose; paper (series, long sequences): as published, where the test"
        " part may choose; returns (control): rollouts; transductive (tables): tested rows are seen in"
        " training",
    )
    parser.add_argument("--workers", type=int, default=1, help="jobs at a time, one process each")
    parser.add_argument(
        "--together", type=int, default=1, help="jobs that take turns in one process, on a GPU"
    )
    parser.add_argument("--threads", type=int, default=1, help="of each job")
    parser.add_argument("--ray", type=str, help="address of a Ray cluster, or local:2 to start one here")
    parser.add_argument(
        "--out", type=FOLDER, default=Path("docs/results"), help="folder of the ledger and the table"
    )
    parser.add_argument("--recipe", type=FILE, help="TOML file of settings; recipes/FIELD.toml by default")
    parser.add_argument("--fresh", action="store_true", help="run jobs anew that are done")
    parser.add_argument("--list", action="store_true", help="say the jobs and where they stand, and stop")
    parser.add_argument(
        "--keep", type=FOLDER, help="folder of policies (control): clean leaves them, returns acts with them"
    )
    parser.add_argument(
        "--progress", type=FOLDER, help="folder where running jobs leave how far they are; killed, they go on"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON record: the jobs, or what was done")
    parser.add_argument("--root", type=FOLDER, help="folder of data sets; KERNELHEAD_DATA by default")


def run(chosen: Namespace, given: list[str]) -> int:
    """List the jobs, run those that are to do, say where the figures are."""
    jobs = jobs_of(
        chosen.field,
        recipes=chosen.recipe,
        protocol=chosen.protocol,
        seeds=chosen.seeds,
        only=chosen.only,
        root=chosen.root,
    )
    if chosen.list:
        where = standing(jobs, out=chosen.out)
        if chosen.json:
            listed = [{"job": job.key, "status": status} for job, status in where]
            say_json({"field": chosen.field, "jobs": listed})
        for job, status in where if not chosen.json else ():
            say(f"{status:6}  {job.key}")
        return 0
    rows = reproduce(
        chosen.field,
        jobs,
        out=chosen.out,
        workers=chosen.workers,
        together=chosen.together,
        threads=chosen.threads,
        ray=chosen.ray,
        fresh=chosen.fresh,
        root=chosen.root,
        keep=chosen.keep,
        progress=chosen.progress,
        tell=(lambda row: None) if chosen.json else _say_row,
    )
    failed = [row for row in rows if row["status"] == "failed"]
    ledger, table = (chosen.out / f"{chosen.field}.{ending}" for ending in ("json", "md"))
    done = len(rows) - len(failed)
    if chosen.json:
        say_json({"jobs": len(rows), "done": done, "ledger": str(ledger), "table": str(table)})
    else:
        say(f"{done} of {len(rows)} jobs are done; ledger: {ledger}, table: {table}")
    return 1 if failed else 0


def _say_row(row: dict[str, Any]) -> None:
    job = f"{row['data']}, {row['variant']}, {row['protocol']}, seed {row['seed']}"
    figures = ", ".join(f"{name} {value:.4g}" for name, value in row["figures"].items())
    note(f"{job}: {row['error'] or figures}" + (f" ({row['seconds']:.1f} s)" if row["seconds"] else ""))
