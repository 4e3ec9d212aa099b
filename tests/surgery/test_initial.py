"""fit_primal: it recovers what a primal core made, errors fall with the rank, its words."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput
from kernelhead.nn import PrimalCore, Sides
from kernelhead.rng import seeded
from kernelhead.surgery.initial import RIDGES, Fit, fit_primal
from tests.inputs import keep, points
from tests.tolerance import assert_exact

H, D, N = 2, 4, 9
FORMS: dict[str, dict[str, Any]] = {
    "join": {"landmarks": 5},
    "alone": {"mix": "join"},
    "pattern": {},
    "elu": {"feature_map": "elu"},
}
forms = pytest.mark.parametrize("form", FORMS)
causality = pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])


def core_of(form: str, rank: int, *, seed: int = 0) -> PrimalCore:
    with seeded(seed):
        return PrimalCore(H, D, rank=rank, **FORMS[form]).double()


def softmax(causal: bool = False, *, b: int = 12, seed: int = 0, masked: bool = True) -> Sides:
    query, key, value = (points(b, H, N, D, seed=3 * seed + side) for side in range(3))
    mask = keep([N - i % 5 for i in range(b)], N) if masked else None
    return Sides(query, key, value, mask, causal, 1.0)


def by_core(core: PrimalCore, causal: bool, monkeypatch: pytest.MonkeyPatch) -> list[Sides]:
    """Sides for which the host's output is that of a core."""

    def output(self: Sides) -> Tensor:
        return core(self.query, self.key, self.value, mask=self.mask, causal=self.causal).detach()

    monkeypatch.setattr(Sides, "output", output)
    return [softmax(causal, seed=seed) for seed in range(4)]


@forms
@causality
def test_what_a_core_made_is_recovered(form: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = by_core(core_of(form, 2, seed=1), causal, monkeypatch)
    core = core_of(form, 4)
    fit = fit_primal(core, sides, ridge=0.0)
    for errors in (fit.after, fit.held_out):
        assert bool((errors < 1e-6).all()), errors
    assert bool((fit.before > 0.1).all())


@forms
@causality
def test_more_components_than_a_map_has_do_no_harm(
    form: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides, core = by_core(core_of(form, 2, seed=1), causal, monkeypatch), core_of(form, 9)
    assert bool((fit_primal(core, sides, ridge=0.0).held_out < 1e-6).all())
    given = sides[0].query, sides[0].key, sides[0].value
    core(*given, causal=causal).square().sum().backward()
    # The surplus may still be trained: on one side of each product there is something.
    last = core.join.weight.grad[..., -1] if core.mix == "join" else core.right.grad[..., -1]
    assert bool((last != 0).any())


@forms
@causality
def test_errors_fall_with_the_rank(form: str, causal: bool) -> None:
    sides = [softmax(causal, seed=seed) for seed in range(2)]
    found = [fit_primal(core_of(form, rank), sides, ridge=0.01).after.square().mean() for rank in (1, 2, 4)]
    assert found[0] > found[1] > found[2]


@forms
@causality
def test_a_fit_is_nearer_than_a_constant_and_than_chance(form: str, causal: bool) -> None:
    sides = softmax(causal)
    fit = fit_primal(core_of(form, 3), [sides], every=0)
    real = sides.mask[:, None].expand(-1, H, -1)
    for head in range(H):
        outputs = sides.output()[:, head][real[:, head]]
        constant = (outputs - outputs.mean(0)).norm() / outputs.norm()
        assert fit.after[head] < constant
    assert bool((fit.after < fit.before).all())


@causality
def test_a_join_of_full_rank_is_least_squares(causal: bool) -> None:
    core, sides = core_of("alone", D), softmax(causal, masked=False)
    fit_primal(core, [sides], ridge=0.0, every=0)
    eye = torch.eye(D, dtype=torch.float64).expand(H, D, D)
    left, right = core.scores(sides.query, sides.key, sides.value, eye, eye, causal=causal)
    found = core(sides.query, sides.key, sides.value, causal=causal)
    for head in range(H):
        features = torch.cat([left[:, head], right[:, head], torch.ones_like(left[:, head, :, :1])], -1)
        features, outputs = features.flatten(0, 1), sides.output()[:, head].flatten(0, 1)
        expected = features @ torch.linalg.lstsq(features, outputs).solution
        assert_exact(found[:, head].flatten(0, 1), expected, bound=1e-8)


@causality
def test_a_pattern_of_full_rank_is_least_squares(causal: bool) -> None:
    core, sides = core_of("pattern", D + 1), softmax(causal)
    fit_primal(core, [sides], ridge=0.0, every=0)
    query, key, value, mask = sides.query, sides.key, sides.value, sides.mask
    left, right = core.kernel.left_features(query), core.kernel.right_features(key)
    left, right = (torch.cat([side, torch.ones_like(side[..., :1])], -1) for side in (left, right))
    real = mask[:, None]
    seen = (mask[:, None, None] & torch.ones(N, N).bool().tril() if causal else real[:, :, None]).expand(
        -1, H, N, N
    )
    weights = seen / seen.sum(-1, keepdim=True).clamp_min(1)
    for head in range(H):
        parts = [
            torch.einsum(
                "bn,bm,bnm,bmd->bnd",
                left[:, head, :, a],
                right[:, head, :, c],
                weights[:, head],
                value[:, head],
            )
            for a in range(D + 1)
            for c in range(D + 1)
        ]
        design, outputs = torch.stack(parts, -1)[mask].flatten(0, 1), sides.output()[:, head][mask].flatten()
        expected = design @ torch.linalg.lstsq(design, outputs[:, None]).solution[:, 0]
        found = core(query, key, value, mask=mask, causal=causal)[:, head][mask].flatten()
        assert_exact(found, expected, bound=1e-6)


def test_left_scores_of_a_pattern_are_orthogonal_as_singular_vectors_are() -> None:
    core, sides = core_of("pattern", 3), softmax(masked=False)
    fit_primal(core, [sides], every=0)
    left = core.kernel.left_features(sides.query) @ core.left + core.left_offset[:, None]
    left = left.transpose(0, 1).flatten(1, 2)
    grams = left.mT @ left
    apart = grams - torch.diag_embed(grams.diagonal(dim1=-2, dim2=-1))
    assert bool((apart.abs() < 1e-8 * grams.abs().amax()).all())


@forms
@causality
def test_padding_has_no_influence(form: str, causal: bool) -> None:
    found = []
    for filling in (0.0, float("nan")):
        sides = softmax(causal)
        for side in (sides.query, sides.key, sides.value):
            side.masked_fill_(~sides.mask[:, None, :, None], filling)
        core = core_of(form, 3)
        fit_primal(core, [sides])
        found.append(core.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@forms
def test_batches_in_parts_are_one_batch(form: str) -> None:
    whole, found = softmax(), []
    cut = [{"query": whole.query, "key": whole.key, "value": whole.value, "mask": whole.mask}]
    cut += [{name: each[part] for name, each in cut[0].items()} for part in (slice(0, 7), slice(7, None))]
    for parts in (cut[:1], cut[1:]):
        core = core_of(form, 3)
        fit = fit_primal(core, [Sides(**part, causal=False, scale=1.0) for part in parts])
        found.append((core(whole.query, whole.key, whole.value, mask=whole.mask), fit))
    assert_exact(found[1][0].detach(), found[0][0].detach(), bound=1e-6)
    assert_exact(found[1][1].held_out, found[0][1].held_out, bound=1e-6)
    assert found[0][1].sequences == found[1][1].sequences == 10


def test_every_nth_sequence_is_held_out() -> None:
    sides = softmax(b=12)
    fit = fit_primal(core_of("pattern", 3), [sides], every=4)
    assert fit.sequences == 9
    held = [3, 7, 11]
    left = [i for i in range(12) if i not in held]
    parts = [
        Sides(sides.query[i], sides.key[i], sides.value[i], sides.mask[i], False, 1.0) for i in (left, held)
    ]
    core = core_of("pattern", 3)
    again = fit_primal(core, parts[:1], every=0)
    assert again.held_out is None
    assert_exact(again.after, fit.after)
    made = core(parts[1].query, parts[1].key, parts[1].value, mask=parts[1].mask)
    real, wanted = parts[1].mask[:, None, :, None], parts[1].output()
    wrong, size = (each.square().sum((0, 2, 3)) for each in ((made - wanted) * real, wanted * real))
    assert_exact(fit.held_out, (wrong / size).sqrt().detach())


def test_the_ridge_is_that_of_the_least_error_on_held_out_sequences() -> None:
    sides, found = softmax(), {}
    for ridge in (*RIDGES, None):
        found[ridge] = fit_primal(core_of("join", 4), [sides], ridge=ridge)
    errors = {ridge: float(found[ridge].held_out.square().mean()) for ridge in RIDGES}
    assert found[None].ridge == min(RIDGES, key=lambda ridge: errors[ridge]) != RIDGES[0]
    assert torch.equal(found[None].held_out, found[found[None].ridge].held_out)
    assert fit_primal(core_of("join", 4), [sides], every=0).ridge == RIDGES[0]


def test_a_bias_of_the_host_is_part_of_what_is_fitted() -> None:
    plain = softmax(masked=False)
    bias = points(len(plain.query), 1, N, N, seed=7)
    shared = bias[:1]
    biased = [Sides(plain.query, plain.key, plain.value, None, False, 1.0, each) for each in (bias, shared)]
    fits = [fit_primal(core_of("pattern", 3), [sides]) for sides in (plain, *biased)]
    assert len({float(fit.after[0]) for fit in fits}) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_core_keeps_its_precision_and_its_gradients(dtype: torch.dtype) -> None:
    sides = softmax()
    low = Sides(*(side.to(dtype) for side in (sides.query, sides.key, sides.value)), sides.mask, False, 1.0)
    core = core_of("pattern", 3).to(dtype)
    before = [*core.parameters()]
    fit = fit_primal(core, [low])
    assert all(old is new and new.requires_grad for old, new in zip(before, core.parameters(), strict=True))
    assert {weight.dtype for weight in core.parameters()} == {dtype}
    assert fit.after.dtype == torch.float64


def test_steps_with_a_cache_are_fitted_too() -> None:
    query, key, value = points(12, H, 3, D), points(12, H, N, D, seed=1), points(12, H, N, D, seed=2)
    mask = keep([N] * 12, N)
    mask[::2, :2] = False
    for form in ("join", "pattern"):
        fit = fit_primal(core_of(form, 4), [Sides(query, key, value, mask, True, 1.0)])
        assert bool((fit.after < fit.before).all())


def test_a_record_has_numbers_for_people() -> None:
    fit = fit_primal(core_of("pattern", 3), [softmax()])
    kept = fit.record()
    assert sorted(kept) == ["after", "before", "held_out"]
    assert kept["after"] == pytest.approx(float(fit.after.square().mean().sqrt()))
    assert sorted(Fit(fit.before, fit.after, None, 3, 0.1).record()) == ["after", "before"]


def test_the_global_generator_stays_where_it_is() -> None:
    core, before = core_of("pattern", 3), torch.get_rng_state()
    fit_primal(core, [softmax()])
    assert torch.equal(torch.get_rng_state(), before)


def test_twice_is_the_same() -> None:
    one, other = core_of("pattern", 3), core_of("pattern", 3)
    for core in (one, other):
        fit_primal(core, [softmax()])
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_words() -> None:
    core, sides = core_of("pattern", 3), softmax()
    state = copy.deepcopy(core.state_dict())
    with pytest.raises(BadInput, match="fit_primal: there is no calibration sequence"):
        fit_primal(core, [])
    hidden = replace(sides, mask=torch.zeros(sides.query.shape[0], sides.key.shape[2], dtype=torch.bool))
    with pytest.raises(BadInput, match="fit_primal: no calibration sequence has a point that is not hidden"):
        fit_primal(core, [hidden])
    with pytest.raises(BadInput, match=r"fit_primal: ridge is -1\.0, expected a number from 0 on"):
        fit_primal(core, [sides], ridge=-1.0)
    with pytest.raises(BadInput, match="fit_primal: every is -1, expected a whole number of at least 0"):
        fit_primal(core, [sides], every=-1)
    with pytest.raises(BadInput, match=r"PrimalCore: `query` has shape .* expected \(b, 2, n, 4\)"):
        fit_primal(core, [Sides(*(points(2, 3, N, D) for _ in range(3)), None, False, 1.0)])
    sides.query[0, 0, 0, 0] = float("nan")
    with pytest.raises(BadInput, match="the calibration sequences hold NaN or infinity"):
        fit_primal(core, [sides])
    assert all(torch.equal(state[name], weight) for name, weight in core.state_dict().items())


@forms
@causality
def test_a_head_that_gives_nothing_is_fitted_too(form: str, causal: bool) -> None:
    sides = softmax(causal)
    sides.value[:, 0] = 0
    core = core_of(form, 3)
    fit = fit_primal(core, [sides])
    assert all(bool(weight.isfinite().all()) for weight in core.parameters())
    assert bool((fit.after <= fit.before).all())
    assert bool(fit.before.isfinite().all())
    assert fit.after[1] < fit.before[1]


@causality
def test_a_head_that_cannot_come_nearer_keeps_its_weights(causal: bool) -> None:
    sides = softmax(causal)
    sides.query[:, 0] = 0
    sides.key[:, 0] = 0
    core = core_of("pattern", 3)
    before = copy.deepcopy(core)
    fit = fit_primal(core, [sides])
    assert fit.held_out is not None
    assert bool((fit.after <= fit.before).all())
    for (name, weight), other in zip(core.named_parameters(), before.parameters(), strict=True):
        assert_exact(weight[0], other[0])
        assert name == "root" or not torch.equal(weight[1], other[1])
