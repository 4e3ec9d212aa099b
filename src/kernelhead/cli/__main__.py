"""kernelhead VERB: pick the verb, run it, and turn what goes wrong into one sentence."""

import re
import sys
from argparse import ArgumentError
from importlib import import_module

from kernelhead import __version__
from kernelhead.errors import BadInput, KernelheadError, missing_extra, unknown

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
)

KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 2 bad input, 130 stopped by Ctrl-C."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KernelheadError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 130


def _run(given: list[str]) -> int:
    try:
        from jsonargparse import ArgumentParser

        modules = {name: import_module(f"kernelhead.cli.{name}") for name in VERBS}
    except ImportError as error:
        raise missing_extra("the command line", error.name or "a package", "cli") from error
    parser = ArgumentParser(
        prog="kernelhead",
        description="Attention heads as kernel machines.",
        version=__version__,
        exit_on_error=False,
    )
    verbs = parser.add_subcommands(required=True, metavar="VERB")
    for name, module in modules.items():
        verb = ArgumentParser(description=f"{module.HELP}. Example: {module.EXAMPLE}", exit_on_error=False)
        module.arguments(verb)
        verbs.add_subcommand(name, verb, help=module.HELP)
    try:
        chosen = parser.parse_args(given)
        if chosen.subcommand == "train":
            # Options that were not given stay out, so that a recipe file can fill them in.
            chosen = parser.parse_args(given, defaults=False)
    except ArgumentError as error:
        raise _refusal(error, given) from None
    code: int = modules[chosen.subcommand].run(
        chosen[chosen.subcommand], given[given.index(chosen.subcommand) + 1 :]
    )
    return code


def _refusal(error: ArgumentError, given: list[str]) -> KernelheadError:
    """What the parser refused, in one sentence."""
    words = [word for word in given if not word.startswith("-")]
    if not words:
        return BadInput(f"expected a verb, one of {', '.join(VERBS)}")
    verb = words[0]
    if verb not in VERBS:
        return unknown("the command line", "verb", verb, VERBS)
    why = " ".join(str(error).replace(f"{verb}.", "").split())
    found = re.fullmatch(r"""Parser key "(\S+)": Expected an? <class '(\w+)'>\. Got value: (.*)""", why)
    if found:
        option, kind, value = found.groups()
        why = f"--{option} is {value!r}, expected {KINDS.get(kind, kind)}"
    return BadInput(f"{verb}: {why}; kernelhead {verb} --help has all options")


def _fail(sentence: str) -> int:
    print(f"kernelhead: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
