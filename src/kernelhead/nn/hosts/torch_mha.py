"""`nn.MultiheadAttention`, alone or in torch's encoders and decoders, on their fast path too."""

import inspect
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.hosts.masks import from_torch
from kernelhead.nn.hosts.others import is_cross
from kernelhead.nn.hosts.sides import Sides
from kernelhead.nn.hosts.site import Note, Site, core_of_graft
from kernelhead.nn.hosts.taps import first, tapped

_SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)
_LAYER_SIGNATURE = inspect.signature(nn.TransformerEncoderLayer.forward)


def site(path: str, module: nn.Module, parent: nn.Module | None) -> Site | None:
    """The site that a module is, if it is torch's multi-head attention."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    readable = core_of_graft(module) is not None or type(module).forward is nn.MultiheadAttention.forward
    decoding = isinstance(parent, nn.TransformerDecoderLayer) and parent.multihead_attn is module
    return Site(
        path,
        "torch",
        type(module).__name__,
        module,
        module.embed_dim,
        module.num_heads,
        module.num_heads,
        module.head_dim,
        False,
        decoding or is_cross(path, parent),
        _reason(module) if readable else "has a forward of its own",
        readable,
    )


def _reason(module: nn.MultiheadAttention) -> str | None:
    if "q_proj_weight" in module._parameters and module.q_proj_weight is not None:
        return f"has keys of width {module.kdim} and values of width {module.vdim}, not {module.embed_dim}"
    if module.bias_k is not None:
        return "adds a learned key to each sequence (add_bias_kv)"
    return "adds a key of zeros to each sequence (add_zero_attn)" if module.add_zero_attn else None


def watch(stack: ExitStack, model: nn.Module, site: Site, note: Note, *, sides: bool) -> None:
    """Note every call of an attention, also those that its encoder layer makes without calling it."""
    module, noted = site.module, [0]

    def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        noted[0] += 1
        given = _SIGNATURE.bind(module, *args, **kwargs)
        given.apply_defaults()
        note(site, _read(**given.arguments) if sides else None, first(output))

    stack.enter_context(tapped(module, after=after))
    layer = model.get_submodule(site.path.rpartition(".")[0])
    if type(layer).forward is nn.TransformerEncoderLayer.forward and layer.self_attn is module:
        _watch_layer(stack, model, layer, site, note, noted)


def _watch_layer(
    stack: ExitStack, model: nn.Module, layer: nn.Module, site: Site, note: Note, noted: list[int]
) -> None:
    """In evaluation a layer may compute its attention itself: then what it was given is read in its place.

    An encoder may hand it nested tensors, which are padded to the length that the encoder was given.
    """
    noted_before, length = [0], [None]

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        noted_before[0] = noted[0]

    def after(args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if noted[0] == noted_before[0]:
            given = _LAYER_SIGNATURE.bind(layer, *args, **kwargs)
            given.apply_defaults()
            note(site, *_read_layer(**given.arguments, length=length[0]))

    def before_encoder(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        src = args[0] if args else kwargs["src"]
        length[0] = None if src.is_nested else src.shape[-2]

    stack.enter_context(tapped(layer, before=before, after=after))
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and layer in [*encoder.layers]:
            stack.enter_context(tapped(encoder, before=before_encoder))


@torch.no_grad()
def _read(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    need_weights: bool,
    attn_mask: Tensor | None,
    average_attn_weights: bool,
    is_causal: bool,
) -> Sides:
    """The sides of a call, from the arguments of `nn.MultiheadAttention.forward`."""
    if query.is_nested:
        query, key_padding_mask = _padded(query, None)
        key = value = query
    points = [query, key, value]
    if query.dim() == 2:
        points = [each[None] for each in points]
    elif not self.batch_first:
        points = [each.transpose(0, 1) for each in points]
    q, k, v = (_projected(self, place, each) for place, each in enumerate(points))
    if self.bias_k is not None and self.bias_v is not None:
        k, v = (_longer(each, more) for each, more in ((k, self.bias_k), (v, self.bias_v)))
    if self.add_zero_attn:
        k, v = (_longer(each, each.new_zeros(1, 1, each.shape[-1])) for each in (k, v))
    # What is added is always seen: torch pads both masks with zeros.
    more = (0, k.shape[1] - points[1].shape[1])
    key_padding_mask = None if key_padding_mask is None else F.pad(key_padding_mask, more)
    attn_mask = None if attn_mask is None else F.pad(attn_mask, more)
    q, k, v = (split_heads(each, self.num_heads) for each in (q, k, v))
    seen = from_torch(key_padding_mask, attn_mask, (*q.shape[:3], k.shape[2]))
    return Sides(q, k, v, seen.mask, seen.causal, self.head_dim**-0.5, seen.bias)


@torch.no_grad()
def _read_layer(
    self: nn.TransformerEncoderLayer,
    src: Tensor,
    src_mask: Tensor | None,
    src_key_padding_mask: Tensor | None,
    is_causal: bool,
    length: int | None,
) -> tuple[Sides, Tensor]:
    """The sides and the output of a layer's attention, from the arguments of the layer's forward."""
    attention = self.self_attn
    if src.is_nested:
        src, src_key_padding_mask = _padded(src, length)
    points = self.norm1(src) if self.norm_first else src
    sides = _read(attention, points, points, points, src_key_padding_mask, False, src_mask, False, is_causal)
    return sides, attention.out_proj(merge_heads(sides.output()).to(src.dtype))


def _projected(module: nn.MultiheadAttention, place: int, points: Tensor) -> Tensor:
    """Queries, keys or values (b, n, c), whichever stand at that place."""
    packed = module.in_proj_weight
    own = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    weight = own[place] if packed is None else packed.chunk(3)[place]
    return F.linear(
        points, weight, None if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[place]
    )


def _longer(points: Tensor, row: Tensor) -> Tensor:
    """Points (b, m, c) with one more, (1, 1, c), in each sequence."""
    return torch.cat([points, row.to(points.dtype).expand(len(points), 1, -1)], dim=1)


def _padded(nested: Tensor, length: int | None) -> tuple[Tensor, Tensor]:
    """Points (b, n, c) of a nested tensor, and the mask (b, n) in torch's words: True where padded."""
    lengths = torch.tensor([len(each) for each in nested.unbind()], device=nested.device)
    n = int(lengths.max()) if length is None else length
    points = nested.to_padded_tensor(0.0, (len(lengths), n, nested.size(-1)))
    return points, torch.arange(n, device=nested.device) >= lengths[:, None]
