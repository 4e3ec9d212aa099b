"""torch's own attention: every mask it takes, its encoders on every path, and that nothing changes."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelhead.nn import record
from kernelhead.nn.heads import merge_heads
from kernelhead.nn.hosts import Sides, find_sites, reading
from tests.inputs import keep, points
from tests.tolerance import assert_exact

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "padding": {"key_padding_mask": ~keep([5, 3], 5)},
    "padding, added": {
        "key_padding_mask": torch.zeros(2, 5).double().masked_fill(~keep([5, 3], 5), -torch.inf)
    },
    "pairs": {"attn_mask": torch.ones(4, 5).triu(2).bool()},
    "pairs, added": {"attn_mask": points(4, 5, seed=5)},
    "pairs of each head": {"attn_mask": points(4, 4, 5, seed=5) > 0.8},
    "both": {"key_padding_mask": ~keep([5, 3], 5), "attn_mask": torch.ones(4, 5).triu(2).bool()},
}


def attention(width: int = 8, heads: int = 2, **options: Any) -> nn.MultiheadAttention:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.MultiheadAttention(width, heads, **options).double()
        for parameter in layer.parameters():
            parameter.data.copy_(torch.randn_like(parameter))
    return layer


def encoder(*, norm_first: bool = False, depth: int = 2, **options: Any) -> nn.TransformerEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        given = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first, **options}
        layer = nn.TransformerEncoderLayer(8, 2, 16, dtype=torch.float64, **given)
        return nn.TransformerEncoder(layer, depth, enable_nested_tensor=not norm_first).eval()


def the(read: dict[str, list[Sides]]) -> Sides:
    ((each,),) = read.values()
    return each


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str
)
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_patterns_and_outputs_are_those_of_the_layer(
    masks: dict[str, Tensor], batch_first: bool, options: dict[str, bool]
) -> None:
    layer = attention(batch_first=batch_first, **options)
    query, key, value = points(2, 4, 8), points(2, 5, 8, seed=1), points(2, 5, 8, seed=2)
    if not batch_first:
        query, key, value = (each.transpose(0, 1) for each in (query, key, value))
    with reading(layer) as read:
        output, weights = layer(query, key, value, average_attn_weights=False, **masks)
    sides = the(read)
    assert_exact(sides.pattern().matrix(), weights)
    mixed = layer.out_proj(merge_heads(sides.output()))
    assert_exact(mixed if batch_first else mixed.transpose(0, 1), output)


def test_keys_and_values_of_other_widths() -> None:
    layer = attention(kdim=3, vdim=5, batch_first=True)
    with reading(layer) as read:
        _, weights = layer(points(2, 4, 8), points(2, 6, 3), points(2, 6, 5), average_attn_weights=False)
    assert_exact(the(read).pattern().matrix(), weights)


def test_one_sequence_without_a_batch() -> None:
    layer, mask = attention(), torch.tensor([False, False, True])
    with reading(layer) as read:
        x = points(3, 8)
        _, weights = layer(x, x, x, key_padding_mask=mask, average_attn_weights=False)
    assert_exact(the(read).pattern().matrix()[0], weights)
    assert torch.equal(the(read).mask, ~mask[None])


def test_a_hint_of_causality() -> None:
    layer, x = attention(batch_first=True), points(2, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    with reading(layer) as read:
        output, _ = layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    sides = the(read)
    assert sides.causal
    assert (sides.mask, sides.bias) == (None, None)
    assert_exact(layer.out_proj(merge_heads(sides.output())), output)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("lengths", [None, [6, 4, 1], [5, 4, 3]], ids=["full", "padded", "all padded"])
@pytest.mark.parametrize("causal", [False, True])
def test_encoders_on_their_fast_path(norm_first: bool, lengths: list[int] | None, causal: bool) -> None:
    """Evaluation without gradients calls no attention module, and may use nested tensors."""
    model, x = encoder(norm_first=norm_first), points(3, 6, 8)
    given = {} if lengths is None else {"src_key_padding_mask": ~keep(lengths, 6)}
    if causal:
        given |= {"mask": torch.ones(6, 6).triu(1).bool(), "is_causal": True}
    with torch.no_grad():
        before = model(x, **given)
        with reading(model) as read:
            assert torch.equal(model(x, **given), before)
        with record(model, patterns=True) as fast:
            assert torch.equal(model(x, **given), before)
    with record(model.train(), patterns=True) as slow:
        model(x, **given)
    real = torch.ones(3, 6, dtype=torch.bool) if lengths is None else keep(lengths, 6)
    for path, (sides,) in read.items():
        assert (sides.causal, sides.bias) == (causal, None)
        assert sides.mask is None if lengths is None else torch.equal(sides.mask, real)
        expected = slow.last(path)
        rows = real[:, None].expand(-1, 2, -1)
        assert_exact(sides.pattern().matrix()[rows], expected.pattern.matrix()[rows])
        assert torch.equal(fast.last(path).pattern.matrix(), sides.pattern().matrix())
        assert_exact(fast.last(path).output[real], expected.output[real])


def test_nested_tensors_given_by_hand() -> None:
    model = encoder(depth=1).layers[0]
    rows = [points(3, 8), points(5, 8, seed=1)]
    with torch.no_grad(), reading(model) as read:
        model(torch.nested.nested_tensor(rows))
    assert torch.equal(the(read).mask, keep([3, 5], 5))
    layer = attention(batch_first=True).eval()
    with torch.no_grad(), reading(layer) as read:
        x = torch.nested.nested_tensor(rows)
        layer(x, x, x, need_weights=False)
    assert torch.equal(the(read).mask, keep([3, 5], 5))


@pytest.mark.parametrize("training", [True, False])
def test_decoders(training: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
        model = nn.TransformerDecoder(layer, 2).train(training)
    x, memory = points(2, 4, 8), points(2, 5, 8, seed=1)
    given = {"tgt_mask": torch.ones(4, 4).triu(1).bool(), "memory_key_padding_mask": ~keep([5, 3], 5)}
    before = model(x, memory, **given)
    with reading(model) as read:
        assert torch.equal(model(x, memory, **given), before)
    sites = {site.path: site for site in find_sites(model)}
    assert (
        list(read)
        == list(sites)
        == [f"layers.{i}.{name}" for i in (0, 1) for name in ("self_attn", "multihead_attn")]
    )
    for path, (sides,) in read.items():
        assert sites[path].cross == path.endswith("multihead_attn")
        assert sides.causal != sites[path].cross
        assert sides.pattern().shape == (2, 2, 4, 5 if sites[path].cross else 4)


def test_training_keeps_its_bits() -> None:
    model, x = encoder(dropout=0.3).train(), points(3, 6, 8)
    given = {"src_key_padding_mask": ~keep([6, 4, 1], 6)}
    torch.manual_seed(3)
    before, state = model(x, **given), torch.get_rng_state()
    grads = torch.autograd.grad(before.square().sum(), [*model.parameters()])
    torch.manual_seed(3)
    with record(model, patterns=True):
        inside = model(x, **given)
    assert torch.equal(inside, before)
    assert torch.equal(state, torch.get_rng_state())
    again = torch.autograd.grad(inside.square().sum(), [*model.parameters()])
    assert all(map(torch.equal, grads, again))


def test_nothing_is_left_behind() -> None:
    model = encoder()
    before = {path: {**vars(each)} for path, each in model.named_modules()}
    with reading(model):
        pass
    with pytest.raises(RuntimeError, match="stop"), reading(model):
        raise RuntimeError("stop")
    assert {path: {**vars(each)} for path, each in model.named_modules()} == before


def test_a_forward_of_an_instance_is_given_back() -> None:
    layer = attention()
    own = layer.forward
    layer.forward = own
    with reading(layer):
        assert layer.forward is not own
    assert vars(layer)["forward"] is own


def test_copies_and_pickles_made_while_reading_are_not_read() -> None:
    model, x = encoder(), points(2, 6, 8)
    with reading(model) as read:
        twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for twin in twins:
            for parameter in twin.parameters():
                parameter.data.zero_()
            assert not torch.equal(twin(x), model(x))
    assert [len(calls) for calls in read.values()] == [2, 2]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"kdim": 3, "vdim": 5}, "has keys of width 3 and values of width 5, not 8"),
        ({"add_bias_kv": True}, "adds a learned key to each sequence (add_bias_kv)"),
        ({"add_zero_attn": True}, "adds a key of zeros to each sequence (add_zero_attn)"),
    ],
)
def test_what_cannot_be_grafted_says_why(options: dict[str, Any], reason: str | None) -> None:
    (site,) = find_sites(attention(**options))
    assert (site.path, site.family, site.kind) == ("", "torch", "MultiheadAttention")
    assert (site.width, site.heads, site.kv_heads, site.head) == (8, 2, 2, 4)
    assert (site.reason, site.readable) == (reason, True)


def test_a_forward_of_a_subclass_is_not_read() -> None:
    class Mine(nn.MultiheadAttention):
        def forward(self, query: Tensor) -> Tensor:
            return query

    (site,) = find_sites(Mine(8, 2))
    assert (site.reason, site.readable) == ("has a forward of its own", False)


@pytest.mark.plain
@pytest.mark.slow
def test_a_compiled_model_is_read() -> None:
    torch._dynamo.reset()
    model, x = encoder().train(), points(2, 6, 8)
    compiled = torch.compile(model, backend="eager")
    before = compiled(x)
    with reading(model) as read:
        compiled(x)
    with record(compiled) as tape:
        assert torch.equal(compiled(x), before)
    assert [len(calls) for calls in read.values()] == [1, 1]
    assert list(tape.calls) == list(read)
    assert len(tape) == 2
    torch._dynamo.reset()


class CrossBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2)


class PoolingHead(CrossBlock):
    """Queries of its own, as SigLIP's head has."""


def test_names_tell_of_queries_from_elsewhere() -> None:
    model = nn.ModuleDict({"a": CrossBlock(), "b": PoolingHead(), "c": nn.TransformerEncoderLayer(8, 2)})
    model["cross_attn"] = nn.MultiheadAttention(8, 2)
    assert [site.cross for site in find_sites(model)] == [True, True, False, True]
