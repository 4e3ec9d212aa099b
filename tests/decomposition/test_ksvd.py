"""Kernel SVD: against the oracle, its laws, its memory, its words."""

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelhead.decomposition import (
    KSVD,
    ksvd,
    ksvd_dense,
    ksvd_products,
    ksvd_softmax,
    objective,
    primal_weights,
)
from kernelhead.errors import BadInput, NotConverged, ShapeError
from kernelhead.pattern import Factored
from tests.inputs import points
from tests.oracles import ksvd as oracle
from tests.tolerance import assert_exact, assert_same_span, assert_within

SIZES = st.integers(1, 6)
SEEDS = st.integers(0, 999)
# Left points, right points, features.
SHAPES = {
    "tall": (9, 7, 3),
    "wide": (4, 5, 8),
    "more right points": (3, 8, 4),
    "square": (5, 5, 5),
    "one left point": (1, 6, 3),
    "one right point": (6, 1, 3),
    "one feature": (6, 5, 1),
    "all ones": (1, 1, 1),
}
shapes = pytest.mark.parametrize(("n", "m", "p"), SHAPES.values(), ids=SHAPES)


def sides(n: int, m: int, p: int, *batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of both sides, not of the same map."""
    return points(*batch, n, p, seed=seed), points(*batch, m, p, seed=seed + 1)


def deficient(n: int, m: int, p: int, rank: int) -> tuple[Tensor, Tensor]:
    """Features whose kernel has a lower rank than its sides and its features allow."""
    return points(n, rank) @ points(rank, p, seed=1), points(m, p, seed=2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def identity(*shape: int) -> Tensor:
    return torch.eye(shape[-1], dtype=torch.float64).expand(*shape, shape[-1])


def softmax(left: Tensor, right: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """The dense kernel that `ksvd_softmax` never makes; row i sees columns up to i where causal."""
    logits = left @ right.mT * (left.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), float("-inf"))
    return logits.softmax(-1)


def by_products(kernel: Tensor, **options: Any) -> KSVD:
    start = points(kernel.shape[1], options.pop("width"), seed=9)
    return ksvd_products(lambda v: kernel @ v, lambda v: kernel.mT @ v, start, **options)


def assert_near(actual: Tensor, expected: Tensor, size: Tensor) -> None:
    """Equal beside a size that no entry exceeds, so that zeros are not measured against themselves."""
    assert_exact(actual / size + 2, expected / size + 2)


def assert_solves(result: KSVD, kernel: Tensor) -> None:
    """The shifted eigenproblem K V = U S, K'U = V S with orthonormal sides, and what follows from it."""
    batch, rank = result.values.shape[:-1], result.rank
    assert_exact(result.left.mT @ result.left, identity(*batch, rank))
    assert_exact(result.right.mT @ result.right, identity(*batch, rank))
    size = torch.linalg.matrix_norm(kernel)[..., None, None].clamp_min(1e-300)
    assert_near(kernel @ result.right, result.left_scores, size)
    assert_near(kernel.mT @ result.left, result.right_scores, size)
    assert bool((result.values >= 0).all())
    assert bool((result.values.diff(dim=-1) <= 0).all())
    assert_exact(result.trace, result.values.sum(-1))
    assert_exact(result.trace + result.objective, result.trace)
    assert float(torch.maximum(result.left_residual, result.right_residual).max()) <= 1e-10


def assert_same(one: KSVD, other: KSVD) -> None:
    for field in fields(KSVD):
        assert torch.equal(getattr(one, field.name), getattr(other, field.name)), field.name


@shapes
def test_values_and_spans_are_the_oracles(n: int, m: int, p: int) -> None:
    left, right = sides(n, m, p)
    expected = oracle.kernel_svd(left @ right.mT)
    full = min(n, m, p)
    for rank in range(1, full + 1):
        result = ksvd(left, right, rank=rank)
        assert_exact(result.values, expected[1][:rank])
        assert_same_span(result.left, expected[0][:, :rank])
        assert_same_span(result.right, expected[2][:, :rank])
        assert_solves(result, left @ right.mT)


@shapes
def test_entries_give_the_same_as_features(n: int, m: int, p: int) -> None:
    left, right = sides(n, m, p)
    rank = min(n, m, p)
    one, other = ksvd(left, right), ksvd_dense(left @ right.mT, rank=rank)
    assert_solves(other, left @ right.mT)
    assert_exact(one.values, other.values)
    # Signs are paired, so even the vectors agree where no value is repeated.
    assert_exact(one.left, other.left)
    assert_exact(one.right, other.right)


@given(n=SIZES, m=SIZES, p=SIZES, seed=SEEDS)
def test_scores_are_features_times_primal_weights(n: int, m: int, p: int, seed: int) -> None:
    left, right = sides(n, m, p, seed=seed)
    result = ksvd(left, right)
    expected = oracle.primal_weights(left, right, result.left, result.right)
    weights = primal_weights(left, right, result.left, result.right)
    for made, definition in zip(weights, expected, strict=True):
        assert_exact(made, definition)
    assert_exact(result.left_scores, oracle.primal_scores(left, expected[0]))
    assert_exact(result.right_scores, oracle.primal_scores(right, expected[1]))
    assert_exact(result.left_scores, oracle.dual_scores(left @ right.mT, result.right))
    assert_exact(result.right_scores, oracle.dual_scores((left @ right.mT).mT, result.left))
    assert_exact(result.trace, (weights[0] * weights[1]).sum())


@given(n=SIZES, m=SIZES, p=SIZES, seed=SEEDS)
def test_the_objective_is_zero_at_the_solution(n: int, m: int, p: int, seed: int) -> None:
    left, right = sides(n, m, p, seed=seed)
    for rank in range(1, min(n, m, p) + 1):
        result = ksvd(left, right, rank=rank)
        weights = primal_weights(left, right, result.left, result.right)
        by_oracle = oracle.objective(left, right, *weights, 1 / result.values)
        for value in (float(result.objective), by_oracle):
            assert_exact(result.trace + value, result.trace)


@given(n=SIZES, m=SIZES, p=SIZES, s=SIZES, seed=SEEDS)
def test_the_objective_is_the_oracles_anywhere(n: int, m: int, p: int, s: int, seed: int) -> None:
    left, right = sides(n, m, p, seed=seed)
    left_weight, right_weight = points(p, s, seed=seed + 2), points(p, s, seed=seed + 3)
    values = points(s, seed=seed + 4).exp()
    moments = (left @ left_weight).square().sum(0), (right @ right_weight).square().sum(0)
    trace = (left_weight * right_weight).sum()
    expected = oracle.objective(left, right, left_weight, right_weight, values)
    # J is a difference; the two terms that are subtracted are the measure.
    made = objective(*moments, values, trace)
    assert_exact(made + trace.abs(), expected + trace.abs())


def test_the_objective_takes_batches_and_means() -> None:
    left, right = sides(6, 6, 3, 2)
    result = ksvd(left, right)
    weights = primal_weights(left, right, result.left, result.right)
    moments = (left @ weights[0]).square().mean(-2), (right @ weights[1]).square().mean(-2)
    made = objective(*moments, 6 / result.values, result.trace)
    assert made.shape == (2,)
    assert_exact(made + result.trace, result.trace)


def test_gradients_of_the_objective() -> None:
    inputs = [points(2, 3, seed=seed).requires_grad_() for seed in range(3)] + [points(2).requires_grad_()]
    assert torch.autograd.gradcheck(objective, inputs)


@given(n=SIZES, m=SIZES, p=SIZES, seed=SEEDS)
def test_transposing_swaps_the_sides(n: int, m: int, p: int, seed: int) -> None:
    left, right = sides(n, m, p, seed=seed)
    one, other = ksvd(left, right), ksvd(right, left)
    assert_exact(other.values, one.values)
    assert_exact(other.pattern().matrix(), one.pattern().transpose().matrix())
    dense = ksvd_dense((left @ right.mT).mT)
    assert_exact(dense.pattern().matrix(), one.pattern().transpose().matrix())


@given(n=SIZES, m=SIZES, p=SIZES, seed=SEEDS)
def test_error_falls_with_rank_to_zero(n: int, m: int, p: int, seed: int) -> None:
    left, right = sides(n, m, p, seed=seed)
    kernel, values = left @ right.mT, ksvd(left, right).values
    size, errors = torch.linalg.matrix_norm(kernel), []
    for rank in range(1, min(n, m, p) + 1):
        gap = kernel - ksvd(left, right, rank=rank).pattern().matrix()
        errors.append(torch.linalg.matrix_norm(gap))
        # The best error of a rank is the norm of the values left out.
        assert_near(errors[-1], values[rank:].norm(), size)
    assert errors == sorted(errors, reverse=True)
    assert float(errors[-1] / size) <= 1e-10


@given(batch=st.lists(st.integers(1, 3), min_size=1, max_size=2), n=SIZES, m=SIZES, p=SIZES)
def test_a_batch_is_its_slices(batch: list[int], n: int, m: int, p: int) -> None:
    left, right = sides(n, m, p, *batch)
    whole, dense = ksvd(left, right), ksvd_dense(left @ right.mT)
    assert_solves(whole, left @ right.mT)
    assert whole.left.shape == (*batch, n, min(n, m, p))
    assert whole.objective.shape == whole.trace.shape == whole.left_residual.shape == tuple(batch)
    last = tuple(size - 1 for size in batch)
    assert_exact(whole.values[last], ksvd(left[last], right[last]).values)
    assert_exact(whole.pattern().matrix()[last], ksvd(left[last], right[last]).pattern().matrix())
    assert_exact(dense.values[last], ksvd_dense((left @ right.mT)[last]).values)


def test_one_side_is_shared_by_a_batch() -> None:
    left, right = points(3, 6, 4), points(5, 4, seed=1)
    result = ksvd(left, right, rank=2)
    for made, one in zip(result.values, left, strict=True):
        assert_exact(made, ksvd(one, right, rank=2).values)


@pytest.mark.parametrize(("n", "m", "p"), [(9, 7, 4), (4, 5, 8), (6, 6, 6)], ids=str)
@pytest.mark.parametrize("rank", [1, 2], ids="rank{}".format)
def test_a_deficient_kernel_has_values_of_zero(n: int, m: int, p: int, rank: int) -> None:
    left, right = deficient(n, m, p, rank)
    kernel = left @ right.mT
    for result in (ksvd(left, right), ksvd_dense(kernel)):
        assert_solves(result, kernel)
        assert_exact(result.values, oracle.kernel_svd(kernel, result.rank)[1])
        assert float(result.values[rank:].max() / result.values[0]) <= 1e-10
        assert_exact(result.pattern().matrix(), kernel)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("n", "m", "p"), [(5, 3, 2), (3, 5, 4), (1, 1, 1)], ids=str)
def test_a_kernel_of_zeros_is_all_zeros(n: int, m: int, p: int, dtype: torch.dtype) -> None:
    for result in (
        ksvd(torch.zeros(n, p, dtype=dtype), points(m, p, dtype=dtype)),
        ksvd_dense(torch.zeros(n, m, dtype=dtype)),
    ):
        for name in ("values", "objective", "trace", "left_residual", "right_residual"):
            assert bool((getattr(result, name) == 0).all()), name
        assert bool(result.left.isfinite().all())


def test_a_symmetric_kernel_has_equal_sides() -> None:
    x = points(8, 4)
    result = ksvd(x, x)
    assert_exact(result.left, result.right)
    assert_exact(result.values, torch.linalg.eigvalsh(x.mT @ x).flip(0))


@shapes
def test_float32_loses_no_more_than_a_dense_svd_does(n: int, m: int, p: int) -> None:
    # Of twenty kernels, since the error of a single one is luck.
    left, right = (side.float() for side in sides(n, m, p, 20))
    rank = min(n, m, p)
    exact = torch.stack([oracle.kernel_svd(one, rank)[1] for one in left.double() @ right.double().mT])
    eager = torch.linalg.svd(left @ right.mT).S[:, :rank]
    result = ksvd(left, right)
    assert {getattr(result, field.name).dtype for field in fields(KSVD)} == {torch.float32}
    assert_within(result.values, eager=eager, oracle=exact)
    assert_within(ksvd_dense(left @ right.mT, rank=rank).values, eager=eager, oracle=exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_what_lapack_cannot_hold_is_widened(dtype: torch.dtype) -> None:
    left, right = ((3 * side).to(dtype) for side in sides(6, 5, 3))
    assert_same(ksvd(left, right), ksvd(left.float(), right.float()))
    assert_same(ksvd_dense(left), ksvd_dense(left.float()))
    assert_same(
        ksvd_softmax(left, right, rank=2, generator=generator()),
        ksvd_softmax(left.float(), right.float(), rank=2, generator=generator()),
    )


def test_a_result_is_frozen_and_names_its_parts() -> None:
    result = ksvd(*sides(6, 5, 4), rank=3)
    assert result.rank == 3
    pattern = result.pattern()
    assert isinstance(pattern, Factored)
    assert (pattern.left, pattern.values, pattern.right) == (result.left, result.values, result.right)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'values'"):
        result.values = points(3)  # type: ignore[misc]


@pytest.mark.parametrize("rank", [1, 3, 5], ids="rank{}".format)
@pytest.mark.parametrize(("n", "m"), [(20, 16), (16, 20), (7, 30), (30, 7)], ids=str)
def test_products_alone_give_the_top_of_the_svd(n: int, m: int, rank: int) -> None:
    left, right = sides(n, m, 7)
    kernel = left @ right.mT
    result = by_products(kernel, rank=rank, width=7)
    # Seven columns hold all of a kernel of seven features, so that nothing is left to converge.
    assert_solves(result, kernel)
    assert_exact(result.values, torch.linalg.svdvals(kernel)[:rank])


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-8], ids=str)
def test_products_stop_with_residuals_of_the_root_of_the_tolerance(tolerance: float) -> None:
    kernel = softmax(*sides(60, 50, 8))
    result = by_products(kernel, rank=4, width=8, tolerance=tolerance)
    exact = torch.linalg.svdvals(kernel)[:4]
    # A value errs by the square of what its vectors do, and never upwards.
    assert float(((exact - result.values) / exact).max()) <= tolerance
    assert float((result.values - exact).max()) <= 1e-10
    size = result.values.norm()
    left = torch.linalg.matrix_norm(kernel @ result.right - result.left_scores) / size
    right = torch.linalg.matrix_norm(kernel.mT @ result.left - result.right_scores) / size
    assert_near(result.left_residual, left, torch.ones(()))
    assert_near(result.right_residual, right, torch.ones(()))
    assert float(torch.maximum(left, right)) <= tolerance**0.5


def test_products_of_zeros_are_zeros() -> None:
    result = by_products(torch.zeros(6, 5, dtype=torch.float64), rank=2, width=3)
    assert torch.equal(result.values, torch.zeros(2, dtype=torch.float64))
    assert float(result.objective) == 0


@pytest.mark.parametrize("true_rank", [1, 2], ids="rank{}".format)
def test_products_converge_on_a_deficient_kernel(true_rank: int) -> None:
    left, right = deficient(40, 30, 6, true_rank)
    kernel = left @ right.mT
    result = by_products(kernel, rank=4, width=8)
    assert_exact(result.values, torch.linalg.svdvals(kernel)[:4])


@pytest.mark.parametrize("causal", [False, True], ids=["open", "causal"])
@pytest.mark.parametrize("block", [1, 7, 16, 1024], ids="block{}".format)
@pytest.mark.parametrize(("n", "m"), [(40, 40), (40, 25), (25, 40), (16, 16)], ids=str)
def test_softmax_is_the_dense_svd_of_softmax(n: int, m: int, block: int, causal: bool) -> None:
    left, right = sides(n, m, 6)
    kernel, tolerance = softmax(left, right, causal=causal), 1e-10
    options: dict[str, Any] = {"rank": 3, "causal": causal, "block": block, "tolerance": tolerance}
    result = ksvd_softmax(left, right, generator=generator(), **options)
    expected = ksvd_dense(kernel, rank=3)
    # Values to the tolerance that was asked for, spans to its root.
    assert_exact(result.values, expected.values, bound=tolerance)
    assert_same_span(result.left, expected.left, bound=tolerance**0.5)
    assert_same_span(result.right, expected.right, bound=tolerance**0.5)
    assert bool((result.values.diff() <= 0).all())
    assert_exact(result.trace + result.objective, result.trace, bound=tolerance)


@pytest.mark.parametrize("causal", [False, True], ids=["open", "causal"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 7), (7, 1), (8, 8), (6, 9), (9, 6)], ids=str)
def test_all_of_a_small_softmax_comes_back(n: int, m: int, causal: bool) -> None:
    left, right = sides(n, m, 3)
    kernel = softmax(left, right, causal=causal)
    # A causal kernel with more right than left points has columns of zeros, but never rows.
    result = ksvd_softmax(left, right, rank=min(n, m), generator=generator(), causal=causal, block=4)
    assert_solves(result, kernel)
    assert_exact(result.values, oracle.kernel_svd(kernel)[1])
    assert_exact(result.pattern().matrix(), kernel)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0], ids=str)
@pytest.mark.parametrize("rank", [2, 9], ids="rank{}".format)
def test_softmax_takes_its_scale_and_any_width(rank: int, scale: float) -> None:
    left, right = sides(30, 20, 5)
    options: dict[str, Any] = {"rank": rank, "scale": scale, "tolerance": 1e-10}
    result = ksvd_softmax(left, right, generator=generator(), **options)
    assert_exact(result.values, torch.linalg.svdvals(softmax(left, right, scale=scale))[:rank])


def test_softmax_of_large_points_does_not_overflow() -> None:
    left, right = (100 * side for side in sides(20, 20, 4))
    result = ksvd_softmax(left, right, rank=2, generator=generator(), tolerance=1e-10, block=8)
    assert_exact(result.values, torch.linalg.svdvals(softmax(left, right))[:2])


def test_softmax_of_equal_points_has_one_value() -> None:
    left, right = points(1, 4).repeat(40, 1), points(1, 4, seed=1).repeat(30, 1)
    result = ksvd_softmax(left, right, rank=3, generator=generator())
    expected = torch.tensor([(40 / 30) ** 0.5, 0.0, 0.0], dtype=torch.float64)
    assert_exact(result.values, expected)


@given(more=st.integers(1, 8))
def test_asking_for_more_changes_nothing_above(more: int) -> None:
    left, right = sides(30, 30, 4)
    few = ksvd_softmax(left, right, rank=2, generator=generator(), tolerance=1e-10)
    many = ksvd_softmax(left, right, rank=2 + more, generator=generator(1), tolerance=1e-10)
    assert_exact(many.values[:2], few.values)


def test_softmax_in_float32_is_as_good_as_asked_for() -> None:
    left, right = (side.float() for side in sides(80, 60, 8))
    result = ksvd_softmax(left, right, rank=4, generator=generator(), tolerance=1e-4)
    expected = torch.linalg.svdvals(softmax(left.double(), right.double()))[:4]
    assert result.values.dtype == torch.float32
    assert_exact(result.values.double(), expected, bound=1e-4)


def test_softmax_follows_its_generator_alone() -> None:
    left, right = sides(40, 30, 4)
    one, same, other = (
        ksvd_softmax(left, right, rank=2, generator=generator(seed), block=16) for seed in (0, 0, 1)
    )
    assert_same(one, same)
    assert not torch.equal(one.left, other.left)


def test_the_same_input_gives_the_same_bits() -> None:
    left, right = sides(40, 30, 4)
    assert_same(ksvd(left, right), ksvd(left, right))
    assert_same(ksvd_dense(left), ksvd_dense(left))
    assert_same(by_products(left, rank=2, width=3), by_products(left, rank=2, width=3))


def test_no_input_is_changed() -> None:
    left, right = sides(40, 30, 4)
    before = left.clone(), right.clone()
    ksvd(left, right)
    ksvd_dense(left)
    ksvd_softmax(left, right, rank=2, generator=generator(), causal=True, block=16)
    assert torch.equal(left, before[0])
    assert torch.equal(right, before[1])


@pytest.mark.parametrize(
    "factor",
    [
        lambda: ksvd(*sides(9, 8, 3)),
        lambda: ksvd_dense(points(9, 8)),
        lambda: by_products(points(9, 8), rank=2, width=8),
        lambda: ksvd_softmax(*sides(9, 8, 3), rank=2, generator=generator()),
    ],
    ids=["ksvd", "ksvd_dense", "ksvd_products", "ksvd_softmax"],
)
def test_the_global_generator_is_not_moved(factor: Callable[[], KSVD]) -> None:
    before = torch.get_rng_state()
    factor()
    assert torch.equal(torch.get_rng_state(), before)


class Largest(TorchDispatchMode):
    """The most numbers in one tensor that an operation has returned inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = (leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        self.numel = max(self.numel, *sizes, 0)
        return result


def test_a_tensor_too_many_would_be_seen() -> None:
    left, right = sides(50, 40, 3)
    with Largest() as largest:
        softmax(left, right)
    assert largest.numel == 50 * 40


def test_features_are_the_largest_thing_held() -> None:
    n, p = 200_000, 16
    left, right = sides(n, n, p)
    with Largest() as largest:
        result = ksvd(left, right, rank=3)
    assert largest.numel <= n * p
    assert float(result.left_residual) <= 1e-10


@pytest.mark.parametrize("causal", [False, True], ids=["open", "causal"])
def test_a_block_of_rows_is_the_largest_thing_held(causal: bool) -> None:
    n, block = 4096, 1024  # as many rows as a block has by default
    left, right = (side.float() for side in sides(n, n, 8))
    with Largest() as largest:
        ksvd_softmax(left, right, rank=2, generator=generator(), causal=causal, tolerance=0.1)
    assert largest.numel <= block * n


def test_nothing_is_kept_for_a_backward_pass() -> None:
    n, kept = 64, 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    left, right = (side.requires_grad_() for side in sides(n, n, 4))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ksvd_softmax(left, right, rank=2, generator=generator(), block=16)
    assert kept < n * n


def test_features_of_other_widths_are_named() -> None:
    words = (
        "ksvd: axis `p` is 3 in `left_features` but 4 in `right_features` (6, 4), whose axes are (... m p)"
    )
    with pytest.raises(ShapeError, match=re.escape(words)):
        ksvd(points(5, 3), points(6, 4))


def test_points_of_other_widths_are_named() -> None:
    words = (
        "ksvd_softmax: axis `d` is 3 in `left_points` but 4 in `right_points` (6, 4), whose axes are (m d)"
    )
    with pytest.raises(ShapeError, match=re.escape(words)):
        ksvd_softmax(points(5, 3), points(6, 4), rank=1, generator=generator())


def test_points_take_no_batch() -> None:
    words = "ksvd_softmax: `left_points` has shape (2, 5, 3), but its axes are (n d)"
    with pytest.raises(ShapeError, match=re.escape(words)):
        ksvd_softmax(points(2, 5, 3), points(6, 3), rank=1, generator=generator())


def test_a_row_is_no_kernel() -> None:
    words = "ksvd_dense: `entries` has shape (5,), but its axes are (... n m)"
    with pytest.raises(ShapeError, match=re.escape(words)):
        ksvd_dense(points(5))


RANKED: dict[str, Callable[[Any], KSVD]] = {
    "ksvd": lambda rank: ksvd(*sides(5, 6, 4), rank=rank),
    "ksvd_dense": lambda rank: ksvd_dense(points(4, 6), rank=rank),
    "ksvd_softmax": lambda rank: ksvd_softmax(*sides(4, 6, 3), rank=rank, generator=generator()),
}


@pytest.mark.parametrize("rank", [0, -1, 1.5, True], ids=str)
@pytest.mark.parametrize("who", [*RANKED, "ksvd_products"])
def test_a_rank_that_is_no_size_is_named(who: str, rank: Any) -> None:
    factor = RANKED.get(who, lambda rank: by_products(points(4, 6), rank=rank, width=4))
    with pytest.raises(BadInput, match=f"{who}: rank is {rank}, expected a whole number of at least 1"):
        factor(rank)


@pytest.mark.parametrize("who", RANKED)
def test_a_rank_above_all_components_is_named(who: str) -> None:
    with pytest.raises(BadInput, match=f"{who}: rank is 5, but the kernel has at most 4 components"):
        RANKED[who](5)


@pytest.mark.parametrize("width", [2, 7], ids="width{}".format)
def test_a_start_that_does_not_fit_is_named(width: int) -> None:
    words = f"ksvd_products: start (6, {width}) needs between 3 and 6 columns"
    with pytest.raises(BadInput, match=re.escape(words)):
        by_products(points(9, 6), rank=3, width=width)


@pytest.mark.parametrize("n", [1, 2], ids="n{}".format)
def test_a_rank_above_the_left_points_is_named(n: int) -> None:
    with pytest.raises(BadInput, match=r"ksvd_products: .*\b3\b"):
        by_products(points(n, 6), rank=3, width=5)


def test_a_count_of_rounds_that_is_no_size_is_named() -> None:
    with pytest.raises(BadInput, match="ksvd_products: most is 0, expected a whole number of at least 1"):
        by_products(points(9, 6), rank=3, width=5, most=0)


def test_a_block_that_is_no_size_is_named() -> None:
    with pytest.raises(BadInput, match="ksvd_softmax: block is 0, expected a whole number of at least 1"):
        ksvd_softmax(*sides(5, 6, 3), rank=1, generator=generator(), block=0)


@pytest.mark.parametrize("hole", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("side", [0, 1], ids=["left", "right"])
def test_what_is_not_finite_is_named(side: int, hole: float) -> None:
    both = sides(5, 6, 3)
    both[side][2, 1] = hole
    words = re.escape(f"the input {tuple(both[side].shape)} holds NaN or infinity")
    with pytest.raises(BadInput, match=f"ksvd: {words}"):
        ksvd(*both)
    with pytest.raises(BadInput, match=f"ksvd_dense: {words}"):
        ksvd_dense(both[side])
    with pytest.raises(BadInput, match=f"ksvd_softmax: {words}"):
        ksvd_softmax(*both, rank=1, generator=generator())


def test_too_few_rounds_are_said() -> None:
    words = r"ksvd_products: a value moved by \d\.\de[-+]\d\d in round 2, expected 1\.0e-06 at most"
    kernel = torch.diag(torch.linspace(1, 0.9, 50).double())
    with pytest.warns(NotConverged, match=words):
        result = by_products(kernel, rank=2, width=3, tolerance=1e-6, most=2)
    # What was reached still comes back, and says how far it is off.
    assert result.values.shape == (2,)
    assert float(result.left_residual) > 1e-3


def test_sides_that_do_not_go_together_are_named() -> None:
    with pytest.raises(
        BadInput, match=r"one batch shape and one precision, got torch.float64 \(2, 5, 3\) and"
    ):
        ksvd(points(2, 5, 3), points(3, 5, 3))
    with pytest.raises(BadInput, match="one batch shape and one precision"):
        ksvd(points(5, 3), points(5, 3, dtype=torch.float32))
    with pytest.raises(BadInput, match="ksvd: the kernel has no points or no features"):
        ksvd(points(0, 3), points(5, 3))


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(BadInput, match=r"ksvd_dense: the input \(2, 2\) is complex, expected real numbers"):
        ksvd_dense(torch.eye(2, dtype=torch.complex128))


def test_kernels_too_large_for_their_type_are_sentences() -> None:
    with pytest.raises(BadInput, match=r"values up to .* are too large to be checked in torch\.float32"):
        ksvd_dense(1e30 * torch.eye(3))
    huge = 1e200 * points(6, 4)
    with pytest.raises(
        BadInput, match=r"ksvd: no SVD of numbers up to .* in torch\.float64; scale the kernel"
    ):
        ksvd(huge, huge.flip(0))
