"""What a grafted core can be told of a mask: real keys and causality; all else is refused."""

import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.nn.hosts.masks import Seen
from kernelhead.nn.hosts.sides import lowest


def taken(who: str, seen: Seen) -> Seen:
    """The same, where a core can take it.

    Raises:
        BadInput: the mask does more than hide padded keys or later ones.
    """
    if seen.bias is not None:
        raise BadInput(
            f"{who}: the mask is neither padding of keys nor causal, or adds to the logits; "
            "a grafted core takes no other"
        )
    return seen


def shown(mask: Tensor) -> Tensor:
    """True where a mask lets see: what is True, not zero, or added without hiding."""
    return mask > lowest(mask) if mask.is_floating_point() else mask.bool()


def traced(who: str, mask: Tensor, *, causal: bool | None) -> Seen:
    """What a mask (b, h, n, m) says while a graph is traced, when none of its entries can be read.

    Args:
        who: name for messages.
        mask: as the host has it.
        causal: whether the mask is known to be causal; None where it is not known.

    Raises:
        BadInput: it is not known, and the mask has a row for each query.
    """
    if causal is None and mask.shape[-2] > 1:
        raise BadInput(
            f"{who}: while a graph is traced a mask {tuple(mask.shape)} cannot be read; "
            "give one of keys alone"
        )
    return Seen(shown(mask).any(-2)[:, 0], bool(causal))


def tracing() -> bool:
    """Whether a graph is being made of this call."""
    return torch.compiler.is_compiling()
