"""Attention of Hugging Face that goes through its interface, found without importing it."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn.base import _in_backward
from kernelhead.nn.hosts.masks import from_huggingface
from kernelhead.nn.hosts.others import bias_or_window, is_cross
from kernelhead.nn.hosts.sides import Sides
from kernelhead.nn.hosts.site import Note, Site
from kernelhead.nn.hosts.taps import first, tapped

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_HEAD = ("head_dim", "attention_head_size", "head_size", "qk_head_dim", "key_value_proj_dim")
_QUERY = ("q_proj", "query", "q_lin", "q", "q_attn", "c_attn", "qkv", "Wqkv", "query_key_value", "qkv_proj")
_WIDTH = ("hidden_size", "embed_dim", "d_model", "dim")
#: Arguments of an attention function that make of it something else than softmax of scaled products.
_BEYOND = ("softcap", "s_aux", "indices", "block_indices")


def site(path: str, module: nn.Module) -> Site | None:
    """The site that a module is, if its class asks the attention interface for a function."""
    if interface_of(module) is None:
        return None
    config = getattr(module, "config", None)
    heads = _number(_HEADS, module, config)
    groups = getattr(module, "num_key_value_groups", None)
    kv_heads = heads // groups if groups else _number(_KV_HEADS, module) or heads
    width = _width(module) or _number(_WIDTH, module, config)
    head = _number(_HEAD, module) or (width // heads if heads else 0)
    cross = bool(getattr(module, "is_cross_attention", False) or is_cross(path, module))
    causal = getattr(module, "is_causal", True) and getattr(config, "is_causal", True) and not cross
    beyond, reason = _beyond(module), _reason(module, config)
    return Site(
        path,
        "huggingface",
        type(module).__name__,
        module,
        width,
        heads,
        kv_heads,
        head,
        bool(causal),
        cross,
        beyond or reason,
        beyond is None,
    )


def interface_of(module: nn.Module) -> type | None:
    """The class of the attention interface that a module asks for its function, if it does."""
    kind: Any = type(module)
    return _asked_by(kind)


@functools.cache
def _asked_by(kind: Any) -> type | None:
    for cls in kind.__mro__:
        for member in vars(cls).values():
            function = inspect.unwrap(member) if callable(member) else None
            if isinstance(function, FunctionType) and "get_interface" in function.__code__.co_names:
                for name in function.__code__.co_names:
                    interface = type(function.__globals__.get(name))
                    if any(each.__name__ == "AttentionInterface" for each in interface.__mro__):
                        return interface
    return None


def watch(stack: ExitStack, sites: Sequence[Site], note: Note, *, sides: bool) -> None:
    """Note every call of the modules; their attention functions go on getting what they got.

    The interface is asked in between, so that implementation, masks and outputs stay as they are.
    """
    caught: dict[nn.Module, list[Sides]] = {site.module: [] for site in sites}

    def follow(site: Site) -> None:
        calls = caught[site.module]

        def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not sides:
                note(site, None, first(output))
                return
            if not calls:
                raise BadInput(
                    f"reading: {site.kind} at {site.path!r} ran without its attention function; "
                    'model.set_attn_implementation("sdpa") may make it use one'
                )
            for each in calls:
                note(site, each, first(output))
            calls.clear()

        stack.enter_context(tapped(site.module, before=lambda *_: calls.clear(), after=after))

    for site in sites:
        follow(site)
    if sides:
        for interface in {interface_of(module) for module in caught}:
            stack.enter_context(_overheard(interface, caught))


@contextmanager
def _overheard(interface: Any, caught: dict[nn.Module, list[Sides]]) -> Iterator[None]:
    """Functions that an interface hands out inside the block leave their sides for the modules asked for."""
    owner = next(cls for cls in interface.__mro__ if "get_interface" in vars(cls))
    plain = vars(owner)["get_interface"]

    @functools.wraps(plain)
    def get_interface(self: Any, name: Any, default: Callable[..., Any]) -> Callable[..., Any]:
        function = plain(self, name, default)

        @functools.wraps(function)
        def listening(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            calls = caught.get(module)
            before = 0 if calls is None else len(calls)
            output = function(module, query, key, value, *args, **kwargs)
            # A function may ask the interface again: then the inner one has left the sides already.
            if calls is not None and len(calls) == before and not _in_backward():
                mask = args[0] if args else kwargs.get("attention_mask")
                kind = "eager" if function is default else str(name)
                calls.append(_read(module, query, key, value, mask, kind, kwargs))
            return output

        return listening

    owner.get_interface = get_interface
    try:
        yield
    finally:
        owner.get_interface = plain


def _read(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, kind: str, options: dict[str, Any]
) -> Sides:
    """The sides of a call of an attention function of a kind, from its arguments."""
    for name in _BEYOND:
        if options.get(name) is not None:
            raise BadInput(f"reading: {type(module).__name__} attends with {name}, which softmax has not")
    query, key, value = query.detach(), key.detach(), value.detach()
    n, heads, bias = query.shape[2], query.shape[1], options.get("position_bias")
    # The eager function knows nothing of causality but what is in its mask; one new point sees all.
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    causal = bool(causal) and kind != "eager" and n > 1
    if causal and mask is None and "flash" not in kind and key.shape[2] > n:
        # A cache with room: the keys of the queries are the first ones.
        key, value, bias = key[:, :, :n], value[:, :, :n], None if bias is None else bias[..., :n]
    key, value = (each.repeat_interleave(heads // each.shape[1], dim=1) for each in (key, value))
    # Others have the window in their mask.
    window = options.get("sliding_window") if "flash" in kind else None
    seen = from_huggingface(mask, causal, (*query.shape[:3], key.shape[2]), window=window)
    if bias is not None:
        seen = seen._replace(bias=bias.detach() if seen.bias is None else seen.bias + bias.detach())
    # A window has no mask to take its device from.
    bias = None if seen.bias is None else seen.bias.to(query.device)
    scale = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return Sides(query, key, value, seen.mask, seen.causal, scale, bias)


def _beyond(module: nn.Module) -> str | None:
    """Why not even its pattern can be told."""
    if getattr(module, "attn_logit_softcapping", None) is not None:
        return "caps its logits (softcap)"
    if getattr(module, "sinks", None) is not None:
        return "lets queries attend to a sink"
    return "attends to keys that it selects (indexer)" if hasattr(module, "indexer") else None


def _reason(module: nn.Module, config: object) -> str | None:
    """Why it cannot be grafted although it can be read."""
    if "position_bias" in inspect.signature(type(module).forward).parameters:
        return "adds a position bias to its logits"
    if any(getattr(config, f"use_{kind}relative_position_bias", False) for kind in ("", "shared_")):
        return "is given a relative position bias for its logits"
    window = getattr(module, "sliding_window", None)
    if not hasattr(module, "sliding_window") and not hasattr(config, "layer_types"):
        window = getattr(config, "sliding_window", None)
    if window is not None:
        return f"attends inside a sliding window of {window} points"
    keys, values = getattr(module, "qk_head_dim", None), getattr(module, "v_head_dim", None)
    if keys != values and None not in (keys, values):
        return f"has heads of {keys} features for keys but {values} for values"
    return bias_or_window(module)


def _number(names: Sequence[str], *owners: object) -> int:
    """The first whole number that one of the owners has under one of the names; 0 if none has."""
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int):
                return value
    return 0


def _width(module: nn.Module) -> int:
    """How many features the projection of queries takes: a Linear says so, a Conv1D by its rows."""
    projection = next((child for name in _QUERY if (child := module._modules.get(name)) is not None), None)
    return _number(("in_features", "nx"), projection)
