"""Attentions of kernelhead itself, and cores of it that were grafted into a host."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.nn.base import AbstractKernelAttention
from kernelhead.nn.hosts.sides import Sides
from kernelhead.nn.hosts.site import Note, Site, core_of_graft
from kernelhead.nn.hosts.taps import tapped
from kernelhead.nn.softmax import SoftmaxAttention, project
from kernelhead.shapes import zeroed


def site(path: str, module: nn.Module) -> Site | None:
    """The site that a module is, if it is an attention of kernelhead."""
    if not isinstance(module, AbstractKernelAttention):
        return None
    return Site(
        path,
        "kernelhead",
        type(module).__name__,
        module,
        module.width,
        module.heads,
        module.heads,
        module.width // module.heads,
        module.causal,
        False,
        "is an attention of kernelhead already",
        isinstance(module, SoftmaxAttention),
    )


def watch(stack: ExitStack, site: Site, note: Note, *, sides: bool) -> None:
    """Note every call of an attention of ours."""
    module = site.module

    def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        note(site, _read(module, *args, **kwargs) if sides else None, output)

    stack.enter_context(tapped(module, after=after))


def watch_core(stack: ExitStack, site: Site, note: Note) -> None:
    """Note what a grafted core gets, whichever host it is in; the output is the core's, (b, h, n, d)."""
    core = core_of_graft(site.module)

    def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        note(site, _given(*args, **kwargs), output)

    if core is not None:
        stack.enter_context(tapped(core, after=after))


@torch.no_grad()
def _read(
    layer: Any,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Sides:
    """What softmax attends with; see `AbstractKernelAttention.forward` for the arguments."""
    x, context = zeroed(x, mask), None if context is None else zeroed(context, context_mask)
    query, key, value, _ = project(layer, x, mask, context, context_mask)
    real = mask if context is None else context_mask
    return Sides(query, key, value, real, layer.causal, query.shape[-1] ** -0.5)


def _given(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Sides:
    """The arguments of a core are its sides."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return Sides(query.detach(), key.detach(), value.detach(), mask, causal, scale)
