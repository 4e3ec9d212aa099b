"""Hugging Face hosts: masks of every implementation, attentions, caches, and what is refused."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from kernelhead.errors import BadInput
from kernelhead.rng import seeded
from kernelhead.surgery import graft, grafts, restore
from kernelhead.surgery.adapters.huggingface import Redirected
from tests.surgery.hosts import BERT, CORES, GPT2, KEEP, built, inputs, output, put
from tests.tolerance import assert_exact

transformers = pytest.importorskip("transformers")

cores = pytest.mark.parametrize("core", CORES)


def speaker(name: str) -> nn.Module:
    """A tiny causal language model in float64."""
    configs = {
        "gpt2": lambda: transformers.GPT2Config(**GPT2),
        "llama": lambda: transformers.LlamaConfig(
            **BERT, num_key_value_heads=2, bos_token_id=0, eos_token_id=1
        ),
    }
    with seeded(0):
        return transformers.AutoModelForCausalLM.from_config(configs[name]()).double().eval()


@cores
@pytest.mark.parametrize("host", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("where", ["last", "all"])
def test_every_implementation_of_the_host_gives_the_same(host: str, where: str, core: str) -> None:
    found = []
    for implementation in ("sdpa", "eager"):
        model = built(host)
        model.set_attn_implementation(implementation)
        put(model, core, where)
        found.append(output(model, inputs(host)))
    # Llama's own eager function takes its softmax in float32.
    assert_exact(*found, bound=1e-6)


@pytest.mark.parametrize("where", ["last", "all"])
def test_a_graft_stays_where_the_implementation_is_changed(where: str) -> None:
    model, given = built("bert"), inputs("bert")
    graft(model, "primal", where, rank=3)
    before = output(model, given)
    model.set_attn_implementation("eager")
    assert_exact(output(model, given), before)
    restore(model)
    assert model.config._attn_implementation == "eager"


def test_another_model_of_the_same_config_is_left_alone() -> None:
    model = built("bert")
    other = type(model)(model.config).double().eval()
    before = output(other, inputs("bert"))
    graft(model, "primal", "all", rank=3)
    assert torch.equal(output(other, inputs("bert")), before)
    assert other.config._attn_implementation == "sdpa"
    assert isinstance(model.config, transformers.BertConfig)


@cores
@pytest.mark.parametrize("host", ["bert", "gpt2", "llama", "vit"])
@pytest.mark.parametrize("where", ["last", "all"])
def test_attentions_have_one_entry_a_layer(host: str, where: str, core: str) -> None:
    model = built(host)
    model.set_attn_implementation("eager")
    put(model, core, where)
    found = model(**inputs(host), output_attentions=True)
    assert len(found.attentions) == 2
    n = found.last_hidden_state.shape[1]
    assert {tuple(each.shape) for each in found.attentions} == {(2, 4, n, n)}
    assert_exact(found[0], model(**inputs(host))[0])


def test_attentions_of_softmax_are_those_of_the_host() -> None:
    model, given = built("bert"), inputs("bert")
    model.set_attn_implementation("eager")
    expected = model(**given, output_attentions=True).attentions
    graft(model, "softmax", "all")
    for found, wanted in zip(model(**given, output_attentions=True).attentions, expected, strict=True):
        assert_exact(found[0].double(), wanted[0])
        assert_exact(found[1][:, :4].double(), wanted[1][:, :4])


@pytest.mark.parametrize("host", ["bert", "gpt2"])
def test_attentions_that_would_leave_layers_out_are_refused(host: str) -> None:
    model = built(host)
    graft(model, "softmax")
    with pytest.raises(BadInput, match=r"output_attentions=True would leave out .* use 'sdpa'"):
        model(**inputs(host), output_attentions=True)


@pytest.mark.parametrize("name", ["softcap", "position_bias", "s_aux"])
def test_arguments_that_no_core_honours_are_refused(name: str) -> None:
    model = built("bert")
    graft(model, "softmax", "all")
    with pytest.raises(BadInput, match=f"was called with `{name}`"):
        model(**inputs("bert"), **{name: 1.0})


def test_a_window_is_refused_where_it_binds() -> None:
    model = built("bert")
    graft(model, "softmax", "all")
    model(**inputs("bert"), sliding_window=7)
    with pytest.raises(BadInput, match="a window of 4 keys out of 7"):
        model(**inputs("bert"), sliding_window=4)


@cores
@pytest.mark.parametrize("where", ["last", "all"])
def test_a_mask_of_pairs_that_is_neither_padding_nor_causal_is_refused(where: str, core: str) -> None:
    model, pairs = built("bert"), torch.ones(2, 1, 7, 7).tril().triu(-2).bool()
    put(model, core, where)
    given = {**inputs("bert", masked=False), "attention_mask": pairs}
    with pytest.raises(BadInput, match="neither padding of keys nor causal, or adds to the logits"):
        model(**given)


@cores
@pytest.mark.parametrize("where", ["last", "all"])
def test_packed_sequences_are_refused(where: str, core: str) -> None:
    model = built("llama")
    put(model, core, where)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2]]).expand(2, -1)
    with pytest.raises(BadInput, match="neither padding of keys nor causal"):
        model(**inputs("llama", masked=False), position_ids=positions, use_cache=False)


@cores
@pytest.mark.parametrize("where", ["last", "all"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generated_with_a_cache_is_what_the_whole_forward_says(name: str, where: str, core: str) -> None:
    model = speaker(name)
    put(model, core, where)
    prompt = inputs("gpt2")["input_ids"]
    mask = KEEP.flip(1).long()  # left padding, as generation wants it
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    with torch.no_grad():
        found = {
            cache: model.generate(
                prompt,
                attention_mask=mask,
                use_cache=cache,
                return_dict_in_generate=True,
                output_logits=True,
                **settings,
            )
            for cache in (True, False)
        }
    assert torch.equal(found[True].sequences, found[False].sequences)
    for cached, plain in zip(found[True].logits, found[False].logits, strict=True):
        assert_exact(cached.double(), plain.double(), bound=1e-6)


@cores
@pytest.mark.parametrize("where", ["last", "all"])
@pytest.mark.parametrize("masked", [False, True], ids=["bare", "padded"])
def test_a_cache_with_room_changes_nothing(where: str, masked: bool, core: str) -> None:
    model, prompt = speaker("llama"), inputs("gpt2")["input_ids"]
    put(model, core, where)
    mask = KEEP.flip(1).long() if masked else None
    with torch.no_grad():
        plain = model(prompt, attention_mask=mask, use_cache=False).logits
        cache = transformers.StaticCache(config=model.config.get_text_config(), max_cache_len=12)
        roomy = model(prompt, attention_mask=mask, past_key_values=cache).logits
        one = model(prompt[:, :1], attention_mask=_longer(mask), past_key_values=cache).logits
        dynamic = transformers.DynamicCache()
        model(prompt, attention_mask=mask, past_key_values=dynamic)
        other = model(prompt[:, :1], attention_mask=_longer(mask), past_key_values=dynamic).logits
    real = torch.ones_like(prompt, dtype=torch.bool) if mask is None else mask.bool()
    assert_exact(roomy[real], plain[real], bound=1e-6)
    assert_exact(one, other, bound=1e-6)


def _longer(mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if mask is None else torch.nn.functional.pad(mask, (0, 1), value=1)


@cores
def test_prompts_in_parts_are_the_prompt_at_once(core: str) -> None:
    model, prompt = speaker("llama"), inputs("gpt2")["input_ids"]
    put(model, core)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        whole = model(prompt).logits
        parts = [model(prompt[:, part], past_key_values=cache).logits for part in (slice(0, 3), slice(3, 7))]
    assert_exact(torch.cat(parts, 1), whole, bound=1e-6)


def test_checkpointed_activations_give_the_same_gradients() -> None:
    found = []
    for checkpointed in (False, True):
        model = built("bert").train()
        graft(model, "primal", "all", rank=3)
        if checkpointed:
            model.gradient_checkpointing_enable()
        output(model, inputs("bert")).square().sum().backward()
        found.append(
            {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        )
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


def test_a_part_of_a_model_can_be_grafted_alone() -> None:
    model = built("bert")
    report = graft(model.encoder, "softmax", "all")
    assert [each.path for each in report.done] == ["layer.0.attention.self", "layer.1.attention.self"]
    assert len(grafts(model)) == 2
    output(model, inputs("bert"))
    restore(model)
    assert grafts(model) == {}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("host", ["bert", "gpt2", "llama"])
def test_a_part_of_a_model_can_be_restored_alone(host: str, copied: bool) -> None:
    model, given = built(host), inputs(host)
    before, longest = output(model, given), KEEP.shape[1]
    # As many cases as points: a mask of keys alone would pass for one of pairs.
    square = {name: each[:1].expand(longest, *each.shape[1:]) for name, each in given.items()}
    expected = model(**square)[0]
    graft(model, "softmax", "all")
    grafted = deepcopy(model) if copied else model
    attention = grafted.get_submodule(next(iter(grafts(grafted))))
    restore(attention)
    assert len(grafts(grafted)) == 1
    assert_exact(output(grafted, given), before)
    assert_exact(grafted(**square)[0], expected)
    if not copied:
        restore(grafted.get_submodule(next(iter(grafts(grafted)))))
        assert not any(isinstance(getattr(each, "config", None), Redirected) for each in model.modules())
        assert torch.equal(output(model, given), before)
    else:
        assert len(grafts(model)) == 2


@pytest.mark.plain
def test_a_compiled_model_calls_its_cores() -> None:
    model, given = built("bert"), inputs("bert")
    graft(model, "primal", rank=3)
    expected = output(model, given)
    torch.compiler.reset()
    assert_exact(output(torch.compile(model, backend="eager", fullgraph=True), given), expected)


def test_configs_stay_what_they_are() -> None:
    model = built("bert")
    config, words = model.config, model.config.to_json_string()
    graft(model, "softmax", "all")
    assert model.config.to_json_string() == words
    model.config.is_decoder = True
    assert config.is_decoder
    restore(model)
    assert model.config is config
