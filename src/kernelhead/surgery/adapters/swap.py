"""A host module whose class is exchanged on the instance: the same weights and names, another forward."""

from typing import Any, ClassVar

from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn.cores import AbstractCore

# The classes made so far: a copy of a grafted module has the class of the original.
_MADE: dict[tuple[type, type], Any] = {}


class Swapped(nn.Module):
    """Base of forwards that are put over a host's own; copies and pickles find their way back."""

    #: the class the instance had before, and has again after a restore.
    host: ClassVar[type[nn.Module]]
    kernelhead: AbstractCore

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = super().__reduce_ex__(protocol)[2]
        return _anew, (type(self).__mro__[1], self.host), state


def swapped(forward: type[Swapped], host: type[nn.Module]) -> Any:
    """A subclass of the host's class with another forward, under the host's name; one for each host."""
    if (forward, host) not in _MADE:
        names = {"host": host, "forward": forward.forward}
        names |= {"__module__": host.__module__, "__qualname__": host.__qualname__}
        _MADE[forward, host] = type(host.__name__, (forward, host), names)
    return _MADE[forward, host]


def _anew(forward: type[Swapped], host: type[nn.Module]) -> Any:
    kind = swapped(forward, host)
    return kind.__new__(kind)


def with_pattern(
    core: AbstractCore, *sides: Tensor, mask: Tensor | None, causal: bool, scale: float | None = None
) -> tuple[Tensor, Tensor | None]:
    """What the core gives, (b, h, n, d), and the pattern it applied, (b, h, n, m).

    The pattern is None where a forward is run again inside a backward pass, which needs none.

    Raises:
        BadInput: this core forms no pattern.
    """
    before = core.recording, core.recorded
    core.recording, core.recorded = "patterns", []
    try:
        output = core(*sides, mask=mask, causal=causal, scale=scale)
        noted = core.recorded
    finally:
        core.recording, core.recorded = before
    if not noted:
        return output, None
    if core.recorded is not None:
        core.recorded.append(noted[-1])
    if noted[-1].pattern is None:
        raise BadInput(f"{type(core).__name__}: this core forms no pattern, so it has no weights to return")
    return output, noted[-1].pattern.matrix()
