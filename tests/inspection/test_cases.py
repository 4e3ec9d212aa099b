"""Cases of a batch: padding left out, calls of every kind, and words for what cannot be read."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.inspection.cases import calls_of, real_cases
from kernelhead.models import SequenceClassifier
from kernelhead.nn.hosts import Sides
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.tolerance import assert_exact


def encoder(depth: int = 2, **options: Any) -> nn.TransformerEncoder:
    with seeded(0):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).double()


def sides(n: int = 5, m: int = 5, **options: Any) -> Sides:
    given: dict[str, Any] = {"mask": None, "causal": False, "scale": 0.5} | options
    return Sides(points(2, 3, n, 4), points(2, 3, m, 4, seed=1), points(2, 3, m, 4, seed=2), **given)


def test_a_case_without_padding_is_a_slice() -> None:
    whole = sides()
    first, second = real_cases(whole)
    assert_exact(torch.cat([first.output(), second.output()]), whole.output())


@pytest.mark.parametrize("causal", [False, True])
def test_padded_points_are_left_out_on_both_sides(causal: bool) -> None:
    whole = sides(mask=keep([5, 3], 5), causal=causal)
    second = real_cases(whole)[1]
    assert second.mask is None
    assert_exact(second.pattern().matrix()[0], whole.pattern().matrix()[1, :, :3, :3])


def test_padding_on_the_left_keeps_causality() -> None:
    mask = keep([5, 3], 5).flip(-1)
    whole = sides(mask=mask, causal=True)
    second = real_cases(whole)[1]
    assert_exact(second.pattern().matrix()[0], whole.pattern().matrix()[1, :, 2:, 2:])


def test_what_nobody_may_see_is_padding_too() -> None:
    bias = points(2, 1, 5, 5, seed=3)
    bias[1, ..., 3:] = -torch.inf
    whole = sides(bias=bias)
    first, second = real_cases(whole)
    assert_exact(first.pattern().matrix()[0], whole.pattern().matrix()[0])
    assert_exact(second.pattern().matrix()[0], whole.pattern().matrix()[1, :, :3, :3])


def test_a_bias_without_batch_is_that_of_every_case() -> None:
    whole = sides(bias=points(5, 5, seed=3), mask=keep([5, 3], 5))
    second = real_cases(whole)[1]
    assert_exact(second.pattern().matrix()[0], whole.pattern().matrix()[1, :, :3, :3])


def test_a_point_that_must_not_see_itself_is_no_padding() -> None:
    apart = torch.zeros(5, 5, dtype=torch.float64).fill_diagonal_(-torch.inf)
    assert real_cases(sides(bias=apart))[0].query.shape[-2] == 5


@pytest.mark.parametrize(("n", "cross"), [(5, True), (4, False)])
def test_all_queries_count_across_two_sequences(n: int, cross: bool) -> None:
    whole = sides(n=n, mask=keep([5, 3], 5))
    second = real_cases(whole, cross=cross)[1]
    assert_exact(second.pattern().matrix()[0], whole.pattern().matrix()[1, :, :, :3])


def test_new_points_after_a_cache_are_the_last_ones() -> None:
    whole = sides(n=3, mask=keep([5, 4], 5), causal=True)
    second = real_cases(whole)[1]
    assert_exact(second.pattern().matrix()[0], whole.pattern().matrix()[1, :, :2, :4])


def test_an_empty_case_is_left_out() -> None:
    assert len(real_cases(sides(mask=keep([4, 0], 5)))) == 1


class Named(nn.Module):
    """Takes a batch by name or in order, and may call its encoder twice or not at all."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.encoder, self.times = encoder(1), times

    def forward(self, x: Tensor, padded: Tensor | None = None) -> Tensor:
        for _ in range(self.times):
            x = self.encoder(x, src_key_padding_mask=padded)
        return x


@pytest.mark.parametrize("kind", [tuple, list, OrderedDict])
def test_a_batch_of_every_kind(kind: type) -> None:
    parts = {"x": points(2, 5, 8), "padded": ~keep([5, 3], 5)}
    batch = kind(parts) if kind is OrderedDict else kind(parts.values())
    (read,) = calls_of("f", Named(), batch)
    assert read.site.path == "encoder.layers.0.self_attn"
    assert [case.query.shape[-2] for case in read.cases] == [5, 3]


def test_calls_are_more_cases() -> None:
    (read,) = calls_of("f", Named(times=2), points(2, 5, 8))
    assert len(read.cases) == 4


def test_ours_are_recorded_unless_they_are_softmax() -> None:
    model = SequenceClassifier(2, channels=1, width=8, heads=2, attention="primal+", rank=3).double()
    first, second = calls_of("f", model, points(2, 5, 1), keep([5, 3], 5))
    assert [case.query.shape[-2] for case in first.cases] == [5, 3]
    assert not second.cases
    assert second.recorded[0].kernel is not None


def test_the_model_is_left_as_it_was() -> None:
    model = encoder().train()
    calls_of("f", model, points(2, 5, 8))
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_without_attention_is_named() -> None:
    with pytest.raises(BadInput, match=r"f: Linear has no attention .* looked for .*nn\.MultiheadAttention"):
        calls_of("f", nn.Linear(2, 2), points(2, 5, 2))


def test_a_batch_that_reaches_nothing_is_named() -> None:
    match = r"f: a tensor \(2, 5, 8\) of torch.float64 reaches none .* \['encoder.layers.0.self_attn'\]"
    with pytest.raises(BadInput, match=match):
        calls_of("f", Named(times=0), points(2, 5, 8))


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        (points(2, 5, 7), r"f: TransformerEncoder cannot take a tensor \(2, 5, 7\) of torch.float64: "),
        ({"y": points(2, 5, 8), "z": 1}, r"cannot take a dict of y: \(2, 5, 8\), z: int: KeyError: 'src'"),
        ([points(2, 5, 8)] * 9, r"cannot take a list of \(2, 5, 8\), .*TypeError: .*positional"),
        ((), "cannot take a tuple of nothing: "),
        (3, "f: the batch is of type int, expected a tensor, a sequence or a mapping"),
        ("words", "f: the batch is of type str, expected a tensor"),
    ],
    ids=["width", "names", "many", "none", "number", "text"],
)
def test_a_batch_that_the_model_cannot_take_is_described(batch: Any, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        calls_of("f", encoder(), batch)


def test_a_mask_beside_a_mapping_is_refused() -> None:
    with pytest.raises(BadInput, match="f: a mask goes beside a tensor, but the batch is a dict of src"):
        calls_of("f", encoder(), {"src": points(2, 5, 8)}, keep([5, 3], 5))
