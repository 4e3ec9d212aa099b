"""reading and called: our own softmax, grafted cores, chosen sites, and its words."""

from collections import UserDict

import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn import PrimalAttention, SoftmaxAttention
from kernelhead.nn.base import AbstractRecorded
from kernelhead.nn.heads import merge_heads
from kernelhead.nn.hosts import called, find_sites, reading
from tests.inputs import keep, points
from tests.tolerance import assert_exact


class Core(AbstractRecorded):
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        return value


class Grafted(nn.MultiheadAttention):
    """A host whose core is ours."""

    def __init__(self) -> None:
        super().__init__(8, 2)
        self.kernelhead = Core()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.kernelhead(x, x, x, mask=mask, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_our_softmax_is_read(causal: bool) -> None:
    layer, x, mask = SoftmaxAttention(8, heads=2, causal=causal).double(), points(2, 5, 8), keep([5, 3], 5)
    with reading(layer) as read:
        out = layer(x, mask=mask)
    ((sides,),) = read.values()
    assert sides.causal == causal
    assert torch.equal(sides.mask, mask)
    assert_exact(layer.out(merge_heads(sides.output()))[mask], out[mask])


def test_our_softmax_is_read_with_a_context() -> None:
    layer, x, context = SoftmaxAttention(8, heads=2).double(), points(2, 3, 8), points(2, 5, 8, seed=1)
    with reading(layer) as read:
        out = layer(x, context=context, context_mask=keep([5, 3], 5))
    ((sides,),) = read.values()
    assert sides.key.shape == (2, 2, 5, 4)
    assert_exact(layer.out(merge_heads(sides.output())), out)


def test_a_grafted_core_is_read() -> None:
    model, x = nn.ModuleDict({"inner": Grafted()}), points(2, 2, 5, 4).requires_grad_()
    with reading(model) as read:
        model["inner"](x, keep([5, 3], 5))
    (sides,) = read["inner"]
    assert torch.equal(sides.query, x)
    assert not sides.query.requires_grad
    assert (sides.causal, sides.scale) == (True, 0.5)
    assert torch.equal(sides.mask, keep([5, 3], 5))


def test_only_chosen_sites_are_read() -> None:
    model = nn.ModuleList([nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2)])
    x = torch.zeros(3, 1, 8)
    with reading(model, find_sites(model)[1:]) as read:
        for layer in model:
            layer(x, x, x)
    assert {path: len(calls) for path, calls in read.items()} == {"1": 1}


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(1, 2), torch.zeros(1, 3)),
        [torch.zeros(1, 2), torch.zeros(1, 3)],
        {"input1": torch.zeros(1, 2), "input2": torch.zeros(1, 3)},
        UserDict(input1=torch.zeros(1, 2), input2=torch.zeros(1, 3)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_batches_of_all_kinds(batch: object) -> None:
    assert called(nn.Bilinear(2, 3, 4), batch).shape == (1, 4)
    assert called(nn.Linear(2, 3), torch.zeros(1, 2)).shape == (1, 3)


def test_words() -> None:
    with (
        pytest.raises(BadInput, match=r"reading: Linear has no attention.*looked for .*MultiheadAttention"),
        reading(nn.Linear(2, 2)),
    ):
        pass
    primal = PrimalAttention(8, heads=2, rank=3)
    with (
        pytest.raises(BadInput, match="skipped: 'PrimalAttention' is an attention of kernelhead"),
        reading(primal),
    ):
        pass
    with (
        pytest.raises(BadInput, match="PrimalAttention at '' cannot be read: it is an attention"),
        reading(primal, find_sites(primal)),
    ):
        pass
