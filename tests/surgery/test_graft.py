"""graft, restore, grafts: where, what is said, what is kept, and every word of refusal."""

import json
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kernelhead.errors import BadInput, MissingExtra, UnknownName
from kernelhead.nn import record
from kernelhead.nn.hosts import Site, reading
from kernelhead.surgery import graft, grafts, restore
from tests.inputs import points
from tests.surgery.hosts import KEEP, built, inputs, output

FIRST, SECOND = "layers.0.self_attn", "layers.1.self_attn"


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("last", [SECOND]),
        ("all", [FIRST, SECOND]),
        ([SECOND, FIRST], [FIRST, SECOND]),
        (["layers.0"], [FIRST]),
        (["layers"], [FIRST, SECOND]),
        ([0], [FIRST]),
        ([-1], [SECOND]),
        ([np.int64(0)], [FIRST]),
        (lambda site: site.path.startswith("layers.0"), [FIRST]),
    ],
)
def test_where(where: Any, paths: list[str]) -> None:
    model = built("torch_encoder")
    report = graft(model, "softmax", where)
    assert [each.path for each in report.done] == paths
    assert [*grafts(model)] == paths


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("first", "where is 'first', expected 'last', 'all', a list or a function of a site"),
        (
            ["layers.7"],
            "no attention at 'layers.7'; found 'layers.0.self_attn' .MultiheadAttention., 'layers.1",
        ),
        ([2], "index 2 is out of range; found 'layers.0"),
        (lambda site: False, "matches no attention to graft; found 'layers.0"),
        (0, "where is 0, expected 'last', 'all', a list or a function of a site"),
        (None, "where is None, expected 'last'"),
        ([], r"where=\[\] matches no attention to graft"),
    ],
    ids=["word", "path", "index", "function", "number", "nothing", "none"],
)
def test_no_match_is_named(where: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        graft(built("torch_encoder"), "softmax", where)


def test_an_option_that_no_core_has_is_named() -> None:
    for name in ("foo", "heads"):
        with pytest.raises(UnknownName, match=f"graft: unknown option '{name}'"):
            graft(built("torch_encoder"), "primal", rank=2, options={name: 1})


def test_a_model_without_attention_is_named() -> None:
    with pytest.raises(BadInput, match=r"matches no attention to graft; found none of .*MultiheadAttention"):
        graft(nn.Linear(2, 2), "softmax")


def test_an_attention_that_cannot_be_grafted_is_skipped_or_refused() -> None:
    model = nn.ModuleList([nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, add_bias_kv=True)])
    with pytest.raises(BadInput, match=r"'1' cannot be grafted: it adds a learned key"):
        graft(model, "softmax", ["1"])
    report = graft(model, "softmax", "all")
    assert [each.path for each in report.done] == ["0"]
    assert "learned key" in report.skipped["1"]
    assert "1: skipped, it adds a learned key" in str(report)


def test_cross_attention_is_left_alone_where_the_core_cannot() -> None:
    model = built("torch_decoder")
    report = graft(model, "primal", "all", rank=3)
    assert [each.path for each in report.done] == [FIRST, SECOND]
    assert set(report.skipped) == {"layers.0.multihead_attn", "layers.1.multihead_attn"}
    assert len(graft(model, "softmax", "all").done) == 4


def test_an_unknown_core_is_named() -> None:
    with pytest.raises(UnknownName, match="primal"):
        graft(built("torch_layer"), "primall")


def test_the_report_is_readable_and_json() -> None:
    model = built("bert")
    report = graft(model, "primal", "last", rank=3)
    assert str(report).startswith(f"graft: 1 attention, {report.parameters:,} parameters\n  encoder.layer.1")
    kept = json.loads(json.dumps(report.record()))
    assert kept["done"][0]["method"] == "primal"
    assert kept["parameters"] == report.parameters
    core = model.encoder.layer[1].attention.self.kernelhead
    assert report.parameters == sum(weight.numel() for weight in core.parameters())
    assert str(graft(model, "primal", rank=3, dry_run=True)).endswith("unchanged, it has this graft already")


def test_seeds_name_the_weights() -> None:
    given, found = inputs("bert"), []
    for seed in (0, 0, 1):
        model = built("bert")
        graft(model, "primal", rank=3, seed=seed)
        found.append(output(model, given))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_one_by_one_is_all_at_once() -> None:
    found = []
    for places in (["all"], [[1], [0]]):
        model = built("bert")
        for where in places:
            graft(model, "primal", where, rank=3)
        found.append(output(model, inputs("bert")))
    assert torch.equal(*found)


def test_the_global_generator_stays_where_it_is() -> None:
    model, before = built("bert"), torch.get_rng_state()
    graft(model, "primal", rank=3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_data_fits_a_primal_core(several: bool) -> None:
    model, given = built("bert").train(), inputs("bert")
    host = output(model.eval(), given)
    model.train()
    report = graft(model, "primal", "all", rank=3, data=[given, given] if several else given)
    assert model.training
    assert all(each.fit is not None for each in report.done)
    assert "fitted" in str(report)
    json.dumps(report.record())
    fitted = output(model.eval(), given)
    random = built("bert")
    graft(random, "primal", "all", rank=3)
    assert (fitted - host).norm() < (output(random, given) - host).norm()
    assert graft(model, "primal", "all", rank=3, data=given).done == ()
    assert len(graft(model, "primal", "all", rank=3).replaced) == 2


def test_data_for_another_core_is_refused() -> None:
    with pytest.raises(BadInput, match="`data` fits primal cores only, not 'rpc'"):
        graft(built("bert"), "rpc", data=inputs("bert"))


def test_data_that_does_not_reach_the_site_is_refused() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.MultiheadAttention(8, 2)})
    model.forward = lambda x: model["used"](x)  # type: ignore[method-assign]
    with pytest.raises(BadInput, match="the attention at 'idle' was not called with this data"):
        graft(model, "primal", rank=3, data=torch.zeros(1, 2))


def test_where_fitting_fails_the_graft_of_before_is_still_there() -> None:
    model, given = built("bert"), inputs("bert")
    graft(model, "rpc")
    before = output(model, given)
    with pytest.raises(ValueError, match="exactly one of input_ids or inputs_embeds"):
        graft(model, "primal", rank=3, data={"attention_mask": KEEP})
    assert [each.method for each in grafts(model).values()] == ["rpc"]
    assert torch.equal(output(model, given), before)


def test_the_tape_records_a_grafted_core() -> None:
    model = built("bert")
    graft(model, "primal", "all", rank=3)
    with record(model, patterns=True) as tape:
        model(**inputs("bert"))
    calls = [call for calls in tape.calls.values() for call in calls]
    assert any(call.moments is not None for call in calls)


def test_a_grafted_attention_is_read() -> None:
    model = built("bert")
    graft(model, "rpc", "all")
    with reading(model) as read:
        model(**inputs("bert"))
    assert [len(calls) for calls in read.values()] == [1, 1]


def test_restore_without_a_graft_does_nothing() -> None:
    report = restore(built("torch_layer"))
    assert report.done == ()
    assert str(report) == "restore: 0 attentions, 0 parameters"


def test_frozen_by_the_graft_alone_is_set_free() -> None:
    model = built("bert")
    attention = model.encoder.layer[1].attention.self
    attention.query.bias.requires_grad_(False)
    report = graft(model, "rpc")
    assert report.frozen == ("encoder.layer.1.attention.self.query.weight",)
    assert "frozen: query.weight" in str(report)
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen == {*report.frozen, "encoder.layer.1.attention.self.query.bias"}
    restore(model)
    assert [name for name, weight in model.named_parameters() if not weight.requires_grad] == [
        "encoder.layer.1.attention.self.query.bias"
    ]


def test_what_another_layer_uses_too_is_not_frozen() -> None:
    model = built("bert")
    first, last = (layer.attention.self for layer in model.encoder.layer)
    last.query.weight = first.query.weight
    report = graft(model, "rpc", dry_run=True)
    assert report.frozen == graft(model, "rpc").frozen == ("encoder.layer.1.attention.self.query.bias",)
    assert first.query.weight.requires_grad


def test_a_site_is_what_a_function_gets() -> None:
    seen: list[Site] = []
    graft(built("llama"), "softmax", lambda site: seen.append(site) or True)
    assert [(site.heads, site.kv_heads, site.causal) for site in seen] == [(4, 2, True)] * 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    graft(attention, "softmax")
    nested = torch.nested.nested_tensor([torch.zeros(2, 8), torch.zeros(3, 8)])
    with pytest.raises(BadInput, match="takes no nested tensors"):
        attention(nested, nested, nested)


@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
@pytest.mark.parametrize("averaged", [False, True], ids=["heads", "averaged"])
def test_weights_of_multihead_attention_are_the_pattern(first: bool, averaged: bool) -> None:
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, batch_first=first).double(), points(5, 3, 8)
    kept = {"average_attn_weights": averaged, "attn_mask": torch.ones(*[x.shape[first]] * 2).triu(1).bool()}
    expected = attention(x, x, x, **kept)
    graft(attention, "softmax")
    for found, wanted in zip(attention(x, x, x, **kept), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_one_sequence_without_a_batch() -> None:
    torch.manual_seed(0)
    attention, x, other = nn.MultiheadAttention(8, 2, bias=False).double(), points(3, 8), points(4, 8, seed=1)
    padding = torch.tensor([False, False, True, False])
    expected = attention(x, other, other, key_padding_mask=padding)
    graft(attention, "softmax")
    for found, wanted in zip(attention(x, other, other, key_padding_mask=padding), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "mask",
    [torch.eye(5).bool(), torch.randn(5, 5, dtype=torch.float64), torch.ones(5, 5).tril().bool()],
    ids=["diagonal", "bias", "upside down"],
)
def test_masks_that_no_core_takes_are_refused(mask: torch.Tensor) -> None:
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).double(), points(2, 5, 8)
    graft(attention, "softmax")
    with pytest.raises(BadInput, match="MultiheadAttention: the mask is neither padding of keys nor causal"):
        attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float64).min], ids=["infinite", "lowest"])
def test_added_masks_are_boolean_ones(hidden: float) -> None:
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).double(), points(2, 5, 8)
    graft(attention, "primal", rank=3)
    causal, padding = torch.ones(5, 5).triu(1).bool(), torch.arange(5) >= torch.tensor([[5], [3]])
    found = []
    for added in (False, True):
        masks = [each.double() * 0 if added else each for each in (causal, padding)]
        if added:
            masks = [
                zeros.masked_fill(each, hidden) for zeros, each in zip(masks, (causal, padding), strict=True)
            ]
        found.append(attention(x, x, x, attn_mask=masks[0], key_padding_mask=masks[1], need_weights=False)[0])
    assert torch.equal(*found)


def test_a_mask_that_cannot_be_read_while_traced_is_refused() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

    model, mask = Masked(), torch.ones(5, 5).triu(1).bool()
    graft(model, "softmax")
    with pytest.raises(BadInput, match=r"while a graph is traced a mask \(5, 5\) cannot be read"):
        torch.export.export(model, (torch.zeros(2, 5, 8), mask))


def test_a_core_that_is_never_causal_is_refused_before_anything_is_changed() -> None:
    model = built("gpt2")
    with pytest.raises(BadInput, match=r"NystromCore: .* so it cannot be causal"):
        graft(model, "nystrom", "all")
    assert grafts(model) == {}


def test_weights_are_refused_where_no_pattern_is_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, x = nn.MultiheadAttention(8, 2), torch.zeros(5, 1, 8)
    graft(attention, "softmax")
    monkeypatch.setattr("kernelhead.nn.cores.softmax.Dense", lambda entries: None)
    with pytest.raises(BadInput, match="SoftmaxCore: this core forms no pattern"):
        attention(x, x, x)


def test_weights_are_wanted_while_the_tape_runs() -> None:
    attention, x = nn.MultiheadAttention(8, 2), torch.zeros(5, 1, 8)
    graft(attention, "primal", rank=3)
    with record(attention) as tape:
        attention(x, x, x)
    assert {path: len(calls) for path, calls in tape.calls.items()} == {"": 1}


def test_the_library_of_a_host_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built("bert")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"graft: needs transformers, .*kernelhead\[hf\]"):
        graft(model, "softmax")
    assert not any("kernelhead" in path for path, _ in model.named_modules())


@pytest.mark.parametrize("where", ["last", "all"])
def test_an_encoder_gives_up_nested_tensors_until_restored(where: str) -> None:
    model = built("torch_encoder")
    assert model.use_nested_tensor
    graft(model, "softmax", where)
    assert not model.use_nested_tensor
    with torch.no_grad():
        assert output(model, inputs("torch_encoder")).isfinite().all()
    restore(model)
    assert model.use_nested_tensor


def test_an_encoder_whose_layers_are_restored_has_nested_tensors_again() -> None:
    model = built("torch_encoder")
    graft(model, "softmax", "all")
    restore(model.layers[0])
    assert not model.use_nested_tensor
    restore(model.layers[1])
    assert model.use_nested_tensor
    assert vars(model).keys() == vars(built("torch_encoder")).keys()


def test_data_that_is_not_for_the_model_is_said() -> None:
    for data, words in (
        (torch.zeros(2, 5, 3), r"graft: TransformerEncoderLayer cannot take a tensor \(2, 5, 3\)"),
        ("text", "graft: the batch is of type str, expected a tensor, a sequence or a mapping"),
        (3, "graft: `data` is 3, expected a tensor, a tuple, a mapping, or several of these"),
    ):
        with pytest.raises(BadInput, match=words):
            graft(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), "primal", rank=2, data=data)
