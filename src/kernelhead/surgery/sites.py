"""Which attentions of a model a graft is meant for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import SupportsIndex, TypeAlias

from torch import nn

from kernelhead.errors import BadInput
from kernelhead.nn.hosts import LOOKED_FOR, Site, find_sites

Where: TypeAlias = str | Sequence[str | int] | Callable[[Site], bool]


def sites(model: nn.Module) -> list[Site]:
    """Every attention of a model, in order; what cannot be grafted has its reason.

    Example:
        >>> [(site.path, site.heads, site.reason) for site in sites(nn.TransformerEncoderLayer(8, 2))]
        [('self_attn', 2, None)]
    """
    return find_sites(model)


def sites_for(model: nn.Module, crosses: bool) -> list[Site]:
    """Every attention of a model, with the reason against a core that may not attend across sequences."""
    across = None if crosses else "attends from one sequence to another, which this core does not"
    return [
        replace(site, reason=across) if site.cross and site.reason is None else site
        for site in find_sites(model)
    ]


def select(found: Sequence[Site], where: Where) -> tuple[list[Site], dict[str, str]]:
    """The sites to graft, in the model's order, and why others that were asked for are left alone.

    Args:
        found: the attentions of a model.
        where: ``"last"``, ``"all"``, a list of paths (of an attention, or of a part of the model that
            holds some) and of indices among those that can be grafted, or a function of a site.

    Raises:
        BadInput: nothing matches, or a path or an index that was asked for cannot be grafted.
    """
    able = [site for site in found if site.reason is None]
    if where == "last":
        chosen = able[-1:]
    elif where == "all":
        chosen = [*found]
    elif callable(where):
        chosen = [site for site in found if where(site)]
    elif isinstance(where, str) or not isinstance(where, Iterable):
        raise BadInput(f"graft: where is {where!r}, expected 'last', 'all', a list or a function of a site")
    else:
        named = {site.path for each in where for site in _named(each, found, able)}
        chosen = [site for site in found if site.path in named]
    skipped = {site.path: site.reason for site in chosen if site.reason is not None}
    chosen = [site for site in chosen if site.reason is None]
    if not chosen:
        raise BadInput(f"graft: where={_words(where)} matches no attention to graft; found {_found(found)}")
    return chosen, skipped


def _named(each: str | int, found: Sequence[Site], able: Sequence[Site]) -> list[Site]:
    if isinstance(each, SupportsIndex):
        each = each.__index__()
        if not -len(able) <= each < len(able):
            raise BadInput(f"graft: index {each} is out of range; found {_found(found)}")
        return [able[each]]
    matches = [site for site in found if site.path == each or site.path.startswith(f"{each}.")]
    if not matches:
        raise BadInput(f"graft: no attention at {each!r}; found {_found(found)}")
    if all(site.reason is not None for site in matches):
        raise BadInput(f"graft: {matches[0].path!r} cannot be grafted: it {matches[0].reason}")
    return matches


def _found(found: Sequence[Site]) -> str:
    if not found:
        return f"none of {LOOKED_FOR}"
    return ", ".join(
        f"{site.path!r} ({site.kind}{'' if site.reason is None else ': it ' + site.reason})" for site in found
    )


def _words(where: object) -> str:
    return getattr(where, "__name__", "a function") if callable(where) else repr(where)
