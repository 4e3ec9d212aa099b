"""Plans: ranks against known spectra, errors against truncated patterns, what is necessary, costs, words."""

import json
import re
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kernelhead.errors import BadInput, UnknownName
from kernelhead.inspection import Plan, plan, plan_record
from kernelhead.inspection.cases import calls_of
from kernelhead.inspection.plan import _least_rank, _Left
from kernelhead.models import SequenceClassifier
from kernelhead.nn import SoftmaxAttention
from kernelhead.nn.cores import PrimalCore
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.nn.hosts.tiny import built, tokens


def encoder(**options: Any) -> nn.TransformerEncoder:
    with seeded(0):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()


class Known(nn.Module):
    """One softmax attention whose pattern is that of `groups` groups of points, in which each sees all."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups
        with seeded(0):
            self.attention = SoftmaxAttention(2 * groups, heads=2).double()
        for side in (self.attention.query, self.attention.key):
            side.weight.data.copy_(30 * torch.eye(2 * groups))
            side.bias.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)

    def batch(self, size: int) -> Tensor:
        """One case of `groups` times `size` points, the same one-hot rows in both heads."""
        rows = torch.eye(self.groups, dtype=torch.float64).repeat(size, 1)
        return torch.cat([rows, rows], dim=-1)[None]


def truncated_errors(model: nn.Module, batch: Any, rank: int) -> tuple[Tensor, Tensor]:
    """Errors of pattern and output of each head, by truncated SVDs written out, (layers, h) each."""
    read = calls_of("f", model, batch)
    pattern, output = [], []
    for calls in read:
        gaps = torch.zeros(4, calls.site.heads, dtype=torch.float64)
        for case in calls.cases:
            entries, value = case.pattern().matrix()[0].double(), case.value[0].double()
            left, values, right = torch.linalg.svd(entries)
            near = (left[..., :rank] * values[:, None, :rank]) @ right[:, :rank]
            parts = near - entries, entries, (near - entries) @ value, entries @ value
            gaps += torch.stack([part.square().sum((-2, -1)) for part in parts])
        pattern.append((gaps[0] / gaps[1]).sqrt())
        output.append((gaps[2] / gaps[3]).sqrt())
    return torch.stack(pattern), torch.stack(output)


@pytest.mark.parametrize("longest", [1024, 0], ids=["dense", "products"])
@pytest.mark.parametrize("groups", [2, 4])
def test_a_pattern_of_known_rank(groups: int, longest: int) -> None:
    # Equal values, one a group: s of them leave a share of 1 - s / groups of the energy.
    model = Known(groups)
    at = {"repeats": 0, "of": "pattern", "longest": longest}
    for rank in range(1, groups):
        gap = sqrt(1 - rank / groups)
        (layer,) = plan(model, model.batch(12), error=gap + 1e-6, **at).layers
        assert layer.head_ranks == (rank, rank)
        assert (layer.rank, layer.points) == (rank, 12 * groups)
        assert layer.pattern_error == pytest.approx(gap, abs=1e-6)
        assert plan(model, model.batch(12), error=gap - 1e-6, **at).layers[0].rank == rank + 1


@pytest.mark.parametrize("of", ["pattern", "output"])
@pytest.mark.parametrize("error", [0.05, 0.2, 0.5])
def test_the_smallest_rank_within_the_error(error: float, of: str) -> None:
    model = encoder()
    batch = {"src": 3 * points(3, 14, 8), "src_key_padding_mask": ~keep([14, 9, 3], 14)}
    found = plan(model, batch, error=error, of=of, repeats=0)
    for place, layer in enumerate(found.layers):
        assert layer.rank is not None
        which = 0 if of == "pattern" else 1
        for head, rank in enumerate(layer.head_ranks):
            assert rank is not None
            assert float(truncated_errors(model, batch, rank)[which][place, head]) <= error + 1e-9
            if rank > 1:
                assert float(truncated_errors(model, batch, rank - 1)[which][place, head]) > error
        pattern, output = (errors[place].max() for errors in truncated_errors(model, batch, layer.rank))
        assert layer.pattern_error == pytest.approx(float(pattern), abs=1e-9)
        assert layer.output_error == pytest.approx(float(output), abs=1e-9)


@given(seed=st.integers(0, 99), low=st.floats(0.01, 0.9), high=st.floats(0.01, 0.9))
def test_a_larger_error_never_needs_a_larger_rank(seed: int, low: float, high: float) -> None:
    low, high = sorted([low, high])
    x = 3 * points(2, 10, 8, seed=seed)
    strict, free = (plan(encoder(), x, error=error, repeats=0) for error in (low, high))
    for one, other in zip(strict.layers, free.layers, strict=True):
        assert (one.rank or 99) >= (other.rank or 99)
        assert one.least_rank >= other.least_rank


def test_products_give_the_same_plan() -> None:
    model, x = encoder(), 3 * points(2, 60, 8)
    dense, free = (plan(model, x, error=0.3, repeats=0, longest=longest) for longest in (1024, 0))
    for one, other in zip(dense.layers, free.layers, strict=True):
        assert one.head_ranks == other.head_ranks
        assert one.output_error == pytest.approx(other.output_error, abs=1e-3)
        assert one.pattern_error == pytest.approx(other.pattern_error, abs=1e-3)


def test_more_components_than_were_computed() -> None:
    layer = plan(encoder(), 3 * points(2, 60, 8), error=0.01, longest=0, count=3, repeats=0).layers[0]
    assert layer.rank is None
    assert None in layer.head_ranks
    assert (layer.primal, layer.reason, layer.at_rank) == (False, "it needs more than 3 components", None)


class Flat(nn.Module):
    """A primal core's outputs at best: a fixed map of 2 s scores and a bias, taken as values of a pattern."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.attention = SoftmaxAttention(16, heads=1).double()
        spread = points(16, 2 * rank, seed=1) @ points(2 * rank, 16, seed=2)
        self.attention.value.weight.data.copy_(spread)
        self.attention.value.bias.data.copy_(100 * points(16, seed=3))
        for side in (self.attention.query, self.attention.key):
            side.weight.data.copy_(20 * torch.eye(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_outputs_in_few_dimensions_need_half_as_many_components(rank: int) -> None:
    # Values that vary in 2 s dimensions around a large bias; each point sees itself.
    layer = plan(Flat(rank), points(4, 30, 16), error=1e-6, repeats=0, landmarks=5).layers[0]
    assert layer.least_rank == rank
    # A pattern has no bias to give: one dimension more, and all of them.
    assert plan(Flat(rank), points(4, 30, 16), error=1e-6, repeats=0).layers[0].least_rank == 2 * rank + 1


def test_the_rank_is_not_below_what_is_necessary() -> None:
    # Each case is of rank one, as all its points are the same; but no two cases are alike.
    x = points(40, 1, 16).expand(40, 30, 16)
    with seeded(0):
        model = SoftmaxAttention(16, heads=1).double()
    necessary = plan(model, x, error=0.1, repeats=0, landmarks=5).layers[0]
    assert necessary.head_ranks == (1,)
    assert necessary.least_rank > 1
    assert necessary.rank == necessary.least_rank
    assert plan(model, x, error=0.1, of="pattern", repeats=0, landmarks=5).layers[0].rank == 1
    # A pattern mixes the values of its own case.
    assert plan(model, x, error=0.1, repeats=0).layers[0].least_rank == 1


@given(seed=st.integers(0, 99), error=st.floats(0.01, 0.9))
def test_no_pattern_gets_below_the_least_rank(seed: int, error: float) -> None:
    for layer in plan(encoder(), 3 * points(2, 10, 8, seed=seed), error=error, repeats=0).layers:
        assert layer.rank is not None
        assert layer.least_rank <= layer.rank == max(rank or 0 for rank in layer.head_ranks)


@pytest.mark.parametrize("landmarks", [None, 4], ids=["pattern", "join"])
def test_what_a_primal_core_gives_is_within_its_rank(landmarks: int | None) -> None:
    # The outputs of a real core stand in for those of softmax: nothing is lost at its own rank.
    with seeded(0):
        core = PrimalCore(2, 8, rank=2, landmarks=landmarks).double()
    cases = [points(1, 2, 20, 8, seed=seed) for seed in range(3)]
    outputs = [core(case, case, case).detach()[0] for case in cases]
    left = [
        _Left(torch.zeros(0), out.sum(-2).unsqueeze(-1), out.mT @ out, out.shape[-2], True) for out in outputs
    ]
    assert _least_rank(left, 1e-6, landmarks is not None) == 2


def test_counted_costs() -> None:
    layer = plan(encoder(), points(3, 40, 8), error=0.5, repeats=0, landmarks=10).layers[0]
    assert layer.at_rank is not None
    assert layer.rank is not None
    # Three cases of two heads: all pairs twice, against both scores, their join and the landmarks.
    assert layer.softmax.multiply_adds == 3 * 2 * 40 * 40 * (4 + 4)
    assert layer.softmax.held == 3 * 2 * 40 * 40 * 8
    assert layer.at_rank.multiply_adds == 3 * 2 * layer.rank * (4 * 40 * 4 + 2 * 10 * 4)
    assert layer.at_rank.held == 3 * 2 * 2 * 40 * layer.rank * 8
    assert layer.softmax.seconds is layer.at_rank.peak is None


def test_measured_costs() -> None:
    layer = plan(encoder(), points(3, 64, 8), error=0.5, repeats=2).layers[0]
    assert layer.at_rank is not None
    for cost in (layer.softmax, layer.at_rank):
        assert cost.seconds is not None
        assert cost.peak is not None
        assert cost.seconds > 0
        # At least the output, (b, h, n, d) in float64.
        assert cost.peak >= 3 * 2 * 64 * 4 * 8


@pytest.mark.parametrize(
    ("model", "x", "reason"),
    [
        (
            encoder(),
            points(2, 3, 8) * 9,
            "rank [23] saves no multiply-adds at 3 points",
        ),
        (encoder(), points(2, 60, 8) * 9, "scores of 4 features have no rank"),
        (nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True).double(), None, "it adds a key"),
        (
            nn.MultiheadAttention(8, 2, batch_first=True).double(),
            None,
            "it attends to other points than its own",
        ),
    ],
    ids=["short", "narrow", "zero key", "across"],
)
def test_what_cannot_go_primal_says_why(model: nn.Module, x: Tensor | None, reason: str) -> None:
    n = 6 if "adds" in reason else 5
    batch = (points(2, n, 8), points(2, 6, 8), points(2, 6, 8)) if x is None else x
    layer = plan(model, batch, error=0.02, repeats=0).layers[0]
    assert not layer.primal
    assert re.match(reason, layer.reason)


def test_causal_pairs_are_counted_once() -> None:
    pytest.importorskip("transformers")
    found = plan(built("GPT2"), tokens(lengths=[7, 7]), error=0.3, repeats=0)
    assert [layer.path for layer in found.layers] == ["h.0.attn", "h.1.attn"]
    assert found.layers[0].softmax.multiply_adds == 2 * 4 * (7 * 8 // 2) * 16


def test_what_hides_the_future_has_no_least_rank() -> None:
    # Means over all points before: one component with the future hidden, all of them without.
    with seeded(0):
        model = SoftmaxAttention(8, heads=2, causal=True).double()
    for side in (model.query, model.key):
        side.weight.data.zero_()
    layer = plan(model, points(2, 12, 8), error=0.01, repeats=0).layers[0]
    assert layer.causal
    assert layer.rank is not None
    assert layer.rank > 4
    assert layer.least_rank == 1
    assert plan(model, points(2, 12, 8), error=0.01, repeats=0, landmarks=4).layers[0].least_rank == 2


def test_a_plan_of_a_padded_model_of_transformers() -> None:
    pytest.importorskip("transformers")
    model, long = built("Bert"), tokens(lengths=[7, 4])
    short = {name: each[1:, :4] for name, each in long.items()}
    both = plan(model, long, error=0.2, repeats=0)
    assert [(layer.kind, layer.points) for layer in both.layers] == [("BertSelfAttention", 7)] * 2
    padded = {name: each[1:] for name, each in long.items()}
    first, second = (plan(model, batch, error=0.2, repeats=0).layers for batch in (short, padded))
    for one, other in zip(first, second, strict=True):
        assert one.head_ranks == other.head_ranks
        assert one.output_error == pytest.approx(other.output_error, abs=1e-4)


def test_layers_that_are_no_softmax_are_skipped() -> None:
    model = SequenceClassifier(2, channels=1, width=8, heads=2, attention="primal+").double()
    found = plan(model, points(2, 9, 1), repeats=0)
    assert [layer.path for layer in found.layers] == ["blocks.0.attention"]
    assert found.skipped == {"blocks.1.attention": "PrimalAttention has no softmax core"}


def test_a_model_without_softmax_is_named() -> None:
    model = SequenceClassifier(2, channels=1, width=8, heads=2, depth=1, attention="primal").double()
    match = "plan: SequenceClassifier has no softmax attention .*blocks.0.attention: PrimalAttention has no"
    with pytest.raises(BadInput, match=match):
        plan(model, points(2, 9, 1))


def test_a_model_without_attention_is_named() -> None:
    with pytest.raises(BadInput, match=r"plan: Linear has no attention .* looked for .*MultiheadAttention"):
        plan(nn.Linear(2, 2), points(2, 5, 2))


def test_a_batch_that_the_model_cannot_take_is_named() -> None:
    with pytest.raises(BadInput, match=r"plan: TransformerEncoder cannot take a tensor \(2, 5, 7\)"):
        plan(encoder(), points(2, 5, 7))


@pytest.mark.parametrize("error", [0, 1, -0.1, 1.5, float("nan")])
def test_an_error_out_of_range_is_named(error: float) -> None:
    with pytest.raises(BadInput, match=f"plan: error is {error}, expected a number above 0 and below 1"):
        plan(encoder(), points(2, 5, 8), error=error)


def test_an_unknown_measure_is_named() -> None:
    with pytest.raises(UnknownName, match="plan: unknown measure 'outputs', did you mean 'output'"):
        plan(encoder(), points(2, 5, 8), of="outputs")


@pytest.mark.parametrize(("name", "least"), [("count", 1), ("longest", 0), ("repeats", 0), ("landmarks", 1)])
def test_sizes_are_checked(name: str, least: int) -> None:
    with pytest.raises(BadInput, match=f"plan: {name} is -1, expected a whole number of at least {least}"):
        plan(encoder(), points(2, 5, 8), **{name: -1})


def test_numbers_that_are_not_finite_are_named() -> None:
    x = points(2, 5, 8)
    x[0, 1, 2] = torch.nan
    with pytest.raises(BadInput, match=r"plan: MultiheadAttention at 'layers.0.self_attn' got a number that"):
        plan(encoder(), x)


def test_the_model_is_left_as_it_was() -> None:
    model = encoder().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    plan(model, points(2, 9, 8), repeats=1)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_table() -> None:
    found = plan(encoder(), points(2, 30, 8), error=0.2, repeats=0)
    rows = found.rows()
    assert [row["layer"] for row in rows] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert rows[0]["rank"] == str(found.layers[0].rank)
    assert (rows[0]["goes primal"], rows[0]["time"]) == ("yes", "-")
    lines = str(found).splitlines()
    assert len(lines) == 3
    assert lines[0].split()[:3] == ["layer", "points", "rank"]
    assert str(replace(found, layers=())) == ""


@pytest.mark.parametrize(("seconds", "word"), [(0.5, "yes"), (2.0, "yes, but slower here")])
def test_the_table_says_what_is_slower(seconds: float, word: str) -> None:
    found = plan(encoder(), points(2, 30, 8), error=0.2, repeats=0)
    layer = found.layers[0]
    assert layer.at_rank is not None
    costs = {
        "softmax": replace(layer.softmax, seconds=1.0),
        "at_rank": replace(layer.at_rank, seconds=seconds),
    }
    row = replace(found, layers=(replace(layer, **costs),)).rows()[0]
    assert (row["goes primal"], row["time"]) == (word, f"{1 / seconds:.2f}")


def test_the_table_has_a_dash_for_what_is_not_known() -> None:
    row = plan(encoder(), 3 * points(2, 60, 8), error=0.01, longest=0, count=3, repeats=0).rows()[0]
    assert (row["rank"], row["multiply-adds"]) == ("-", "-")
    assert row["of heads"].endswith("to -")


def test_the_record_is_plain_json_and_promises_nothing() -> None:
    found = plan(encoder(), points(2, 9, 8), repeats=1)
    made = plan_record(found)
    assert isinstance(found, Plan)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert "no promise" in made["note"]
    assert {"rank", "least_rank", "primal", "softmax", "at_rank"} <= made["layers"][0].keys()
    assert made["device"].startswith("cpu")
