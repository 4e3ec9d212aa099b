"""What all layers share: how they decode, the words of a wrong step, and the doors they know."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernelhead.errors import BadInput, ShapeError
from kernelhead.nn import (
    LinearAttention,
    NystromAttention,
    PrimalAttention,
    RPCAttention,
    ScaledAttention,
    SoftmaxAttention,
    SymmetricAttention,
)
from kernelhead.shapes import zeroed
from tests.inputs import points
from tests.test_house import MODULES, imports, room_of, tree_of

DECODERS: dict[str, Callable[[bool], Any]] = {
    "PrimalAttention": lambda causal: PrimalAttention(8, heads=2, rank=2, landmarks=3, causal=causal),
    "SoftmaxAttention": lambda causal: SoftmaxAttention(8, heads=2, causal=causal),
    "SymmetricAttention": lambda causal: SymmetricAttention(8, heads=2, causal=causal),
    "LinearAttention": lambda causal: LinearAttention(8, heads=2, causal=causal),
    "RPCAttention": lambda causal: RPCAttention(8, heads=2, causal=causal),
}
decoders = pytest.mark.parametrize("name", DECODERS)


@decoders
def test_only_causal_layers_decode(name: str) -> None:
    plain, causal = DECODERS[name](False), DECODERS[name](True)
    with pytest.raises(BadInput, match=f"^{name}: start and step need causal=True$"):
        plain.start(2)
    with pytest.raises(BadInput, match=f"^{name}: start and step need causal=True$"):
        plain.step(torch.zeros(2, 8), causal.start(2))


@decoders
@pytest.mark.parametrize("shape", [(3, 8), (2, 7), (8,), (2, 1, 4), (3, 1, 8)], ids=str)
def test_points_that_do_not_fit_are_named(name: str, shape: tuple[int, ...]) -> None:
    layer = DECODERS[name](True)
    prompts = r" or \(2, n, 8\)" if name == "RPCAttention" else ""
    words = rf"^{name}\.step: `x` has shape \({', '.join(map(str, shape))},?\), expected \(2, 8\){prompts}$"
    with pytest.raises(BadInput, match=words):
        layer.step(torch.zeros(shape), layer.start(2))


@decoders
def test_a_prompt_is_for_those_that_take_one(name: str) -> None:
    layer = DECODERS[name](True)
    if name == "RPCAttention":
        assert layer.step(torch.zeros(2, 5, 8), layer.start(2))[0].shape == (2, 5, 8)
    else:
        with pytest.raises(BadInput, match=r"`x` has shape \(2, 5, 8\), expected \(2, 8\)$"):
            layer.step(torch.zeros(2, 5, 8), layer.start(2))


@pytest.mark.parametrize("name", ["PrimalAttention", "RPCAttention"])
def test_masks_of_a_step_that_do_not_fit_are_named(name: str) -> None:
    layer = DECODERS[name](True)
    with pytest.raises(BadInput, match=rf"{name}\.step: `mask` is torch.float32, expected torch.bool"):
        layer.step(torch.zeros(2, 8), layer.start(2), mask=torch.ones(2))
    with pytest.raises(ShapeError, match=rf"{name}\.step: `mask` has shape \(3,\), expected \(2,\)"):
        layer.step(torch.zeros(2, 8), layer.start(2), mask=torch.ones(3, dtype=torch.bool))


def test_layers_without_a_causal_form_say_so() -> None:
    assert not NystromAttention(8, heads=2, landmarks=3).causal
    assert not ScaledAttention(8, heads=2).causal


def test_nothing_is_left_where_a_mask_is_false() -> None:
    x, mask = points(2, 3, 4), torch.tensor([[True, False, True], [False, False, True]])
    x[0, 1] = float("nan")
    made = zeroed(x, mask)
    assert torch.equal(made[mask], x[mask])
    assert bool((made[~mask] == 0).all())
    assert zeroed(x, None) is x


def test_layers_know_ops_by_their_doors() -> None:
    layers = [path for path in MODULES if room_of(path) == "nn"]
    assert len(layers) > len(DECODERS)
    past = [name for path in layers for _, name in imports(tree_of(path)) if "ops.eager" in name]
    assert past == []
