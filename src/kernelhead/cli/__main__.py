"""kernelhead VERB: pick the verb, run it, and turn what goes wrong into one sentence."""

import io
import os
import platform
import re
import sys
import time
import traceback
import warnings
from argparse import ArgumentError, ArgumentParser
from contextlib import suppress

from kernelhead import __version__
from kernelhead.cli.voice import VOICE, complain, detail
from kernelhead.errors import BadInput, KernelheadError, missing_extra, unknown

DONE, FAILED, REFUSED, STOPPED, UNREAD = 0, 1, 2, 130, 141
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    It is 0 for done, 1 where a check or a job failed, 2 for bad input, 130 after Ctrl-C, and 141 where
    whoever read the output has gone.
    """
    VOICE.quiet = VOICE.verbose = False
    if argv is None:
        _settle()
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            if sys.stdout:
                sys.stdout.flush()
    except KernelheadError as error:
        return _fail(str(error))
    except BrokenPipeError:
        _discard()
        return UNREAD
    except OSError as error:
        return _fail(f"{error.filename or _unnamed()}: {error.strerror or error}")
    except UnicodeEncodeError as error:
        strange = ascii(error.object[error.start : error.end])
        return _fail(f"a name holds {strange}, which is no letter and cannot be written; rename the file")
    except KeyboardInterrupt:
        return STOPPED


def _run(given: list[str]) -> int:
    verb = given[0] if given else ""
    try:
        from kernelhead.cli.verbs import VERBS, load, parser_of

        parser = parser_of([verb])
    except ImportError as error:
        if (error.name or "").startswith("kernelhead"):
            raise
        if verb == "doctor":
            return _doctor(given[1:])
        raise missing_extra("the command line", error.name or "a package", "cli") from error
    try:
        chosen = parser.parse_args(given)
        if chosen.subcommand == "train":
            # Options that were not given stay out, so that a recipe file can fill them in.
            chosen = parser.parse_args(given, defaults=False)
    except (ArgumentError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(error, given, VERBS) from None
    options = chosen[chosen.subcommand]
    VOICE.quiet, VOICE.verbose = (bool(options.pop(each, False)) for each in ("quiet", "verbose"))
    detail(f"{__version__}, Python {platform.python_version()}, {sys.executable}")
    started = time.perf_counter()
    code: int = load(verb).run(options, given[1:])
    detail(f"{verb}: {time.perf_counter() - started:.1f} s, exit code {code}")
    return code


def _doctor(given: list[str]) -> int:
    """The one verb that must run where packages of the command line are missing."""
    from kernelhead.cli import doctor

    parser = ArgumentParser(prog="kernelhead doctor", description=doctor.HELP)
    doctor.arguments(parser)
    return doctor.run(parser.parse_args(given), given)


def _refusal(error: Exception, given: list[str], verbs: tuple[str, ...]) -> KernelheadError:
    """What the parser refused, in one sentence."""
    words = [word for word in given if not word.startswith("-")]
    if not words:
        return BadInput(f"expected a verb, one of {', '.join(verbs)}")
    verb = words[0]
    if verb not in verbs:
        return unknown("the command line", "verb", verb, verbs)
    if verb != given[0]:
        return BadInput(f"{given[0]} comes after the verb: kernelhead {verb} ... {given[0]}")
    why = " ".join(str(error).replace(f"{verb}.", "").split())
    found = re.fullmatch(r"""Parser key "(\S+)": Expected an? <class '(\w+)'>\. Got value: (.*)""", why)
    if found:
        option, kind, value = found.groups()
        why = f"--{option} is {value!r}, expected {KINDS.get(kind, kind)}"
    return BadInput(f"{verb}: {why}; kernelhead {verb} --help has all options")


def _settle() -> None:
    """What a process of our own may change: letters its output lacks are spelled, warnings are one line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    plain = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], file: str, line: int, *rest: object) -> None:
        if VOICE.verbose:
            plain(message, category, file, line)
        else:
            complain(f"note: {' '.join(str(message).split())}")

    warnings.showwarning = show  # type: ignore[assignment]


def _discard() -> None:
    """Send what is still to be written nowhere, so that ending the process does not fail on it."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unnamed() -> str:
    """What a failure without a name is about: the output, if that still cannot be written."""
    try:
        print(end="", flush=True)
    except OSError:
        _discard()
        return "the output"
    return "a file"


def _fail(sentence: str) -> int:
    if VOICE.verbose:
        traceback.print_exc()
    complain(sentence)
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
