"""Co-occurrence: counts against loops, exact in any blocks; associations and their laws; what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from kernelhead.data import BREAK, corpus
from kernelhead.errors import BadInput, UnknownName
from kernelhead.kernels import CooccurrenceKernel, association, cooccurrence, count_pairs
from tests.oracles.cooccurrence import example, mutual_information, pair_counts, restricted

SIZE = 6
sentences = st.lists(st.lists(st.integers(0, SIZE - 1), max_size=9), min_size=1, max_size=6)


def joined(lines: list[list[int]]) -> np.ndarray:
    return np.array([each for line in lines for each in (*line, BREAK)], dtype=np.int64)


def counted(lines: list[list[int]], **options: Any) -> np.ndarray:
    stream = [joined(lines), np.arange(SIZE)[:, None].repeat(2, 1).ravel(), np.full(1, BREAK)]
    stream[1][1::2] = BREAK  # every word once and alone: the vocabulary is not larger than the corpus
    return count_pairs(stream, SIZE, **options).toarray()


@given(sentences, st.integers(1, 7), st.booleans(), st.booleans())
def test_counts_are_those_of_loops(
    lines: list[list[int]], window: int, harmonic: bool, directed: bool
) -> None:
    weighting = "harmonic" if harmonic else "flat"
    found = counted(lines, window=window, weighting=weighting, directed=directed)
    wanted = pair_counts(lines, SIZE, window=window, harmonic=harmonic, directed=directed)
    assert found.tolist() == [[float(each) for each in row] for row in wanted]


@given(sentences, st.integers(1, 6), st.integers(1, 7), st.integers(1, 20))
def test_no_cut_of_the_stream_changes_a_bit(
    lines: list[list[int]], window: int, block: int, cut: int
) -> None:
    stream = joined([*lines, *([each] for each in range(SIZE))])
    whole = count_pairs([stream], SIZE, window=window).toarray()
    pieces = [stream[:cut], stream[cut:cut], stream[cut:].astype(np.int16)]
    assert np.array_equal(count_pairs(pieces, SIZE, window=window, block=block).toarray(), whole)


@given(sentences, st.integers(1, 4))
def test_the_reversed_text_has_the_transposed_counts(lines: list[list[int]], window: int) -> None:
    back = [line[::-1] for line in lines]
    assert np.array_equal(counted(back, window=window), counted(lines, window=window).T)
    both = counted(lines, window=window, directed=False)
    assert np.array_equal(both, both.T)
    assert np.allclose(both, counted(lines, window=window) + counted(back, window=window), rtol=1e-14)


def test_borders_are_those_of_the_readers() -> None:
    assert (cooccurrence.BREAK, cooccurrence.BLOCK) == (corpus.BREAK, corpus.BLOCK)


def test_a_long_harmonic_window_is_summed_in_floats() -> None:
    lines = [np.random.default_rng(0).integers(0, SIZE, 60).tolist()]
    wanted = pair_counts(lines, SIZE, window=30, harmonic=True, directed=True)
    assert np.allclose(counted(lines, window=30), np.array(wanted, dtype=float), rtol=1e-14)


def test_many_blocks_merge_to_one_matrix() -> None:
    tokens = np.random.default_rng(0).integers(0, 50, 20_000)
    whole = count_pairs([tokens], 50, window=3)
    parts = count_pairs(np.array_split(tokens, 37), 50, window=3, block=300)
    assert (whole != parts).nnz == 0
    assert whole.sum() == pytest.approx(19_999 + 19_998 / 2 + 19_997 / 3)


counts = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=3, max_size=3).filter(
    lambda rows: any(map(any, rows))
)


@given(counts, st.sampled_from([0.5, 0.75, 1.0]), st.sampled_from([0.0, 0.7]), st.booleans())
def test_mutual_information_is_that_of_loops(
    rows: list[list[int]], smoothing: float, shift: float, positive: bool
) -> None:
    transform = "ppmi" if positive else "pmi"
    found = association(np.array(rows), transform=transform, smoothing=smoothing, shift=shift).toarray()
    wanted = mutual_information(rows, shift=shift, smoothing=smoothing, positive=positive)
    assert np.allclose(found, wanted, atol=1e-12)


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=5), st.lists(st.integers(1, 9), min_size=2, max_size=5)
)
def test_independent_counts_give_zero(left: list[int], right: list[int]) -> None:
    assert np.abs(association(np.outer(left, right), transform="pmi", smoothing=1.0).toarray()).max() < 1e-12


@given(counts)
def test_swapping_words_and_contexts_transposes(rows: list[list[int]]) -> None:
    table = np.array(rows)
    for transform in ("count", "log", "pmi", "ppmi"):
        one, other = (association(each, transform=transform, smoothing=1.0) for each in (table, table.T))
        assert np.allclose(one.toarray(), other.toarray().T, atol=1e-12)


@given(counts, st.sampled_from(["log", "pmi", "ppmi"]))
def test_what_is_symmetric_stays_so_to_the_last_bit(rows: list[list[int]], transform: str) -> None:
    table = np.array(rows) / 7
    found = association(table + table.T, transform=transform, smoothing=1.0).toarray()
    assert np.array_equal(found, found.T)


def test_other_transforms_and_sparse_counts() -> None:
    table = np.array([[0.0, 3.0], [1.0, 0.0]])
    assert association(table, transform="count").toarray().tolist() == table.tolist()
    assert np.array_equal(association(sparse.coo_array(table), transform="log").toarray(), np.log1p(table))
    assert association(table).nnz == 2
    assert table[0, 1] == 3  # what is given stays as it is


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_a_restriction_is_the_selector_times_the_kernel_times_the_selector(words: list[int]) -> None:
    kernel = CooccurrenceKernel(np.array(example()))
    found = kernel.restrict(torch.tensor(words))
    assert found.tolist() == restricted(example(), words)
    assert torch.equal(
        kernel.profiles(torch.tensor(words)), torch.tensor(example(), dtype=torch.float64)[words]
    )


def test_restrictions_have_batches_and_both_sides() -> None:
    kernel = CooccurrenceKernel(np.arange(9.0).reshape(3, 3))
    words = torch.tensor([[0, 2], [1, 1]])
    assert torch.equal(kernel.restrict(words), torch.tensor([[[0.0, 2], [6, 8]], [[4, 4], [4, 4]]]).double())
    assert torch.equal(kernel.entries(words[0], torch.tensor([1])), torch.tensor([[1.0], [7.0]]).double())
    assert torch.equal(kernel.transposed().restrict(words), kernel.restrict(words).mT)
    assert torch.equal(kernel.symmetric().restrict(words), kernel.restrict(words) + kernel.restrict(words).mT)
    assert kernel.pattern().entries.dtype == torch.float32
    assert kernel.profiles(words).shape == (2, 2, 3)


TOKENS = np.array([0, 1, 0])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: count_pairs([], 1), BadInput, "count_pairs: the corpus is empty"),
        (lambda: count_pairs([np.full(3, BREAK)], 1), BadInput, "the corpus is empty"),
        (lambda: count_pairs([TOKENS], 4), BadInput, "a vocabulary of 4 words is larger than the corpus"),
        (lambda: count_pairs([TOKENS], 1), BadInput, "tokens run from 0 to 1, expected 0 to 0, or -1"),
        (lambda: count_pairs([TOKENS - 2], 2), BadInput, "tokens run from -2 to -1"),
        (lambda: count_pairs([TOKENS / 2], 2), BadInput, r"a block is float64 of shape \(3,\)"),
        (lambda: count_pairs([TOKENS[None]], 2), BadInput, r"a block is int64 of shape \(1, 3\)"),
        (lambda: count_pairs([TOKENS], 2, weighting="cubic"), UnknownName, "unknown weighting 'cubic'"),
        (lambda: count_pairs([TOKENS], 2, window=0), BadInput, "count_pairs: window is 0"),
        (lambda: count_pairs([TOKENS], 0), BadInput, "count_pairs: vocabulary is 0"),
        (lambda: count_pairs([TOKENS], 2, block=0), BadInput, "count_pairs: block is 0"),
        (lambda: association(np.eye(2), transform="cube"), UnknownName, "unknown transform 'cube'"),
        (lambda: association(np.eye(2), smoothing=0.0), BadInput, "smoothing 0.0; expected"),
        (lambda: association(np.eye(2), shift=np.inf), BadInput, "shift is inf"),
        (lambda: association(-np.eye(2)), BadInput, r"`counts` \(2, 2\) are not all finite numbers from 0"),
        (lambda: association(np.eye(2) * np.nan), BadInput, "are not all finite numbers"),
        (lambda: association(np.zeros((2, 2))), BadInput, "are all zero, so that no pair was seen"),
        (lambda: CooccurrenceKernel(np.ones((2, 3))), BadInput, r"`matrix` has shape \(2, 3\), expected"),
        (lambda: CooccurrenceKernel(np.ones((0, 0))), BadInput, "v of 1 or more"),
        (lambda: CooccurrenceKernel(np.full((2, 2), np.inf)), BadInput, "holds NaN or infinity"),
        (lambda: CooccurrenceKernel(np.eye(2)).restrict(torch.tensor([2])), BadInput, "words run from 2 to"),
        (lambda: CooccurrenceKernel(np.eye(2)).restrict(torch.ones(2)), BadInput, "words are torch.float32"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
