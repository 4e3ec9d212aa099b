"""Everything kernelhead raises or warns with; every message is one sentence with the numbers in it."""

from collections.abc import Iterable
from difflib import get_close_matches


class KernelheadError(Exception):
    """Base of all errors raised on purpose; the command line turns it into exit code 2."""


class ShapeError(KernelheadError, ValueError):
    """Two axes that must agree do not."""


class BadInput(KernelheadError, ValueError):
    """A value or a file that is not what was expected."""


class Degenerate(BadInput):
    """Numbers from which nothing follows, such as rows of attention that are all the same."""


class UnknownName(KernelheadError, ValueError):
    """A name that nothing answers to; the nearest known one is suggested."""


class MissingExtra(KernelheadError, ImportError):
    """An optional dependency is not installed; the message has the command that installs it."""


class CheckpointError(KernelheadError):
    """A checkpoint or a run folder that cannot be read or written."""


class NotConverged(UserWarning):
    """An iteration stopped before its tolerance was met."""


class UnseenLevel(UserWarning):
    """A category that training did not have; it is taken as missing."""


def unknown(who: str, what: str, name: object, known: Iterable[str]) -> UnknownName:
    """The error for a name that is not in a list, with the nearest one suggested.

    Args:
        what: is named, such as "feature map".

    Example:
        >>> print(unknown("PrimalAttention", "feature map", "cosin", ["cosine", "elu"]))
        PrimalAttention: unknown feature map 'cosin', did you mean 'cosine'? Known: cosine, elu
    """
    names = sorted(known)
    lower = {each.lower(): each for each in names}
    near = get_close_matches(str(name).lower(), lower, n=1, cutoff=0.5)
    hint = f", did you mean {lower[near[0]]!r}?" if near else "."
    return UnknownName(f"{who}: unknown {what} {name!r}{hint} Known: {', '.join(names)}")


def missing_extra(who: str, package: str, extra: str) -> MissingExtra:
    """The error for an optional dependency that is not there.

    Args:
        package: that is not there.
        extra: that brings it.

    Example:
        >>> print(missing_extra("read_ts", "aeon", "ts"))
        read_ts: needs aeon, which is not installed; run: pip install "kernelhead[ts]"
    """
    return MissingExtra(
        f'{who}: needs {package}, which is not installed; run: pip install "kernelhead[{extra}]"'
    )
