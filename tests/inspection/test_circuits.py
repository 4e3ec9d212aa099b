"""Circuits of words: what queries and values make of two words, agreement with chance beside it, places."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch import nn

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.inspection import (
    Circuits,
    asymmetry_index,
    circuit_record,
    compare_kernels,
    positional_terms,
    read_circuits,
    unembedding,
)
from kernelhead.models import LanguageModel
from kernelhead.nn import PrimalAttention
from kernelhead.rng import seeded
from tests.inputs import points
from tests.tolerance import assert_exact

WORDS = torch.tensor([3, 0, 7, 5])


def language_model(**options: Any) -> LanguageModel:
    with seeded(0):
        return LanguageModel(9, **{"width": 8, "depth": 2, "heads": 2, **options}).eval()


@torch.no_grad()
def test_circuits_are_the_products_of_weights() -> None:
    model = language_model(tied=False)
    nn.init.normal_(model.final_norm.weight)
    read = read_circuits(model, WORDS, unembed=unembedding(model, WORDS))
    assert [each.path for each in read] == ["blocks.0.attention", "blocks.1.attention"]
    block = model.blocks[0]
    x = block.attention_norm(model.embedding(WORDS) + model.positions.table[0])
    layer = block.attention
    scores = (model.head.weight[WORDS] * model.final_norm.weight).float()
    scores = scores - scores.mean(-1, keepdim=True)
    for head in range(2):
        part = slice(4 * head, 4 * head + 4)
        looks = layer.query(x)[:, part] @ layer.key(x)[:, part].mT / 2
        assert torch.allclose(read[0].looks[head], looks, atol=1e-6)
        calls = scores @ layer.out.weight[:, part] @ layer.value(x)[:, part].mT
        assert torch.allclose(read[0].calls[head], calls, atol=1e-5)


@torch.no_grad()
def test_what_is_called_for_is_what_attention_adds_to_the_scores() -> None:
    # One layer whose feed-forward adds nothing: a second word that is seen fully changes scores by its calls.
    model = language_model(depth=1, heads=1, position="none")
    for weight in (*model.blocks[0].feed_forward.parameters(), *model.blocks[0].attention.out.parameters()):
        weight.zero_()
    model.blocks[0].attention.out.weight.copy_(torch.eye(8))
    read = read_circuits(model, WORDS, unembed=unembedding(model, WORDS))[0]
    value = model.blocks[0].attention.value(model.blocks[0].attention_norm(model.embedding(WORDS)))
    assert torch.allclose(read.calls[0], unembedding(model, WORDS)(value).mT, atol=1e-6)


def test_hosts_are_read_too() -> None:
    class Host(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.layer(self.embedding(tokens))

    with seeded(0):
        model = Host()
    read = read_circuits(model, WORDS, unembed=unembedding(model, WORDS))[0]
    assert read.path == "layer.self_attn"
    assert read.looks.shape == read.calls.shape == (2, 4, 4)
    attention = model.layer.self_attn
    x = model.layer.norm1(model.embedding(WORDS))
    query, key, value = (
        nn.functional.linear(x, weight, bias)
        for weight, bias in zip(
            attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True
        )
    )
    assert torch.allclose(read.looks[1], query[:, 4:] @ key[:, 4:].mT / 2, atol=1e-6)
    calls = model.embedding.weight[WORDS] @ attention.out_proj.weight[:, 4:] @ value[:, 4:].mT
    assert torch.allclose(read.calls[1], calls, atol=1e-5)
    assert read_circuits(model, WORDS)[0].calls is None


@torch.no_grad()
def test_models_of_transformers_are_read_too() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    with seeded(0):
        config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config).eval()
    read = read_circuits(model, WORDS, unembed=unembedding(model, WORDS))[0]
    block = model.transformer.h[0]
    x = block.ln_1(model.transformer.wte(WORDS) + model.transformer.wpe.weight[0])
    query, key, value = block.attn.c_attn(x).split(8, dim=-1)
    assert torch.allclose(read.looks[1], query[:, 4:] @ key[:, 4:].mT / 2, atol=1e-6)
    scores = model.lm_head.weight[WORDS] - model.lm_head.weight[WORDS].mean(-1, keepdim=True)
    calls = scores @ (value[:, 4:] @ block.attn.c_proj.weight[4:]).mT
    assert torch.allclose(read.calls[1], calls, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("width", [8, 9])
@pytest.mark.parametrize("family", ["GPT2", "OPT", "Llama", "Gemma", "GPTNeoX"])
def test_scores_are_those_of_the_model_but_for_one_number_a_text(family: str, width: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 20}
    if family in ("Llama", "Gemma"):
        sizes |= {"head_dim": 8}
    if family == "OPT":
        sizes |= {"word_embed_proj_dim": width, "ffn_dim": 16}
    config = getattr(transformers, f"{family}Config")(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model = getattr(transformers, f"{family}{'LMHeadModel' if family == 'GPT2' else 'ForCausalLM'}")(config)
    inner = model.base_model
    norm = {"GPT2": "ln_f", "OPT": "final_layer_norm", "GPTNeoX": "final_layer_norm"}.get(family, "norm")
    norm = getattr(inner.decoder if family == "OPT" else inner, norm)
    nn.init.uniform_(norm.weight, 0.1, 3.0)
    x = points(5, width, dtype=torch.float32) + 0.5
    expected = model.get_output_embeddings()(norm(x))[:, WORDS]
    found = unembedding(model, WORDS)(x)
    share = (found * expected).sum(1) / expected.square().sum(1)
    assert torch.allclose(found, share[:, None] * expected, atol=1e-4 * float(found.abs().max()))
    assert bool((share > 0).all())


@given(st.integers(2, 9), st.integers(0, 99))
def test_spearman_is_scipys_over_centred_rows(size: int, seed: int) -> None:
    learned, statistic = points(size, size, seed=seed).round(decimals=1), points(size, size, seed=seed + 1)
    one, other = ((each - each.mean(1, keepdim=True)).flatten() for each in (learned, statistic))
    found = compare_kernels(learned, statistic, shuffles=2)
    assert found.value == pytest.approx(spearmanr(one, other).statistic, abs=1e-10)


@given(st.sampled_from(["spearman", "pearson", "cka"]), st.integers(0, 99))
def test_agreement_knows_no_shift_of_rows_and_no_names(measure: str, seed: int) -> None:
    learned, statistic = points(7, 7, seed=seed), points(7, 7, seed=seed + 1)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    found = compare_kernels(learned, statistic, measure=measure, shuffles=1).value
    shifted = compare_kernels(learned + points(7, 1, seed=5), statistic, measure=measure, shuffles=1).value
    renamed = compare_kernels(
        learned[order][:, order], statistic[order][:, order], measure=measure, shuffles=1
    )
    assert found == pytest.approx(shifted, abs=1e-10) == pytest.approx(renamed.value, abs=1e-10)
    own = compare_kernels(learned, learned, measure=measure, shuffles=1)
    assert own.value == pytest.approx(1.0)
    swapped = compare_kernels(learned, learned.mT, measure=measure, shuffles=1)
    assert swapped.transposed == pytest.approx(1.0)


def test_chance_is_that_of_permuted_words() -> None:
    learned, statistic = points(40, 40), points(40, 40, seed=1)
    found = compare_kernels(learned + statistic, statistic, shuffles=30, centre="none", measure="pearson")
    assert found.value == pytest.approx(0.71, abs=0.05)
    assert abs(found.shuffled) < 0.05
    assert 0.005 < found.spread < 0.1
    assert found == compare_kernels(
        learned + statistic, statistic, shuffles=30, centre="none", measure="pearson"
    )
    assert found.to_dict()["shuffles"] == 30


@given(st.integers(1, 6), st.floats(0.1, 9), st.integers(0, 99))
def test_asymmetry_knows_no_scale_and_no_side(size: int, scale: float, seed: int) -> None:
    kernel = points(size, size, seed=seed)
    assert asymmetry_index(scale * kernel) == pytest.approx(asymmetry_index(kernel))
    assert asymmetry_index(kernel.mT) == pytest.approx(asymmetry_index(kernel))
    assert asymmetry_index(kernel + kernel.mT) == 0
    assert asymmetry_index(points(400, 400, seed=seed)) == pytest.approx(1.0, abs=0.02)


def test_an_antisymmetric_kernel_is_as_asymmetric_as_can_be() -> None:
    assert asymmetry_index(torch.tensor([[0.0, 1.0], [-1.0, 0.0]])) == float("inf")


@given(st.integers(1, 6), st.integers(0, 99))
def test_parts_of_content_and_place_add_up(n: int, seed: int) -> None:
    x, p, left, right = points(2, n, 5, seed=seed), points(n, 5, seed=1), points(5, 3), points(5, 3, seed=2)
    terms = positional_terms(x, p.expand(2, -1, -1), left, right)
    assert_exact(terms.total(), (x + p) @ left @ ((x + p) @ right).mT)
    assert_exact(terms.content_place, x @ left @ (p @ right).mT)
    assert_exact(terms.place_content, p @ left @ (x @ right).mT)
    assert sum(terms.shares().values()) == pytest.approx(float(n > 1))
    none = positional_terms(x, torch.zeros_like(x), left, right)
    assert none.shares()["content"] == pytest.approx(float(n > 1))


def test_without_places_only_moving_words_moves_scores() -> None:
    x, left, right = points(6, 5), points(5, 3), points(5, 3, seed=2)
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    terms, moved = (positional_terms(each, torch.zeros(6, 5).double(), left, right) for each in (x, x[order]))
    assert_exact(moved.total(), terms.total()[order][:, order])


def test_a_record_holds_every_head_and_its_null() -> None:
    model, statistic = language_model(), points(4, 4)
    record = circuit_record(
        read_circuits(model, WORDS, unembed=unembedding(model, WORDS)),
        {"ppmi": statistic, "log": statistic.exp()},
    )
    heads = record["heads"]
    assert [(each["path"], each["head"]) for each in heads] == [
        (f"blocks.{layer}.attention", head) for layer in range(2) for head in range(2)
    ]
    for each in heads:
        assert set(each["asymmetry"]) == {"looks", "calls"}
        for one, other in pairwise(("looks", "calls")):
            assert each[one]["ppmi"] != each[other]["ppmi"]
        assert {"value", "transposed", "shuffled", "spread", "shuffles"} == set(each["looks"]["log"])


MODEL, X = language_model(), points(3, 1)
PRIMAL = nn.Sequential(nn.Embedding(9, 8), PrimalAttention(8, heads=2, rank=2))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: read_circuits(MODEL, WORDS.double()), BadInput, "read_circuits: `words` is torch.float64"),
        (lambda: read_circuits(MODEL, WORDS[None]), BadInput, r"of shape \(1, 4\), expected whole numbers"),
        (lambda: read_circuits(MODEL, WORDS[:0]), BadInput, "expected whole numbers"),
        (lambda: read_circuits(PRIMAL, WORDS), BadInput, "Sequential has no softmax attention that single"),
        (lambda: read_circuits(nn.Embedding(9, 8), WORDS), BadInput, "read_circuits: "),
        (lambda: unembedding(nn.Linear(2, 2), WORDS), BadInput, "Linear has no embeddings that score words"),
        (lambda: compare_kernels(points(3, 3), points(3, 3), measure="dot"), UnknownName, "measure 'dot'"),
        (lambda: compare_kernels(points(3, 3), points(3, 3), centre="all"), UnknownName, "centring 'all'"),
        (lambda: compare_kernels(points(3, 3), points(3, 2)), ShapeError, r"`statistic` \(3, 2\), expected"),
        (lambda: compare_kernels(points(3, 3) / 0, points(3, 3)), BadInput, "`learned` .* holds NaN"),
        (lambda: compare_kernels(points(3, 3), points(3, 3) * np.nan), BadInput, "`statistic` .* holds NaN"),
        (lambda: compare_kernels(points(3, 3), torch.ones(3, 3)), BadInput, "all entries of `statistic`"),
        (lambda: compare_kernels(points(3, 3), points(3, 3), shuffles=0), BadInput, "shuffles is 0"),
        (lambda: asymmetry_index(points(2, 3)), ShapeError, "asymmetry_index: axis `v` is 2"),
        (lambda: asymmetry_index(torch.zeros(2, 2)), BadInput, r"the kernel \(2, 2\) is zero, or holds NaN"),
        (lambda: positional_terms(points(2, 3), points(2, 2), X, X), ShapeError, "axis `c`"),
        (lambda: circuit_record([Circuits("a", points(1, 3, 3), None)], {"s": X}), ShapeError, "both"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_an_output_map_that_is_not_known_is_said() -> None:
    model = language_model(depth=1)
    layer = model.blocks[0].attention
    plain, layer.out = layer.out, nn.Identity()
    del layer._modules["out"]
    layer.__dict__["out"] = plain.forward
    with pytest.raises(
        BadInput, match=r"the output map of SoftmaxAttention at 'blocks\.0\.attention' is not known"
    ):
        read_circuits(model, WORDS, unembed=unembedding(model, WORDS))
