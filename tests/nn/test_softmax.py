"""SoftmaxAttention: PyTorch's own answer, its laws, its pattern, its words."""

import pytest
import torch
from torch import nn

from kernelhead.errors import BadInput
from kernelhead.nn.heads import merge_heads, split_heads
from kernelhead.nn.softmax import SoftmaxAttention
from kernelhead.nn.tape import record
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.tolerance import assert_exact


def layer(*, causal: bool = False, dropout: float = 0.0) -> SoftmaxAttention:
    with seeded(0):
        return SoftmaxAttention(12, heads=3, causal=causal, dropout=dropout).double()


def torch_layer(ours: SoftmaxAttention) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    projections = [ours.query, ours.key, ours.value]
    theirs.in_proj_weight.data = torch.cat([projection.weight.data for projection in projections])
    theirs.in_proj_bias.data = torch.cat([projection.bias.data for projection in projections])
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    return theirs


@pytest.mark.parametrize("causal", [False, True])
def test_output_is_that_of_torch(causal: bool) -> None:
    ours, x, mask = layer(causal=causal), points(2, 7, 12), keep([7, 4], 7)
    hidden = ~torch.ones(7, 7, dtype=torch.bool).tril() if causal else None
    theirs, entries = torch_layer(ours)(
        x, x, x, key_padding_mask=~mask, attn_mask=hidden, average_attn_weights=False
    )
    with record(ours, patterns=True) as tape:
        output = ours(x, mask=mask)
    assert_exact(output, theirs * mask.unsqueeze(-1))
    pattern = tape.last("").pattern
    assert pattern is not None
    assert_exact(pattern.matrix(), entries * mask[:, None, :, None])


def test_a_context_is_attended_as_in_torch() -> None:
    ours, x, context = layer(), points(2, 7, 12), points(2, 5, 12, seed=1)
    mask, context_mask = keep([7, 4], 7), keep([2, 5], 5)
    theirs, _ = torch_layer(ours)(x, context, context, key_padding_mask=~context_mask)
    assert_exact(ours(x, mask=mask, context=context, context_mask=context_mask), theirs * mask.unsqueeze(-1))


def test_the_pattern_is_what_was_applied() -> None:
    ours, x, mask = layer(), points(2, 7, 12), keep([7, 4], 7)
    with record(ours, patterns=True) as tape:
        output = ours(x, mask=mask)
    pattern = tape.last("").pattern
    assert pattern is not None
    applied = pattern.apply(split_heads(ours.value(x), 3))
    assert_exact(ours.out(merge_heads(applied)) * mask.unsqueeze(-1), output)
    with record(ours) as tape:
        ours(x)
    assert tape.last("").pattern is None


def test_without_a_mask_every_row_of_the_pattern_sums_to_one() -> None:
    ours = layer()
    with record(ours, patterns=True) as tape:
        ours(points(2, 7, 12))
    pattern = tape.last("").pattern
    assert pattern is not None
    assert_exact(pattern.marginals()[0], torch.ones(2, 3, 7, dtype=torch.float64))


def test_dropout_acts_in_training_only() -> None:
    ours, x = layer(dropout=0.5), points(2, 7, 12)
    with seeded(0):
        first, second = ours(x), ours(x)
    assert not torch.equal(first, second)
    ours.eval()
    assert torch.equal(ours(x), layer()(x))


def test_names_of_the_state() -> None:
    names = {f"{part}.{kind}" for part in ("query", "key", "value", "out") for kind in ("weight", "bias")}
    assert set(layer().state_dict()) == names


def test_words() -> None:
    with pytest.raises(BadInput, match=r"SoftmaxAttention: width 12 does not split into 5 heads"):
        SoftmaxAttention(12, heads=5)
    with pytest.raises(BadInput, match=r"SoftmaxAttention: dropout is 1.5, expected a number in \[0, 1\)"):
        SoftmaxAttention(12, heads=3, dropout=1.5)
    with pytest.raises(
        BadInput, match=r"SoftmaxAttention: is causal, and so takes no `context`, got \(2, 5, 12\)"
    ):
        layer(causal=True)(points(2, 7, 12), context=points(2, 5, 12))
