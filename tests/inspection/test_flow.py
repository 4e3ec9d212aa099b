"""Flow: closed forms, the loops, rows that sum to one, what is left out, any recorded model, words."""

import json
from itertools import permutations
from math import isclose
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.inspection import (
    Flow,
    attention_rollout,
    flow_record,
    inter_modality_flow,
    model_flow,
    named_groups,
)
from kernelhead.models import ATTENTIONS, SequenceClassifier
from kernelhead.nn import record
from kernelhead.pattern import Dense, Factored
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.oracles import flow as oracle
from tests.tolerance import assert_exact

ROUNDING = 1e-14
ALPHAS = [0.25, 0.5, 0.9]
LAW = {"seed": st.integers(0, 999), "depth": st.integers(1, 4), "residual": st.floats(0, 0.99)}


def soft(*shape: int, seed: int = 0) -> Tensor:
    """Random attention, (..., n, n)."""
    return points(*shape, seed=seed).mul(2).softmax(-1)


def two(words: int, image: int) -> dict[str, Any]:
    return {"words": slice(0, words), "image": slice(words, words + image)}


def two_mass(words: int, image: int, a: float, b: float, seed: int) -> Tensor:
    """Rows of words send mass b to the image, rows of the image mass a to words; else anything."""
    n = words + image
    inner = soft(n, n, seed=seed)
    made = torch.empty_like(inner)
    for rows, out in ((slice(0, words), b), (slice(words, n), 1 - a)):
        for columns, mass in ((slice(0, words), 1 - out), (slice(words, n), out)):
            block = inner[rows, columns]
            made[rows, columns] = mass * block / block.sum(-1, keepdim=True)
    return made


def near(found: float | Tensor, expected: float) -> bool:
    return isclose(float(found), expected, rel_tol=0, abs_tol=ROUNDING)


def assert_rounded(found: Tensor, expected: Tensor) -> None:
    """Shares that differ by rounding alone."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= ROUNDING


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("depth", [1, 2, 7])
def test_two_masses_are_a_markov_chain(depth: int, alpha: float) -> None:
    a, b = 0.3, 0.45
    layers = [two_mass(3, 5, a, b, seed) for seed in range(depth)]
    read = inter_modality_flow(layers, two(3, 5), residual=1 - alpha)
    for layer in range(depth):
        visual, worded = oracle.two_mass_flow(a, b, layer + 1, alpha)
        assert near(read.cumulative[layer, 1, 0], visual)
        assert near(read.cumulative[layer, 0, 1], worded)
        assert near(read.imf[layer], (visual + worded) / 2)
        assert near(read.single[layer, 1, 0], alpha * a)
        assert near(read.single[layer, 0, 1], alpha * b)
        assert near(read.micro[layer], (5 * visual + 3 * worded) / 8)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_block_diagonal_attention_has_no_flow(alpha: float) -> None:
    layers = [torch.block_diag(soft(3, 3, seed=seed), soft(5, 5, seed=9 + seed)) for seed in range(4)]
    read = inter_modality_flow(layers, two(3, 5), residual=1 - alpha)
    assert_rounded(read.cumulative, torch.eye(2, dtype=torch.float64).expand(4, 2, 2))
    assert (read.cumulative[:, 0, 1] == 0).all()
    assert (read.cumulative[:, 1, 0] == 0).all()
    assert read.imf.abs().max() <= ROUNDING
    assert read.relative[-1, 0, 1] == read.relative[-1, 1, 0] == 0


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("sizes", [(1, 1), (2, 9), (3, 1, 4)], ids=str)
def test_uniform_attention_has_half_of_what_can_be(sizes: tuple[int, ...], alpha: float) -> None:
    n, ends = sum(sizes), [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    groups = {f"g{place}": slice(ends[place], ends[place + 1]) for place in range(len(sizes))}
    read = inter_modality_flow([torch.full((n, n), 1 / n).double()] * 5, groups, residual=1 - alpha)
    for layer in range(5):
        expected = oracle.uniform_flow([*sizes], layer + 1, alpha)
        assert_rounded(read.cumulative[layer], expected)
        assert_rounded(read.uniform[layer], expected)
        assert_rounded(read.regrouped[layer], expected)
        if len(sizes) == 2:
            assert near(read.imf[layer], (1 - (1 - alpha) ** (layer + 1)) / 2)
    assert_exact(read.relative, torch.ones_like(read.relative), bound=1e-13)
    assert_exact(read.relative_imf, torch.ones_like(read.relative_imf), bound=1e-13)
    assert_rounded(read.single_uniform, read.single)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_pure_cross_attention_goes_to_and_fro(alpha: float) -> None:
    layers = [two_mass(4, 3, 1.0, 1.0, seed) for seed in range(6)]
    read = inter_modality_flow(layers, two(4, 3), residual=1 - alpha)
    for layer in range(6):
        assert near(read.imf[layer], (1 - (1 - 2 * alpha) ** (layer + 1)) / 2)


@given(n=st.integers(3, 7), heads=st.integers(1, 3), **LAW)
def test_rollout_and_flow_are_their_loops(n: int, heads: int, depth: int, residual: float, seed: int) -> None:
    layers = [soft(1, heads, n, n, seed=seed + layer) for layer in range(depth)]
    rolled = oracle.rollout([each[0] for each in layers], residual)
    assert_exact(attention_rollout(layers, residual=residual)[0], rolled)
    groups = [[0], [*range(2, n)]]  # the second point is in no group
    read = inter_modality_flow(layers, {"a": groups[0], "b": groups[1]}, residual=residual)
    assert_exact(read.cumulative[-1], oracle.flow(rolled, groups))
    assert_exact(read.outside[-1], oracle.outside(rolled, groups))


@given(cases=st.integers(1, 3), special=st.integers(0, 2), **LAW)
def test_rows_sum_to_one_and_shares_are_shares(
    cases: int, special: int, depth: int, residual: float, seed: int
) -> None:
    layers = [soft(cases, 2, special + 6, special + 6, seed=seed + layer) for layer in range(depth)]
    groups = {name: [special + 2 * place, special + 2 * place + 1] for place, name in enumerate("abc")}
    read = inter_modality_flow(layers, groups, residual=residual)
    for matrix in (read.single, read.cumulative, read.uniform, read.single_uniform, read.regrouped):
        assert matrix.shape == (depth, 3, 3)
        assert (matrix >= 0).all()
        assert (matrix.sum(-1) - 1).abs().max() <= ROUNDING
    assert (read.outside >= 0).all()
    assert (read.outside.max() <= ROUNDING) == (special == 0)
    sums = attention_rollout(layers, residual=residual).sum(-1)
    assert_rounded(sums, torch.ones_like(sums))


def test_regrouped_is_the_mean_over_all_groupings() -> None:
    layers = [soft(5, 5, seed=seed) for seed in range(3)]
    found = [
        inter_modality_flow(layers, {"a": order[:2], "b": order[2:4]}).cumulative
        for order in permutations(range(4))
    ]
    read = inter_modality_flow(layers, {"a": [0, 1], "b": [2, 3]})
    assert_rounded(read.regrouped, torch.stack(found).mean(0))


def test_padded_points_are_in_no_group_and_change_nothing() -> None:
    layers = [soft(2, 6, 6, seed=seed) for seed in range(3)]
    wide = []
    for layer in layers:
        held = torch.full((1, 2, 9, 9), 1 / 9, dtype=torch.float64)  # rows of padded points may be anything
        held[0, :, :6, :6], held[0, :, :6, 6:] = layer, 0
        wide.append(held)
    short = inter_modality_flow([each[None] for each in layers], two(2, 4))
    padded = inter_modality_flow(wide, two(2, 7), mask=keep([6], 9))
    assert torch.equal(padded.sizes, torch.tensor([2.0, 4.0], dtype=torch.float64))
    for name in ("single", "cumulative", "uniform", "regrouped", "outside", "micro"):
        assert_rounded(getattr(padded, name), getattr(short, name))


def test_cases_are_averaged_and_those_without_a_group_left_out() -> None:
    layer = soft(3, 1, 4, 4)
    mask = keep([4, 4, 2], 4)
    layer[2, :, :2] = torch.tensor([0.5, 0.5, 0.0, 0.0])
    read = inter_modality_flow([layer], two(2, 2), mask=mask)
    both = [inter_modality_flow([layer[case, 0]], two(2, 2)).cumulative for case in (0, 1)]
    assert (read.cases, read.skipped) == (2, 1)
    assert_exact(read.cumulative, torch.stack(both).mean(0))
    own = torch.tensor([[True, False, True, False], [False, True, True, False], [True, False, False, False]])
    apart = inter_modality_flow([layer], {"a": own, "b": [3]}, mask=mask)
    assert apart.skipped == 1
    assert apart.sizes.tolist() == [2.0, 1.0]


def test_causal_attention_is_held_against_what_it_may_see() -> None:
    layer = soft(6, 6).tril()
    layer = layer / layer.sum(-1, keepdim=True)
    read = inter_modality_flow([layer] * 2, two(3, 3))
    assert read.uniform[-1, 0, 1] == read.cumulative[-1, 0, 1] == 0
    assert read.relative[-1, 0, 1].isnan()
    assert flow_record(read)["layers"][-1]["relative"][0][1] is None
    even = torch.ones(6, 6).double().tril()
    even = even / even.sum(-1, keepdim=True)
    assert_exact(read.uniform, inter_modality_flow([even] * 2, two(3, 3)).cumulative)
    assert inter_modality_flow([layer] * 2, two(3, 3), causal=False).uniform[-1, 0, 1] > 0


def test_absolute_rows_are_magnitudes_over_their_sum() -> None:
    raw = [points(1, 2, 5, 5, seed=seed) for seed in range(2)]
    shares = [each.abs() / each.abs().sum(-1, keepdim=True) for each in raw]
    assert_exact(attention_rollout(raw, rows="absolute"), attention_rollout(shares))
    left, right = points(1, 1, 5, 2), points(1, 1, 5, 2, seed=1)
    thin = Factored(left, torch.ones(2).double(), right)
    assert_exact(
        attention_rollout([thin], rows="absolute"), attention_rollout([left @ right.mT], rows="absolute")
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounded_rows_are_taken_and_made_whole(dtype: torch.dtype) -> None:
    layer = points(1, 2, 64, 64).to(dtype).softmax(-1)
    rolled = attention_rollout([layer, Dense(layer)])
    assert rolled.dtype == torch.float64
    assert_exact(rolled.sum(-1), torch.ones(1, 64).double(), bound=1e-13)


def classifier(attention: str = "softmax", depth: int = 2) -> SequenceClassifier:
    with seeded(0):
        return SequenceClassifier(
            3, channels=2, width=8, heads=2, rank=3, landmarks=4, attention=attention, depth=depth
        ).double()


def test_a_model_is_read_as_its_tape_has_it() -> None:
    model, x, mask = classifier(), points(3, 6, 2), keep([6, 4, 5], 6)
    with torch.no_grad(), record(model.eval(), patterns=True) as tape:
        model(x, mask)
    model.train()
    read = model_flow(model, x, two(2, 4), mask)
    assert model.training
    assert read.paths == tuple(tape.calls)
    patterns = [tape.last(path).pattern for path in read.paths]
    by_hand = inter_modality_flow([each for each in patterns if each], two(2, 4), mask=mask)
    assert_exact(read.cumulative, by_hand.cumulative)
    assert_exact(read.uniform, by_hand.uniform)
    cut = model_flow(model, x[1:2, :4], two(2, 2))
    alone = model_flow(model, x[1:2], two(2, 4), mask[1:2])
    assert_exact(cut.cumulative, alone.cumulative)


@pytest.mark.parametrize("name", [*ATTENTIONS])
def test_every_attention_is_read_or_refused_in_a_sentence(name: str) -> None:
    model, x = classifier(name), points(2, 6, 2)
    read = model_flow(model, x, two(2, 4), rows="absolute")
    assert (read.cumulative.sum(-1) - 1).abs().max() <= ROUNDING
    if name in ("primal", "scaled"):
        with pytest.raises(BadInput, match=r"model_flow: row \d+ of head .* sums to .* rows='absolute'"):
            model_flow(model, x, two(2, 4))
    elif name != "nystrom":  # whose rows are nearly of sum 1, or not
        assert_exact(model_flow(model, x, two(2, 4)).cumulative, read.cumulative, bound=1e-6)


def test_a_part_of_a_model_is_chosen_by_its_path() -> None:
    with seeded(0):
        layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        host = nn.TransformerDecoder(layer, 2)
    target, memory = torch.randn(1, 4, 8), torch.randn(1, 3, 8)
    with pytest.raises(ShapeError, match=r"'layers.0.multihead_attn' has shape \(1, 2, 4, 3\), expected"):
        model_flow(host, (target, memory), two(2, 2))
    read = model_flow(host, (target, memory), two(2, 2), under="layers.1.self_attn")
    assert read.paths == ("layers.1.self_attn",)
    with pytest.raises(BadInput, match=r"no attention was called under 'layers.9'; called: \['layers.0"):
        model_flow(host, (target, memory), two(2, 2), under="layers.9")


def test_a_record_is_json_and_complete() -> None:
    read = inter_modality_flow([soft(4, 4), soft(4, 4, seed=1)], two(1, 3), paths=["one", "two"])
    made = json.loads(json.dumps(flow_record(read), allow_nan=False))
    assert made["groups"] == {"words": 1.0, "image": 3.0}
    assert (made["cases"], made["skipped"], made["length"]) == (1, 0, 4)
    assert [layer["path"] for layer in made["layers"]] == ["one", "two"]
    assert made["layers"][1]["cumulative"] == read.cumulative[1].tolist()
    assert made["layers"][1]["imf"] == float(read.imf[1])
    assert made["layers"][1]["single_imf"] == pytest.approx(
        float(read.single[1, 0, 1] + read.single[1, 1, 0]) / 2
    )
    assert read.between("image", "words") == float(read.cumulative[1, 1, 0])


def fine() -> Flow:
    return inter_modality_flow([soft(4, 4)], two(2, 2))


def negative() -> Tensor:
    layer = soft(4, 4)
    layer[1] = torch.tensor([1.5, -0.5, 0.0, 0.0])
    return layer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attentions": []}, "no attention is given"),
        ({"attentions": [torch.full((4, 4), torch.nan)]}, "attention '0' holds NaN or infinity"),
        ({"attentions": [soft(4, 4), soft(4, 4) * 2]}, "row 0 of head 0, case 0, of attention '1' sums to 2"),
        ({"attentions": [negative()]}, r"row 1 .* with a least entry of -0.5, expected a sum of 1 and none"),
        ({"attentions": [torch.eye(4) * 0], "rows": "absolute"}, "row 0 of head 0, case 0, .* is zero"),
        ({"residual": 1.0}, "residual is 1.0, expected from 0 to below 1"),
        ({"residual": float("nan")}, "residual is nan"),
        ({"mask": torch.ones(1, 4)}, r"`mask` is torch.float32 of shape \(1, 4\), expected torch.bool"),
        ({"groups": {"a": [0]}}, r"1 groups are given, expected two or more: \['a'\]"),
        ({"groups": {"a": [0], "b": []}}, "group 'b' is empty, expected points from 0 to 3"),
        ({"groups": {"a": [0], "b": slice(4, 9)}}, "group 'b' is empty"),
        ({"groups": {"a": [0], "b": torch.zeros(4).bool()}}, "group 'b' is empty"),
        ({"groups": {"a": [0, 2], "b": [1, 2]}}, "point 2 is in group 'a' and in group 'b'"),
        ({"groups": {"a": [0], "b": [4]}}, r"group 'b' holds \[4\], expected places from 0 to 3"),
        ({"groups": {"a": [0], "b": [-1]}}, r"group 'b' holds \[-1\]"),
        ({"groups": {"a": [0], "b": [0.5]}}, r"group 'b' holds \[0.5\]"),
        (
            {"mask": keep([2], 4)},
            "no case has a real point in every group; of 1 'image' in 1 have none",
        ),
        (
            {"attentions": [torch.eye(3)[[1, 1, 1]]], "groups": {"a": [0], "b": [2]}, "residual": 0.0},
            "a point reads from points of no group alone; keep a residual above 0",
        ),
    ],
    ids=str,
)
def test_bad_input_gets_a_sentence(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"attentions": [soft(4, 4)], "groups": two(2, 2), **change}
    with pytest.raises(BadInput, match=f"inter_modality_flow: .*{words}"):
        inter_modality_flow(given.pop("attentions"), given.pop("groups"), **given)


def test_shapes_and_names_get_a_sentence() -> None:
    with pytest.raises(ShapeError, match=r"attention '0' has shape \(2, 4, 4\), expected \(b, h, n, n\)"):
        attention_rollout([soft(2, 4, 4)])
    with pytest.raises(ShapeError, match="not of the same points: 1 cases of 4 points at '0', 1 cases of 5"):
        attention_rollout([soft(4, 4), soft(5, 5)])
    with pytest.raises(ShapeError, match=r"group 'b' has shape \(3,\), expected \(4,\) or \(1, 4\)"):
        inter_modality_flow([soft(4, 4)], {"a": [0], "b": torch.ones(3).bool()})
    with pytest.raises(UnknownName, match="unknown rows 'abs', did you mean 'absolute'"):
        attention_rollout([soft(4, 4)], rows="abs")
    with pytest.raises(UnknownName, match="Flow: unknown group 'picture'"):
        fine().between("words", "picture")


def test_an_attention_without_a_pattern_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier(depth=1)
    monkeypatch.setattr("kernelhead.nn.softmax.without_padding", lambda pattern, mask: None)
    with pytest.raises(BadInput, match=r"of \['blocks.0.attention'\] only 0 recorded a pattern"):
        model_flow(model, points(1, 4, 2), two(2, 2))


def test_groups_are_read_from_words() -> None:
    assert named_groups(["a=:3", "b=3:", "c=7"]) == {"a": slice(None, 3), "b": slice(3, None), "c": [7]}
    for word in ("a", "a=", "=0:3", "a=0:3:2", "a=x:3", "a=-1"):
        with pytest.raises(BadInput, match=f"named_groups: '{word}' is not a group, expected NAME="):
            named_groups([word])
    with pytest.raises(BadInput, match="'a' is named twice"):
        named_groups(["a=0:1", "a=1:2"])
