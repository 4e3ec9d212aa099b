"""Our core in Hugging Face models, through the interface they look their attention function up in."""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, missing_extra
from kernelhead.nn.cores import AbstractCore
from kernelhead.nn.hosts.masks import Seen, Shape, from_huggingface
from kernelhead.surgery.adapters.masks import shown, taken, traced, tracing
from kernelhead.surgery.adapters.swap import with_pattern

#: the name under which the attention function and the mask function are registered.
NAME = "kernelhead"
#: arguments of an attention function that no core honours.
REFUSED = ("softcap", "position_bias", "s_aux", "cache", "head_mask", "cu_seq_lens_q", "cu_seq_lens_k")

# Classes of redirected configs by the host's, and what is used of transformers once it is imported.
_MADE: dict[type, Any] = {}
_LIBRARY: dict[str, Any] = {}


class Redirected:
    """A host's config that names our attention function; else it is the same, with the same attributes.

    Grafted modules of a model have this in place of their config: modules without a graft, and other
    models with the same config, go on as they were, and the graft stays where the model is told to
    use another attention function. Where all attentions are grafted (`whole`) the rest of the model
    has one of these too, that follows the attentions' (`inner`), and makes masks of keys alone.
    """

    # Beside the attributes, which are the config's own.
    __slots__ = ()
    origin: Any
    whole: bool
    inner: Any
    holders: "WeakSet[nn.Module]"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return redirected, (self.origin, self.whole, self.inner)


def redirected(config: Any, whole: bool = False, inner: Any = None) -> Any:
    """A config of the host's class, and a `Redirected`, that shares all attributes with a config."""
    _register()
    host = type(config)
    if host not in _MADE:
        names = {"__module__": host.__module__, "__qualname__": host.__qualname__}
        asked = property(_asked, host._attn_implementation.fset)
        slots = {"__slots__": ("origin", "whole", "inner", "holders"), "_attn_implementation": asked}
        _MADE[host] = type(host.__name__, (Redirected, host), names | slots)
    view = _MADE[host].__new__(_MADE[host])
    view.__dict__ = config.__dict__
    state = {"origin": config, "whole": whole, "inner": inner, "holders": WeakSet()}
    for name, value in state.items():
        object.__setattr__(view, name, value)
    return view


def _asked(view: Any) -> Any:
    """Whose attention function a module calls, or makes masks for."""
    return NAME if view.inner is None or view.inner.whole else view.origin._attn_implementation


def put(model: nn.Module, module: nn.Module) -> None:
    """Make a module call its core; where all of a config's attentions do, the model knows too."""
    host: Any = module
    config = host.config
    sharing = _sharing(model, config)
    views = (each.config for each in sharing if isinstance(each.config, Redirected))
    view = next((each.inner or each for each in views), None) or redirected(config)
    host.config = view
    attentions = [each for each in sharing if "Attention" in type(each).__name__]
    whole = all(each.config is view for each in attentions)
    object.__setattr__(view, "whole", whole)
    outer = redirected(config, inner=view) if whole else None
    for each in sharing if whole else ():
        if each not in attentions:
            each.config = outer
            view.holders.add(each)


def take(model: nn.Module, module: nn.Module) -> None:
    """Undo `put`."""
    view: Any = module.config
    object.__setattr__(view, "whole", False)
    # Where a part of a model is restored, what is around it made masks for a whole one.
    for each in {*_sharing(model, view.origin), *view.holders}:
        if each is module or not hasattr(each, "kernelhead"):
            each.config = view.origin
    view.holders.clear()


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of grafted modules, as Hugging Face models call it.

    Shapes: query (b, h, n, d), key and value (b, g, m, d) with g dividing h; returns (b, n, h, d).

    Raises:
        BadInput: an argument or a mask that the core cannot honour, or a pattern that is wanted
            where other layers keep none.
    """
    host: Any = module
    core: AbstractCore = host.kernelhead
    who = type(module).__name__
    _refuse(who, given, key.shape[-2])
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    causal = given.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    keys = _keys(attention_mask, causal, query.shape[-2], key.shape[-2], host.config)
    key, value = key[..., :keys, :], value[..., :keys, :]
    mask, causal, _ = _seen(who, attention_mask, causal, (*query.shape[:3], keys))
    if not _wants_patterns(host.config, given):
        joined = core(query, key, value, mask=mask, causal=causal, scale=scaling)
        return joined.transpose(1, 2).contiguous(), None
    others = host.config._attn_implementation_internal
    if not host.config.whole and others != "eager":
        raise BadInput(
            f"{who}: output_attentions=True would leave out the layers without a graft, which use "
            f"{others!r} and keep no pattern; call model.set_attn_implementation('eager') first"
        )
    joined, pattern = with_pattern(core, query, key, value, mask=mask, causal=causal, scale=scaling)
    return joined.transpose(1, 2).contiguous(), pattern


def mask_of(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **given: Any,
) -> Tensor | None:
    """The mask function: padding alone, (b, m), where the rest is causal or nothing; else all entries."""
    masking_utils = _LIBRARY["masking_utils"]
    plain = (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function)
    # Room in a cache that is not filled yet would shift the diagonal.
    filled = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    if mask_function not in plain or (mask_function is plain[0] and not filled):
        given |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return masking_utils.sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            **given,
        )
    if attention_mask is None and q_length < kv_length:
        # No mask at all would stand for a cache with room.
        return torch.ones(batch_size, kv_length, dtype=torch.bool, device=given.get("device"))
    padded = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    return None if padded is None else padded[:, kv_offset : kv_offset + kv_length]


def _sharing(model: nn.Module, config: Any) -> list[Any]:
    """The modules of a model that have a config, be it through a view or not."""
    found = []
    for each in model.modules():
        own = getattr(each, "config", None)
        if (own.origin if isinstance(own, Redirected) else own) is config:
            found.append(each)
    return found


def _register() -> None:
    """Both registries at once: a function without a mask function would get no masks at all."""
    try:
        transformers = import_module("transformers")
    except ImportError:
        raise missing_extra("graft", "transformers", "hf") from None
    if _LIBRARY:
        return
    _LIBRARY["masking_utils"] = import_module("transformers.masking_utils")
    # What models are asked to return beside their output does not always reach the attention function.
    with suppress(ImportError):
        _LIBRARY["collector"] = import_module("transformers.utils.output_capturing")._active_collector
    transformers.AttentionInterface.register(NAME, attend)
    transformers.AttentionMaskInterface.register(NAME, mask_of)


def _refuse(who: str, given: dict[str, Any], keys: int) -> None:
    for name in REFUSED:
        if given.get(name) is not None:
            raise BadInput(f"{who}: was called with `{name}`, which a grafted core does not honour")
    window = given.get("sliding_window")
    if window is not None and window < keys:
        raise BadInput(
            f"{who}: a window of {window} keys out of {keys}, which a grafted core does not honour"
        )


def _keys(mask: Any, causal: bool, n: int, m: int, config: Any) -> int:
    """How many keys there are, without the room that a cache has left at the end."""
    if mask is None:
        # Fused attention lets the first query see the first key: what is beyond the last is room.
        room = causal and 1 < n < m and config._attn_implementation_internal == "sdpa"
        return n if room else m
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask.shape[-1]
    if not isinstance(mask, Tensor) or n == m or tracing():
        return m
    seen = shown(mask).flatten(0, -2).any(0).nonzero()
    return max(n, int(seen.max()) + 1) if len(seen) else m


def _seen(who: str, mask: Any, causal: bool, shape: Shape) -> Seen:
    """What a mask of two or four axes says; one of two is taken as it is, without a look at its entries."""
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return Seen(mask.bool(), causal)
    if isinstance(mask, Tensor) and tracing():
        return traced(who, mask, causal=causal)
    seen = taken(who, from_huggingface(mask, causal, shape))
    # One query sees the same either way; a core of one sequence wants to know that it is the last.
    return seen._replace(causal=seen.causal or (causal and shape[2] == 1))


def _wants_patterns(config: Any, given: dict[str, Any]) -> bool:
    """Whether the model was asked for attentions, by argument, by config or by its output capturing."""
    if given.get("output_attentions") or getattr(config, "output_attentions", False):
        return True
    collector = _LIBRARY.get("collector")
    return collector is not None and "attentions" in (collector.get() or ())
