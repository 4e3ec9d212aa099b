"""The forms of the primal layer that tests run through, and the oracle's answer for a module."""

import torch
from torch import Tensor

from kernelhead.nn import PrimalAttention
from tests.oracles.primal import PrimalResult, primal_layer

FORMS = {
    "dependent": {"landmarks": 5},
    "independent": {"landmarks": None},
    "causal": {"landmarks": None, "causal": True},
    "causal_dependent": {"landmarks": 5, "causal": True},
}


def layer(
    form: str, *, rank: int = 3, join: str = "shared", init: str = "orthonormal", modes: int | None = None
) -> PrimalAttention:
    """A float64 layer of width 8 with two heads, the same weights on every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PrimalAttention(
            8, heads=2, rank=rank, join=join, init=init, modes=modes, **FORMS[form]
        ).double()


def params(module: PrimalAttention) -> dict[str, Tensor]:
    """The module's parameters under the oracle's names."""
    names = {"left": module.left, "right": module.right, "root": module.root}
    for name in ("query", "key", "join", "out"):
        linear = getattr(module, name)
        names |= {f"{name}_w": linear.weight, f"{name}_b": linear.bias}
    return {name: tensor.detach() for name, tensor in names.items()}


def oracle(module: PrimalAttention, x: Tensor, **masks: Tensor | None) -> PrimalResult:
    """The oracle's answer with the module's weights."""
    given = {name: tensor for name, tensor in masks.items() if tensor is not None}
    return primal_layer(
        x.detach(),
        params(module),
        heads=module.heads,
        landmarks=module.landmarks,
        causal=module.causal,
        **given,
    )
