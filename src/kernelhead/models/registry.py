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
    RPCAttention,
    ScaledAttention,
    SoftmaxAttention,
    SymmetricAttention,
)

REST = "..."
NONE = "none"  # a layer without attention


@dataclass(frozen=True)
class Sizes:
    """What a builder may use of a layer's sizes; each takes what its attention needs.

    Args:
        width: of the layer.
        heads: of the attention.
        rank: components of a primal attention.
        landmarks: of a primal attention, or None.
        causal: whether a point sees itself and those before it only.
        init: of primal weights.
        iterations: of a pursuit.
        strength: of a pursuit's threshold; None for its own.
        modes: of a primal attention's landmarks; None for weights of each.
    """

    width: int
    heads: int
    rank: int
    landmarks: int | None
    causal: bool = False
    init: str = "orthonormal"
    iterations: int = 4
    strength: float | None = None
    modes: int | None = None


def _primal(sizes: Sizes) -> PrimalAttention:
    return PrimalAttention(
        sizes.width,
        heads=sizes.heads,
        rank=sizes.rank,
        landmarks=sizes.landmarks,
        causal=sizes.causal,
        init=sizes.init,
        modes=sizes.modes,
    )


def _rpc(sizes: Sizes, preset: str) -> RPCAttention:
    return RPCAttention(
        sizes.width,
        heads=sizes.heads,
        iterations=sizes.iterations,
        strength=sizes.strength,
        preset=preset,
        causal=sizes.causal,
    )


ATTENTIONS: dict[str, Callable[[Sizes], AbstractKernelAttention]] = {
    "primal": _primal,
    "softmax": lambda s: SoftmaxAttention(s.width, heads=s.heads, causal=s.causal),
    "linear": lambda s: LinearAttention(s.width, heads=s.heads, causal=s.causal),
    "performer": lambda s: PerformerAttention(s.width, heads=s.heads, causal=s.causal),
    "nystrom": lambda s: NystromAttention(s.width, heads=s.heads, landmarks=s.landmarks or 0),
    "symmetric": lambda s: SymmetricAttention(s.width, heads=s.heads, causal=s.causal),
    "rpc": lambda s: _rpc(s, "published"),
    "rpc_corrected": lambda s: _rpc(s, "corrected"),
    "scaled": lambda s: ScaledAttention(s.width, heads=s.heads, causal=s.causal),
}


def layer_names(attention: str | Sequence[str], depth: int) -> list[str]:
    """The attention of every layer.

    Args:
        attention: one name for all layers; a name with "+" for the last layer and softmax before
            it; or one name a layer, as a sequence or joined by commas, where "..." repeats the name
            before it until the depth is reached. "none" is a layer without attention, where a model has such.
        depth: how many layers.

    Raises:
        BadInput: the number of names is not the depth, or "..." is first or not alone.
        UnknownName: no attention has that name.

    Example:
        >>> layer_names("primal+", 3)
        ['softmax', 'softmax', 'primal']
        >>> layer_names("softmax,primal", 2)
        ['softmax', 'primal']
        >>> layer_names("rpc,symmetric,...", 4)
        ['rpc', 'symmetric', 'symmetric', 'symmetric']
    """
    names = attention.split(",") if isinstance(attention, str) else list(attention)
    names = [name.strip() for name in names]
    if REST in names:
        names = _filled(names, depth)
    elif len(names) == 1:
        name = names[0]
        names = ["softmax"] * (depth - 1) + [name[:-1]] if name.endswith("+") else [name] * depth
    for name in names:
        if name.endswith("+") and name[:-1] in ATTENTIONS:
            raise BadInput(
                f"layer_names: {name!r} stands for a whole model and cannot be one of {len(names)} names"
            )
        if name not in ATTENTIONS and name != NONE:
            raise unknown(
                "layer_names", "attention", name, [*ATTENTIONS, NONE, *(f"{known}+" for known in ATTENTIONS)]
            )
    if len(names) != depth:
        raise BadInput(f"layer_names: {attention!r} names {len(names)} layers, but the depth is {depth}")
    return names


def _filled(names: list[str], depth: int) -> list[str]:
    """The name before the dots as often as it takes to reach the depth."""
    at = names.index(REST)
    if at == 0 or names.count(REST) > 1:
        raise BadInput(f'layer_names: "..." stands once and after the name to repeat, got {names}')
    rest = [*names[: at - 1], *names[at + 1 :]]
    return [*rest[: at - 1], *[names[at - 1]] * (depth - len(rest)), *rest[at - 1 :]]


def build_attention(name: str, sizes: Sizes, *, who: str = "build_attention") -> AbstractKernelAttention:
    """One attention by its name.

    Args:
        name: such as "primal"; see `ATTENTIONS`.
        sizes: what its builder may use.
        who: asks, for a complaint.

    Raises:
        UnknownName: no attention has that name.
        BadInput: it has no causal form, and is asked for one.
    """
    if name not in ATTENTIONS:
        raise unknown(who, "attention", name, ATTENTIONS)
    layer = ATTENTIONS[name](sizes)
    if sizes.causal and not getattr(layer, "causal", False):
        raise BadInput(f"{who}: attention {name!r} has no causal form")
    return layer
