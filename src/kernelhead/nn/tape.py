"""`record(model)`: what every attention of a model did, for one with-block and no longer."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn.base import AbstractKernelAttention, AbstractRecorded, Attended
from kernelhead.nn.hosts.sides import Sides
from kernelhead.nn.hosts.site import Site, core_of_graft
from kernelhead.nn.hosts.sites import find_sites
from kernelhead.nn.hosts.watching import nothing_found, watching


@dataclass(eq=False)
class Tape:
    """Calls of attentions by the module's path, in the order of the model.

    Attributes:
        modules: path to attention module; to the core in it where one was grafted.
        calls: path to what each call of it did; a module that is called twice has two.
    """

    modules: dict[str, nn.Module] = field(default_factory=dict)
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

    Kept are outputs, and the second moments of primal layers for penalties; with `patterns` also the
    pattern of every attention, for inspection. Works through wrappers such as DDP and torch.compile,
    because it marks the modules themselves. Blocks on one model do not nest.

    Attention of hosts is recorded as well, see `kernelhead.nn.hosts.find_sites`: its pattern is that of
    the softmax before dropout, in float32 or better and without gradient. With `patterns` a compiled
    host runs eagerly inside the block; a block inside of a compiled function records ours only. A
    grafted core is recorded under the path of the host's attention.

    Raises:
        BadInput: the model has no attention that can be recorded, or is being recorded already.

    Example:
        >>> import torch
        >>> from kernelhead.nn import SoftmaxAttention
        >>> layer = SoftmaxAttention(8, heads=2)
        >>> with record(layer, patterns=True) as tape:
        ...     out = layer(torch.zeros(1, 3, 8))
        >>> tape.last("").pattern.shape
        torch.Size([1, 2, 3, 3])
        >>> host = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> with record(host, patterns=True) as tape:
        ...     out = host(torch.zeros(1, 3, 8))
        >>> tape.last("self_attn").pattern.shape
        torch.Size([1, 2, 3, 3])
    """
    tape, hosts = Tape(), {} if torch.compiler.is_compiling() else _hosts(model)
    ours: list[tuple[AbstractRecorded, list[Attended]]] = []
    read: dict[str, list[Attended]] = {}
    for path, module in model.named_modules():
        recorded = isinstance(module, AbstractRecorded)
        if not recorded and path not in hosts:
            continue
        short = _without_wrappers(_of_host(path, module))
        name = _of_host(path, module) if short in tape.modules else short
        calls: list[Attended] = []
        tape.modules[name], tape.calls[name] = module, calls
        if not isinstance(module, AbstractRecorded):
            read[path] = calls
            continue
        if module.recorded is not None:
            raise BadInput(
                f"record: {name or type(module).__name__!r} is being recorded already; blocks do not nest"
            )
        ours.append((module, calls))
    if not tape.modules:
        raise nothing_found("record", model)
    try:
        for module, calls in ours:
            module.recording, module.recorded = ("patterns" if patterns else "moments"), calls
        with _listening(model, hosts, read, patterns) if hosts else nullcontext():
            yield tape
    finally:
        for module, _ in ours:
            module.recording, module.recorded = "off", None


def _hosts(model: nn.Module) -> dict[str, Site]:
    """Attention of hosts that can be read and is not grafted, by its path in the model."""
    return {
        site.path: site
        for site in find_sites(model)
        if site.readable and site.family != "kernelhead" and core_of_graft(site.module) is None
    }


@contextmanager
def _listening(
    model: nn.Module, hosts: dict[str, Site], calls: dict[str, list[Attended]], patterns: bool
) -> Iterator[None]:
    """Put the calls of hosts on the tape."""

    def note(site: Site, sides: Sides | None, output: Tensor) -> None:
        calls[site.path].append(Attended(output, pattern=None if sides is None else sides.pattern()))

    with watching(model, [*hosts.values()], note, sides=patterns):
        yield


def _of_host(path: str, module: nn.Module) -> str:
    """The path of the host's attention for a core that was grafted into it, any other path as it is."""
    above, _, last = path.rpartition(".")
    return above if last == "kernelhead" and not isinstance(module, AbstractKernelAttention) else path


def _without_wrappers(path: str) -> str:
    """The path in the model itself: wrappers put their own names in front."""
    parts = path.split(".")
    while parts and parts[0] in ("module", "_forward_module", "_orig_mod"):
        parts = parts[1:]
    return ".".join(parts)
