"""The verbs and their parser; only the verb that is asked for is imported."""

import ast
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from kernelhead import __version__

VERBS = (
    "train",
    "evaluate",
    "predict",
    "inspect",
    "graph",
    "sites",
    "graft",
    "distil",
    "restore",
    "rerank",
    "plan",
    "report",
    "bench",
    "reproduce",
    "doctor",
    "completion",
)
CODES = """exit codes:
  0    done
  1    a check or a job failed
  2    bad input, in one sentence
  130  stopped by Ctrl-C
  141  whoever read the output has gone"""
TOP = """examples:
  kernelhead train JapaneseVowels --attention primal+ --out runs/mine
  kernelhead report runs/mine
  kernelhead doctor"""


class _Formatter(DefaultHelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Text of several lines keeps them."""
        return text if "\n" in text else super()._fill_text(text, width, indent)


class _Parser(ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help; argparse would keep it to itself that this failed."""
        print(message, end="", file=file or sys.stderr, flush=True)


def load(verb: str) -> ModuleType:
    """The module of a verb: HELP, EXAMPLE (one line each), arguments and run."""
    return import_module(f"kernelhead.cli.{verb}")


def parser_of(full: Iterable[str] = ()) -> ArgumentParser:
    """The parser, with all that the named verbs take; of others, what they are for.

    Example:
        >>> parser_of(["sites"]).parse_args(["sites", "timm:vit"]).sites.model
        'timm:vit'
    """
    parser = _Parser(
        prog="kernelhead",
        description="Attention heads as kernel machines: train, read, graft, re-rank, plan and report.",
        epilog=f"{TOP}\n\n{CODES}",
        version=__version__,
        exit_on_error=False,
        formatter_class=_Formatter,
    )
    verbs = parser.add_subcommands(required=True, metavar="VERB")
    for verb in VERBS:
        about = help_of(verb)
        made = _Parser(description=f"{about}.", exit_on_error=False, formatter_class=_Formatter)
        if verb in full:
            module = load(verb)
            module.arguments(made)
            lines = module.EXAMPLE.split("\n")
            made.epilog = "\n  ".join(["example:" if len(lines) == 1 else "examples:", *lines])
            made.add_argument("-q", "--quiet", action="store_true", help="no progress and no remarks")
            made.add_argument(
                "-v", "--verbose", action="store_true", help="versions, seconds and tracebacks, on stderr"
            )
        verbs.add_subcommand(verb, made, help=about)
    return parser


def help_of(verb: str) -> str:
    """What a verb is for, read from its file: help for all of them imports none.

    Example:
        >>> help_of("sites")[:23]
        'list every attention of'
    """
    found = find_spec(f"kernelhead.cli.{verb}")
    source = Path(str(found and found.origin)).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HELP":
            return str(ast.literal_eval(node.value))
    raise LookupError(f"kernelhead.cli.{verb} has no HELP")
