"""LanguageModel: causality to the bit, decoding against the parallel form, tied weights, and its words."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.models import LanguageModel, Positions, Sizes, build_attention, sinusoids
from kernelhead.nn import PrimalAttention, SoftmaxAttention
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.tolerance import assert_exact

SMALL: Mapping[str, Any] = {"width": 8, "heads": 2, "depth": 2, "rank": 3, "landmarks": 4, "longest": 80}
STEPPED = ("primal", "linear", "softmax", "primal+", "linear,primal")
stepped = pytest.mark.parametrize("attention", STEPPED)
causal = pytest.mark.parametrize("attention", [*STEPPED, "performer"])
positions = pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])


def language(attention: str = "softmax", **options: Any) -> LanguageModel:
    with seeded(0):
        return LanguageModel(11, attention=attention, **{**SMALL, **options}).double()


def words(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(seed))


def decoded(model: LanguageModel, tokens: Tensor) -> Tensor:
    state, scores = model.start(tokens.shape[0]), []
    for place, token in enumerate(tokens.unbind(1)):
        assert state.place == place
        score, state = model.step(token, state)
        scores.append(score)
    return torch.stack(scores, dim=1)


@causal
@positions
@pytest.mark.parametrize("tied", [True, False])
def test_every_place_scores_the_vocabulary(attention: str, position: str, tied: bool) -> None:
    scores = language(attention, position=position, tied=tied)(words(3, 7))
    assert scores.shape == (3, 7, 11)
    assert bool(scores.isfinite().all())


@stepped
@pytest.mark.parametrize("n", [2, 7, 70])
def test_the_last_token_moves_no_earlier_bit(attention: str, n: int) -> None:
    model, tokens = language(attention), words(2, n)
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % 11
    before, after = model(tokens), model(other)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_the_last_token_moves_random_features_by_rounding_alone() -> None:
    model, tokens = language("performer"), words(2, 7)
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % 11
    assert_exact(model(tokens)[:, :-1], model(other)[:, :-1])


@causal
def test_a_prefix_has_the_scores_of_the_whole(attention: str) -> None:
    model, tokens = language(attention), words(2, 9)
    for length in (1, 4, 8):
        assert_exact(model(tokens[:, :length]), model(tokens)[:, :length])


@stepped
@positions
@pytest.mark.parametrize("tied", [True, False])
def test_decoding_is_the_parallel_form(attention: str, position: str, tied: bool) -> None:
    model, tokens = language(attention, position=position, tied=tied), words(3, 9)
    assert_exact(decoded(model, tokens), model(tokens))


@stepped
def test_decoding_is_the_parallel_form_past_a_chunk(attention: str) -> None:
    model, tokens = language(attention), words(1, 70)
    assert_exact(decoded(model, tokens), model(tokens))


@pytest.mark.parametrize("attention", ["primal", "linear"])
def test_the_state_keeps_its_size(attention: str) -> None:
    model, tokens = language(attention), words(2, 6)
    state, sizes = model.start(2), []
    for token in tokens.unbind(1):
        _, state = model.step(token, state)
        sizes.append([tensor.shape for layer in state.layers for tensor in vars(layer).values()])
    assert sizes == [sizes[0]] * 6


def test_a_state_is_not_used_up() -> None:
    for attention in STEPPED:
        model, tokens = language(attention), words(2, 3)
        _, state = model.step(tokens[:, 0], model.start(2))
        first, second = model.step(tokens[:, 1], state)[0], model.step(tokens[:, 1], state)[0]
        assert torch.equal(first, second)


@causal
def test_padding_has_no_influence(attention: str) -> None:
    model, tokens, mask = language(attention), words(3, 7), keep([7, 4, 2], 7)
    padded = tokens.masked_fill(~mask, -100)
    scores = model(padded, mask)
    assert torch.equal(scores, model(tokens, mask))
    for row, length in enumerate([7, 4, 2]):
        assert_exact(scores[row, :length], model(tokens[row : row + 1, :length])[0])


@causal
def test_padding_in_front_has_no_influence_without_places(attention: str) -> None:
    model, tokens = language(attention, position="none"), words(1, 7)
    scores = model(tokens, keep([3], 7).flip(1))
    assert_exact(scores[:, 4:], model(tokens[:, 4:]))


def test_tied_weights_are_one_tensor() -> None:
    tied, free = language(), language(tied=False)
    assert sum(weight.shape == (11, 8) for weight in tied.parameters()) == 1
    assert "head.weight" not in tied.state_dict()
    assert free.head is not None
    assert free.head.weight.shape == (11, 8)
    count = sum(weight.numel() for weight in free.parameters())
    assert count - sum(weight.numel() for weight in tied.parameters()) == 11 * 8
    twin = copy.deepcopy(tied)
    with torch.no_grad():
        twin.embedding.weight.mul_(2)
    assert not torch.allclose(twin(words(1, 3)), tied(words(1, 3)))


def test_tied_scores_are_products_with_the_embeddings() -> None:
    model, seen = language(), []
    model.final_norm.register_forward_hook(lambda _, given, made: seen.append(made))
    scores = model(words(2, 5))
    assert_exact(scores, seen[0] @ model.embedding.weight.mT)


def test_gradients_reach_every_weight() -> None:
    for attention in ("primal", "linear", "softmax"):
        model = language(attention)
        model(words(2, 7)).square().sum().backward()
        for name, weight in model.named_parameters():
            if name.endswith("root"):  # the penalty alone reads the values
                continue
            assert weight.grad is not None, name
            assert bool(weight.grad.isfinite().all())


def test_every_layer_has_its_attention_and_options_reach_their_parts() -> None:
    model = language("primal+", inner=5)
    assert [type(block.attention) for block in model.blocks] == [SoftmaxAttention, PrimalAttention]
    assert all(block.attention.causal for block in model.blocks)
    assert model.blocks[0].feed_forward[0].out_features == 5
    assert language().blocks[0].feed_forward[0].out_features == 32
    assert language(position="sinusoidal").scale == 8**0.5


def test_dropout_acts_in_training_only() -> None:
    model, tokens = language(dropout=0.5), words(2, 7)
    with seeded(1):
        assert not torch.equal(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), language()(tokens))


def test_a_repeated_text_is_learned_and_continued() -> None:
    model, tokens = language("primal", width=16), torch.arange(24)[None] % 5
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        scores = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimiser.step()
    assert model.generate(tokens[:, :6], 8, temperature=0.0).tolist() == tokens[:, 6:14].tolist()


@stepped
def test_the_highest_scores_are_those_of_the_parallel_form(attention: str) -> None:
    model, prompt = language(attention), words(2, 4)
    made, whole = model.generate(prompt, 5, temperature=0.0), prompt
    for _ in range(5):
        whole = torch.cat([whole, model(whole)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(made, whole[:, 4:])


def test_draws_follow_the_seed_and_leave_the_model_and_the_global_generator_alone() -> None:
    model, prompt = language(dropout=0.5).train(), words(4, 3)
    before = torch.get_rng_state()
    made = model.generate(prompt, 9, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert model.blocks[0].dropout.training
    assert not made.requires_grad
    assert made.shape == (4, 9)
    assert made.dtype == prompt.dtype
    assert torch.equal(made, model.generate(prompt, 9, seed=3))
    assert not torch.equal(made, model.generate(prompt, 9, seed=4))
    assert model.generate(prompt, 0).shape == (4, 0)


def test_draws_have_the_chances_of_the_scores() -> None:
    model, prompt = language(tied=False), torch.zeros(1, 2, dtype=torch.int64)
    chances = (model(prompt)[0, -1] / 0.5).softmax(-1)
    drawn = model.generate(prompt.expand(4000, -1), 1, temperature=0.5)[:, 0].bincount(minlength=11) / 4000
    # Five deviations of a share among 4000.
    assert bool(((drawn - chances).abs() < 5 * (chances * (1 - chances) / 4000).sqrt()).all())


def test_a_tiny_temperature_is_the_highest_score() -> None:
    model, prompt = language(tied=False), words(2, 3)
    greedy = model.generate(prompt, 4, temperature=0.0)
    assert torch.equal(model.generate(prompt, 4, temperature=1e-300), greedy)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_places_may_begin_later(kind: str) -> None:
    made = Positions(8, kind=kind, longest=9)
    whole = made(torch.zeros(1, 9, 8))
    assert torch.equal(made(torch.zeros(1, 4, 8), first=5), whole[:, 5:])
    assert torch.equal(sinusoids(3, 7, first=4), sinusoids(7, 7)[4:])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_softmax_steps_are_the_parallel_form(dtype: torch.dtype) -> None:
    with seeded(0):
        layer = SoftmaxAttention(12, heads=3, causal=True).to(dtype)
    x, state, made = points(2, 7, 12, dtype=dtype), layer.start(2), []
    for point in x.unbind(1):
        output, state = layer.step(point, state)
        made.append(output)
    together = torch.stack(made, dim=1)
    assert state.key.shape == state.value.shape == (2, 3, 7, 4)
    assert together.dtype == dtype
    assert_exact(
        together.double(), layer.double()(x.double()), bound=1e-10 if dtype == torch.float64 else 1e-5
    )


def test_softmax_steps_run_under_autocast() -> None:
    layer = SoftmaxAttention(12, heads=3, causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = layer.step(torch.zeros(2, 12), layer.start(2))
        output, state = layer.step(torch.zeros(2, 12), state)
    assert (output.dtype, state.key.dtype) == (torch.bfloat16, torch.bfloat16)


def test_softmax_words() -> None:
    plain, layer = SoftmaxAttention(12, heads=3), SoftmaxAttention(12, heads=3, causal=True)
    with pytest.raises(BadInput, match="SoftmaxAttention: start and step need causal=True"):
        plain.start(2)
    with pytest.raises(BadInput, match="SoftmaxAttention: start and step need causal=True"):
        plain.step(torch.zeros(2, 12), layer.start(2))
    with pytest.raises(BadInput, match=r"SoftmaxAttention.step: `x` has shape \(3, 12\), expected \(2, 12\)"):
        layer.step(torch.zeros(3, 12), layer.start(2))


def test_layers_that_cannot_step_are_named() -> None:
    model = language("softmax,performer")
    sentence = "LanguageModel: layer 1, PerformerAttention, has no form that takes one point at a time"
    with pytest.raises(BadInput, match=sentence):
        model.start(2)
    with pytest.raises(BadInput, match=sentence):
        model.generate(words(2, 3), 4)


def test_attentions_without_a_causal_form_are_refused() -> None:
    with pytest.raises(BadInput, match="LanguageModel: attention 'nystrom' has no causal form"):
        language("nystrom")
    with pytest.raises(BadInput, match="build_attention: attention 'nystrom' has no causal form"):
        build_attention("nystrom", Sizes(8, 2, 2, 4, causal=True))


@pytest.mark.parametrize("name", ["vocabulary", "width", "depth", "longest"])
def test_sizes_out_of_range_are_named(name: str) -> None:
    with pytest.raises(BadInput, match=f"LanguageModel: {name} is 0, expected a whole number of at least 1"):
        LanguageModel(**{"vocabulary": 11, **SMALL, name: 0})


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown attention 'primel', did you mean 'primal'"):
        language("primel")
    with pytest.raises(UnknownName, match="unknown kind 'lerned', did you mean 'learned'"):
        language(position="lerned")


def test_tokens_that_do_not_fit_are_named() -> None:
    model = language()
    for tokens in (words(3), words(2, 0), points(2, 3)):
        with pytest.raises(
            BadInput, match=r"`tokens` is .*, expected whole numbers \(b, n\), n of 1 or more"
        ):
            model(tokens)
    with pytest.raises(ShapeError, match=r"`mask` has shape \(2, 4\), expected \(2, 5\)"):
        model(words(2, 5), keep([4, 4], 4))
    for tokens in (words(3), words(2, 1), points(2)):
        with pytest.raises(
            BadInput, match=r"LanguageModel.step: `tokens` is .*, expected whole numbers \(2,\)"
        ):
            model.step(tokens, model.start(2))
    with pytest.raises(BadInput, match="LanguageModel: batch is 0, expected a whole number of at least 1"):
        model.start(0)


def test_learned_places_end() -> None:
    model = language(longest=4)
    with pytest.raises(BadInput, match="Positions: 5 points, but positions were learned for 4"):
        model(words(2, 5))
    assert model.generate(words(2, 2), 3).shape == (2, 3)
    with pytest.raises(BadInput, match="Positions: 5 points, but positions were learned for 4"):
        model.generate(words(2, 2), 4)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": -1}, "count is -1, expected a whole number of at least 0"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
        ({"temperature": -0.5}, "temperature is -0.5, expected a finite number of at least 0"),
        ({"temperature": float("inf")}, "temperature is inf, expected a finite number"),
        ({"temperature": float("nan")}, "temperature is nan, expected a finite number"),
        ({"prompt": words(2, 0)}, r"`prompt` has shape \(2, 0\), expected \(b, n\), n of 1 or more"),
        ({"prompt": words(3)}, r"`prompt` has shape \(3,\), expected \(b, n\), n of 1 or more"),
    ],
    ids=str,
)
def test_draws_that_cannot_be_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"LanguageModel.generate: {sentence}"):
        language().generate(**{"prompt": words(2, 3), "count": 2, **given})
