"""DecisionTransformer: what an action may depend on, padding, scaling, acting, the loss, and its words."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.models import DecisionTransformer, action_loss
from kernelhead.nn import PrimalAttention, SoftmaxAttention
from kernelhead.rng import seeded
from tests.inputs import keep, points
from tests.tolerance import assert_exact

SMALL: Mapping[str, Any] = {"width": 8, "heads": 2, "depth": 2, "rank": 3, "longest": 30, "dropout": 0.0}
CAUSAL = ("primal", "primal+", "softmax", "linear")
causal = pytest.mark.parametrize("attention", CAUSAL)
Steps = tuple[Tensor, Tensor, Tensor, Tensor]


def decision(attention: str = "primal+", **options: Any) -> DecisionTransformer:
    with seeded(0):
        return DecisionTransformer(4, 2, attention=attention, **{**SMALL, **options}).double()


def steps(b: int, k: int, *, first: int = 0) -> Steps:
    times = torch.arange(first, first + k).expand(b, k)
    return points(b, k), points(b, k, 4, seed=1), points(b, k, 2, seed=2), times


@causal
@pytest.mark.parametrize("landmarks", [None, 4])
@pytest.mark.parametrize("k", [1, 7])
def test_every_step_has_an_action(attention: str, landmarks: int | None, k: int) -> None:
    made = decision(attention, landmarks=landmarks)(*steps(3, k))
    assert made.shape == (3, k, 2)
    assert float(made.detach().abs().max()) < 1


@causal
def test_an_action_sees_its_return_and_observation_and_what_came_before(attention: str) -> None:
    model, place = decision(attention), 3
    before = model(*steps(2, 6))
    for which, sees in ((0, place), (1, place), (2, place + 1)):
        changed = [held.clone() for held in steps(2, 6)]
        changed[which][:, place] += 1
        after = model(*changed)
        assert torch.equal(before[:, :sees], after[:, :sees])
        assert bool((before[:, sees:] != after[:, sees:]).any(-1).all())


@causal
def test_padding_has_no_influence(attention: str) -> None:
    model, mask, given = decision(attention), keep([6, 4, 1], 6), steps(3, 6)
    made = model(*given, mask)
    dirty = [
        held.masked_fill(~(mask if held.dim() == 2 else mask[..., None]), filling)
        for held, filling in zip(given, (torch.nan, torch.nan, torch.nan, 999), strict=True)
    ]
    again = model(*dirty, mask)
    for row, length in enumerate([6, 4, 1]):
        assert torch.equal(made[row, :length], again[row, :length])
        alone = model(*(held[row : row + 1, :length] for held in given))
        assert_exact(made[row, :length], alone[0])


def test_padding_in_front_has_no_influence() -> None:
    model, given = decision(), steps(1, 6, first=2)
    made = model(*given, keep([4], 6).flip(1))
    assert_exact(made[:, 2:], model(*(held[:, 2:] for held in given)))


def test_time_steps_matter() -> None:
    model = decision()
    assert not torch.allclose(model(*steps(2, 5)), model(*steps(2, 5)[:3], steps(2, 5, first=7)[3]))


def test_actions_are_bounded_or_not() -> None:
    free, bounded = decision(bounded=False), decision()
    assert_exact(bounded(*steps(2, 5)), free(*steps(2, 5)).tanh())


def test_observations_are_standardised_and_their_scale_is_saved() -> None:
    plain, scaled = decision(), decision()
    mean, spread = points(4, seed=3), points(4, seed=4).abs() + 0.1
    scaled.standardise(mean, spread)
    returns, observations, actions, times = steps(2, 5)
    assert_exact(
        scaled(returns, observations * spread + mean, actions, times),
        plain(returns, observations, actions, times),
    )
    plain.load_state_dict(scaled.state_dict())
    assert torch.equal(plain.mean, mean)
    assert torch.equal(plain.spread, spread)


def test_acting_looks_at_the_last_steps_and_not_at_the_last_action() -> None:
    model, given = decision(context=4, dropout=0.5).train(), steps(2, 9)
    made = model.act(*given)
    assert model.training
    assert model.blocks[0].dropout.training
    assert not made.requires_grad
    short = [held[:, -4:].clone() for held in given]
    short[2][:, -1] = 5.0
    assert_exact(model.act(*short), made)
    assert_exact(made, model.eval()(*short)[:, -1].detach())
    short[1][:, 0] += 1
    assert not torch.allclose(model.act(*short), made)


def test_every_layer_has_its_attention() -> None:
    model = decision("primal+", depth=3, inner=5)
    kinds = [type(block.attention) for block in model.blocks]
    assert kinds == [SoftmaxAttention, SoftmaxAttention, PrimalAttention]
    assert all(block.attention.causal for block in model.blocks)
    assert model.blocks[2].attention.landmarks is None
    assert decision("primal", landmarks=4).blocks[0].attention.landmarks == 4
    assert model.blocks[0].feed_forward[0].out_features == 5


def test_the_loss_is_the_mean_over_real_steps() -> None:
    model, given, mask, targets = decision(), steps(3, 5), keep([5, 2, 1], 5), points(3, 5, 2, seed=9)
    made = model(*given, mask)
    wanted = (made[mask] - targets[mask]).square().mean()
    assert_exact(action_loss(model, (*given, mask), targets), wanted)
    nothing = action_loss(model, (*given, torch.zeros_like(mask)), targets)
    assert nothing.item() == 0


def test_padded_targets_reach_no_gradient() -> None:
    model, given, mask = decision(), steps(3, 5), keep([5, 2, 1], 5)
    targets = points(3, 5, 2).masked_fill(~mask[..., None], torch.nan)
    action_loss(model, (*given, mask), targets).backward()
    for name, weight in model.named_parameters():
        if not name.endswith("root"):  # the penalty alone reads the values
            assert weight.grad is not None, name
            assert bool(weight.grad.isfinite().all())


def test_a_rule_is_learned() -> None:
    model, given, mask = decision("primal"), steps(32, 5), keep([5] * 32, 5)
    targets = given[1][..., :2].tanh()
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(60):
        optimiser.zero_grad()
        loss = action_loss(model, (*given, mask), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("name", ["observations", "actions", "width", "depth", "context", "longest"])
def test_sizes_out_of_range_are_named(name: str) -> None:
    sentence = f"DecisionTransformer: {name} is 0, expected a whole number of at least 1"
    with pytest.raises(BadInput, match=sentence):
        DecisionTransformer(**{"observations": 4, "actions": 2, **SMALL, name: 0})


def test_attentions_that_do_not_fit_are_named() -> None:
    with pytest.raises(BadInput, match="NystromAttention: landmarks is 0, expected a whole number"):
        decision("nystrom")
    with pytest.raises(BadInput, match="DecisionTransformer: attention 'nystrom' has no causal form"):
        decision("nystrom", landmarks=4)
    with pytest.raises(UnknownName, match="unknown attention 'primel', did you mean 'primal'"):
        decision("primel")


def test_steps_that_do_not_fit_are_named() -> None:
    model = decision()
    returns, observations, actions, times = steps(2, 5)
    with pytest.raises(
        ShapeError, match="DecisionTransformer: axis `k` is 5 in `observations` but 4 in `actions`"
    ):
        model(returns, observations, actions[:, :4], times)
    with pytest.raises(ShapeError, match="axis `o` is 3 in `observations` but 4 in `mean`"):
        model(returns, observations[..., :3], actions, times)
    with pytest.raises(ShapeError, match="axis `a` is 1 in `actions` but 2 in `bias`"):
        model(returns, observations, actions[..., :1], times)
    with pytest.raises(BadInput, match=r"0 steps and `timesteps` in torch.int64, expected a step or more"):
        model(*steps(2, 0))
    with pytest.raises(BadInput, match=r"5 steps and `timesteps` in torch.float64, expected a step or more"):
        model(returns, observations, actions, times.double())
    with pytest.raises(ShapeError, match=r"`mask` has shape \(2, 4\), expected \(2, 5\)"):
        model(returns, observations, actions, times, keep([4, 4], 4))


def test_time_steps_and_scales_out_of_range_are_named() -> None:
    model = decision()
    sentence = "DecisionTransformer.act: time steps run from 28 to 31, but were learned from 0 to 29"
    with pytest.raises(BadInput, match=sentence):
        model.act(*steps(1, 4, first=28))
    with pytest.raises(BadInput, match=r"standardise: the smallest spread is 0.0, expected above 0"):
        model.standardise(torch.zeros(4), torch.zeros(4))
    with pytest.raises(ShapeError, match="standardise: axis `o` is 4 in `observations` but 3 in `mean`"):
        model.standardise(torch.zeros(3), torch.ones(4))
