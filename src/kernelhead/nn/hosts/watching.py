"""`reading(model)`: the sides of every call of every attention, for one with-block and no longer."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, KernelheadError
from kernelhead.nn.hosts import huggingface, ours, timm_vit, torch_mha
from kernelhead.nn.hosts.sides import Sides
from kernelhead.nn.hosts.site import FAMILIES, Note, Site, core_of_graft
from kernelhead.nn.hosts.sites import LOOKED_FOR, find_sites

#: What a model says of inputs that are not for it; torch's own attention asserts.
_REFUSALS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError)


@contextmanager
def reading(model: nn.Module, sites: Sequence[Site] | None = None) -> Iterator[dict[str, list[Sides]]]:
    """Read what the cores of a model's attentions get inside the block.

    Outputs keep their bits: modules, fast paths, fused kernels and masks stay what they are, in
    training and in evaluation. What is read carries no gradient. A compiled model runs eagerly inside
    the block. Of a grafted attention the sides that its core gets are read.

    Args:
        sites: those to read; all that can be, if None.

    Yields:
        A list for each site's path, to which every call adds one.

    Raises:
        BadInput: there is nothing to read, one of `sites` cannot be read, or a call goes around what is read.

    Example:
        >>> layer = nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.zeros(1, 3, 8)
        >>> with reading(layer) as read:
        ...     out, _ = layer(x, x, x, need_weights=False)
        >>> read[""][0].query.shape, read[""][0].pattern().shape
        (torch.Size([1, 2, 3, 4]), torch.Size([1, 2, 3, 3]))
    """
    if sites is None:
        sites = [site for site in find_sites(model) if site.readable]
        if not sites:
            raise nothing_found("reading", model)
    for site in sites:
        if not site.readable:
            raise BadInput(f"reading: {site.kind} at {site.path!r} cannot be read: it {site.reason}")
    calls: dict[str, list[Sides]] = {site.path: [] for site in sites}

    def note(site: Site, sides: Sides | None, output: Tensor) -> None:
        if sides is not None:
            calls[site.path].append(sides)

    with watching(model, sites, note, sides=True):
        yield calls


@contextmanager
def watching(model: nn.Module, sites: Sequence[Site], note: Note, *, sides: bool) -> Iterator[None]:
    """Call `note` after each call of the sites inside the block, with their sides if they are wanted."""
    with ExitStack() as stack:
        if sides and "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        hosted = []
        for site in sites:
            if core_of_graft(site.module) is not None:
                ours.watch_core(stack, site, note)
            elif site.family in FAMILIES:
                FAMILIES[site.family].watch(stack, site, note, sides=sides)
            elif site.family == "kernelhead":
                ours.watch(stack, site, note, sides=sides)
            elif site.family == "torch":
                torch_mha.watch(stack, model, site, note, sides=sides)
            elif site.family == "timm":
                timm_vit.watch(stack, site, note, sides=sides)
            else:
                hosted.append(site)
        huggingface.watch(stack, hosted, note, sides=sides)
        yield


def called(model: nn.Module, batch: Tensor | Sequence[Any] | Mapping[str, Any]) -> Any:
    """Call a model with a batch: a tensor as it is, several in order, or by name.

    Example:
        >>> called(nn.Bilinear(2, 3, 4), (torch.zeros(1, 2), torch.zeros(1, 3))).shape
        torch.Size([1, 4])
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch) if isinstance(batch, Tensor) else model(*batch)


def asked(
    who: str, model: nn.Module, batch: Tensor | Sequence[Any] | Mapping[str, Any], mask: Tensor | None = None
) -> Any:
    """Call a model with a user's batch, and say so where that is not for it.

    Args:
        who: name of the function that complains.
        mask: a second argument of the model beside a tensor.

    Raises:
        BadInput: the model cannot take the batch.

    Example:
        >>> asked("f", nn.Linear(2, 3), torch.zeros(1, 4))
        Traceback (most recent call last):
        kernelhead.errors.BadInput: f: Linear cannot take a tensor (1, 4) of torch.float32: RuntimeError: ...
    """
    if isinstance(batch, str | bytes) or not isinstance(batch, Tensor | Mapping | Sequence):
        raise BadInput(
            f"{who}: the batch is of type {type(batch).__name__}, expected a tensor, a sequence or a mapping"
        )
    if mask is not None and not isinstance(batch, Tensor):
        raise BadInput(f"{who}: a mask goes beside a tensor, but the batch is {described(batch)}")
    try:
        return called(model, batch) if mask is None else model(batch, mask)
    except (KernelheadError, torch.OutOfMemoryError):
        raise
    except _REFUSALS as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(f"{who}: {type(model).__name__} cannot take {described(batch)}: {said}") from error


def described(batch: Tensor | Sequence[Any] | Mapping[str, Any]) -> str:
    """A batch in words: shapes of tensors, types of what is none.

    Example:
        >>> described({"x": torch.zeros(1, 2), "y": None})
        'a dict of x: (1, 2), y: NoneType'
    """
    if isinstance(batch, Tensor):
        return f"a tensor {tuple(batch.shape)} of {batch.dtype}"
    if isinstance(batch, Mapping):
        parts = [f"{name}: {_short(each)}" for name, each in batch.items()]
    else:
        parts = [_short(each) for each in batch]
    return f"a {type(batch).__name__} of {', '.join(parts) or 'nothing'}"


def _short(part: object) -> str:
    return str(tuple(part.shape)) if isinstance(part, Tensor) else type(part).__name__


def nothing_found(who: str, model: nn.Module) -> BadInput:
    """The error for a model without attention that can be read: what was looked for, what skipped.

    Example:
        >>> print(nothing_found("f", nn.Linear(2, 2)))  # doctest: +ELLIPSIS
        f: Linear has no attention of kernelhead nor of a known host; looked for attentions of kernelhead, ...
    """
    skipped = [f"{site.path or site.kind!r} {site.reason}" for site in find_sites(model) if not site.readable]
    return BadInput(
        f"{who}: {type(model).__name__} has no attention of kernelhead nor of a known host; looked for "
        + LOOKED_FOR
        + ("; skipped: " + ", ".join(skipped) if skipped else "")
    )
