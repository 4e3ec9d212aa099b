"""Name to builder: the attentions a model can be made of, in one dict that can be read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelhead.errors import BadInput, unknown
from kernelhead.nn import (
    AbstractKernelAttention,
    LinearAttention,
    NystromAttention,
    PerformerAttention,
    PrimalAttention,
    SoftmaxAttention,
)


@dataclass(frozen=True)
class Sizes:
    """What a builder may use of a layer's sizes; each takes what its attention needs."""

    width: int
    heads: int
    rank: int
    landmarks: int
    causal: bool = False
    init: str = "orthonormal"


ATTENTIONS: dict[str, Callable[[Sizes], AbstractKernelAttention]] = {
    "primal": lambda s: PrimalAttention(
        s.width, heads=s.heads, rank=s.rank, landmarks=s.landmarks, causal=s.causal, init=s.init
    ),
    "softmax": lambda s: SoftmaxAttention(s.width, heads=s.heads, causal=s.causal),
    "linear": lambda s: LinearAttention(s.width, heads=s.heads, causal=s.causal),
    "performer": lambda s: PerformerAttention(s.width, heads=s.heads, causal=s.causal),
    "nystrom": lambda s: NystromAttention(s.width, heads=s.heads, landmarks=s.landmarks),
}


def layer_names(attention: str | Sequence[str], depth: int) -> list[str]:
    """The attention of every layer.

    Args:
        attention: one name for all layers; a name with "+" for the last layer and softmax before
            it; or one name a layer, as a sequence or joined by commas.
        depth: how many layers.

    Raises:
        BadInput: the number of names is not the depth.
        UnknownName: no attention has that name.

    Example:
        >>> layer_names("primal+", 3)
        ['softmax', 'softmax', 'primal']
        >>> layer_names("softmax,primal", 2)
        ['softmax', 'primal']
    """
    names = attention.split(",") if isinstance(attention, str) else list(attention)
    if len(names) == 1:
        name = names[0].strip()
        names = ["softmax"] * (depth - 1) + [name[:-1]] if name.endswith("+") else [name] * depth
    names = [name.strip() for name in names]
    for name in names:
        if name.endswith("+") and name[:-1] in ATTENTIONS:
            raise BadInput(
                f"layer_names: {name!r} stands for a whole model and cannot be one of {len(names)} names"
            )
        if name not in ATTENTIONS:
            raise unknown(
                "layer_names", "attention", name, [*ATTENTIONS, *(f"{known}+" for known in ATTENTIONS)]
            )
    if len(names) != depth:
        raise BadInput(f"layer_names: {attention!r} names {len(names)} layers, but the depth is {depth}")
    return names


def build_attention(name: str, sizes: Sizes) -> AbstractKernelAttention:
    """One attention by its name.

    Raises:
        UnknownName: no attention has that name.
    """
    if name not in ATTENTIONS:
        raise unknown("build_attention", "attention", name, ATTENTIONS)
    return ATTENTIONS[name](sizes)
