"""The planner: the law and its inverse, the published table, budgets, regimes, costs and its words."""

from itertools import pairwise
from math import log
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.errors import BadInput, UnknownName
from kernelhead.models import (
    LAWS,
    LEVINE2020,
    THRESHOLD,
    LanguageModel,
    ShapeLaw,
    count_params,
    depth_threshold,
    plan_shape,
    shape_cost,
    shape_regime,
)
from kernelhead.models.planner import heads_of

# Depth and width as trained, and as published for the same number of weights.
GPT3 = {
    "small": ((12, 768), (23, 555)),
    "medium": ((24, 1024), (32, 886)),
    "large": ((24, 1536), (38, 1220)),
    "xl": ((24, 2048), (42, 1550)),
    "2.7B": ((32, 2560), (47, 2110)),
    "6.7B": ((32, 4096), (54, 3150)),
    "13B": ((40, 5140), (60, 4200)),
    "175B": ((96, 12288), (80, 13500)),
}
budgets = st.integers(10**4, 10**13) | st.floats(4, 13).map(lambda power: int(10**power))


@pytest.mark.parametrize("name", GPT3)
def test_the_published_table(name: str) -> None:
    (depth, width), published = GPT3[name]
    found = plan_shape(12 * depth * width**2)
    assert abs(found.depth - published[0]) <= 1
    assert found.width == pytest.approx(published[1], rel=0.02)
    assert found.params / (12 * depth * width**2) > 0.975
    assert found.regime.side == "near"


def test_a_trillion_weights() -> None:
    found = plan_shape(10**12)
    assert (found.depth, found.width) == (95, 29616)
    assert LEVINE2020.width(LEVINE2020.depth(1e12)) == pytest.approx(29658, rel=1e-3)


@pytest.mark.parametrize(
    ("depth", "width", "params"),
    [(6, 215, 3.3e6), (12, 300, 13.0e6), (18, 419, 37.9e6), (24, 585, 98.4e6), (30, 816, 240e6),
     (36, 1138, 559e6), (48, 2215, 2.83e9)],
)  # fmt: skip
def test_transitions(depth: int, width: int, params: float) -> None:
    assert round(LEVINE2020.width(depth)) == width
    assert LEVINE2020.params(depth) == pytest.approx(params, rel=0.015)


def test_networks_that_followed_the_law() -> None:
    assert LEVINE2020.depth_of_width(768) == pytest.approx(28.9, abs=0.05)  # NeoBERT has 28
    assert LEVINE2020.depth_of_width(3560) == pytest.approx(56.5, abs=0.1)  # GatorTron has 56
    assert [round(THRESHOLD.depth(10**k), 1) for k in range(6, 13)] == [4.5, 5.4, 6.4, 7.4, 8.4, 9.4, 10.4]


@given(
    params=st.floats(1, 1e15), law=st.sampled_from([*LAWS.values(), ShapeLaw("mine", 2.0, 0.3, 0.1, 0.01)])
)
def test_depth_undoes_params(params: float, law: ShapeLaw) -> None:
    depth = law.depth(params)
    assert law.params(depth) == pytest.approx(params, rel=1e-9)
    low, high = law.depth_range(params)
    assert low <= depth * (1 + 1e-12)
    assert depth <= high * (1 + 1e-12)
    assert law.depth_of_width(law.width(7.5)) == pytest.approx(7.5)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nearest": {"multiple": 1},
    "wide heads": {"head": 128, "multiple": 64},
    "heads": {"heads": 6},
    "threshold": {"law": "threshold"},
    "depth": {"depth": 5},
}
options = pytest.mark.parametrize("given_", OPTIONS.values(), ids=[*OPTIONS])


@options
@given(budget=budgets, more=st.floats(1, 1.3))
def test_the_budget_is_kept_and_more_never_gives_fewer(
    given_: dict[str, Any], budget: int, more: float
) -> None:
    budget = max(budget, 300_000)
    found, larger = plan_shape(budget, **given_), plan_shape(int(budget * more), **given_)
    assert found.params <= budget
    assert found.params <= larger.params
    assert found.width % found.heads == 0
    assert found.params == count_params(found.depth, found.width)


@options
def test_every_budget_of_a_stretch(given_: dict[str, Any]) -> None:
    """One by one over a jump of the depth, where rounding would lose weights."""
    start = 84_000_000 if "depth" not in given_ else 300_000
    found = [plan_shape(start + 9973 * step, **given_).params for step in range(400)]
    assert all(before <= after for before, after in pairwise(found))


@given(budget=st.integers(900, 400_000), heads=st.sampled_from([None, 1, 3]))
def test_counts_are_those_of_the_network_that_is_built(budget: int, heads: int | None) -> None:
    budget = max(budget, 10_000 if heads == 3 else 900)
    found = plan_shape(budget, heads=heads, vocabulary=50, longest=20)
    with torch.device("meta"):
        model = LanguageModel(50, width=found.width, depth=found.depth, heads=found.heads, longest=20)
    built = sum(weight.numel() for weight in model.parameters())
    assert built - found.embedding_params == found.params <= budget
    assert found.embedding_params == 70 * found.width


@given(budget=st.integers(2 * 10**6, 10**12))
def test_the_depth_is_that_of_the_law_at_its_own_size(budget: int) -> None:
    found = plan_shape(budget)
    law = LEVINE2020.depth(12 * found.depth * found.width**2)
    assert abs(found.depth - law) <= 0.5
    assert abs(found.depth - LEVINE2020.depth(budget)) <= 1.5
    assert found.regime.side == "near"


@given(width=st.integers(1, 20_000), head=st.integers(8, 128))
def test_heads_are_about_as_wide_as_asked_for(width: int, head: int) -> None:
    count = heads_of(width, head)
    if count > 1:
        assert width % count == 0
        assert 0.75 * head <= width / count <= 4 / 3 * head


def test_regimes() -> None:
    deep, shallow = shape_regime(96, 12288), shape_regime(12, 768)
    assert (deep.side, shallow.side) == ("deeper", "shallower")
    assert (deep.efficient, shape_regime(3, 768).efficient) == (False, True)
    assert deep.threshold == depth_threshold(12288) == pytest.approx(log(12288, 3))
    assert deep.layer_gain == pytest.approx(12288, rel=1e-6)
    assert shape_regime(2, 768).layer_gain < 0.1 * 768
    assert shape_regime(1, 8).side == "near"  # there is no network of fewer layers


def test_notes_say_what_the_law_is_for_and_against() -> None:
    inside, small, large = (plan_shape(budget) for budget in (10**8, 10**6, 10**12))
    for found in (inside, small, large):
        said = " ".join(found.regime.notes)
        for words in (
            "not for images, tables or series",
            "without embeddings",
            "2601.20994",
            "Kaplan",
            "Wies",
        ):
            assert words in said
    assert "extrapolation" not in " ".join(inside.regime.notes)
    assert "outside of what the law was fitted on, 3.3 million to 2.8 billion" in small.regime.notes[0]
    assert "theory threshold" in small.regime.notes[1]
    assert "extrapolation" in large.regime.notes[0]
    assert plan_shape(10**8, depth=3).law == "given"
    assert plan_shape(10**8).depth > plan_shape(10**8, law="threshold").depth == 6
    assert plan_shape(10**8).least_depth == 7


def test_costs() -> None:
    cost = shape_cost(8, 320, points=255, vocabulary=100)
    pairs = sum(place + 1 for place in range(255)) / 255  # points that a mean one sees
    assert cost.forward_flops == pytest.approx(2 * (12 * 8 * 320**2 + 100 * 320) + 4 * 8 * 320 * pairs)
    assert cost.train_flops == 3 * cost.forward_flops
    assert cost.weight_bytes == 2 * (count_params(8, 320) + 32_000)
    assert cost.train_bytes == 8 * cost.weight_bytes
    assert (cost.cache_bytes, cost.serial) == (2 * 2 * 8 * 320, 8)
    deep = shape_cost(32, 160, points=255, vocabulary=100)
    over = deep.over(cost)
    assert over["serial"] == 4
    assert over["cache_bytes"] == over["kept_bytes"] == 2
    assert 1 < over["train_seconds"] < 2
    fast = shape_cost(8, 320, flops=1e30, bandwidth=1e12)
    assert fast.train_seconds == pytest.approx(380 * 8 * 320 / 1e12)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: plan_shape(887), BadInput,
            "plan_shape: a budget of 887 weights is too small for 1 layer: width 8, the least, takes 888",
        ),
        (lambda: plan_shape(5000, heads=6), BadInput, "too small for 1 layer: width 24, .* takes 7,272"),
        (lambda: plan_shape(900, depth=2), BadInput, "too small for 2 layers: width 8, .* takes 1,760"),
        (lambda: plan_shape(900, law="threshold"), BadInput, "for 2 layers: width 8, the least, takes 1,760"),
        (lambda: plan_shape(0), BadInput, "plan_shape: budget is 0"),
        (lambda: plan_shape(10**6, head=0), BadInput, "plan_shape: head is 0"),
        (lambda: plan_shape(10**6, heads=0), BadInput, "plan_shape: heads is 0"),
        (lambda: plan_shape(10**6, depth=0), BadInput, "plan_shape: depth is 0"),
        (lambda: plan_shape(10**6, multiple=0), BadInput, "plan_shape: multiple is 0"),
        (lambda: plan_shape(10**6, vocabulary=-1), BadInput, "plan_shape: vocabulary is -1"),
        (lambda: plan_shape(10**6, law="levin"), UnknownName, "unknown law 'levin', did you mean"),
        (lambda: shape_regime(0, 8), BadInput, "count_params: depth is 0"),
        (lambda: shape_cost(1, 0), BadInput, "count_params: width is 0"),
        (lambda: shape_cost(1, 8, points=0), BadInput, "shape_cost: points is 0"),
        (lambda: shape_cost(1, 8, vocabulary=-1), BadInput, "shape_cost: vocabulary is -1"),
        (lambda: shape_cost(1, 8, flops=0.0), BadInput, "shape_cost: flops is 0.0, bandwidth"),
        (lambda: depth_threshold(0), BadInput, "depth_threshold: width is 0"),
        (lambda: LEVINE2020.depth(0), BadInput, "ShapeLaw: params is 0, expected a number above 0"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
