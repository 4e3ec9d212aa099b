"""Find the attention of a model, ours and that of hosts, and say what stands against a graft."""

from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from kernelhead.nn.base import AbstractKernelAttention
from kernelhead.nn.hosts import huggingface, others, ours, timm_vit, torch_mha
from kernelhead.nn.hosts.site import FAMILIES, Site

#: What `find_sites` knows, for those who complain that there is none.
LOOKED_FOR = (
    "attentions of kernelhead, nn.MultiheadAttention, timm.layers.attention.Attention "
    "and modules on the attention interface of transformers"
)


def find_sites(model: nn.Module) -> list[Site]:
    """Every attention of a model, in order; what cannot be grafted has its reason.

    Found are attentions of kernelhead, `nn.MultiheadAttention` anywhere, timm's `Attention` of vision
    transformers and all modules that ask transformers' attention interface for their function; named
    are others that are called attention. `FAMILIES` adds to them. A model without any gives an empty list.

    Example:
        >>> layer = nn.TransformerDecoderLayer(8, 2)
        >>> [(site.path, site.family, site.heads, site.cross, site.reason) for site in find_sites(layer)]
        [('self_attn', 'torch', 2, False, None), ('multihead_attn', 'torch', 2, True, None)]
    """
    modules = dict(model.named_modules())
    found: dict[str, Site] = {}
    named: dict[str, nn.Module] = {}
    for path, module in modules.items():
        added = _added(path, module)
        if added is None and not _may_be_one(module):
            continue
        above = _above(path)
        if any(each in found for each in above):
            continue
        site = (
            added
            or ours.site(path, module)
            or torch_mha.site(path, module, modules.get(above[0]) if above else None)
            or timm_vit.site(path, module)
            or huggingface.site(path, module)
        )
        if site is not None:
            found[path] = site
        elif others.looks_like_attention(module):
            named[path] = module
    # A module that holds an attention is no attention itself.
    holders = {each for path in (*found, *named) for each in _above(path)}
    found.update((path, others.site(path, module)) for path, module in named.items() if path not in holders)
    return [found[path] for path in modules if path in found]


# Most modules are no attention, which their class tells: a model is searched as often as it is recorded.
_MAY_BE: "WeakKeyDictionary[Any, bool]" = WeakKeyDictionary()


def _may_be_one(module: nn.Module) -> bool:
    kind = type(module)
    if kind not in _MAY_BE:
        _MAY_BE[kind] = (
            isinstance(module, AbstractKernelAttention | nn.MultiheadAttention)
            or timm_vit.is_timm(module)
            or huggingface.interface_of(module) is not None
            or others.is_named(module)
        )
    return _MAY_BE[kind]


def _added(path: str, module: nn.Module) -> Site | None:
    """The site that a module is to a family that was added."""
    return next((made for family in FAMILIES.values() if (made := family.site(path, module))), None)


def _above(path: str) -> list[str]:
    """The paths of the modules that hold this one, nearest first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(len(parts) - 1, -1, -1)]
