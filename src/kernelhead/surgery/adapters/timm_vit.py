"""Our core in timm's `Attention`, which serves ViT, DeiT and their kin."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.nn.hosts.masks import Seen, from_timm
from kernelhead.surgery.adapters.masks import taken, traced, tracing
from kernelhead.surgery.adapters.swap import Swapped, swapped


class TimmForward(Swapped):
    """The forward of timm's `Attention` with a core of ours between its projections."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """As the host's."""
        host: Any = self
        qkv = host.qkv(x).unflatten(-1, (3, host.num_heads, -1))  # (b, n, 3, h, d)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        seen = _seen(attn_mask, is_causal, host.fused_attn, query)
        joined = self.kernelhead(
            host.q_norm(query), host.k_norm(key), value, mask=seen[0], causal=seen[1], scale=host.scale
        )
        joined = host.norm(joined.transpose(1, 2).flatten(2))
        if getattr(host, "gate", None) is not None:
            joined = joined * host.gate(x).sigmoid()
        return host.proj_drop(host.proj(joined))


def put(model: nn.Module, module: nn.Module) -> None:
    """Make a module call its core, which timm's feature extraction then leaves untraced."""
    module.__class__ = swapped(TimmForward, type(module))
    import_module("timm.layers").register_notrace_module(type(module.kernelhead))


def take(model: nn.Module, module: nn.Module) -> None:
    """Undo `put`."""
    module.__class__ = module.host  # type: ignore[assignment]


def _seen(mask: Tensor | None, causal: bool, fused: bool, query: Tensor) -> Seen:
    if mask is None:
        return Seen(causal=causal)
    if tracing():
        return traced("Attention", mask[(None,) * (4 - mask.dim())], causal=causal or None)
    b, h, n, _ = query.shape
    return taken("Attention", from_timm(mask, causal, (b, h, n, n), fused=fused))


# Where torch.fx traces the model, the mask is not there to be looked at.
torch.fx.wrap("_seen")
