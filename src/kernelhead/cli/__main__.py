"""kernelhead VERB: pick the verb, run it, and turn what goes wrong into one sentence."""

import sys
from importlib import import_module

from kernelhead import __version__
from kernelhead.errors import KernelheadError, missing_extra

VERBS = (
    "train",
    "evaluate",
    "predict",
    "inspect",
    "sites",
    "graft",
    "distil",
    "restore",
    "report",
    "bench",
    "reproduce",
)


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
        prog="kernelhead", description="Attention heads as kernel machines.", version=__version__
    )
    verbs = parser.add_subcommands(required=True, metavar="VERB")
    for name, module in modules.items():
        verb = ArgumentParser(description=f"{module.HELP}. Example: {module.EXAMPLE}")
        module.arguments(verb)
        verbs.add_subcommand(name, verb, help=module.HELP)
    chosen = parser.parse_args(given)
    if chosen.subcommand == "train":
        # Options that were not given stay out, so that a recipe file can fill them in.
        chosen = parser.parse_args(given, defaults=False)
    code: int = modules[chosen.subcommand].run(
        chosen[chosen.subcommand], given[given.index(chosen.subcommand) + 1 :]
    )
    return code


def _fail(sentence: str) -> int:
    print(f"kernelhead: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
