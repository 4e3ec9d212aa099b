"""WideAttention: softmax attention of heads of any width, and its words."""

import pytest
import torch

from kernelhead.errors import BadInput
from kernelhead.nn import SoftmaxAttention, WideAttention, record
from kernelhead.rng import seeded
from tests.inputs import points
from tests.tolerance import assert_exact


def test_with_the_usual_width_it_is_softmax_attention() -> None:
    plain = SoftmaxAttention(8, heads=2).double()
    wide = WideAttention(8, heads=2, head_width=4).double()
    wide.load_state_dict(plain.state_dict())
    x, context = points(2, 5, 8), points(2, 3, 8, seed=1)
    assert_exact(wide(x), plain(x))
    assert_exact(wide(x, context=context), plain(x, context=context))


def test_patterns_are_recorded() -> None:
    with seeded(0):
        layer = WideAttention(2, heads=10, head_width=16)
    with record(layer, patterns=True) as tape:
        layer(torch.zeros(1, 4, 2))
    [call] = tape.calls[""]
    assert call.pattern is not None
    assert call.pattern.shape == (1, 10, 4, 4)


@pytest.mark.parametrize("name", ["width", "heads", "head_width"])
def test_a_wrong_size_is_named(name: str) -> None:
    with pytest.raises(BadInput, match=f"WideAttention: {name} is 0"):
        WideAttention(**({"width": 2, "heads": 3, "head_width": 4} | {name: 0}))


def test_a_wrong_dropout_is_named() -> None:
    with pytest.raises(BadInput, match=r"WideAttention: dropout is 1\.0"):
        WideAttention(2, heads=3, head_width=4, dropout=1.0)
