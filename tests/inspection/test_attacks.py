"""Attacks: inside budget and range, as strong as they should be, repeatable, and without a trace."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import read_images
from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.inspection import contaminate_keys, drop_points, fgsm, pgd, spsa
from kernelhead.models import ImageClassifier
from kernelhead.rng import seeded
from kernelhead.training.course import Course
from kernelhead.training.resident import fit_resident, scores_of
from tests.inputs import points

LABELS = torch.tensor([0, 2, 1])
Attack = Callable[..., Tensor]


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ATTACKS: dict[str, Attack] = {
    "fgsm": lambda model, x, y, seed=0, **how: fgsm(model, x, y, **how),
    "pgd": lambda model, x, y, seed=0, **how: pgd(model, x, y, generator=draws(seed), **{"steps": 3, **how}),
    "spsa": lambda model, x, y, seed=0, **how: spsa(
        model, x, y, generator=draws(seed), **{"steps": 3, "samples": 4, **how}
    ),
}
each_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)


def images(seed: int = 0) -> Tensor:
    return points(3, 1, 4, 4, seed=seed, dtype=torch.float32).sigmoid()


def classifier(attention: str = "softmax") -> ImageClassifier:
    with seeded(0):
        return ImageClassifier(
            3, channels=1, size=4, patch=2, width=8, depth=2, heads=2, attention=attention, rank=2
        )


@cache
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """A small model of the digits, and test images that it has not seen."""
    parts = (read_images("digits", split=split) for split in ("train", "test"))
    (x, y), (test, labels) = ((torch.from_numpy(p.x / np.float32(255)), torch.from_numpy(p.y)) for p in parts)
    with seeded(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        fit_resident(model, x, y, Course(200, 64, lr=1e-2))
    return model, test[:120], labels[:120]


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((scores_of(model, x).argmax(-1) == y).float().mean())


@each_attack
@given(budget=st.floats(0, 0.5), low=st.floats(-0.5, 0), seed=st.integers(0, 99))
def test_it_stays_in_the_budget_and_in_the_range(
    attack: Attack, budget: float, low: float, seed: int
) -> None:
    x = images(seed)
    moved = attack(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), x, LABELS, budget=budget, clip=(low, 1.0))
    assert moved.shape == x.shape
    assert bool(((moved >= x - budget) & (moved <= x + budget)).all())
    assert bool(((moved >= low) & (moved <= 1)).all())


@each_attack
def test_no_budget_changes_nothing(attack: Attack) -> None:
    assert torch.equal(attack(classifier(), images(), LABELS, budget=0.0), images())


@each_attack
def test_the_same_seed_gives_the_same_bits_and_moves_no_global_generator(attack: Attack) -> None:
    before, model = torch.get_rng_state(), classifier()
    first, again, other = (attack(model, images(), LABELS, budget=0.1, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, other) == (attack is ATTACKS["fgsm"])


@each_attack
def test_the_model_is_left_as_it_was(attack: Attack) -> None:
    model = classifier("primal")
    model.blocks[1].eval()
    model.head.bias.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    modes = [part.training for part in model.modules()]
    wanting = [weight.requires_grad for weight in model.parameters()]
    attack(model, images().requires_grad_(), LABELS, budget=0.1)
    assert [part.training for part in model.modules()] == modes
    assert [weight.requires_grad for weight in model.parameters()] == wanting
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert [name for name, weight in model.named_parameters() if weight.grad is not None] == ["head.weight"]


@each_attack
def test_weights_want_gradients_again_after_a_failure(attack: Attack) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(15, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        attack(model, images(), LABELS, budget=0.1)
    assert all(weight.requires_grad for weight in model.parameters())


@each_attack
def test_how_images_are_split_into_calls_matters_only_to_spsa(attack: Attack) -> None:
    whole, split = (attack(classifier(), images(), LABELS, budget=0.1, batch=size) for size in (64, 2))
    assert attack is ATTACKS["spsa"] or torch.allclose(whole, split)


def test_one_step_follows_the_sign_of_the_gradient() -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double(), images().double().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model(x), LABELS), x)
    wanted = (x + 0.1 * slope.sign()).clamp(0, 1)
    assert torch.equal(fgsm(model, x, LABELS, budget=0.1), wanted.detach())


def test_differences_find_the_slope_at_the_point_that_was_reached() -> None:
    # The score of the first class is a bowl around 0.5: from 0.8 on its slope points downwards until 0.5,
    # while a slope taken at twice the point, or at the first one only, would carry it further.
    class Bowl(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([(x - 0.5).square().sum((1, 2, 3)), torch.zeros(len(x))], dim=1)

    x, y = torch.full((1, 1, 2, 2), 0.8), torch.tensor([0])
    found = spsa(Bowl(), x, y, budget=0.5, generator=draws(), steps=100, samples=64, rate=0.02)
    assert float((found - 0.5).abs().max()) < 0.05


@pytest.mark.parametrize("budget", [0.05, 0.15])
def test_more_steps_and_more_budget_are_stronger(budget: float) -> None:
    model, x, y = trained()
    clean = accuracy(model, x, y)
    once = accuracy(model, fgsm(model, x, y, budget=budget), y)
    often = accuracy(model, pgd(model, x, y, budget=budget, generator=draws()), y)
    blind = accuracy(model, spsa(model, x, y, budget=budget, generator=draws(), steps=10, samples=16), y)
    assert clean > 0.85
    assert often <= once < clean
    assert often <= blind < clean
    assert accuracy(model, pgd(model, x, y, budget=2 * budget, generator=draws()), y) <= often


def test_it_can_be_called_where_gradients_are_off() -> None:
    with torch.no_grad():
        moved = pgd(classifier(), images(), LABELS, budget=0.1, generator=draws())
    assert not moved.requires_grad
    assert not torch.equal(moved, images())


@pytest.mark.parametrize("attention", ["softmax", "symmetric", "rpc", "rpc_corrected", "primal", "linear"])
def test_spoilt_keys_change_the_output_inside_the_block_only(attention: str) -> None:
    model = classifier(attention).eval()
    x, clean = images(), classifier(attention).eval()(images())
    with contaminate_keys(model, share=0.3, seed=1):
        first = model(x)
    with contaminate_keys(model, share=0.3, seed=1):
        again = model(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, clean)
    assert torch.equal(model(x), clean)


@pytest.mark.parametrize("unit", ["entry", "point"])
def test_keys_are_spoilt_at_a_share_of_places(unit: str) -> None:
    model = classifier().double()
    layer, x = model.blocks[0].attention, points(40, 50, 8)
    clean = layer.key(x)
    with contaminate_keys(model, share=0.1, factor=10, unit=unit, layers=[0]):
        spoilt = layer.key(x)
        assert torch.equal(model.blocks[1].attention.key(x), model.blocks[1].attention.key(x))
    struck = spoilt != clean
    assert abs(float(struck.double().mean()) - 0.1) < 0.02
    assert unit == "entry" or bool((struck.all(-1) == struck.any(-1)).all())
    size = clean.unflatten(-1, (2, 4)).abs().mean((1, 3))  # (b, h)
    wanted = 10 * size.repeat_interleave(4, dim=1)[:, None].expand_as(spoilt)
    torch.testing.assert_close(spoilt[struck].abs(), wanted[struck])
    assert {*spoilt[struck].sign().tolist()} == {-1.0, 1.0}


def test_calls_are_spoilt_at_other_places_and_gradients_flow() -> None:
    layer, x = classifier().blocks[0].attention, points(2, 6, 8, dtype=torch.float32)
    with contaminate_keys(layer, share=0.5):
        first, second = layer.key(x), layer.key(x)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert layer.key.weight.grad is not None


@given(cases=st.integers(1, 5), n=st.integers(1, 9), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_as_many_points_are_dropped_in_every_case(cases: int, n: int, share: float, seed: int) -> None:
    kept = drop_points(cases, n, share=share, seed=seed)
    assert kept.dtype == torch.bool
    assert kept.sum(1).tolist() == [max(n - round(share * n), 1)] * cases
    assert torch.equal(kept, drop_points(cases, n, share=share, seed=seed))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"budget": -0.1}, r"budget is -0.1, expected a finite number of at least 0"),
        ({"budget": float("nan")}, r"budget is nan"),
        ({"clip": (1.0, 0.0)}, r"the range of a pixel is \(1.0, 0.0\), expected two numbers"),
        ({"clip": (0.0, 0.1)}, r"pixels run from 0.* to 0.*, outside their range \(0.0, 0.1\)"),
        ({"batch": 0}, r"batch is 0, expected a whole number of at least 1"),
        ({"y": LABELS.double()}, r"`x` is torch.float32 and `y` torch.float64, expected real and whole"),
        ({"x": images()[:0], "y": LABELS[:0]}, r"`x` \(0, 1, 4, 4\) holds no image"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str([*value]),
)
@each_attack
def test_what_does_not_fit_is_named(attack: Attack, changes: dict[str, object], sentence: str) -> None:
    given = {"x": images(), "y": LABELS, "budget": 0.1, **changes}
    with pytest.raises(BadInput, match=sentence):
        attack(classifier(), given.pop("x"), given.pop("y"), **given)


@each_attack
def test_a_label_too_many_is_named(attack: Attack) -> None:
    with pytest.raises(ShapeError, match=r"axis `b` is 3 in `x` but 2 in `y` \(2,\)"):
        attack(classifier(), images(), LABELS[:2], budget=0.1)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("pgd", {"step": 0.0}, r"pgd: step is 0.0, expected a number above 0"),
        ("pgd", {"steps": 0}, r"pgd: steps is 0, expected a whole number"),
        ("spsa", {"delta": 0.0}, r"spsa: delta is 0.0, expected a number above 0"),
        ("spsa", {"rate": -1.0}, r"spsa: rate is -1.0, expected a number above 0"),
        ("spsa", {"steps": 0}, r"spsa: steps is 0, expected a whole number"),
        ("spsa", {"samples": 0}, r"spsa: samples is 0, expected a whole number"),
    ],
)
def test_a_number_out_of_range_is_named(name: str, changes: dict[str, float], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        ATTACKS[name](classifier(), images(), LABELS, budget=0.1, **changes)


@pytest.mark.parametrize(
    ("model", "how", "error", "sentence"),
    [
        (nn.Linear(1, 1), {}, BadInput, r"Linear has 0 attentions with keys, asked for any"),
        (classifier(), {"layers": [2]}, BadInput, r"has 2 attentions with keys, asked for \[2\]"),
        (classifier(), {"share": 1.5}, BadInput, r"contaminate_keys: share is 1.5, expected .* 0 to 1"),
        (classifier(), {"factor": -1.0}, BadInput, r"factor is -1.0, expected a finite number"),
        (classifier(), {"unit": "entri"}, UnknownName, r"unknown unit 'entri', did you mean 'entry'"),
    ],
    ids=["no attention", "no such layer", "share", "factor", "unit"],
)
def test_keys_that_cannot_be_spoilt_are_named(
    model: nn.Module, how: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence), contaminate_keys(model, **{"share": 0.1, **how}):
        pass


def test_a_share_of_points_out_of_range_is_named() -> None:
    with pytest.raises(BadInput, match=r"drop_points: share is -0.5, expected a number from 0 to 1"):
        drop_points(2, 4, share=-0.5)
