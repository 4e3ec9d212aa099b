"""timm's `Attention` of vision transformers, found without importing timm."""

import inspect
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from kernelhead.nn.hosts.masks import from_timm
from kernelhead.nn.hosts.sides import Sides
from kernelhead.nn.hosts.site import Note, Site
from kernelhead.nn.hosts.taps import tapped

_PARTS = {"qkv", "q_norm", "k_norm", "proj"}


def site(path: str, module: nn.Module) -> Site | None:
    """The site that a module is, if it is `timm.layers.attention.Attention` or inherits its forward.

    Twelve files of timm have a private class of that name: only the path of its file tells them apart.
    """
    if not (is_timm(module) and module._modules.keys() >= _PARTS):
        return None
    host: Any = module
    sizes = (host.qkv.in_features, host.num_heads, host.num_heads, host.head_dim)
    return Site(path, "timm", type(module).__name__, module, *sizes, False, False)


def is_timm(module: nn.Module) -> bool:
    """Whether a module has the forward of timm's attention."""
    owner = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    return (owner.__module__, owner.__qualname__) == ("timm.layers.attention", "Attention")


def watch(stack: ExitStack, site: Site, note: Note, *, sides: bool) -> None:
    """Note every call; queries, keys and values are taken as its own parts compute them."""
    host: Any = site.module
    signature = inspect.signature(type(host).forward)
    parts: dict[str, Tensor] = {}

    def keep(name: str) -> None:
        def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            parts[name] = output.detach()

        stack.enter_context(tapped(getattr(host, name), after=after))

    def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        given = signature.bind(host, *args, **kwargs)
        given.apply_defaults()
        read = (
            _read(host, parts, given.arguments["attn_mask"], given.arguments["is_causal"]) if sides else None
        )
        parts.clear()
        note(site, read, output)

    if sides:
        for name in ("qkv", "q_norm", "k_norm"):
            keep(name)
    stack.enter_context(tapped(host, after=after))


def _read(host: Any, parts: dict[str, Tensor], mask: Tensor | None, causal: bool) -> Sides:
    query, key = parts["q_norm"], parts["k_norm"]
    # The packed projection is (b, n, 3 h d), values last.
    value = parts["qkv"].unflatten(-1, (3, host.num_heads, -1))[:, :, 2].transpose(1, 2)
    seen = from_timm(mask, causal, (*query.shape[:3], key.shape[2]), fused=host.fused_attn)
    return Sides(query, key, value, seen.mask, seen.causal, host.scale, seen.bias)
