"""kernelhead report: one self-contained page about one run or several."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FILE, FOLDER
from kernelhead.cli.terminal import note
from kernelhead.records import REPORT
from kernelhead.report import write_report

HELP = "one self-contained HTML page about one run or several side by side"
EXAMPLE = "kernelhead report runs/primal runs/softmax --out report.html"


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument(
        "runs", type=FOLDER, nargs="+", help="run folders, and folders with a robustness.json"
    )
    parser.add_argument("--out", type=FILE, default=Path(REPORT), help="file to write")
    parser.add_argument("--title", default="kernelhead report", help="of the page")


def run(chosen: Namespace, given: list[str]) -> int:
    """Read the records, write the page."""
    note(f"report: {write_report(chosen.runs, chosen.out, title=chosen.title)}")
    return 0
