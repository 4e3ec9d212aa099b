"""Spectra: ranks against closed forms, layers against matrices built by hand, padding and mode."""

import json
from math import exp, log
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.inspection import LayerSpectrum, effective_rank, energy_rank, spectra, spectrum_record
from kernelhead.inspection.spectrum import _spectrum, _Values
from kernelhead.models import ATTENTIONS, SequenceClassifier
from kernelhead.nn import AbstractKernelAttention, Attended, PrimalAttention, record
from kernelhead.ops import gather_landmarks
from kernelhead.rng import seeded
from kernelhead.surgery import graft
from tests.inputs import keep, points
from tests.nn.hosts.tiny import built, tokens
from tests.tolerance import assert_exact


class Single(nn.Module):
    """One attention and nothing else."""

    def __init__(self, attention: AbstractKernelAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attention(x, mask=mask)


def classifier(**options: Any) -> SequenceClassifier:
    with seeded(0):
        return SequenceClassifier(
            3, channels=2, width=8, heads=2, rank=3, landmarks=4, dropout=0.5, **options
        ).double()


@given(k=st.integers(1, 12), zeros=st.integers(0, 5), scale=st.floats(1e-6, 1e6))
def test_k_equal_values_have_effective_rank_k(k: int, zeros: int, scale: float) -> None:
    values = torch.cat([torch.full((k,), scale), torch.zeros(zeros)]).double()
    assert_exact(effective_rank(values), torch.tensor(float(k), dtype=torch.float64))


def test_effective_rank_of_a_geometric_spectrum() -> None:
    ratio, k = 0.5, 60
    values = ratio ** torch.arange(k, dtype=torch.float64)
    # The entropy of the geometric distribution.
    entropy = -log(1 - ratio) - ratio * log(ratio) / (1 - ratio)
    assert_exact(effective_rank(values), torch.tensor(exp(entropy), dtype=torch.float64))


def test_effective_rank_of_nothing_is_zero() -> None:
    assert effective_rank(torch.tensor([[0.0, 0.0], [3.0, 0.0]])).tolist() == [0.0, 1.0]


@given(k=st.integers(1, 20), share=st.floats(0.01, 1.0))
def test_energy_rank_of_equal_values(k: int, share: float) -> None:
    found = energy_rank(torch.ones(k), share).item()
    assert found >= k * share - 1e-6
    assert found < k * share + 1 + 1e-6


@pytest.mark.parametrize(("share", "expected"), [(0.5, 1), (0.64, 1), (0.65, 2), (0.96, 2), (1.0, 3)])
def test_energy_rank_of_known_squares(share: float, expected: int) -> None:
    values = torch.tensor([0.8, 0.5656854249492381, 0.2], dtype=torch.float64)  # squares 0.64, 0.32, 0.04
    assert energy_rank(values, share).item() == expected


def test_energy_rank_goes_over_batches_and_small_numbers() -> None:
    values = torch.tensor([[2.0, 1.0, 1.0], [1.0, 0.0, 0.0]]) * 1e-12
    assert energy_rank(values, 0.8).tolist() == [2, 1]


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_out_of_range_is_named(share: float) -> None:
    with pytest.raises(BadInput, match=f"energy_rank: share is {share}, expected above 0 and at most 1"):
        energy_rank(torch.ones(3), share)


@pytest.mark.parametrize("landmarks", [None, 2, 5])
def test_a_primal_layer_is_read_through_its_kernel(landmarks: int | None) -> None:
    with seeded(0):
        layer = PrimalAttention(8, heads=2, rank=3, landmarks=landmarks).double()
    x, mask = points(3, 6, 8), keep([6, 4, 1], 6)
    read = spectra(Single(layer), x, mask)[0]
    expected = torch.zeros(2, 4, dtype=torch.float64)
    for row, length in enumerate([6, 4, 1]):
        own = x[row, :length]
        query, key = layer.query(own), layer.key(own)
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            left = nn.functional.normalize(query[:, part], dim=-1)
            right = nn.functional.normalize(key[:, part], dim=-1)
            middle = torch.eye(4, dtype=torch.float64)
            if landmarks is not None:
                rows = gather_landmarks(own[None], landmarks)[0][:, part]
                rows = layer.kernel.landmark_features(rows)
                middle = rows.mT @ rows
            values = torch.linalg.svdvals(left @ middle @ right.mT)
            expected[head, : min(length, 4)] += values[:4].detach() / 3
    assert (read.path, read.kind) == ("attention", "PrimalAttention")
    assert_exact(torch.tensor(read.heads, dtype=torch.float64), expected)


@pytest.mark.parametrize("landmarks", [None, 5])
def test_a_primal_layer_is_read_through_what_it_learned(landmarks: int | None) -> None:
    with seeded(0):
        layer = PrimalAttention(8, heads=2, rank=3, landmarks=landmarks).double()
    x = points(3, 6, 8)
    with torch.no_grad(), record(layer, patterns=True) as tape:
        layer(x)
    entries = tape.last("").pattern.matrix()
    learned, kernel = spectra(Single(layer), x, learned=True)[0], spectra(Single(layer), x)[0]
    assert_exact(
        torch.tensor(learned.heads, dtype=torch.float64), torch.linalg.svdvals(entries).mean(0)[:, :3]
    )
    assert (len(learned.heads[0]), len(kernel.heads[0])) == (3, 4)


def test_shares_are_a_mean_over_heads_that_are_not_zero() -> None:
    heads = [[3.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert LayerSpectrum("", "", heads, [], [], [], []).shares == [0.625, 0.375, 0.0]
    assert LayerSpectrum("", "", heads[2:], [], [], [], []).shares == [0.0, 0.0, 0.0]


def test_other_layers_are_read_through_their_pattern() -> None:
    model, x = classifier(attention="softmax", depth=1), points(2, 6, 2)
    model.eval()
    with torch.no_grad(), record(model, patterns=True) as tape:
        model(x)
    entries = tape.last("blocks.0.attention").pattern.matrix()
    found = torch.tensor(spectra(model, x)[0].heads, dtype=torch.float64)
    assert_exact(found, torch.linalg.svdvals(entries).mean(0))
    assert spectra(model, x, learned=True) == spectra(model, x)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_adds_only_zeros(attention: str) -> None:
    model, x = classifier(attention=attention), points(2, 5, 2)
    longer = torch.cat([x, torch.full((2, 4, 2), float("nan"), dtype=torch.float64)], dim=1)
    bare, padded = spectra(model, x), spectra(model, longer, keep([5, 5], 9))
    for left, right in zip(bare, padded, strict=True):
        short, long = (torch.tensor(each.heads, dtype=torch.float64) for each in (left, right))
        assert_exact(long, nn.functional.pad(short, (0, long.shape[-1] - short.shape[-1])))
        ranks = (torch.tensor(each.effective_rank, dtype=torch.float64) for each in (left, right))
        assert_exact(*ranks)
        assert (left.energy_rank_90, left.energy_rank_99) == (right.energy_rank_90, right.energy_rank_99)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_spectrum_of_every_attention(attention: str) -> None:
    model = classifier(attention=attention, depth=2)
    found = spectra(model, points(3, 7, 2), keep([7, 4, 2], 7))
    assert [each.path for each in found] == ["blocks.0.attention", "blocks.1.attention"]
    for each in found:
        assert len(each.heads) == len(each.effective_rank) == 2
        for values, rank in zip(each.heads, each.effective_rank, strict=True):
            assert values == sorted(values, reverse=True)
            assert 1 - 1e-9 <= rank <= len(values)
        assert each.energy_rank_90 <= each.energy_rank_95 <= each.energy_rank_99


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_the_mode_of_the_model_is_restored(mode: bool) -> None:
    model, x = classifier().train(mode), points(2, 5, 2)
    first = spectra(model, x)
    assert model.training is mode
    assert first == spectra(model, x)  # dropout was off


def test_a_part_in_evaluation_mode_stays_there() -> None:
    model = classifier().train()
    model.blocks[0].eval()
    spectra(model, points(2, 5, 2))
    assert model.training
    assert not model.blocks[0].training


def test_the_mode_is_restored_after_a_failure() -> None:
    model = classifier().train()
    with pytest.raises(BadInput, match="expected"):
        spectra(model, points(2, 5, 3))
    assert model.training
    assert model.blocks[0].attention.recorded is None


def test_weights_and_gradients_are_left_alone() -> None:
    model = classifier()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    spectra(model, points(2, 5, 2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_a_model_without_attention_is_named() -> None:
    match = r"spectra: Linear has no attention of kernelhead nor .* looked for .*MultiheadAttention"
    with pytest.raises(BadInput, match=match):
        spectra(nn.Linear(2, 2), points(2, 5, 2))


class Silent(AbstractKernelAttention):
    """An attention that keeps no pattern."""

    width, heads = 8, 2

    def attend(self, x: Tensor, **_: Any) -> Attended:
        return Attended(x)


def test_a_layer_without_pattern_is_named() -> None:
    with pytest.raises(BadInput, match="spectra: Silent at 'attention' recorded no pattern"):
        spectra(Single(Silent()), points(2, 5, 8))


def test_the_record_is_plain_json() -> None:
    found = spectra(classifier(depth=1), points(2, 5, 2))
    made = spectrum_record(found, cases=2, length=5)
    assert json.loads(json.dumps(made)) == made
    assert (made["cases"], made["length"]) == (2, 5)
    assert set(made["layers"][0]) >= {"path", "kind", "heads", "effective_rank", "energy_rank_95"}


def encoder(**options: Any) -> nn.TransformerEncoder:
    with seeded(0):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()


def test_a_host_is_read_through_its_own_weights() -> None:
    model, x, mask = encoder().eval(), points(2, 6, 8), keep([6, 4], 6)
    found = spectra(model, {"src": x, "src_key_padding_mask": ~mask})
    attention = model.layers[0].self_attn
    _, weights = attention(x, x, x, key_padding_mask=~mask, average_attn_weights=False)
    first = torch.linalg.svdvals(weights[0])
    second = nn.functional.pad(torch.linalg.svdvals(weights[1, :, :4, :4]), (0, 2))
    assert [each.path for each in found] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert found[0].kind == "MultiheadAttention"
    assert_exact(torch.tensor(found[0].heads, dtype=torch.float64), ((first + second) / 2).detach())


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("kind", ["Bert", "GPT2"])
def test_a_model_of_transformers_is_read_through_its_own_weights(kind: str, left: bool) -> None:
    pytest.importorskip("transformers")
    model, batch = built(kind, "eager"), tokens(lengths=[7, 4], left=left)
    found = spectra(model, batch)
    with torch.no_grad():
        weights = model(**batch, output_attentions=True).attentions
    real = slice(3, 7) if left else slice(0, 4)
    for each, layer in zip(found, weights, strict=True):
        second = nn.functional.pad(torch.linalg.svdvals(layer[1, :, real, real]), (0, 3))
        expected = (torch.linalg.svdvals(layer[0]) + second) / 2
        torch.testing.assert_close(torch.tensor(each.heads), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("learned", [False, True])
def test_a_graft_is_read_through_its_core(learned: bool) -> None:
    model = encoder()
    with seeded(0):
        graft(model, "primal", rank=2, landmarks=3)
    first, second = spectra(model, points(2, 9, 8), learned=learned)
    assert (first.path, second.path) == ("layers.0.self_attn", "layers.1.self_attn")
    assert (len(first.heads[0]), len(second.heads[0])) == (9, 2 if learned else 4)


def test_padding_is_left_out_of_a_grafted_softmax_too() -> None:
    model = encoder()
    batch = {"src": points(2, 9, 8), "src_key_padding_mask": ~keep([9, 5], 9)}
    before = spectra(model, batch)
    graft(model, "softmax", "all")
    for one, other in zip(before, spectra(model, batch), strict=True):
        assert other.effective_rank == pytest.approx(one.effective_rank)


def test_a_long_host_is_read_without_its_pattern() -> None:
    model, x = encoder(), 3 * points(2, 90, 8)
    whole, part = spectra(model, x), spectra(model, x, longest=0, count=20)
    for dense, free in zip(whole, part, strict=True):
        assert (dense.known, free.known) == (None, 20)
        exact, found = (torch.tensor(each.heads, dtype=torch.float64) for each in (dense, free))
        assert found.shape == exact.shape
        torch.testing.assert_close(found[:, :20], exact[:, :20], rtol=1e-3, atol=0)
        # What is left is spread evenly, and the sum of squares is that of the patterns or more.
        assert bool((found[:, 20:] == found[:, 20:21]).all())
        assert bool((found.square().sum(-1) >= exact.square().sum(-1) * (1 - 1e-6)).all())
        for head in range(2):
            slack = 1e-2
            assert free.effective_rank_least[head] <= dense.effective_rank[head] + slack
            assert free.effective_rank[head] >= dense.effective_rank[head] - slack
            assert dense.effective_rank_least[head] == pytest.approx(dense.effective_rank[head])
            assert free.energy_rank_90[head] >= dense.energy_rank_90[head]
            assert free.energy_rank_99[head] >= dense.energy_rank_99[head]


def test_short_cases_beside_long_ones_are_cut_alike() -> None:
    model, x = encoder(), 3 * points(2, 60, 8)
    batch = {"src": x, "src_key_padding_mask": ~keep([60, 30], 60)}
    mixed, whole = spectra(model, batch, longest=40, count=10)[0], spectra(model, batch)[0]
    assert mixed.known == 10
    left, right = (torch.tensor(each.heads, dtype=torch.float64) for each in (mixed, whole))
    torch.testing.assert_close(left[:, :10], right[:, :10], rtol=1e-3, atol=0)
    assert mixed.effective_rank_least[0] <= whole.effective_rank[0] + 1e-2 <= mixed.effective_rank[0] + 2e-2


@given(
    cases=st.lists(st.lists(st.floats(0, 10), min_size=6, max_size=6), min_size=1, max_size=3),
    known=st.integers(1, 5),
)
def test_no_spectrum_with_the_same_energy_is_outside_the_bracket(
    cases: list[list[float]], known: int
) -> None:
    values = torch.tensor([sorted(case, reverse=True) for case in cases], dtype=torch.float64)
    cut = [_Values(case[None, :known], case[None, known:].square().sum(-1), components=6) for case in values]
    found, mean = _spectrum("", "", cut), values.mean(0)
    exact = float(effective_rank(mean))
    assert found.effective_rank_least[0] <= exact * (1 + 1e-9) + 1e-9
    assert found.effective_rank[0] >= exact * (1 - 1e-9) - 1e-9
    assert found.energy_rank_90[0] >= int(energy_rank(mean, 0.9))
    assert found.energy_rank_99[0] >= int(energy_rank(mean, 0.99))


@pytest.mark.parametrize(("tail", "which"), [([1.0] * 8, "most"), ([2.0, 2.0] + [0.0] * 6, "least")])
def test_both_ends_of_the_bracket_are_reached(tail: list[float], which: str) -> None:
    values = torch.tensor([3.0, 2.0, *tail], dtype=torch.float64)  # the tail has energy 8
    found = _spectrum("", "", [_Values(values[None, :2], torch.tensor([8.0], dtype=torch.float64), 10)])
    reached = found.effective_rank[0] if which == "most" else found.effective_rank_least[0]
    assert reached == pytest.approx(float(effective_rank(values)))


@pytest.mark.parametrize(("name", "least"), [("count", 1), ("longest", 0)])
def test_sizes_of_long_patterns_are_checked(name: str, least: int) -> None:
    with pytest.raises(BadInput, match=f"spectra: {name} is -1, expected a whole number of at least {least}"):
        spectra(encoder(), points(2, 5, 8), **{name: -1})


def test_a_long_record_is_plain_json() -> None:
    made = spectrum_record(spectra(encoder(), points(2, 30, 8), longest=8, count=4), cases=2, length=30)
    assert json.loads(json.dumps(made)) == made
    assert made["layers"][0]["known"] == 4
    assert len(made["layers"][0]["heads"][0]) == 30


@pytest.mark.parametrize("attention", ["primal+", "primal", "softmax", "rpc"])
def test_a_case_that_a_mask_hides_is_no_case(attention: str) -> None:
    model = SequenceClassifier(
        2, channels=3, width=8, depth=2, heads=2, rank=2, landmarks=4, attention=attention
    )
    x, mask = points(3, 5, 3, dtype=torch.float32), torch.ones(3, 5, dtype=torch.bool)
    mask[0] = False
    for found, wanted in zip(spectra(model, x, mask), spectra(model, x[1:], mask[1:]), strict=True):
        torch.testing.assert_close(
            torch.tensor(found.heads), torch.tensor(wanted.heads), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.int64])
def test_effective_rank_of_large_values_in_few_bits(kind: torch.dtype) -> None:
    assert effective_rank(torch.full((300,), 300).to(kind)).item() == pytest.approx(300, rel=1e-4)
