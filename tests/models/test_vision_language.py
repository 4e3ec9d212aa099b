"""Vision and language in one stream: sizes, what counts, the three losses, what is hidden, words."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.data import scenes
from kernelhead.errors import BadInput, UnknownName
from kernelhead.inspection import model_flow
from kernelhead.models import (
    Block,
    VisionLanguageModel,
    hide_regions,
    hide_words,
    vision_language_losses,
)
from kernelhead.models.vision_language import ENCODERS, MASK, PAD, ConvolutionBlock
from kernelhead.nn import SoftmaxAttention, record
from kernelhead.rng import seeded
from tests.inputs import points
from tests.tolerance import assert_exact

WORDS = torch.tensor([[1, 4, 5, 6, 2, 0], [1, 7, 8, 2, 0, 0], [1, 5, 9, 10, 11, 2]])
MATCHED = torch.tensor([1, 0, 1])


def made(**options: Any) -> VisionLanguageModel:
    given = {"channels": 2, "size": 12, "patch": 4, "longest": 6, "width": 16, "heads": 2, **options}
    with seeded(0):
        return VisionLanguageModel(12, **given).double()


def pictures(seed: int = 0) -> Tensor:
    return points(3, 2, 12, 12, seed=seed)


def parameters(module: torch.nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


@pytest.mark.parametrize("encoder", ENCODERS)
def test_scores_gradients_and_bytes(encoder: str) -> None:
    model = made(encoder=encoder)
    scores = model(pictures(), WORDS)
    assert scores.shape == (3,)
    losses = vision_language_losses(model, pictures(), WORDS, MATCHED, rate=0.5, regions="random")
    sum(losses).backward()
    assert all(each.grad is not None for each in model.parameters())
    pixels = torch.randint(256, (3, 2, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert_exact(model(pixels, WORDS).detach(), model(pixels.double() / 255, WORDS).detach())


@pytest.mark.parametrize(("width", "inner"), [(16, 64), (48, 192), (64, 256), (32, 100)], ids=str)
def test_encoders_have_equally_many_parameters(width: int, inner: int) -> None:
    attention = Block(SoftmaxAttention(width, heads=2), inner=inner)
    convolution = ConvolutionBlock(width, inner=inner, grid=(3, 3))
    assert abs(parameters(attention) - parameters(convolution)) <= (2 * width + 1) / 2
    whole = [parameters(made(encoder=encoder, width=width, inner=inner)) for encoder in ENCODERS]
    assert whole[0] == whole[2]
    assert abs(whole[0] - whole[1]) <= 2 * width + 1
    assert [len(made(encoder=encoder, width=16).fusion) for encoder in ENCODERS] == [2, 2, 4]


def test_padding_has_no_influence_and_a_batch_no_memory() -> None:
    model = made().eval()
    whole = model(pictures(), WORDS)
    for case in range(3):
        assert_exact(model(pictures()[case : case + 1], WORDS[case : case + 1]), whole[case : case + 1])
    short = made(longest=5).eval()
    held = {
        name: tensor[:5] if name == "positions.table" else tensor
        for name, tensor in model.state_dict().items()
    }
    short.load_state_dict(held)
    assert_exact(short(pictures()[1:2], WORDS[1:2, :5]), whole[1:2])


def test_a_convolution_sees_neighbours_and_attention_all() -> None:
    x = pictures()
    other = x.clone()
    other[:, :, 8:, 8:] += 1  # the last of nine patches
    for encoder, seen in (
        ("none", {8}),
        ("convolution", {0, 1, 2, 3, 4, 5, 6, 7, 8}),
        ("attention", {*range(9)}),
    ):
        model = made(encoder=encoder, encoder_depth=2)
        moved = (model.visual(x) - model.visual(other)).abs().amax((0, 2)) > 1e-12
        assert {*moved.nonzero().flatten().tolist()} == seen
    near = made(encoder="convolution", encoder_depth=1)
    moved = (near.visual(x) - near.visual(other)).abs().amax((0, 2)) > 1e-12
    assert {*moved.nonzero().flatten().tolist()} == {4, 5, 7, 8}


def test_groups_leave_out_special_and_padded_points() -> None:
    model = made()
    groups = model.groups(WORDS)
    assert groups["words"][1].nonzero().flatten().tolist() == [1, 2]
    assert groups["image"].nonzero()[:, 1].unique().tolist() == [*range(6, 15)]
    read = model_flow(model, (pictures(), WORDS), groups, under="fusion")
    assert read.paths == ("fusion.0.attention", "fusion.1.attention")
    assert_exact(read.cumulative.sum(-1), torch.ones(2, 2).double())
    assert read.sizes.tolist() == [3.0, 9.0]
    assert (read.outside > 0).all()


def test_the_encoder_is_read_as_its_tape_has_it() -> None:
    model = made(encoder_depth=3).eval()
    with torch.no_grad(), record(model, patterns=True) as tape:
        features, pattern = model.parsed(pictures())
        assert_exact(features, model.visual(pictures()))
    kept = tape.calls["encoder.2.attention"][0].pattern
    assert kept is not None
    assert_exact(pattern, kept.matrix().mean(1))
    assert not model.parsed(pictures())[1].requires_grad
    for encoder in ("convolution", "none"):
        with pytest.raises(BadInput, match="the visual encoder has no self-attention to read"):
            made(encoder=encoder).parsed(pictures())


def test_losses_are_what_they_say() -> None:
    model = made().eval()
    with seeded(5):
        losses = vision_language_losses(model, pictures(), WORDS, MATCHED, rate=0.5, beside=2)
    with seeded(5):
        shown, hidden = hide_words(WORDS, rate=0.5, vocabulary=12)
        visual, pattern = model.parsed(pictures())
        region = hide_regions(pattern, beside=2)
    odds = torch.sigmoid(model(pictures(), WORDS))
    assert_exact(
        losses.matching.detach(), -torch.stack([odds[0], 1 - odds[1], odds[2]]).log().mean().detach()
    )
    chances = model.wording(model.fused(visual, shown)[:, :6]).softmax(-1)
    said = [-chances[b, m, WORDS[b, m]].log() for b in (0, 2) for m in range(6) if hidden[b, m]]
    assert len(said) > 0
    assert_exact(losses.wording.detach(), torch.stack(said).mean().detach())
    told = model.regression(model.fused(torch.where(region[..., None], model.hidden, visual), WORDS)[:, 6:])
    wrong = [(told[b, m] - visual[b, m]).square().mean() for b in (0, 2) for m in range(9) if region[b, m]]
    assert len(wrong) == 6
    assert_exact(losses.regression.detach(), torch.stack(wrong).mean().detach())


def test_targets_of_the_regression_are_taken_as_given() -> None:
    model = made().eval()
    hidden = torch.ones(3, 9, dtype=torch.bool)
    with seeded(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelhead.models.vision_language.hide_regions", lambda *_, **__: hidden)
        losses = vision_language_losses(model, pictures(), WORDS, MATCHED, beside=0)
    losses.regression.backward()
    # All patches are hidden: nothing but the target hangs on the picture, and it passes no gradient.
    assert model.patch_embedding.weight.grad is None or not model.patch_embedding.weight.grad.any()


def test_without_regions_and_without_matches_nothing_is_asked() -> None:
    model = made()
    losses = vision_language_losses(model, pictures(), WORDS, MATCHED, regions="none")
    assert losses.regression == 0
    losses = vision_language_losses(model, pictures(), WORDS, torch.zeros(3), regions="attention")
    assert (losses.wording, losses.regression) == (0, 0)
    assert losses.matching > 0


@given(seed=st.integers(0, 999), rate=st.floats(0.05, 0.95))
def test_special_words_are_never_hidden(seed: int, rate: float) -> None:
    with seeded(seed):
        shown, hidden = hide_words(WORDS, rate=rate, vocabulary=12)
    assert not hidden[WORDS <= MASK].any()
    assert torch.equal(shown[~hidden], WORDS[~hidden])
    assert (shown >= 0).all()
    assert (shown < 12).all()


def test_words_are_hidden_in_three_ways() -> None:
    words = torch.full((400, 100), 5)
    with seeded(0):
        shown, hidden = hide_words(words, rate=0.15, vocabulary=1000)
    asked = shown[hidden]
    assert hidden.double().mean() == pytest.approx(0.15, abs=0.01)
    assert (asked == MASK).double().mean() == pytest.approx(0.8, abs=0.02)
    assert (asked == 5).double().mean() == pytest.approx(0.1, abs=0.02)
    assert asked[(asked != MASK) & (asked != 5)].min() > MASK


@given(seed=st.integers(0, 999), n=st.integers(2, 8), beside=st.integers(0, 7))
def test_regions_are_a_pivot_and_what_it_weighs_highest(seed: int, n: int, beside: int) -> None:
    beside = min(beside, n - 1)
    pattern = points(5, n, n, seed=seed).softmax(-1)
    with seeded(seed):
        pivots = torch.randint(n, (5, 1))[:, 0].tolist()
    with seeded(seed):
        hidden = hide_regions(pattern, beside=beside)
    for case, pivot in enumerate(pivots):
        others = sorted((p for p in range(n) if p != pivot), key=lambda p: -float(pattern[case, pivot, p]))
        assert hidden[case].nonzero().flatten().tolist() == sorted([pivot, *others[:beside]])


def test_special_words_are_those_of_captions() -> None:
    assert (PAD, MASK) == (scenes.PAD, scenes.MASK)
    assert len(scenes.SPECIAL) == MASK + 1


def test_other_attentions_fuse() -> None:
    model = made(attention="primal+", rank=3, landmarks=8)
    assert type(model.fusion[-1].attention).__name__ == "PrimalAttention"
    assert model(pictures(), WORDS).shape == (3,)


@pytest.mark.plain
def test_the_losses_make_one_graph() -> None:
    model = made()

    def total(x: Tensor, words: Tensor, y: Tensor) -> Tensor:
        return torch.stack(vision_language_losses(model, x, words, y)).sum()

    compiled = torch.compile(total, backend="eager", fullgraph=True)
    with seeded(0):
        found = compiled(pictures(), WORDS, MATCHED)
    with seeded(0):
        assert_exact(found.detach(), total(pictures(), WORDS, MATCHED).detach())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 10}, "a picture of 10 by 10 does not split into patches of 4"),
        ({"depth": 0}, "depth is 0, expected a whole number of at least 1"),
        ({"longest": 1}, "longest is 1, expected a whole number of at least 2"),
        ({"width": 15}, "width 15 does not split into 2 heads"),
    ],
    ids=str,
)
def test_wrong_sizes_are_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        made(**options)


def test_wrong_inputs_are_said() -> None:
    model = made()
    with pytest.raises(BadInput, match=r"`image` has shape \(3, 1, 12, 12\), expected \(b, 2, 12, 12\)"):
        model(pictures()[:, :1], WORDS)
    with pytest.raises(
        BadInput, match=r"`words` is torch.int64 of shape \(3, 5\), expected whole numbers \(b, 6\)"
    ):
        model(pictures(), WORDS[:, :5])
    with pytest.raises(BadInput, match=r"`words` is torch.float64"):
        model(pictures(), WORDS.double())
    with pytest.raises(UnknownName, match="unknown encoder 'atention', did you mean 'attention'"):
        made(encoder="atention")
    with pytest.raises(BadInput, match="ConvolutionBlock: inner is 20, which leaves -17 for a feed-forward"):
        ConvolutionBlock(16, inner=20, grid=(2, 2))
    with pytest.raises(BadInput, match=r"rate is 1.0, expected above 0 and below 1"):
        vision_language_losses(model, pictures(), WORDS, MATCHED, rate=1.0)
    with pytest.raises(UnknownName, match="unknown regions 'all'"):
        vision_language_losses(model, pictures(), WORDS, MATCHED, regions="all")
    with pytest.raises(BadInput, match="beside is 9, expected fewer than the 9 patches"):
        vision_language_losses(model, pictures(), WORDS, MATCHED, beside=9)
    with pytest.raises(BadInput, match="vocabulary is 3, expected a whole number of at least 4"):
        VisionLanguageModel(3, channels=1, size=4, patch=2, longest=3)
