"""Attention that can be named but neither read nor grafted, with what stands against it."""

import inspect
import re

from torch import nn

from kernelhead.nn.hosts.site import Site

_NAMED = re.compile(r"attention|attn|multihead", re.IGNORECASE)
_BIAS = re.compile(r"rel(ative)?_?(pos|attention|bias)|pos(ition)?_bias", re.IGNORECASE)
_CROSS = re.compile(r"cross(?!_?encoder)|encoder_attn|encdec|pool", re.IGNORECASE)
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")


def looks_like_attention(module: nn.Module) -> bool:
    """Whether a module is called an attention and has weights or projections of its own.

    Example:
        >>> looks_like_attention(nn.MultiheadAttention(8, 2)), looks_like_attention(nn.Linear(2, 2))
        (True, False)
    """
    if not is_named(module):
        return False
    own = [*module.parameters(recurse=False)]
    return bool(own) or any([*child.parameters(recurse=False)] for child in module.children())


def is_named(module: nn.Module) -> bool:
    """Whether a module's class is called an attention."""
    return _NAMED.search(type(module).__name__) is not None


def is_cross(path: str, *modules: nn.Module | None) -> bool:
    """Whether names tell of queries from elsewhere: its own, its parent's, and the classes of some modules.

    Example:
        >>> is_cross("layers.0.cross_attn"), is_cross("cross.layers.0.attn")
        (True, False)
    """
    return (
        _CROSS.search(" ".join([*path.split(".")[-2:], *(type(each).__name__ for each in modules)]))
        is not None
    )


def site(path: str, module: nn.Module) -> Site:
    """What can be said of an attention of no family that is known."""
    home = type(module).__module__.partition(".")[0]
    family = {"timm": "timm", "transformers": "huggingface"}.get(home, "other")
    heads = next((size for name in _HEADS if isinstance(size := getattr(module, name, None), int)), 0)
    width = next((layer.in_features for layer in module.children() if isinstance(layer, nn.Linear)), 0)
    reason = {
        "huggingface": "does not go through the attention interface of transformers",
        "timm": bias_or_window(module) or "is not timm.layers.attention.Attention",
        "other": bias_or_window(module) or "is of no family that is known",
    }[family]
    head = width // heads if heads else 0
    kind = type(module).__name__
    return Site(path, family, kind, module, width, heads, heads, head, False, False, reason, False)


def bias_or_window(module: nn.Module) -> str | None:
    """What an attention does beyond a softmax of products, as far as its parts and its arguments tell.

    Example:
        >>> class Windowed(nn.Module):
        ...     window_size = (7, 7)
        >>> bias_or_window(Windowed())
        'attends inside windows'
    """
    names = [*vars(module), *module._parameters, *module._buffers, *module._modules]
    if any(_BIAS.search(name) and getattr(module, name, None) is not None for name in names):
        return "adds a relative position bias to its logits"
    if getattr(module, "window_size", None) is not None:
        return "attends inside windows"
    return "turns queries and keys inside its forward (rotary positions)" if _turns(module) else None


def _turns(module: nn.Module) -> bool:
    return bool({"rope", "rotary_pos_emb"} & inspect.signature(type(module).forward).parameters.keys())
