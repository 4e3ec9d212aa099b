"""Sinkhorn's steps and scores scaled on both sides: their definition, bounds, masks, gradients, words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.ops import normalised_scores, sinkhorn, softmax_pattern, squared_distances
from tests.inputs import keep, points
from tests.oracles import transport as oracle
from tests.tolerance import assert_exact, assert_within


def least(cost: torch.Tensor) -> float:
    rows, columns = linear_sum_assignment(cost.numpy())
    return float(cost[rows, columns].mean())


def test_costs_are_squared_lengths() -> None:
    x, y = points(3, 2), points(4, 2, seed=1)
    wanted = torch.tensor([[oracle.squared(a, b) for b in y] for a in x], dtype=torch.float64)
    assert_exact(squared_distances(x, y), wanted)
    assert float(squared_distances(x, x).diagonal().abs().max()) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (4, 7)], ids=str)
def test_scaled_scores_are_the_definition(shape: tuple[int, int], steps: int, dtype: torch.dtype) -> None:
    scores = points(*shape, dtype=dtype)
    made = normalised_scores(scores, mode="sinkhorn", steps=steps)
    wanted = oracle.sinkhorn_scores(scores, steps)
    assert_within(made, eager=_plain(scores, steps), oracle=wanted)


def _plain(scores: torch.Tensor, steps: int) -> torch.Tensor:
    made = scores.softmax(-1)
    for _ in range(steps):
        made = made / made.sum(-2, keepdim=True) * (scores.shape[0] / scores.shape[1])
        made = made / made.sum(-1, keepdim=True)
    return made


def test_one_side_is_softmax_attention_and_both_sides_have_their_sums() -> None:
    query, key = points(2, 5, 3), points(2, 6, 3, seed=1)
    scores = query @ key.mT / 3**0.5
    mask = keep([6, 4], 6)
    made = normalised_scores(scores, right_mask=mask)
    assert_exact(made, softmax_pattern(query, key, mask=mask))
    both = normalised_scores(scores, mode="sinkhorn", steps=200)
    assert torch.allclose(both.sum(-1), torch.ones(2, 5).double(), rtol=1e-12)
    assert torch.allclose(both.sum(-2), torch.full((2, 6), 5 / 6, dtype=torch.float64), rtol=1e-9)


@given(n=st.integers(1, 12), m=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_coupling_has_its_sums(n: int, m: int, seed: int) -> None:
    made = sinkhorn(squared_distances(points(n, 2, seed=seed), points(m, 2)), steps=5)
    assert torch.allclose(made.coupling.sum(-1), torch.full((n,), 1 / n, dtype=torch.float64), rtol=1e-12)
    assert torch.allclose(made.coupling.sum(-2), torch.full((m,), 1 / m, dtype=torch.float64), rtol=1e-12)
    assert float(made.coupling.min()) >= 0


@given(n=st.integers(1, 20), steps=st.integers(1, 60), seed=st.integers(0, 99))
def test_the_least_cost_is_between_both_bounds(n: int, steps: int, seed: int) -> None:
    cost = squared_distances(points(n, 3, seed=seed), points(n, 3, seed=seed + 1) + 1)
    made = sinkhorn(cost, epsilon=1e-2, steps=steps)
    assert float(made.lower) <= least(cost) * (1 + 1e-12) <= float(made.upper) * (1 + 1e-9)


def test_converged_steps_come_as_near_as_the_entropy_says() -> None:
    cost = squared_distances(points(60, 2), points(60, 2, seed=1))
    for epsilon in (1e-1, 1e-2):
        made = sinkhorn(cost, epsilon=epsilon, steps=1000)
        bound = epsilon * float(cost.mean()) * torch.tensor(60.0).log().item()
        assert 0 <= float(made.upper) - least(cost) <= bound
        assert float(made.upper - made.lower) <= 1.5 * bound


def test_what_is_not_real_has_no_influence() -> None:
    cost, left, right = points(3, 5, 7).square(), keep([5, 3, 0], 5), keep([7, 4, 2], 7)
    for spoilt in (float("nan"), 1e30):
        made = cost.masked_fill(~(left[..., None] & right[:, None]), spoilt)
        found = sinkhorn(made, left_mask=left, right_mask=right)
        scaled = normalised_scores(-made, mode="sinkhorn", left_mask=left, right_mask=right)
        alone = sinkhorn(cost[1, :3, :4])
        assert_exact(found.coupling[1, :3, :4], alone.coupling)
        assert_exact(found.lower[1:2], alone.lower[None])
        assert_exact(found.upper[1:2], alone.upper[None])
        assert_exact(scaled[1, :3, :4], normalised_scores(-cost[1, :3, :4], mode="sinkhorn"))
        assert float(found.coupling[1, 3:].abs().sum() + scaled[1, :, 4:].abs().sum()) == 0
        assert float(found.coupling[2].abs().sum() + scaled[2].abs().sum()) == 0


def test_gradients() -> None:
    scores = points(2, 3, 4).requires_grad_()
    mask = keep([4, 2], 4)
    assert torch.autograd.gradcheck(
        lambda each: normalised_scores(each, mode="sinkhorn", steps=3, right_mask=mask), scores
    )
    x, y = points(3, 2).requires_grad_(), points(3, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(squared_distances, (x, y))


def test_equal_points_cost_nothing() -> None:
    made = sinkhorn(torch.zeros(3, 3))
    assert torch.allclose(made.coupling, torch.full((3, 3), 1 / 9))
    assert float(made.lower) == float(made.upper) == 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"epsilon": 0.0}, BadInput, "sinkhorn: epsilon is 0.0, expected a number above 0"),
        ({"steps": 0}, BadInput, "sinkhorn: steps is 0"),
        ({"left_mask": torch.ones(3)}, BadInput, "`left_mask` is torch.float32, expected torch.bool"),
        ({"right_mask": keep([2], 3)}, ShapeError, r"`right_mask` has shape \(1, 3\), expected \(3,\)"),
    ],
)
def test_words(options: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sinkhorn(torch.zeros(3, 3), **options)  # type: ignore[arg-type]


def test_words_of_scores() -> None:
    with pytest.raises(UnknownName, match="normalised_scores: unknown mode 'rows', did you mean 'row'"):
        normalised_scores(torch.zeros(2, 2), mode="rows")
    with pytest.raises(
        BadInput, match="normalised_scores: 0 points and 2, expected one or more on each side"
    ):
        normalised_scores(torch.zeros(0, 2))
    with pytest.raises(BadInput, match="steps is -1"):
        normalised_scores(torch.zeros(2, 2), steps=-1)
    with pytest.raises(ShapeError, match="axis `d` is 2 in `x` but 3 in `y`"):
        squared_distances(torch.zeros(2, 2), torch.zeros(2, 3))


@pytest.mark.gpu
def test_a_gpu_agrees() -> None:
    cost, left = points(2, 30, 40).square(), keep([30, 12], 30)
    here, there = sinkhorn(cost, left_mask=left), sinkhorn(cost.cuda(), left_mask=left.cuda())
    assert_exact(there.lower.cpu(), here.lower)
    assert_exact(there.coupling.cpu(), here.coupling, bound=1e-8)
