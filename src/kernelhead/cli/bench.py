"""kernelhead bench: ask the benchmarks of a checkout one question or all."""

import subprocess
import sys
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.places import FOLDER
from kernelhead.errors import BadInput

HELP = "measure speed, memory or robustness in a checkout: one question or all of speed, after its tests"
LIST = "import json; from benchmarks.run import questions; print(json.dumps(questions(), indent=2))"
EXAMPLE = """kernelhead bench --list
kernelhead bench core --out docs/performance
kernelhead bench robustness --tiny"""


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument(
        "name",
        nargs="?",
        default="all",
        help="a question; by default all of speed for the GPU, or for the CPU where there is none",
    )
    parser.add_argument(
        "--out", type=FOLDER, help="folder of the JSON records; of speed docs/performance by default"
    )
    parser.add_argument("--list", action="store_true", help="say the questions and stop")
    parser.add_argument("--json", action="store_true", help="with --list: print a JSON record")
    parser.add_argument("--no-gate", action="store_true", help="skip the tests; figures are marked ungated")
    parser.add_argument("--tiny", action="store_true", help="try a question out: few small cells, ungated")
    parser.add_argument(
        "--resume", action="store_true", help="keep the good rows of the record that is there"
    )
    parser.add_argument(
        "--beside", type=int, default=1, help="processes for cells that need not run alone: robustness"
    )


def run(chosen: Namespace, given: list[str]) -> int:
    """Find the checkout and hand over to its benchmarks, which need none of the command line's packages."""
    if chosen.json and not chosen.list:
        raise BadInput("bench: --json goes with --list; figures are written as JSON into --out")
    root = _checkout(Path.cwd())
    if chosen.json:
        return subprocess.run([sys.executable, "-c", LIST], cwd=root, check=False).returncode
    flags = {"--list": chosen.list, "--no-gate": chosen.no_gate, "--tiny": chosen.tiny}
    flags["--resume"] = chosen.resume
    words = [chosen.name, *(flag for flag, given in flags.items() if given)]
    words += ["--beside", str(chosen.beside)]
    words += ["--out", str(chosen.out.resolve())] if chosen.out else []
    return subprocess.run([sys.executable, "-m", "benchmarks.run", *words], cwd=root, check=False).returncode


def _checkout(here: Path) -> Path:
    """The folder, this one or one above, that holds pyproject.toml and the benchmarks."""
    for folder in (here, *here.parents):
        if (folder / "pyproject.toml").is_file() and (folder / "benchmarks" / "run.py").is_file():
            return folder
    raise BadInput(f"bench: {here} is not in a checkout of kernelhead, where the benchmarks are")
