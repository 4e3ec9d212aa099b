"""Hugging Face: what is found, that reading changes nothing, and that what is read is what the model did."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn import record
from kernelhead.nn.hosts import Sides, find_sites, mend_torchvision, reading
from tests.inputs import keep
from tests.nn.hosts.tiny import SEQ2SEQS, batch, built, fitting, tokens
from tests.tolerance import assert_within

mend_torchvision()
transformers = pytest.importorskip("transformers")

ENCODERS = ["Bert", "Roberta", "DistilBert", "ViT", "DeiT", "ModernBert"]
DECODERS = ["GPT2", "Llama", "Mistral", "GPTNeoX"]
READABLE = [*ENCODERS, *DECODERS, "Bart", "T5", "Swin"]
UNREADABLE = ["Gemma2", "DebertaV2", "Longformer"]


def weights(name: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The patterns that a model itself gives, by the place of its attention."""
    model = built(name, "eager")
    with torch.no_grad():
        out = model(**given, output_attentions=True)
    if name not in SEQ2SEQS:
        return dict(zip([site.path for site in find_sites(model)], out.attentions, strict=True))
    given_by_kind = {
        ("encoder", False): [*out.encoder_attentions],
        ("decoder", False): [*out.decoder_attentions],
        ("decoder", True): [*out.cross_attentions],
    }
    return {
        site.path: given_by_kind[site.path.split(".")[0], site.cross].pop(0) for site in find_sites(model)
    }


def read(model: nn.Module, given: dict[str, Any]) -> dict[str, Sides]:
    with torch.no_grad(), reading(model) as calls:
        model(**fitting(model, given))
    return {path: each for path, (each,) in calls.items()}


@pytest.mark.parametrize(
    ("name", "paths", "causal", "kv_heads"),
    [
        ("Bert", "encoder.layer.{}.attention.self", False, 4),
        ("Roberta", "encoder.layer.{}.attention.self", False, 4),
        ("DistilBert", "transformer.layer.{}.attention", False, 4),
        ("ViT", "layers.{}.attention", False, 4),
        ("DeiT", "layers.{}.attention", False, 4),
        ("GPT2", "h.{}.attn", True, 4),
        ("Llama", "layers.{}.self_attn", True, 2),
    ],
)
def test_what_is_found(name: str, paths: str, causal: bool, kv_heads: int) -> None:
    sites = find_sites(built(name))
    assert [site.path for site in sites] == [paths.format(layer) for layer in (0, 1)]
    for site in sites:
        assert (site.family, site.width, site.heads, site.kv_heads, site.head) == (
            "huggingface",
            32,
            4,
            kv_heads,
            8,
        )
        assert (site.causal, site.cross, site.reason, site.readable) == (causal, False, None, True)


@pytest.mark.parametrize(
    ("name", "reason", "readable"),
    [
        ("T5", "adds a position bias to its logits", True),
        ("Swin", "adds a relative position bias to its logits", True),
        ("Mistral", "attends inside a sliding window of 3 points", True),
        ("Gemma2", "caps its logits (softcap)", False),
        ("DebertaV2", "does not go through the attention interface of transformers", False),
        ("Longformer", "does not go through the attention interface of transformers", False),
    ],
)
def test_what_cannot_be_grafted_says_why(name: str, reason: str, readable: bool) -> None:
    sites = find_sites(built(name, "eager"))
    assert len(sites) >= 2
    assert {(site.reason, site.readable) for site in sites} == {(reason, readable)}


def test_local_layers_of_a_model_are_told_from_global_ones() -> None:
    assert [site.reason for site in find_sites(built("ModernBert"))] == [
        None,
        "attends inside a sliding window of 3 points",
    ]


def test_cross_attention_is_told() -> None:
    bart = {site.path: (site.causal, site.cross) for site in find_sites(built("Bart"))}
    assert bart["encoder.layers.0.self_attn"] == (False, False)
    assert bart["decoder.layers.0.self_attn"] == (True, False)
    assert bart["decoder.layers.0.encoder_attn"] == (False, True)
    bert = built("Bert", is_decoder=True, add_cross_attention=True)
    assert [(site.causal, site.cross) for site in find_sites(bert)] == [(True, False), (False, True)] * 2


def test_values_of_another_width_are_named() -> None:
    wide = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
    config = transformers.DeepseekV3Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, v_head_dim=8, vocab_size=50, **wide
    )
    (site,) = find_sites(transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention(config, 0))
    assert site.reason == "has heads of 12 features for keys but 8 for values"


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("lengths", [None, [7, 4]], ids=["full", "padded"])
@pytest.mark.parametrize("name", [name for name in READABLE if name != "Swin"])
def test_patterns_are_those_of_the_model(name: str, lengths: list[int] | None, implementation: str) -> None:
    given = batch(name, lengths=lengths)
    sides, own = read(built(name, implementation), given), weights(name, given)
    exact = read(built(name).double(), given)
    assert list(sides) == list(own) == list(exact)
    for path, expected in own.items():
        pattern, oracle = sides[path].pattern().matrix(), exact[path].pattern().matrix()
        assert (pattern.dtype, oracle.dtype) == (torch.float32, torch.float64)
        real = _real_rows(path, given, pattern)
        assert_within(pattern[real], eager=expected[real], oracle=oracle[real])
        assert pattern.sum(-1)[real].allclose(torch.ones(()))


def _real_rows(path: str, given: dict[str, Tensor], pattern: Tensor) -> Any:
    """Rows of queries that are no padding, of all heads."""
    mask = given.get("attention_mask")
    if mask is None or path.startswith("decoder"):
        return slice(None)
    return mask.bool()[:, None].expand(pattern.shape[:-1])


@pytest.mark.parametrize("name", ["GPT2", "Llama"])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_causal_masks_are_reduced(name: str, left: bool, implementation: str) -> None:
    for lengths in (None, [7, 4]):
        for sides in read(built(name, implementation), tokens(lengths=lengths, left=left)).values():
            assert sides.causal
            assert sides.bias is None
            if lengths is None:
                assert sides.mask is None
            else:
                expected = keep(lengths, 7)
                assert torch.equal(sides.mask, expected.flip(-1) if left else expected)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_is_reduced(implementation: str) -> None:
    for sides in read(built("Bert", implementation), tokens(lengths=[7, 4])).values():
        assert not sides.causal
        assert sides.bias is None
        assert torch.equal(sides.mask, keep([7, 4], 7))


def test_windows_are_kept_as_a_bias() -> None:
    for sides in read(built("Mistral"), tokens()).values():
        seen = sides.pattern().matrix()[0, 0] > 0
        assert torch.equal(seen, torch.ones(7, 7).tril().triu(-2).bool())
        assert sides.bias.shape == (2, 1, 7, 7)


def test_position_biases_are_kept() -> None:
    sides = read(built("T5"), batch("T5", lengths=[7, 4]))
    encoder = sides["encoder.block.1.layer.0.SelfAttention"]
    assert encoder.bias.shape[-2:] == (7, 7)
    assert torch.equal(encoder.mask, keep([7, 4], 7))
    assert sides["decoder.block.0.layer.0.SelfAttention"].causal


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", READABLE)
def test_outputs_are_those_of_the_core(
    name: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = type(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS)
    plain, outputs = interface.get_interface, []

    def get_interface(self: Any, chosen: str, default: Any) -> Any:
        def kept(*args: Any, **kwargs: Any) -> Any:
            outputs.append(plain(self, chosen, default)(*args, **kwargs))
            return outputs[-1]

        return kept

    monkeypatch.setattr(interface, "get_interface", get_interface)
    given = batch(name, lengths=[7, 4])
    sides, cores = read(built(name, implementation), given), [output.transpose(1, 2) for output, _ in outputs]
    exact = read(built(name).double(), given)
    # Models run their attentions in the order in which they have them.
    for (path, each), core in zip(sides.items(), cores, strict=True):
        real = _real_rows(path, given, core)
        assert_within(each.output()[real], eager=core[real], oracle=exact[path].output()[real])


def test_keys_of_groups_are_repeated() -> None:
    sides = read(built("Llama"), tokens())["layers.0.self_attn"]
    assert sides.key.shape == (2, 4, 7, 8)
    assert torch.equal(sides.key[:, 0], sides.key[:, 1])
    assert torch.equal(sides.value[:, 2], sides.value[:, 3])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", READABLE)
def test_outputs_keep_their_bits(name: str, implementation: str) -> None:
    model, given = built(name, implementation), batch(name, lengths=[7, 4])
    for training in (False, True):
        model.train(training)
        torch.manual_seed(3)
        before = model(**given)[0]
        grads = torch.autograd.grad(before.square().sum(), [*model.parameters()], allow_unused=True)
        torch.manual_seed(3)
        with reading(model) as calls:
            inside = model(**given)[0]
        again = torch.autograd.grad(inside.square().sum(), [*model.parameters()], allow_unused=True)
        assert torch.equal(before, inside)
        assert all(
            one is other is None or torch.equal(one, other) for one, other in zip(grads, again, strict=True)
        )
        assert all(len(each) == 1 and not each[0].query.requires_grad for each in calls.values())


def test_dropout_draws_the_same_numbers() -> None:
    model = built("Bert", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3).train()
    torch.manual_seed(3)
    before, state = model(**tokens())[0], torch.get_rng_state()
    torch.manual_seed(3)
    with record(model, patterns=True):
        inside = model(**tokens())[0]
    assert torch.equal(before, inside)
    assert torch.equal(state, torch.get_rng_state())


def test_nothing_is_left_behind() -> None:
    model = built("Bert")
    interface = type(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS)
    plain, before = interface.get_interface, {path: {*vars(each)} for path, each in model.named_modules()}
    with pytest.raises(ValueError, match="exactly one of input_ids"), reading(model):
        model()
    with reading(model):
        assert interface.get_interface is not plain
        assert model.config._attn_implementation == "sdpa"
    assert interface.get_interface is plain
    assert {path: {*vars(each)} for path, each in model.named_modules()} == before


def test_other_models_are_left_alone() -> None:
    first, second = built("Bert"), built("Llama")
    with reading(first) as calls:
        second(**tokens())
    assert not any(calls.values())


def test_a_copy_made_while_reading_is_not_read() -> None:
    model = built("Bert")
    with reading(model) as calls:
        twin = copy.deepcopy(model)
        twin(**tokens())
    assert not any(calls.values())
    for parameter in twin.parameters():
        parameter.data.zero_()
    assert not torch.equal(twin(**tokens())[0], model(**tokens())[0])


def test_gradient_checkpointing() -> None:
    model = built("Bert").train()
    given = tokens(lengths=[7, 4])
    plain = torch.autograd.grad(model(**given)[0].sum(), [*model.parameters()], allow_unused=True)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with record(model, patterns=True) as tape:
        inside = torch.autograd.grad(model(**given)[0].sum(), [*model.parameters()], allow_unused=True)
        outside = model(**given)[0].sum()
    assert len(tape) == 4
    outside = torch.autograd.grad(outside, [*model.parameters()], allow_unused=True)
    for one, *others in zip(plain, inside, outside, strict=True):
        assert all(one is other is None or torch.equal(one, other) for other in others)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_decoding_with_a_cache(implementation: str) -> None:
    model, ids = built("Llama", implementation), tokens()["input_ids"]
    whole = read(model, {"input_ids": ids})
    with torch.no_grad(), reading(model) as calls:
        out = model(ids[:, :4], use_cache=True)
        out = model(ids[:, 4:6], past_key_values=out.past_key_values, use_cache=True)
        model(ids[:, 6:], past_key_values=out.past_key_values)
    for path, parts in calls.items():
        assert [part.key.shape[2] for part in parts] == [4, 6, 7]
        assert all(part.bias is None for part in parts)
        expected = whole[path].pattern().matrix()
        rows = [
            torch.nn.functional.pad(part.pattern().matrix(), (0, 7 - part.key.shape[2])) for part in parts
        ]
        assert torch.cat(rows, dim=2).allclose(expected, atol=1e-6)


def test_a_cache_with_room() -> None:
    model, ids = built("Llama"), tokens()["input_ids"]
    whole = read(model, {"input_ids": ids})
    cache = transformers.StaticCache(config=model.config, max_cache_len=12)
    with torch.no_grad(), reading(model) as calls:
        model(ids[:, :6], past_key_values=cache, use_cache=True)
        model(ids[:, 6:], past_key_values=cache, use_cache=True)
    for path, (first, second) in calls.items():
        expected = whole[path].pattern().matrix()
        assert first.pattern().matrix()[..., :6].allclose(expected[:, :, :6, :6], atol=1e-6)
        assert second.pattern().matrix()[..., :7].allclose(expected[:, :, 6:], atol=1e-6)
        assert float(second.pattern().matrix()[..., 7:].sum()) == 0


def test_packed_sequences_are_kept_apart() -> None:
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2]] * 2)
    for sides in read(built("Llama"), {**tokens(), "position_ids": positions, "use_cache": False}).values():
        pattern = sides.pattern().matrix()
        assert float(pattern[..., 4:, :4].sum()) == 0
        assert pattern.sum(-1).allclose(torch.ones(()))


@pytest.mark.plain
@pytest.mark.slow
def test_a_compiled_model_is_read() -> None:
    torch._dynamo.reset()
    model = built("Bert")
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(**tokens())
        with record(compiled, patterns=True) as tape:
            compiled(**tokens())
        with record(compiled) as outputs:
            compiled(**tokens())
    assert list(tape.calls) == ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"]
    assert len(tape) == len(outputs) == 2
    torch._dynamo.reset()


def test_a_function_that_asks_again_is_read_once() -> None:
    interface = transformers.AttentionInterface

    def again(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)(
            module, *args, **kwargs
        )

    interface.register("tests_again", again)
    transformers.AttentionMaskInterface.register("tests_again", transformers.masking_utils.sdpa_mask)
    try:
        model = built("GPT2")
        expected = read(model, tokens())
        model.set_attn_implementation("tests_again")
        for path, sides in read(model, tokens()).items():
            assert torch.equal(sides.pattern().matrix(), expected[path].pattern().matrix())
    finally:
        del interface._global_mapping["tests_again"]
        del transformers.AttentionMaskInterface._global_mapping["tests_again"]


def test_flash_attention_is_read_by_its_arguments() -> None:
    from kernelhead.nn.hosts.huggingface import _read

    module = built("Mistral").layers[0].self_attn
    query, key = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 7, 8)
    mask = keep([7, 5], 7)
    sides = _read(module, query, key, key, mask, "flash_attention_2", {"sliding_window": 4, "scaling": 1.0})
    expected = torch.ones(3, 7).tril(4).triu(1).bool() & mask[:, None]
    assert torch.equal(sides.pattern().matrix()[:, 0] > 0, expected)
    full = _read(module, query, key, key, None, "flash_attention_2", {})
    assert full.key.shape == (2, 4, 7, 8)
    assert full.causal


def test_words() -> None:
    model = built("GPT2", "eager", reorder_and_upcast_attn=True)
    with (
        pytest.raises(BadInput, match=r"GPT2Attention at 'h\.0\.attn' ran without its attention function"),
        reading(model),
    ):
        model(**tokens())
    gemma = built("Gemma2", "eager")
    with (
        pytest.raises(BadInput, match=r"'layers.0.self_attn' cannot be read: it caps its logits"),
        reading(gemma, find_sites(gemma)),
    ):
        pass
    with (
        pytest.raises(BadInput, match=r"Gemma2Model has no attention.*skipped: .*caps its logits"),
        reading(gemma),
    ):
        pass
    for name in ("s_aux", "softcap"):
        from kernelhead.nn.hosts.huggingface import _read

        x = torch.zeros(1, 1, 2, 2)
        with pytest.raises(BadInput, match=f"Linear attends with {name}"):
            _read(nn.Linear(1, 1), x, x, x, None, "sdpa", {name: 1.0})


def test_a_bias_that_comes_from_outside_is_a_reason() -> None:
    sizes = {"image_size": 16, "patch_size": 8, "use_relative_position_bias": True}
    config = transformers.BeitConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, **sizes
    )
    sites = find_sites(transformers.BeitModel(config))
    assert [site.reason for site in sites] == ["is given a relative position bias for its logits"]
