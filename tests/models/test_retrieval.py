"""PairClassifier: its features, masks and published size, and its words."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.models import PairClassifier
from kernelhead.nn import ksvd_penalty, record
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.tolerance import assert_exact

SMALL: Mapping[str, Any] = {"width": 8, "heads": 2, "rank": 3, "landmarks": 4, "longest": 9}
attentions = pytest.mark.parametrize("attention", ["primal", "primal+", "softmax", "linear", "nystrom"])


def pair(**options: Any) -> PairClassifier:
    with seeded(0):
        return PairClassifier(11, 3, **{**SMALL, **options}).double()


def words(*shape: int) -> Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(0))


@attentions
@pytest.mark.parametrize("pooling", ["mean", "max", "last", "cls", "flatten"])
def test_scores_are_one_vector_a_pair(attention: str, pooling: str) -> None:
    scores = pair(attention=attention, pooling=pooling)(words(4, 2, 7))
    assert scores.shape == (4, 3)
    assert bool(scores.isfinite().all())


def test_the_head_reads_both_their_product_and_their_difference() -> None:
    model, x, mask = pair(), words(4, 2, 7), torch.stack([keep([7, 3, 2, 1], 7), keep([1, 7, 4, 6], 7)], 1)
    first, second = (model.encoder(x[:, side], mask[:, side]) for side in (0, 1))
    features = torch.cat([first, second, first * second, first - second], dim=-1)
    assert_exact(model(x, mask), model.head(features))


def test_the_order_of_a_pair_matters() -> None:
    model, x = pair(), words(4, 2, 7)
    assert not torch.allclose(model(x), model(x.flip(1)))


@attentions
def test_padding_has_no_influence(attention: str) -> None:
    model, x = pair(attention=attention), words(1, 2, 9)
    mask = torch.stack([keep([9], 9), keep([4], 9)], 1)
    assert torch.equal(model(x, mask), model(x.masked_fill(~mask, -100), mask))
    short = torch.stack([keep([5], 9), keep([4], 9)], 1)
    assert_exact(model(x, short), model(x[..., :5], short[..., :5]))


def test_softmax_has_the_published_number_of_weights() -> None:
    model = PairClassifier(
        512, width=64, depth=2, heads=2, attention="softmax", position="learned", longest=4096
    )
    assert sum(weight.numel() for weight in model.parameters()) == 395_138


def test_both_sides_are_one_entry_on_the_tape_and_gradients_reach_every_weight() -> None:
    model = pair(attention="primal")
    with record(model) as tape:
        scores = model(words(4, 2, 7))
    (scores.square().sum() + ksvd_penalty(tape)).backward()
    assert len(tape) == 2
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert bool(weight.grad.isfinite().all())


def test_equal_texts_are_learned() -> None:
    model, x = pair(width=16, dropout=0.0), words(64, 2, 4)
    x[::2, 1] = x[::2, 0]
    y = (x[:, 0] == x[:, 1]).all(-1).long()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
    assert float((model(x).argmax(-1) == y).double().mean()) > 0.9


def test_what_does_not_fit_is_named() -> None:
    model = pair()
    for x in (words(4, 7), words(4, 3, 7), points(4, 2, 7)):
        with pytest.raises(BadInput, match=r"PairClassifier: `x` is .*, expected whole numbers \(b, 2, n\)"):
            model(x)
    with pytest.raises(ShapeError, match=r"PairClassifier: `mask` has shape \(4, 7\), expected \(4, 2, 7\)"):
        model(words(4, 2, 7), keep([7] * 4, 7))
    with pytest.raises(BadInput, match="PairClassifier: classes is 0, expected a whole number of at least 1"):
        PairClassifier(11, 0)
    with pytest.raises(UnknownName, match="unknown attention 'primel', did you mean 'primal'"):
        pair(attention="primel")
