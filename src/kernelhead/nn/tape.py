"""`record(model)`: what every attention of a model did, for one with-block and no longer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from kernelhead.errors import BadInput
from kernelhead.nn.base import AbstractRecorded, Attended


@dataclass(eq=False)
class Tape:
    """Calls of attentions by the module's path, in the order of the model.

    Attributes:
        modules: path to attention module.
        calls: path to what each call of it did; a module that is called twice has two.
    """

    modules: dict[str, AbstractRecorded] = field(default_factory=dict)
    calls: dict[str, list[Attended]] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many calls were recorded."""
        return sum(map(len, self.calls.values()))

    def last(self, path: str) -> Attended:
        """What the last call of one module did.

        Raises:
            BadInput: that module is not on the tape, or was not called.
        """
        if not self.calls.get(path):
            raise BadInput(
                f"Tape: nothing was recorded at {path!r}; recorded: {[p for p, c in self.calls.items() if c]}"
            )
        return self.calls[path][-1]

    def clear(self) -> None:
        """Forget the calls so far and go on recording."""
        for calls in self.calls.values():
            calls.clear()


@contextmanager
def record(model: nn.Module, *, patterns: bool = False) -> Iterator[Tape]:
    """Record what the attentions of a model do inside the block.

    Kept are the second moments of primal layers, for penalties; with `patterns` also the pattern
    of every attention, for inspection. Works through wrappers such as DDP and torch.compile,
    because it marks the modules themselves. Blocks on one model do not nest.

    Raises:
        BadInput: the model has no attention of kernelhead, or is being recorded already.

    Example:
        >>> import torch
        >>> from kernelhead.nn import SoftmaxAttention
        >>> layer = SoftmaxAttention(8, heads=2)
        >>> with record(layer, patterns=True) as tape:
        ...     out = layer(torch.zeros(1, 3, 8))
        >>> tape.last("").pattern.shape
        torch.Size([1, 2, 3, 3])
    """
    tape = Tape()
    for path, module in model.named_modules():
        if isinstance(module, AbstractRecorded):
            short = _without_wrappers(path)
            name = path if short in tape.modules else short
            if module.recorded is not None:
                raise BadInput(
                    f"record: {name or type(module).__name__!r} is being recorded already; blocks do not nest"
                )
            tape.modules[name], tape.calls[name] = module, []
    if not tape.modules:
        raise BadInput(f"record: {type(model).__name__} has no attention of kernelhead")
    try:
        for name, module in tape.modules.items():
            module.recording, module.recorded = ("patterns" if patterns else "moments"), tape.calls[name]
        yield tape
    finally:
        for module in tape.modules.values():
            module.recording, module.recorded = "off", None


def _without_wrappers(path: str) -> str:
    """The path in the model itself: wrappers put their own names in front."""
    parts = path.split(".")
    while parts and parts[0] in ("module", "_forward_module", "_orig_mod"):
        parts = parts[1:]
    return ".".join(parts)
