"""The primal ops: the index rule, landmarks, moments, and their words."""

import pytest
import torch

from kernelhead.errors import BadInput, ShapeError
from kernelhead.kernels import Elu, Polynomial
from kernelhead.ops import (
    gather_landmarks,
    landmark_index,
    landmark_weights,
    prefix_scores,
    prefix_weights,
    primal_attention,
    primal_attention_moments,
    primal_scores,
    running_means,
    score_moments,
)
from kernelhead.ops.primal import folded_maps, prefix_growth
from tests.inputs import keep, points
from tests.oracles import primal as oracles
from tests.tolerance import assert_exact

UEA = [62, 152, 405, 29, 144, 896, 1152, 93, 315, 1751]


@pytest.mark.parametrize("length", [*UEA, 1024, 2048, 4096, 197], ids=str)
def test_the_index_rule_is_the_published_one(length: int) -> None:
    for count in {1, 2, 29, 50, 62, 93, 100, 144, 150, 197, 200, 300, 315, 400, length}:
        expected = torch.linspace(0, length - 1, count, dtype=torch.int64)
        assert torch.equal(landmark_index(count, length), expected), count


def test_the_index_rule_for_many_lengths_at_once() -> None:
    lengths = torch.arange(1, 80)
    for count in (1, 2, 7, 50):
        together = landmark_index(count, lengths)
        for length in lengths.tolist():
            assert together[length - 1].tolist() == oracles.landmark_index(length, count)


def test_landmarks_count_real_points() -> None:
    x = points(3, 6, 2)
    mask = torch.tensor([[1, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 0], [0] * 6], dtype=torch.bool)
    made = gather_landmarks(x, 3, mask=mask)
    assert torch.equal(made[0], x[0][[0, 1, 5]])
    assert torch.equal(made[1], x[1][[4, 4, 4]])
    assert made.shape == (3, 3, 2)


def test_the_cached_index_serves_training_after_inference() -> None:
    x = points(1, 17, 2).requires_grad_()
    with torch.inference_mode():
        gather_landmarks(x, 5)
    gather_landmarks(x, 5).sum().backward()
    assert float(x.grad.sum()) == 10


def test_landmark_weights() -> None:
    rows, left, right = points(2, 5, 4), points(5, 3), points(5, 3, seed=1)
    made = landmark_weights(rows, left, right)
    assert_exact(made[0], rows.mT @ left)
    assert_exact(made[1], rows.mT @ right)
    with pytest.raises(ShapeError, match="landmark_weights: axis `l` is 5 in `landmarks` but 4 in `left`"):
        landmark_weights(rows, left[:4], right)


def test_swapping_the_sides_swaps_the_scores() -> None:
    q, k, e, r = points(5, 4), points(7, 4, seed=1), points(4, 2), points(4, 2, seed=2)
    assert all(map(torch.equal, primal_scores(q, k, e, r), reversed(primal_scores(k, q, r, e))))


@pytest.mark.parametrize("width", [3, 200], ids=["by the gram matrix", "by the scores"])
def test_moments_are_means_of_squares(width: int) -> None:
    features, weight, mask = points(2, 9, width), points(width, 3, seed=1), keep([9, 4], 9)
    scores = features @ weight
    expected = torch.stack([scores[0].square().mean(0), scores[1, :4].square().mean(0)])
    assert_exact(score_moments(features, weight, mask=mask), expected)


def test_moments_in_half_precision_are_float32() -> None:
    q, w = points(6, 4, dtype=torch.bfloat16), points(4, 2, dtype=torch.bfloat16)
    join, bias = points(4, 4, dtype=torch.bfloat16), points(4, dtype=torch.bfloat16)
    output, left, right = primal_attention_moments(q, q, w, w, join, bias)
    assert (output.dtype, left.dtype, right.dtype) == (torch.bfloat16, torch.float32, torch.float32)


def test_the_output_is_scores_joined() -> None:
    q, k, e, r = points(5, 4), points(5, 4, seed=1), points(4, 2), points(4, 2, seed=2)
    join, bias = points(4, 4, seed=3), points(4, seed=4)
    for kernel in (Elu(), Polynomial()):
        width = kernel.feature_width(4)
        e, r = points(width, 2), points(width, 2, seed=2)
        scores = torch.cat(primal_scores(q, k, e, r, kernel=kernel), -1)
        assert_exact(primal_attention(q, k, e, r, join, bias, kernel=kernel), scores @ join.mT + bias)


def test_packed_points_are_the_same_points() -> None:
    both, e, r = points(2, 5, 2, 3, 4), points(3, 4, 2), points(3, 4, 2, seed=2)
    join, bias = points(4, 4, seed=3), points(4, seed=4)
    query, key = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
    assert torch.equal(
        primal_attention(both, None, e, r, join, bias), primal_attention(query, key, e, r, join, bias)
    )
    for one, other in zip(
        primal_attention_moments(both, None, e, r, join, bias),
        primal_attention_moments(query, key, e, r, join, bias),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_running_means() -> None:
    x, mask = points(2, 5, 3), torch.tensor([[1, 1, 0, 1, 1], [0, 1, 0, 0, 0]], dtype=torch.bool)
    made = running_means(x, mask=mask)
    assert_exact(made[0, 3], x[0, [0, 1, 3]].mean(0))
    assert_exact(made[1, 4], x[1, 1])
    assert bool((made[1, 0] == 0).all())


def test_prefix_weights_are_those_of_the_last_point() -> None:
    rows, left, right = points(2, 1, 7, 4), points(1, 3, 2), points(1, 3, 2, seed=1)
    query = points(2, 1, 7, 4, seed=2)
    scores, _ = prefix_scores(query, query, rows, left, right)
    weight, _ = prefix_weights(rows, left, right)
    unit = query / query.norm(dim=-1, keepdim=True)
    assert_exact(scores[..., -1:, :], unit[..., -1:, :] @ weight)


def test_folded_maps_are_scores_joined() -> None:
    left, right, join = points(2, 3, 5, 4), points(2, 3, 5, 4, seed=1), points(6, 8, seed=2)
    maps, features = folded_maps(left, right, join), points(2, 3, 7, 5, seed=3)
    halves = join.split(4, dim=-1)
    for made, weight, half in zip(maps, (left, right), halves, strict=True):
        assert_exact(features @ made, (features @ weight) @ half.mT)
    low = folded_maps(left.to(torch.bfloat16), right, join)
    assert {each.dtype for each in low} == {torch.bfloat16}


@pytest.mark.parametrize("landmarks", [1, 3, 9])
def test_growth_keeps_the_weight_of_as_many_rows_as_landmarks(landmarks: int) -> None:
    seen = torch.arange(0, 12)
    growth = prefix_growth(seen, landmarks)
    assert growth.dtype == torch.float64
    expected = [1.0 if count <= landmarks else landmarks / count for count in seen.tolist()]
    assert_exact(growth, torch.tensor(expected, dtype=torch.float64))


def test_words_of_folded_maps() -> None:
    with pytest.raises(BadInput, match="folded_maps: `join` takes 6 scores, but both sides have 8"):
        folded_maps(points(5, 4), points(5, 4), points(3, 6))
    with pytest.raises(ShapeError, match="folded_maps: axis `p` is 5 in `left` but 6 in `right`"):
        folded_maps(points(5, 4), points(6, 4), points(3, 8))


def test_words() -> None:
    q, w, join, bias = points(5, 4), points(4, 2), points(4, 4), points(4)
    with pytest.raises(
        ShapeError, match=r"axis `d` is 4 in `query` but 6 in `left` \(6, 2\), whose axes are"
    ):
        primal_scores(q, q, points(6, 2), points(6, 2))
    with pytest.raises(ShapeError, match="axis `s` is 2 in `left` but 3 in `right`"):
        primal_scores(q, q, w, points(4, 3))
    with pytest.raises(ShapeError, match="axis `n` is 5 in `query` but 6 in `key`"):
        primal_attention(q, points(6, 4), w, w, join, bias)
    with pytest.raises(BadInput, match="`join` takes 6 scores, but both sides have 4"):
        primal_attention(q, q, w, w, points(4, 6), bias)
    with pytest.raises(BadInput, match="Polynomial makes 15 features, but `left` takes 4"):
        primal_attention(q, q, w, w, join, bias, kernel=Polynomial())
    with pytest.raises(ShapeError, match="prefix_scores: axis `n` is 5 in `query` but 6 in `rows`"):
        prefix_scores(q, q, points(6, 4), w, w)
    with pytest.raises(ShapeError, match=r"`points` has shape \(5, 4\), but its axes are \(b n c\)"):
        gather_landmarks(q, 2)


def test_masks_that_do_not_fit_are_named() -> None:
    q, w, join, bias = points(5, 4), points(4, 2), points(4, 4), points(4)
    for run in (primal_attention, primal_attention_moments):
        with pytest.raises(
            BadInput, match=r"`mask` is torch[.]float64 of shape \(5,\), expected torch[.]bool with 5"
        ):
            run(q, q, w, w, join, bias, mask=points(5))
    with pytest.raises(BadInput, match=r"primal_scores: `mask` is torch[.]bool of shape \(1, 4\)"):
        primal_scores(q, q, w, w, mask=keep([4], 4))
    with pytest.raises(ShapeError, match=r"gather_landmarks: `mask` has shape \(2, 9\), expected \(2, 10\)"):
        gather_landmarks(points(2, 10, 3), 3, mask=keep([9, 9], 9))
    assert landmark_index(3, 0).tolist() == [0, 0, 0]
