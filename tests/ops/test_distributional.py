"""Distributional attention as functions: the published example to the last digit, loops, laws, words."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.decomposition import factor_pairs
from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.ops import distributional_pattern, distributional_profiles, distributional_scores
from kernelhead.pattern import Dense
from tests.inputs import keep, points
from tests.oracles.cooccurrence import VOCABULARY, example, normalised, restricted
from tests.tolerance import assert_exact

KERNEL = Dense(torch.tensor(example(), dtype=torch.float64))
texts = st.lists(st.integers(0, 6), min_size=1, max_size=7)


def words(text: str) -> torch.Tensor:
    return torch.tensor([VOCABULARY.index(word) for word in text.split()])


def test_the_published_example() -> None:
    first = distributional_scores(KERNEL, words("river bank flooded"))
    assert first.tolist() == [[0, 4, 5], [4, 0, 3], [5, 3, 0]]
    shares = distributional_pattern(first)
    assert [[round(100 * each) for each in row] for row in shares.tolist()] == [
        [0, 44, 56],
        [57, 0, 43],
        [62, 38, 0],
    ]
    # Exactly 4/9 and so on.
    assert_exact(shares * torch.tensor([[9.0], [7.0], [8.0]]).double(), first)
    second = distributional_pattern(distributional_scores(KERNEL, words("bank loan")))
    assert second.tolist() == [[0, 1], [1, 0]]
    # Columns of M (Q S) for shore and for loan; the printed rows contradict the printed means.
    product = first @ distributional_profiles(KERNEL, words("river bank flooded"))
    assert product[:, VOCABULARY.index("shore")].tolist() == [40, 36, 45]
    assert product[:, VOCABULARY.index("loan")].tolist() == [24, 0, 18]


@given(texts, st.sampled_from(["row", "softmax", "none"]))
def test_the_pattern_is_that_of_loops(text: list[int], normalise: str) -> None:
    scores = distributional_scores(KERNEL, torch.tensor(text))
    assert scores.tolist() == restricted(example(), text)
    wanted = torch.tensor(normalised(restricted(example(), text), normalise), dtype=torch.float64)
    assert_exact(distributional_pattern(scores, normalise=normalise), wanted)


@given(texts, st.integers(0, 99))
def test_moving_words_moves_the_pattern_and_nothing_else(text: list[int], seed: int) -> None:
    ids = torch.tensor(text)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    scores, moved = (distributional_scores(KERNEL, each) for each in (ids, ids[order]))
    assert torch.equal(moved, scores[order][:, order])


@given(texts)
def test_factors_of_full_rank_are_the_kernel(text: list[int]) -> None:
    factors = factor_pairs(KERNEL.entries).pattern()
    ids = torch.tensor(text)
    assert_exact(distributional_scores(factors, ids) + 1, distributional_scores(KERNEL, ids) + 1)
    assert_exact(distributional_profiles(factors, ids), distributional_profiles(KERNEL, ids))


@pytest.mark.parametrize("normalise", ["row", "softmax", "none"])
def test_padding_and_what_comes_later_are_not_seen(normalise: str) -> None:
    scores, mask = points(2, 4, 4).abs(), keep([4, 2], 4)
    pattern = distributional_pattern(scores, normalise=normalise, mask=mask, causal=True)
    assert bool((pattern.triu(1) == 0).all())
    assert bool((pattern[1, 2:] == 0).all())
    bare = distributional_pattern(scores[1:, :2, :2], normalise=normalise, causal=True)
    assert_exact(pattern[1:, :2, :2], bare)
    if normalise != "none":
        assert_exact(pattern[0].sum(-1), torch.ones(4).double())


def test_a_row_without_any_association_stays_zero() -> None:
    assert distributional_pattern(torch.zeros(2, 2)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: distributional_scores(KERNEL, torch.ones(2)), BadInput, "`words` is torch.float32"),
        (lambda: distributional_profiles(KERNEL, torch.ones(2)), BadInput, "profiles: `words` is"),
        (lambda: distributional_pattern(points(2, 2), normalise="sum"), UnknownName, "unknown normalisation"),
        (lambda: distributional_pattern(points(2, 3)), ShapeError, "axis `n` is 2 in `scores` but 3"),
        (lambda: distributional_pattern(points(2, 2), mask=keep([1], 3)), ShapeError, "axis `n` is 2 in"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()
