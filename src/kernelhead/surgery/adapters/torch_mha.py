"""Our core in `torch.nn.MultiheadAttention`, alone or inside an encoder or decoder."""

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.errors import BadInput
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.hosts.masks import Seen, Shape, from_torch
from kernelhead.surgery.adapters.masks import shown, taken, traced, tracing
from kernelhead.surgery.adapters.swap import Swapped, swapped, with_pattern

# What an encoder's own flag was, kept on it while one of its attentions is grafted.
_NESTED = "_kernelhead_use_nested_tensor"
# The encoders around a grafted attention that were changed: what is restored may be a part of them.
_AROUND: "WeakKeyDictionary[nn.Module, WeakSet[nn.Module]]" = WeakKeyDictionary()


class TorchForward(Swapped):
    """The forward of `nn.MultiheadAttention` with a core of ours between its projections."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As the host's: the output and, for `need_weights`, the pattern of the core."""
        host: Any = self
        if query.is_nested:
            raise BadInput("MultiheadAttention: a grafted attention takes no nested tensors")
        batched = query.dim() == 3
        sides = _projected(host, query, key, value)
        if not batched:
            sides = tuple(side.unsqueeze(0) for side in sides)
        elif not host.batch_first:
            sides = tuple(side.transpose(0, 1) for side in sides)
        heads = [split_heads(side, host.num_heads) for side in sides]
        shape = (*heads[0].shape[:3], heads[1].shape[2])
        mask, causal, _ = _seen(key_padding_mask, attn_mask, is_causal, shape)
        weights = None
        if need_weights:
            joined, weights = with_pattern(self.kernelhead, *heads, mask=mask, causal=causal)
        else:
            joined = self.kernelhead(*heads, mask=mask, causal=causal)
        output = host.out_proj(merge_heads(joined))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if host.batch_first else output.transpose(0, 1), weights


def put(model: nn.Module, module: nn.Module) -> None:
    """Make a module call its core, and keep the encoders around it off their fast paths."""
    module.__class__ = swapped(TorchForward, type(module))
    # An encoder layer reads this before it runs fused softmax attention in evaluation mode.
    module._qkv_same_embed_dim = False  # type: ignore[assignment]
    around = _AROUND.setdefault(module, WeakSet())
    for encoder in model.modules():
        nested = getattr(encoder, "use_nested_tensor", False) is True
        if (nested or hasattr(encoder, _NESTED)) and _holds(encoder, module):
            setattr(encoder, _NESTED, True)
            encoder.use_nested_tensor = False  # type: ignore[assignment]
            around.add(encoder)


def take(model: nn.Module, module: nn.Module) -> None:
    """Undo `put`."""
    host: Any = module
    host.__class__ = host.host
    host._qkv_same_embed_dim = True
    for encoder in {*model.modules(), *_AROUND.pop(module, ())}:
        others = (each for each in encoder.modules() if isinstance(each, TorchForward))
        if hasattr(encoder, _NESTED) and next(others, None) is None:
            encoder.use_nested_tensor = getattr(encoder, _NESTED)
            delattr(encoder, _NESTED)


def _holds(outer: nn.Module, inner: nn.Module) -> bool:
    return any(each is inner for each in outer.modules())


def _projected(host: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values as the host projects them, in the layout of its inputs."""
    if query is key and key is value:
        return F.linear(query, host.in_proj_weight, host.in_proj_bias).chunk(3, -1)
    biases = (None,) * 3 if host.in_proj_bias is None else host.in_proj_bias.chunk(3)
    return tuple(map(F.linear, (query, key, value), host.in_proj_weight.chunk(3), biases))


def _seen(padding: Tensor | None, mask: Tensor | None, hint: bool, shape: Shape) -> Seen:
    """Both masks of a call in one; a hint without a mask is taken at its word."""
    who = "MultiheadAttention"
    if not tracing():
        seen = taken(who, from_torch(padding, mask, shape))
        return seen._replace(causal=True) if mask is None and hint else seen
    keep = None if padding is None else (~padding if padding.dtype == torch.bool else shown(padding))
    if mask is not None and not hint:
        traced(who, mask, causal=None)
    return Seen(None if keep is None else keep.reshape(shape[0], shape[3]), hint)
