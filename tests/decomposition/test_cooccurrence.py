"""Factors of a kernel: exact at full rank, nearest at every other, groups that add up, signs."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.decomposition import cooccurrence, factor_pairs, factor_within, ksvd_dense, ksvd_sparse
from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.kernels import CooccurrenceKernel
from tests.inputs import points
from tests.oracles.cooccurrence import VOCABULARY, example
from tests.tolerance import assert_exact, assert_same_span


@given(st.integers(1, 7), st.integers(0, 99), st.booleans())
def test_full_rank_gives_the_kernel_of_any_text(size: int, seed: int, sparse: bool) -> None:
    kernel = points(size, size, seed=seed)
    factors = factor_pairs(CooccurrenceKernel(kernel.numpy()) if sparse else kernel)
    assert_exact(factors.pattern().matrix(), kernel)
    words = torch.arange(9) % size
    scores = factors.left[0][words] @ factors.right[0][words].mT
    assert_exact(scores, kernel[words][:, words])


@given(st.integers(2, 7), st.integers(0, 99), st.data())
def test_no_factors_of_a_rank_are_nearer(size: int, seed: int, data: st.DataObject) -> None:
    kernel, rank = points(size, size, seed=seed), data.draw(st.integers(1, size))
    error = kernel - factor_pairs(kernel, rank=rank).pattern().matrix()
    left_out = torch.linalg.svdvals(kernel)[rank:]
    assert float(error.norm()) == pytest.approx(float(left_out.norm()), abs=1e-10)
    assert float(torch.linalg.matrix_norm(error, 2)) == pytest.approx(
        float(left_out.sum() and left_out[0]), abs=1e-10
    )
    other = points(size, rank, seed=seed + 1) @ points(rank, size, seed=seed + 2)
    assert float(error.norm()) <= float((kernel - other).norm()) + 1e-12


@given(st.sampled_from([1, 2, 3, 6]), st.sampled_from(["block", "interleave"]), st.integers(0, 99))
def test_groups_add_up_to_the_kernel(groups: int, split: str, seed: int) -> None:
    kernel = points(8, 8, seed=seed)
    whole, parts = factor_pairs(kernel, rank=6), factor_pairs(kernel, rank=6, groups=groups, split=split)
    assert parts.left.shape == (groups, 8, 6 // groups)
    assert_exact(parts.groups().matrix().sum(0), whole.pattern().matrix())
    assert_exact(parts.pattern().matrix(), whole.pattern().matrix())
    assert_exact(parts.values.reshape(-1).sort().values, whole.values[0].flip(0))


def test_blocks_hold_the_largest_components_and_turns_share_them() -> None:
    kernel = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0]))
    assert factor_pairs(kernel, groups=2).values.tolist() == [[4, 3], [2, 1]]
    assert factor_pairs(kernel, groups=2, split="interleave").values.tolist() == [[4, 2], [3, 1]]


@given(st.integers(1, 7), st.integers(0, 99))
def test_a_symmetric_kernel_differs_in_signs_only(size: int, seed: int) -> None:
    kernel = points(size, size, seed=seed)
    kernel = kernel + kernel.mT
    factors = factor_pairs(kernel, symmetric=True)
    assert_exact(factors.pattern().matrix(), kernel)
    assert torch.equal(factors.right.abs(), factors.left.abs())
    assert_exact(factors.values[0].sort().values, torch.linalg.eigvalsh(kernel))
    signs = torch.where(factors.values[0] < 0, -1.0, 1.0).double()
    assert torch.equal(factors.left[0] * signs, factors.right[0])


def test_the_published_association_is_indefinite() -> None:
    kernel = torch.tensor(example(), dtype=torch.float64)
    factors = factor_pairs(kernel, symmetric=True)
    assert_exact(factors.pattern().matrix(), kernel)
    assert bool((factors.values < 0).any())
    words = torch.tensor([VOCABULARY.index(word) for word in ("river", "bank", "flooded")])
    scores = factors.left[0][words] @ factors.right[0][words].mT
    assert scores.round(decimals=9).tolist() == [[0, 4, 5], [4, 0, 3], [5, 3, 0]]


@pytest.mark.parametrize("rank", [1, 5, 12])
def test_lanczos_steps_find_what_the_dense_svd_finds(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = points(60, 60) * (torch.arange(60) + 1.0) ** -0.5 * (points(60, 60, seed=1) > 0)
    monkeypatch.setattr(cooccurrence, "DENSE", 10)
    found, wanted = ksvd_sparse(CooccurrenceKernel(kernel.numpy()), rank=rank), ksvd_dense(kernel, rank=rank)
    assert_exact(found.values, wanted.values)
    assert_same_span(found.left, wanted.left)
    assert float(found.left_residual) < 1e-9
    symmetric = kernel + kernel.mT
    factors = factor_pairs(CooccurrenceKernel(symmetric.numpy()), rank=rank, symmetric=True)
    assert_exact(factors.values, factor_pairs(symmetric, rank=rank, symmetric=True).values)
    assert torch.equal(ksvd_sparse(CooccurrenceKernel(kernel.numpy()), rank=rank).values, found.values)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 50))
def test_weights_on_points_are_the_nearest_of_their_rank(size: int, width: int, seed: int) -> None:
    width = min(size, width)
    x, kernel = points(size, width, seed=seed), points(size, size, seed=seed + 1)
    weights = factor_within(x, kernel, rank=width)
    best = x @ torch.linalg.pinv(x) @ kernel @ torch.linalg.pinv(x).mT @ x.mT
    found = x @ weights.left[0] @ (x @ weights.right[0]).mT
    assert_exact(found, best, bound=1e-7)
    sparse = factor_within(x, CooccurrenceKernel(kernel.numpy()), rank=width)
    assert_exact(x @ sparse.left[0] @ (x @ sparse.right[0]).mT, best, bound=1e-7)
    one = factor_within(x, kernel, rank=1)
    error = (kernel - x @ one.left[0] @ (x @ one.right[0]).mT).norm()
    for other in range(5):
        left, right = (x @ points(width, 1, seed=99 + 2 * other + side) for side in (0, 1))
        assert float(error) <= float((kernel - left @ right.mT).norm()) + 1e-9


def test_points_that_are_the_factors_give_the_kernel_again() -> None:
    kernel = points(9, 9)
    x = factor_pairs(kernel, rank=4).vectors(both=True)
    weights = factor_within(x, factor_pairs(kernel, rank=4).pattern().matrix(), rank=4)
    assert_exact(
        x @ weights.left[0] @ (x @ weights.right[0]).mT,
        factor_pairs(kernel, rank=4).pattern().matrix(),
        bound=1e-8,
    )


def test_fewer_points_than_features_leave_components_empty() -> None:
    x, kernel = points(3, 8), points(3, 3, seed=1)
    weights = factor_within(x, kernel, rank=8, groups=2)
    assert weights.left.shape == (2, 8, 4)
    assert_exact(
        sum(x @ left @ (x @ right).mT for left, right in zip(weights.left, weights.right, strict=True)),
        kernel,
    )


def test_a_direction_without_points_gets_no_weight() -> None:
    x = torch.cat([points(5, 2), torch.zeros(5, 1).double()], dim=1)
    weights = factor_within(x, points(5, 5, seed=1), rank=2)
    assert bool(weights.left.isfinite().all())
    assert_exact(weights.left[0, 2], torch.zeros(2).double())
    assert not factor_within(torch.zeros(3, 2), torch.eye(3), rank=2).left.any()


@given(st.integers(0, 50), st.integers(1, 4), st.booleans())
def test_features_that_say_the_same_cost_no_component(seed: int, rank: int, sparse: bool) -> None:
    x, kernel = points(9, 3, seed=seed), points(9, 9, seed=seed + 1)
    given_kernel = CooccurrenceKernel(kernel.numpy()) if sparse else kernel
    alone = factor_within(x, given_kernel, rank=min(rank, 3))
    wider = factor_within(torch.cat([x, x @ points(3, 2, seed=2)], dim=1), given_kernel, rank=rank)
    more = torch.cat([x, x @ points(3, 2, seed=2)], dim=1)
    assert_exact(
        more @ wider.left[0] @ (more @ wider.right[0]).mT,
        x @ alone.left[0] @ (x @ alone.right[0]).mT,
        bound=1e-7,
    )


def test_points_along_one_line_get_the_best_weight_there() -> None:
    x = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    for kind in (torch.float32, torch.float16):
        weights = factor_within(x.to(kind), torch.diag(torch.tensor([1.0, 100.0, 3.0])), rank=1)
        found = (x @ weights.left[0]) @ (x @ weights.right[0]).mT
        assert torch.allclose(found, torch.diag(torch.tensor([1.0, 0, 0])), atol=1e-6)


def test_a_large_kernel_without_entries_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrence, "DENSE", 2)
    nothing = CooccurrenceKernel(np.zeros((5, 5)))
    with pytest.raises(BadInput, match="ksvd_sparse: the kernel of 5 words is zero everywhere"):
        ksvd_sparse(nothing, rank=2)
    with pytest.raises(BadInput, match="factor_pairs: the kernel of 5 words is zero everywhere"):
        factor_pairs(nothing, rank=2, symmetric=True)


def test_kernels_of_whole_numbers_and_of_half_precision_have_factors() -> None:
    for kernel in (torch.tensor([[2, 0], [0, 1]]), torch.diag(torch.tensor([2.0, 1.0])).half()):
        for symmetric in (False, True):
            values = factor_pairs(kernel, symmetric=symmetric).values[0]
            assert torch.allclose(values, torch.tensor([2.0, 1.0]))


def test_vectors_are_the_components_to_a_power() -> None:
    found, factors = ksvd_dense(points(6, 6), rank=4), factor_pairs(points(6, 6), rank=4, groups=2)
    assert_exact(factors.vectors(power=1.0), found.left * found.values)
    assert_exact(factors.vectors(power=0.0), found.left)
    assert_exact(factors.vectors(both=True)[:, 4:], found.right * found.values.sqrt())
    assert bool(factor_pairs(torch.zeros(2, 2)).vectors(power=0.0).isfinite().all())


SPARSE = CooccurrenceKernel(np.triu(np.ones((3, 3))))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: factor_pairs(points(3, 3), split="half"), UnknownName, "unknown split 'half'"),
        (lambda: factor_pairs(points(3, 3), groups=2), BadInput, "3 components do not split into 2 groups"),
        (lambda: factor_pairs(points(3, 3), rank=4), BadInput, "rank is 4, but the kernel has at most 3"),
        (lambda: factor_pairs(points(3, 3) / 0, rank=2), BadInput, "holds NaN or infinity"),
        (lambda: factor_pairs(points(3, 3) / 0, symmetric=True), BadInput, "holds NaN or infinity"),
        (lambda: factor_pairs(points(3, 2), symmetric=True), ShapeError, "axis `n` is 3 in `kernel` but 2"),
        (lambda: factor_pairs(points(3, 3), symmetric=True), BadInput, "symmetric is True, but an entry"),
        (lambda: factor_pairs(SPARSE, symmetric=True), BadInput, "differs from its mirror by 1 where"),
        (lambda: factor_pairs(SPARSE.symmetric(), rank=4, symmetric=True), BadInput, "rank is 4"),
        (lambda: factor_pairs(points(2, 3, 3)), ShapeError, "factor_pairs: `kernel`"),
        (lambda: factor_pairs(points(0, 3)), BadInput, r"the kernel \(0, 3\) has no entries"),
        (lambda: ksvd_sparse(SPARSE, rank=4), BadInput, "ksvd_sparse: rank is 4, but the kernel"),
        (lambda: ksvd_sparse(SPARSE, rank=0), BadInput, "ksvd_sparse: rank is 0"),
        (lambda: factor_within(points(4, 2), SPARSE, rank=1), ShapeError, r"has shape \(4, 2\) and the"),
        (lambda: factor_within(points(3, 2), SPARSE, rank=0), BadInput, "factor_within: rank is 0"),
        (lambda: factor_within(points(3, 2), SPARSE, rank=3), BadInput, "rank is 3, but the kernel has"),
        (lambda: factor_within(points(3, 2), SPARSE, rank=1, split="half"), UnknownName, "split 'half'"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
