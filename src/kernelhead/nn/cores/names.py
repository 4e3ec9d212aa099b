"""Cores by name: one dict you can read."""

from typing import Any

from kernelhead.errors import BadInput, unknown
from kernelhead.nn.cores.base import AbstractCore
from kernelhead.nn.cores.linear import LinearCore, NystromCore, PerformerCore
from kernelhead.nn.cores.primal import PrimalCore
from kernelhead.nn.cores.rpc import RPCCore
from kernelhead.nn.cores.softmax import SoftmaxCore

#: Cores by name, with the options that each has.
CORES: dict[str, tuple[type[AbstractCore], tuple[str, ...]]] = {
    "linear": (LinearCore, ()),
    "nystrom": (NystromCore, ("landmarks",)),
    "performer": (PerformerCore, ("features", "seed")),
    "primal": (PrimalCore, ("rank", "landmarks", "mix", "feature_map", "seed")),
    "rpc": (RPCCore, ("iterations", "strength", "preset")),
    "softmax": (SoftmaxCore, ()),
}


def core_of(
    name: str,
    *,
    heads: int,
    head: int,
    rank: int | None = None,
    landmarks: int | None = None,
    mix: str | None = None,
    feature_map: str | None = None,
    iterations: int | None = None,
    strength: float | None = None,
    preset: str | None = None,
    features: int | None = None,
    seed: int | None = None,
) -> AbstractCore:
    """A core by name; options that are None are the core's defaults.

    Args:
        name: one of `CORES`.
        heads: heads h.
        head: features of a head, d.
        rank: components, of "primal", which needs it.
        landmarks: of "primal" and "nystrom".
        mix: of "primal".
        feature_map: of "primal".
        iterations: of "rpc".
        strength: of "rpc".
        preset: of "rpc".
        features: of "performer".
        seed: of the random features of "primal" and "performer".

    Raises:
        UnknownName: there is no such core.
        BadInput: the core has no such option, or lacks one.

    Example:
        >>> core_of("primal", heads=2, head=8, rank=4)
        PrimalCore(heads=2, head=8, rank=4, landmarks=None, mix=pattern, feature_map=cosine, seed=0)
    """
    if name not in CORES:
        raise unknown("core_of", "core", name, CORES)
    kind, known = CORES[name]
    given: dict[str, Any] = {
        "rank": rank,
        "landmarks": landmarks,
        "mix": mix,
        "feature_map": feature_map,
        "iterations": iterations,
        "strength": strength,
        "preset": preset,
        "features": features,
        "seed": seed,
    }
    given = {option: value for option, value in given.items() if value is not None}
    for option in given:
        if option not in known:
            raise BadInput(f"core_of: {name!r} has no option `{option}`; it has {', '.join(known) or 'none'}")
    if name == "primal" and rank is None:
        raise BadInput("core_of: 'primal' needs `rank`, the components that a head keeps")
    return kind(heads, head, **given)
