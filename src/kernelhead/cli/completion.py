"""kernelhead completion: a script with which a shell completes verbs, options, names and files."""

import re
from argparse import Action
from collections.abc import Iterable
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from kernelhead.cli.inspect import READINGS
from kernelhead.cli.places import FILE, FOLDER
from kernelhead.cli.rerank import NETWORK
from kernelhead.cli.verbs import VERBS, parser_of
from kernelhead.data.readers import SPLITS
from kernelhead.errors import missing_extra, unknown
from kernelhead.inspection.causal import METHODS
from kernelhead.inspection.head_graphs import EACH, MEAN
from kernelhead.models import ATTENTIONS, LAWS, RANKERS
from kernelhead.nn.cores import CORES
from kernelhead.training import FIELDS
from kernelhead.training.distil import TRAINED

HELP = "print a script with which bash, zsh or fish completes verbs, options, names and files"
EXAMPLE = """source <(kernelhead completion bash)
kernelhead completion zsh > ~/.zfunc/_kernelhead
kernelhead completion fish > ~/.config/fish/completions/kernelhead.fish"""
SHELLS = ("bash", "zsh", "fish")
# Names that an option takes; of others, those that its help has in quotation marks.
WORDS: dict[tuple[str, str], Iterable[str]] = {
    ("train", "attention"): [*ATTENTIONS, *(f"{name}+" for name in ATTENTIONS)],
    ("inspect", "reading"): READINGS,
    ("inspect", "rows"): ("stochastic", "absolute"),
    ("graph", "head"): (EACH, MEAN),
    ("graph", "method"): METHODS,
    ("graft", "to"): CORES,
    ("graft", "where"): ("last", "all"),
    ("distil", "train"): TRAINED,
    ("rerank", "attention"): ATTENTIONS,
    ("rerank", "method"): (NETWORK, *RANKERS),
    ("plan", "law"): LAWS,
    ("reproduce", "field"): FIELDS,
    ("completion", "shell"): SHELLS,
    **{(verb, "split"): SPLITS for verb in ("evaluate", "predict", "inspect", "graph")},
}
QUOTED = re.compile(r'"([\w.+-]+)"')
FILES = ("data", "model", "run", "test")  # a word, but most often that of a file or a folder


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("shell", help=f"one of {', '.join(SHELLS)}")


def run(chosen: Namespace, given: list[str]) -> int:
    """Make the script, print it."""
    if chosen.shell not in SHELLS:
        raise unknown("completion", "shell", chosen.shell, SHELLS)
    print(script(chosen.shell))
    return 0


def script(shell: str) -> str:
    """The script of a shell; it stands alone, so that completing a word starts no Python.

    Raises:
        MissingExtra: shtab is not installed.

    Example:
        >>> "--attention" in script("bash")
        True
    """
    try:
        import shtab
    except ImportError:
        raise missing_extra("completion", "shtab", "cli") from None
    parser = parser_of(VERBS)
    places: dict[object, Any] = {FILE: shtab.FILE, FOLDER: shtab.DIRECTORY}
    for verb, one in getattr(parser._subcommands_action, "_name_parser_map", {}).items():
        for action in one._actions:
            words = [*WORDS.get((verb, action.dest), QUOTED.findall(action.help or ""))]
            if words:
                action.choices = words
            elif _kind(action) in places or action.dest in FILES:
                action.complete = places.get(_kind(action), shtab.FILE)
    return str(shtab.complete(parser, shell))


def _kind(action: Action) -> object:
    """The type of an argument, where jsonargparse keeps it."""
    return getattr(action, "_typehint", None) or action.type
