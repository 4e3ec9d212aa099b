"""SequenceClassifier: tokens and series, poolings, padding, lengths, plans, and its words."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.models import ATTENTIONS, SequenceClassifier
from kernelhead.models.sequence import POOLINGS
from kernelhead.nn import PrimalAttention, SoftmaxAttention, ksvd_penalty, record
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.tolerance import assert_exact

SMALL: Mapping[str, Any] = {"width": 8, "heads": 2, "rank": 3, "landmarks": 4, "longest": 9}
poolings = pytest.mark.parametrize("pooling", POOLINGS)
norms = pytest.mark.parametrize("norm", ["pre", "post"])


def series(**options: Any) -> SequenceClassifier:
    with seeded(0):
        return SequenceClassifier(3, channels=2, **{**SMALL, **options}).double()


def tokens(**options: Any) -> SequenceClassifier:
    with seeded(0):
        return SequenceClassifier(3, vocabulary=11, **{**SMALL, **options}).double()


def words(*shape: int) -> Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(0))


@poolings
@norms
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "none"])
def test_scores_are_one_vector_a_sequence(pooling: str, norm: str, position: str) -> None:
    options = {"pooling": pooling, "norm": norm, "position": position}
    assert series(**options)(points(4, 7, 2)).shape == (4, 3)
    assert tokens(**options)(words(4, 7)).shape == (4, 3)


@poolings
@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
@pytest.mark.parametrize("attention", ["primal", "primal+", "linear", "performer", "nystrom"])
def test_a_padded_batch_equals_its_bare_sequences(pooling: str, position: str, attention: str) -> None:
    model, lengths = series(pooling=pooling, position=position, attention=attention), [9, 5, 1]
    x, mask = points(3, 9, 2), keep(lengths, 9)
    together = model(x, mask)
    for row, length in enumerate(lengths):
        assert_exact(together[row : row + 1], model(x[row : row + 1, :length]))


@poolings
@norms
@pytest.mark.parametrize("garbage", [1e30, float("nan"), float("inf")], ids=str)
def test_what_stands_in_the_padding_changes_nothing(pooling: str, norm: str, garbage: float) -> None:
    model, mask, found = series(pooling=pooling, norm=norm), keep([9, 5, 1], 9), []
    for filling in (0.0, garbage):
        x = points(3, 9, 2).masked_fill(~mask[..., None], filling).requires_grad_()
        scores = model(x, mask)
        wanted = [x, *model.parameters()]
        gradients = torch.autograd.grad(scores.square().sum(), wanted, allow_unused=True)
        found.append([scores, *(g for g in gradients if g is not None)])
    for clean, dirty in zip(*found, strict=True):
        assert torch.equal(clean, dirty)
        assert bool(clean.isfinite().all())


@poolings
def test_padding_tokens_may_be_anything(pooling: str) -> None:
    model, mask, x = tokens(pooling=pooling), keep([9, 5], 9), words(2, 9)
    assert torch.equal(model(x, mask), model(x.masked_fill(~mask, -100), mask))
    assert_exact(model(x, mask)[1:], model(x[1:, :5]))


@poolings
def test_a_full_mask_is_no_mask(pooling: str) -> None:
    model, x = series(pooling=pooling), points(2, 9, 2)
    assert_exact(model(x, keep([9, 9], 9)), model(x))


@poolings
@pytest.mark.parametrize("n", [1, 3, 4, 9])
def test_patches_of_a_padded_batch_are_those_of_bare_sequences(pooling: str, n: int) -> None:
    model, x, mask = tokens(pooling=pooling, patch=4, position="learned").eval(), words(2, 9), keep([n, 9], 9)
    assert_exact(model(x, mask)[:1], model(x[:1, :n]))
    assert_exact(model(x.masked_fill(~mask, 10), mask), model(x, mask))


def test_patches_are_the_definition() -> None:
    model, x = series(pooling="flatten", patch=2, position="none").eval(), points(2, 5, 2)
    assert isinstance(model.join, torch.nn.Linear)
    seen: list[Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda *call: seen.append(call[1][0]))
    scores = model(x)
    embedded = torch.cat([model.embedding(x) * model.scale, torch.zeros(2, 1, 8).double()], dim=1)
    for place in range(3):
        pair = torch.cat([embedded[:, 2 * place], embedded[:, 2 * place + 1]], dim=-1)
        assert_exact(seen[0][:, place], model.join(pair))
    assert scores.shape == (2, 3)
    assert model.head.in_features == 8 * 5  # longest 9
    with pytest.raises(BadInput, match="patch is 0"):
        series(patch=0)


@norms
def test_layers_without_attention_mix_neighbours_alone(norm: str) -> None:
    model, x = series(attention="none,primal", window=3, norm=norm).eval(), points(2, 9, 2)
    first, last = model.blocks
    assert first.attention is None
    assert isinstance(last.attention, PrimalAttention)
    local = series(attention="none", window=3, norm=norm, pooling="last", position="none").eval()
    moved = x.clone()
    moved[:, :6] = 9.0  # two layers of three taps reach two points back
    assert torch.equal(local(x), local(moved))
    with pytest.raises(BadInput, match="no attention and nothing local"):
        series(attention="none")


def test_published_padding_is_the_definition() -> None:
    """A primal layer sees all points and adds its last bias to padded ones; the mean is over all."""
    model, x, mask = (
        tokens(attention=["softmax", "primal"], padding="published"),
        words(2, 7),
        keep([7, 4], 7),
    )
    first, second = model.blocks
    seen, _ = model._embedded(x, mask)
    seen = first(seen, mask=mask)
    shown = second.attention_norm(seen)
    rows = []
    for sequence, real in zip(shown, mask, strict=True):
        made = second.attention(sequence[None])[0]
        made[~real] = second.attention.out.bias
        rows.append(made)
    seen = seen + torch.stack(rows)
    seen = seen + second.feed_forward(second.forward_norm(seen))
    total = torch.stack(
        [made[:count].sum(0) for made, count in zip(model.final_norm(seen), (7, 4), strict=True)]
    )
    assert_exact(model(x, mask), model.head(total / 7), bound=1e-12)


def test_published_padding_is_masked_padding_where_there_is_none() -> None:
    x = words(2, 7)
    masked, published = (tokens(attention="primal", padding=name) for name in ("masked", "published"))
    assert_exact(published(x), masked(x), bound=0.0)
    assert_exact(published(x, keep([7, 7], 7)), masked(x), bound=1e-12)
    assert not torch.allclose(published(x, keep([7, 4], 7)), masked(x, keep([7, 4], 7)))


def test_an_activation_stands_before_the_pooling() -> None:
    model, x, mask = series(pooling="flatten", activation="gelu").eval(), points(2, 9, 2), keep([9, 4], 9)
    seen: list[Tensor] = []
    model.final_norm.register_forward_hook(lambda *call: seen.append(call[-1]))
    scores = model(x, mask)
    kept = torch.nn.functional.gelu(seen[0]).masked_fill(~mask[..., None], 0)
    assert_exact(scores, model.head(kept.flatten(1)))
    with pytest.raises(UnknownName, match="activation"):
        series(activation="relu")
    with pytest.raises(UnknownName, match="padding"):
        series(padding="seen")


@poolings
def test_a_sequence_of_padding_alone_is_finite(pooling: str) -> None:
    model, mask = series(pooling=pooling), keep([9, 0], 9)
    assert bool(model(points(2, 9, 2), mask).isfinite().all())


def test_poolings_are_the_definition() -> None:
    x, mask, seen = points(2, 9, 2), keep([9, 4], 9), {}
    for pooling in POOLINGS:
        model = series(pooling=pooling)
        model.head.register_forward_pre_hook(
            lambda _, given, pooling=pooling: seen.update({pooling: given[0]})
        )
        model.final_norm.register_forward_hook(
            lambda _, given, made, pooling=pooling: seen.update({f"{pooling} points": made})
        )
        model(x, mask)
    for row, length in enumerate([9, 4]):
        assert_exact(seen["mean"][row], seen["mean points"][row, :length].mean(0))
        assert_exact(seen["max"][row], seen["max points"][row, :length].amax(0))
        assert_exact(seen["last"][row], seen["last points"][row, length - 1])
        assert_exact(seen["cls"][row], seen["cls points"][row, 0])
        flat = seen["flatten"][row].unflatten(0, (9, 8))
        assert_exact(flat[:length], seen["flatten points"][row, :length])
        assert bool((flat[length:] == 0).all())


@pytest.mark.parametrize("pooling", ["mean", "max", "last", "cls"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_any_length_runs(pooling: str, attention: str) -> None:
    model = series(pooling=pooling, attention=attention)
    for n in (1, 2, 40):
        assert bool(model(points(2, n, 2)).isfinite().all())


@pytest.mark.parametrize(("scale", "wanted"), [(None, 4.0), (0.5, 0.5)])
def test_embedded_channels_have_their_scale(scale: float | None, wanted: float) -> None:
    model = SequenceClassifier(3, channels=2, width=16, heads=2, position="none", scale=scale).double()
    x, seen = torch.ones(1, 3, 2, dtype=torch.float64), []
    model.blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(x)
    assert_exact(seen[0], wanted * model.embedding(x))


def test_learned_positions_serve_the_longest_behind_a_front_point() -> None:
    model = series(pooling="cls", position="learned")
    assert model(points(2, 9, 2)).shape == (2, 3)
    with pytest.raises(BadInput, match="Positions: 11 points, but positions were learned for 10"):
        model(points(2, 10, 2))


def test_learned_positions_refuse_longer() -> None:
    with pytest.raises(BadInput, match="Positions: 10 points, but positions were learned for 9"):
        series(position="learned")(points(2, 10, 2))


def test_flatten_refuses_longer() -> None:
    with pytest.raises(BadInput, match="SequenceClassifier: 10 points, but pooling flattens 9 at most"):
        series(pooling="flatten")(points(2, 10, 2))


@pytest.mark.parametrize(
    ("plan", "kinds"),
    [
        ("primal", [PrimalAttention] * 3),
        ("primal+", [SoftmaxAttention, SoftmaxAttention, PrimalAttention]),
        ("softmax,primal,softmax", [SoftmaxAttention, PrimalAttention, SoftmaxAttention]),
        (["primal", "softmax", "primal"], [PrimalAttention, SoftmaxAttention, PrimalAttention]),
    ],
    ids=str,
)
def test_attention_plans(plan: str | list[str], kinds: list[type]) -> None:
    model = series(attention=plan, depth=3)
    assert [type(block.attention) for block in model.blocks] == kinds
    with record(model) as tape:
        model(points(2, 7, 2))
    assert list(tape.calls) == [f"blocks.{place}.attention" for place in range(3)]
    assert bool(ksvd_penalty(tape) >= 0)


def test_order_matters_with_positions_and_not_without() -> None:
    x = points(2, 7, 2)
    for position, same in (("sinusoidal", False), ("none", True)):
        model = series(position=position, attention="softmax")
        assert torch.allclose(model(x), model(x.flip(1)), rtol=0, atol=1e-10) == same


def test_classes_are_moved_by_training() -> None:
    model, x, target = series(), points(6, 7, 2), torch.tensor([0, 1, 2] * 2)
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(30):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_dropout_acts_in_training_only() -> None:
    model, x = series(dropout=0.5), points(2, 7, 2)
    with seeded(1):
        assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_the_inner_width_is_four_times_the_width_unless_given() -> None:
    assert series().blocks[0].feed_forward[0].out_features == 32
    assert series(inner=5).blocks[0].feed_forward[0].out_features == 5


def test_tokens_begin_as_far_apart_as_asked() -> None:
    with seeded(0):
        model = SequenceClassifier(2, vocabulary=500, width=64, spread=0.5)
    assert abs(model.embedding.weight.std().item() - 0.5) < 0.01


def test_the_same_seed_gives_the_same_weights() -> None:
    left, right = series().state_dict(), series().state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "give `channels` or `vocabulary`, got None and None"),
        ({"channels": 2, "vocabulary": 5}, "give `channels` or `vocabulary`, got 2 and 5"),
        ({"channels": 0}, "channels is 0, expected a whole number of at least 1"),
        ({"vocabulary": -1}, "vocabulary is -1, expected a whole number of at least 1"),
        ({"channels": 2, "classes": 0}, "classes is 0, expected a whole number of at least 1"),
        ({"channels": 2, "depth": 0}, "depth is 0, expected a whole number of at least 1"),
        ({"channels": 2, "pooling": "flatten"}, "`longest` is 0, but flatten and learned positions need one"),
        (
            {"channels": 2, "position": "learned"},
            "`longest` is 0, but flatten and learned positions need one",
        ),
        ({"vocabulary": 5, "spread": 0.0}, "`spread` is 0.0, expected a number above 0"),
        ({"channels": 2, "scale": -1.0}, "`scale` is -1.0, expected a number above 0"),
        ({"channels": 2, "width": 10, "heads": 4}, "width 10 does not split into 4 heads"),
        ({"channels": 2, "depth": 3, "attention": "primal,softmax"}, "names 2 layers, but the depth is 3"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        SequenceClassifier(**{"classes": 3, **given})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"pooling": "meen"}, "unknown pooling 'meen', did you mean 'mean'"),
        ({"norm": "pos"}, "unknown norm 'pos', did you mean 'post'"),
        ({"position": "learnd"}, "unknown kind 'learnd', did you mean 'learned'"),
        ({"attention": "primel"}, "unknown attention 'primel', did you mean 'primal'"),
        ({"init": "orthonormel"}, "unknown init 'orthonormel', did you mean 'orthonormal'"),
    ],
    ids=str,
)
def test_unknown_names_suggest_the_nearest(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownName, match=sentence):
        series(**given)


def test_inputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(BadInput, match=r"`x` is torch.float64 of shape \(4, 7, 3\), expected \(b, n, 2\)"):
        series()(points(4, 7, 3))
    with pytest.raises(BadInput, match=r"`x` is torch.float64 of shape \(7, 2\), expected \(b, n, 2\)"):
        series()(points(7, 2))
    with pytest.raises(
        BadInput, match=r"`x` is torch.float64 of shape \(4, 7\), expected \(b, n\) whole numbers"
    ):
        tokens()(points(4, 7))
    with pytest.raises(
        BadInput, match=r"`x` is torch.int64 of shape \(4, 7, 2\), expected \(b, n\) whole numbers"
    ):
        tokens()(words(4, 7, 2))
    with pytest.raises(BadInput, match=r"`x` \(4, 0, 2\) is an empty sequence"):
        series()(points(4, 0, 2))


def test_masks_that_do_not_fit_are_named() -> None:
    with pytest.raises(BadInput, match=r"`mask` is torch\.float32, expected torch\.bool"):
        series()(points(4, 7, 2), torch.ones(4, 7))
    with pytest.raises(ShapeError, match=r"`mask` has shape \(4, 6\), expected \(4, 7\)"):
        series()(points(4, 7, 2), keep([6] * 4, 6))
    with pytest.raises(ShapeError, match=r"`mask` has shape \(4, 6\), expected \(4, 7\)"):
        tokens()(words(4, 7), keep([6] * 4, 6))


@pytest.mark.parametrize(("attention", "rank", "count"), [("softmax", 20, 209_802), ("primal", 20, 236_186)])
def test_parameters_of_the_published_long_range_model(attention: str, rank: int, count: int) -> None:
    with torch.device("meta"):
        model = SequenceClassifier(
            10,
            vocabulary=32,
            heads=2,
            attention=attention,
            rank=rank,
            landmarks=10 * rank,
            inner=128,
            position="learned",
            longest=2048,
            hidden=128,
        )
    assert sum(weight.numel() for weight in model.parameters()) == count


def test_neighbours_are_mixed_at_distances_that_go_round() -> None:
    model = SequenceClassifier(
        3, channels=2, width=8, depth=3, heads=2, rank=2, window=3, dilations=(1, 4), drop_path=0.2
    )
    assert [block.local.dilation for block in model.blocks] == [1, 4, 1]
    assert [block.drop_path for block in model.blocks] == [0, 0.1, 0.2]
    assert model(torch.zeros(2, 9, 2)).shape == (2, 3)
    with pytest.raises(BadInput, match="SequenceClassifier: `window` is -1"):
        SequenceClassifier(3, channels=2, window=-1)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_mixing_keeps_padding_out(norm: str) -> None:
    torch.manual_seed(0)
    model = SequenceClassifier(3, channels=2, width=8, heads=2, rank=2, window=5, norm=norm).double().eval()
    x, mask = points(2, 9, 2), torch.arange(9).expand(2, 9) < torch.tensor([[9], [4]])
    torch.testing.assert_close(model(x, mask)[1:], model(x[1:, :4]))
