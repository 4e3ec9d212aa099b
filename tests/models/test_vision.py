"""ImageClassifier: patches, kept tokens, poolings, depth that is dropped, sizes, and its words."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.models import ATTENTIONS, Block, ImageClassifier
from kernelhead.nn import PrimalAttention, SoftmaxAttention, record
from kernelhead.rng import seeded
from tests.inputs import points
from tests.tolerance import assert_exact

SMALL: Mapping[str, Any] = {"width": 8, "heads": 2, "depth": 2, "rank": 3, "landmarks": 4}
KEEP = torch.tensor([[True] * 6, [True, False, True, True, False, False]])
poolings = pytest.mark.parametrize("pooling", ["cls", "mean"])
attentions = pytest.mark.parametrize("attention", ATTENTIONS)


def classifier(**options: Any) -> ImageClassifier:
    with seeded(0):
        return ImageClassifier(3, channels=2, size=(4, 6), patch=2, **{**SMALL, **options}).double()


def test_the_small_published_size_has_its_published_parameters() -> None:
    with torch.device("meta"):
        model = ImageClassifier(1000, channels=3, size=224, patch=16, width=192, depth=12, heads=3)
    assert sum(weight.numel() for weight in model.parameters()) == 5_717_416


@attentions
@poolings
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])
def test_scores_are_one_vector_an_image(attention: str, pooling: str, position: str) -> None:
    scores = classifier(attention=attention, pooling=pooling, position=position)(points(5, 2, 4, 6))
    assert scores.shape == (5, 3)
    assert bool(scores.isfinite().all())


def test_patches_are_those_of_a_convolution() -> None:
    model, x = classifier(pooling="mean", position="none"), points(2, 2, 4, 6)
    folded = nn.Conv2d(2, 8, 2, stride=2).double()
    folded.weight.data = model.embedding.weight.data.view(8, 2, 2, 2)
    folded.bias.data = model.embedding.bias.data
    embedded, _ = model._embedded(x, None)
    assert_exact(embedded, folded(x).flatten(2).mT)


@attentions
@poolings
@pytest.mark.parametrize("garbage", [1e30, float("nan"), float("inf")], ids=str)
def test_what_stands_in_a_dropped_patch_changes_nothing(attention: str, pooling: str, garbage: float) -> None:
    model, found = classifier(attention=attention, pooling=pooling), []
    dropped = ~KEEP.view(2, 1, 2, 3).repeat_interleave(2, -2).repeat_interleave(2, -1)
    for filling in (0.0, garbage):
        x = points(2, 2, 4, 6).masked_fill(dropped, filling).requires_grad_()
        scores = model(x, KEEP)
        wanted = [x, *model.parameters()]
        gradients = torch.autograd.grad(scores.square().sum(), wanted, allow_unused=True)
        found.append([scores, *(gradient for gradient in gradients if gradient is not None)])
    for clean, dirty in zip(*found, strict=True):
        assert torch.equal(clean, dirty)
        assert bool(clean.isfinite().all())


@poolings
def test_dropped_patches_leave_no_trace_of_their_own(pooling: str) -> None:
    model, x = classifier(pooling=pooling, position="none"), points(2, 2, 4, 6)
    bare = model._unfolded(x)[1:, KEEP[1]]
    with seeded(0):
        shorter = ImageClassifier(
            3, channels=2, size=(2, 6), patch=2, pooling=pooling, position="none", **SMALL
        )
    shorter.double().load_state_dict(model.state_dict())
    image = bare.unflatten(2, (2, 2, 2)).permute(0, 2, 3, 1, 4).flatten(3)  # three patches side by side
    assert_exact(model(x, KEEP)[1:], shorter(image))


@attentions
@poolings
def test_keeping_all_is_no_mask_and_keeping_none_is_finite(attention: str, pooling: str) -> None:
    model, x = classifier(attention=attention, pooling=pooling), points(2, 2, 4, 6)
    assert_exact(model(x, torch.ones_like(KEEP)), model(x))
    assert bool(model(x, torch.zeros_like(KEEP)).isfinite().all())


def test_a_batch_of_one_is_a_slice_of_a_batch() -> None:
    model, x = classifier(attention="primal"), points(3, 2, 4, 6)
    assert_exact(model(x[1:2]), model(x)[1:2])


def test_every_layer_has_its_attention() -> None:
    model = classifier(attention="primal+", depth=3)
    kinds = [SoftmaxAttention, SoftmaxAttention, PrimalAttention]
    assert [type(block.attention) for block in model.blocks] == kinds
    with record(model) as tape:
        model(points(2, 2, 4, 6))
    assert list(tape.calls) == [f"blocks.{place}.attention" for place in range(3)]


def test_learned_places_tell_patches_apart() -> None:
    x = points(2, 2, 4, 6)
    for position, same in (("learned", False), ("sinusoidal", False), ("none", True)):
        model = classifier(position=position, pooling="mean")
        turned = x.roll(2, -1)
        assert torch.allclose(model(x), model(turned), rtol=0, atol=1e-10) == same


def test_options_reach_their_parts() -> None:
    model = classifier(depth=3, drop_path=0.2, inner=5, norm="post")
    assert [block.drop_path for block in model.blocks] == [0.0, 0.1, 0.2]
    assert {block.feed_forward[0].out_features for block in model.blocks} == {5}
    assert {block.norm for block in model.blocks} == {"post"}
    assert classifier().blocks[0].feed_forward[0].out_features == 32
    assert classifier(depth=1, drop_path=0.2).blocks[0].drop_path == 0


@pytest.mark.parametrize("option", ["dropout", "drop_path"])
def test_what_is_dropped_is_dropped_in_training_only(option: str) -> None:
    model, x = classifier(**{option: 0.5}), points(8, 2, 4, 6)
    with seeded(1):
        assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), classifier()(x))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_path_is_dropped_for_whole_samples_and_made_up_for_by_the_others(norm: str) -> None:
    with seeded(0):
        plain = Block(SoftmaxAttention(8, heads=2), inner=8, norm=norm)
        dropping = Block(SoftmaxAttention(8, heads=2), inner=8, norm=norm, drop_path=0.25)
    part = points(4000, 2, 3)
    with seeded(1):
        ratio = dropping._added(part) / part
    assert_exact(ratio, ratio[:, :1, :1].expand_as(ratio))
    assert sorted({round(value, 12) for value in ratio[:, 0, 0].tolist()}) == [0, round(4 / 3, 12)]
    # Five deviations of a mean of 4000 coins.
    assert abs(float(ratio[:, 0, 0].mean()) - 1) < 5 * (1 / 3 / 4000) ** 0.5
    assert plain._added(part) is part


def test_training_moves_the_scores() -> None:
    model, x, target = classifier(attention="primal"), points(6, 2, 4, 6), torch.tensor([0, 1, 2] * 2)
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(30):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"size": 9}, "an image of 9 by 9 does not split into patches of 2 by 2"),
        ({"size": (8, 7)}, "an image of 8 by 7 does not split into patches of 2 by 2"),
        ({"size": (0, 8)}, "image height is 0, expected a whole number of at least 1"),
        ({"size": 8.0}, "image height is 8.0, expected a whole number of at least 1"),
        ({"classes": 0}, "classes is 0, expected a whole number of at least 1"),
        ({"channels": 0}, "channels is 0, expected a whole number of at least 1"),
        ({"patch": 0}, "patch is 0, expected a whole number of at least 1"),
        ({"depth": 0}, "depth is 0, expected a whole number of at least 1"),
        ({"width": 0}, "width is 0, expected a whole number of at least 1"),
        ({"heads": 5}, "width 192 does not split into 5 heads"),
        ({"drop_path": 1.0}, r"Block: drop_path is 1.0, expected a number in \[0, 1\)"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence), torch.device("meta"):
        ImageClassifier(**{"classes": 3, "channels": 1, "size": 8, "patch": 2, **given})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"pooling": "meen"}, "unknown pooling 'meen', did you mean 'mean'"),
        ({"norm": "pos"}, "unknown norm 'pos', did you mean 'post'"),
        ({"position": "learnd"}, "unknown kind 'learnd', did you mean 'learned'"),
        ({"attention": "softmx"}, "unknown attention 'softmx', did you mean 'softmax'"),
        ({"init": "orthonormel", "attention": "primal"}, "unknown init 'orthonormel'"),
    ],
    ids=str,
)
def test_unknown_names_suggest_the_nearest(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownName, match=sentence):
        classifier(**given)


def test_inputs_that_do_not_fit_are_named() -> None:
    wanted = r"expected real numbers \(b, 2, 4, 6\)"
    for x in (points(5, 2, 6, 4), points(2, 4, 6), points(5, 2, 4, 6).to(torch.uint8)):
        with pytest.raises(BadInput, match=rf"`x` is torch\.\w+ of shape .*, {wanted}"):
            classifier()(x)
    with pytest.raises(BadInput, match=r"`keep` is torch\.float32, expected torch\.bool"):
        classifier()(points(2, 2, 4, 6), torch.ones(2, 6))
    with pytest.raises(ShapeError, match=r"`keep` has shape \(2, 5\), expected \(2, 6\)"):
        classifier()(points(2, 2, 4, 6), KEEP[:, :5])
