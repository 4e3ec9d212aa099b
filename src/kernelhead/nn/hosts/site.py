"""A place in a model where attention happens, and what watches it."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from kernelhead.nn.base import AbstractRecorded
from kernelhead.nn.hosts.sides import Sides


@dataclass(frozen=True, eq=False)
class Site:
    """An attention found in a model.

    Attributes:
        path: dotted path of the attention module in the model.
        family: "kernelhead", "torch", "timm", "huggingface", "other" or a name in `FAMILIES`.
        kind: name of its class.
        module: the attention module.
        width: features of a point, c; 0 where an attention of no known family does not say.
        heads: heads of queries.
        kv_heads: heads of keys and values.
        head: features of a head, d.
        causal: whether a point sees itself and those before it only; of torch and timm the call
            says so, not the module.
        cross: whether it attends from one sequence to another.
        reason: why it cannot be grafted, in words; None where it can.
        readable: whether `reading` can tell what its core gets.
    """

    path: str
    family: str
    kind: str
    module: nn.Module
    width: int
    heads: int
    kv_heads: int
    head: int
    causal: bool
    cross: bool
    reason: str | None = None
    readable: bool = True


#: What a family calls after each call of a site: the site, its sides if they are wanted, its output.
Note = Callable[[Site, Sides | None, Tensor], None]


class Watch(Protocol):
    """How a family is watched: `note` is called after each call of a site, until the stack is closed."""

    def __call__(self, stack: ExitStack, site: Site, note: Note, *, sides: bool) -> None:
        """Note every call, with its sides if they are wanted."""


@dataclass(frozen=True)
class Family:
    """A further family of hosts.

    Attributes:
        site: the site that a module at a path is, None if it is none.
        watch: how its calls are noted.

    Example:
        >>> Family(site=lambda path, module: None, watch=lambda stack, site, note, sides: None).site("", None)
    """

    site: Callable[[str, nn.Module], Site | None]
    watch: Watch


#: families beside the built-in ones, by the name that their sites carry.
FAMILIES: dict[str, Family] = {}


def core_of_graft(module: nn.Module) -> AbstractRecorded | None:
    """The core that was grafted into a host's attention, its child `kernelhead`; None if there is none.

    Example:
        >>> core_of_graft(nn.MultiheadAttention(8, 2)) is None
        True
    """
    core = module._modules.get("kernelhead")
    return core if isinstance(core, AbstractRecorded) else None
