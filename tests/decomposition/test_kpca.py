"""Kernel PCA of attention: against the oracle and an explicit feature map, its laws, its words."""

import importlib
import math
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernelhead.decomposition import (
    KernelPCA,
    centred_gram,
    kpca,
    kpca_values,
    ksvd,
    ksvd_dense,
    log_norms,
)
from kernelhead.errors import BadInput, NotConverged, ShapeError, UnknownName
from tests.decomposition.test_ksvd import Largest
from tests.inputs import keep, points
from tests.oracles import kpca as oracle
from tests.tolerance import assert_exact, assert_same_span

# The function of this name hides the module.
MODULE = importlib.import_module("kernelhead.decomposition.kpca")
METHODS = pytest.mark.parametrize("method", ["exact", "lanczos"])
SEEDS = st.integers(0, 999)


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = queries @ keys.mT / math.sqrt(keys.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(-2), -math.inf)
    return scores.softmax(-1) @ values


def unit(found: KernelPCA) -> Tensor:
    """Eigenvectors of length one."""
    return found.vectors * found.eigenvalues.sqrt().unsqueeze(-2)


def padded(keys: Tensor, lengths: list[int], fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Keys (b, n, d) of which the first so many are real, and the mask."""
    mask = keep(lengths, keys.shape[1])
    return keys.masked_fill(~mask.unsqueeze(-1), fill), mask


def assert_solves(found: KernelPCA, gram: Tensor) -> None:
    """K a = a diag(eigenvalues), a'Ka = 1 and zero means."""
    size = found.eigenvalues[..., :1].unsqueeze(-1)
    vectors = unit(found)
    eye = torch.eye(found.rank, dtype=torch.float64).expand(*vectors.shape[:-2], -1, -1)
    assert_exact(vectors.mT @ vectors, eye)
    assert_exact(gram @ vectors / size + 2, vectors * found.eigenvalues.unsqueeze(-2) / size + 2)
    # In the metric of K as well, up to what small eigenvalues make of rounding.
    assert_exact(found.vectors.mT @ gram @ found.vectors, eye, bound=1e-8)
    assert bool((found.eigenvalues.diff(dim=-1) <= 0).all())
    assert float(vectors.sum(-2).abs().max()) <= 1e-10


@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 3), (7, 4), (9, 1)], ids=str)
def test_norms_and_gram_are_the_oracles(n: int, d: int) -> None:
    keys = points(n, d)
    assert_exact(log_norms(keys), torch.tensor(oracle.norms(keys, keys), dtype=torch.float64).log())
    assert_exact(centred_gram(keys) + 1, oracle.centred_gram(keys) + 1)
    if n > 1:
        assert_exact(centred_gram(keys), oracle.centred_gram(keys))


@METHODS
@pytest.mark.parametrize(("n", "d", "rank"), [(2, 3, 1), (7, 4, 3), (8, 4, 7), (9, 2, 4)], ids=str)
def test_axes_and_scores_are_the_oracles(n: int, d: int, rank: int, method: str) -> None:
    keys, queries = points(n, d), points(5, d, seed=1)
    found = kpca(keys, rank, method=method, tolerance=1e-11)
    values, vectors = oracle.kernel_pca(keys, rank)
    assert_exact(found.eigenvalues, values)
    assert_same_span(unit(found), vectors * values.sqrt())
    assert_solves(found, oracle.centred_gram(keys))
    assert_exact(found.project(queries), oracle.project(keys, found.vectors, queries))
    assert_exact(found.project(queries).abs(), oracle.project(keys, vectors, queries).abs(), bound=1e-8)
    read = found.reconstruction(queries)
    norms, scores = oracle.feature_norms(keys, queries), oracle.project(keys, vectors, queries)
    assert_exact(read.feature_norms, norms)
    assert_exact(read.projection_norms, scores.square().sum(-1))
    assert_exact(read.error, (norms - scores.square().sum(-1)).mean())


@pytest.mark.parametrize("rank", [1, 3, 5], ids="rank{}".format)
def test_an_explicit_feature_map_gives_the_same(rank: int) -> None:
    keys, queries = points(7, 2), points(4, 2, seed=1)
    values, scores, lengths, distances = oracle.explicit(keys, queries, rank, order=30)
    found = kpca(keys, rank)
    read = found.reconstruction(queries)
    assert_exact(found.eigenvalues, values)
    # Axes are free up to their signs.
    assert_exact(found.project(queries).abs(), scores.abs())
    attended = attention(queries, keys, found.attention_values())
    assert_exact(attended.abs(), scores.abs())
    assert_exact(attended @ attended.mT, scores @ scores.mT)
    assert_exact(read.feature_norms, lengths)
    assert_exact(read.feature_norms - read.projection_norms, distances)
    assert_exact(read.error, distances.mean())


@given(n=st.integers(2, 12), m=st.integers(1, 5), d=st.integers(1, 6), seed=SEEDS)
def test_attention_over_the_values_is_the_projection(n: int, m: int, d: int, seed: int) -> None:
    keys, queries = points(n, d, seed=seed), points(m, d, seed=seed + 1)
    # One coordinate leaves few eigenvalues above rounding.
    rank = min(n - 1, 2 * d)
    found = kpca(keys, rank)
    assert_exact(attention(queries, keys, found.attention_values()), found.project(queries), bound=1e-12)
    assert torch.equal(kpca_values(keys, rank), found.attention_values())


@METHODS
def test_attention_is_the_projection_for_many_points(method: str) -> None:
    keys, queries = points(2, 197, 64), points(2, 1100, 64, seed=1)
    found = kpca(keys, 16, method=method)
    assert_exact(attention(queries, keys, found.attention_values()), found.project(queries), bound=1e-12)


@given(n=st.integers(2, 10), d=st.integers(1, 5), seed=SEEDS)
def test_rows_sum_to_zero_and_the_trace_is_bounded(n: int, d: int, seed: int) -> None:
    keys = points(n, d, seed=seed)
    gram, diagonal = centred_gram(keys), keys.square().sum(-1) / math.sqrt(d)
    eigenvalues, scale = torch.linalg.eigvalsh(gram), float(gram.abs().max())
    assert float(gram.sum(-1).abs().max()) <= 1e-10 * scale
    assert float(eigenvalues.min()) >= -1e-10 * scale
    total = float(eigenvalues.sum())
    uncentred = float((diagonal - 2 * log_norms(keys)).exp().sum())
    assert total <= uncentred * (1 + 1e-12)
    assert uncentred <= float((-diagonal).exp().sum()) <= n


@given(n=st.integers(3, 10), d=st.integers(2, 5), seed=SEEDS, size=st.sampled_from([0.3, 1.0, 3.0]))
def test_no_projection_is_longer_than_its_feature(n: int, d: int, seed: int, size: float) -> None:
    keys, queries = points(n, d, seed=seed), size * points(6, d, seed=seed + 1)
    read = kpca(keys, 2).reconstruction(queries)
    assert bool((read.projection_norms <= read.feature_norms * (1 + 1e-10)).all())
    assert float(read.error) >= 0


def test_other_values_break_the_bound() -> None:
    keys, queries = points(50, 16), points(20, 16, seed=1)
    read = kpca(keys, 8).reconstruction(queries)
    other = attention(queries, keys, points(50, 8, seed=2)).square().sum(-1)
    assert bool((other > read.feature_norms).all())


@given(n=st.integers(3, 10), seed=SEEDS)
def test_error_falls_with_rank_and_all_axes_leave_the_mean(n: int, seed: int) -> None:
    keys = points(n, 6, seed=seed)
    reads = [kpca(keys, rank).reconstruction(keys) for rank in range(1, n)]
    errors = [float(read.error) for read in reads]
    assert errors == sorted(errors, reverse=True)
    # Keys lie in the mean plus the span of all axes, so that one number is left for all of them.
    rest = reads[-1].feature_norms - reads[-1].projection_norms
    assert_exact(rest, rest.mean().expand(n), bound=1e-8)


@METHODS
def test_it_is_the_kernel_svd_of_the_centred_gram(method: str) -> None:
    keys = points(30, 5)
    found, other = kpca(keys, 6, method=method, tolerance=1e-11), ksvd_dense(centred_gram(keys), rank=6)
    assert_exact(found.eigenvalues, other.values)
    assert_same_span(unit(found), other.left)
    assert_same_span(unit(found), other.right)
    # And so from features: scores of centred keys on their axes are features of this kernel.
    scores = found.vectors * found.eigenvalues.unsqueeze(-2)
    assert_exact(ksvd(scores, scores).values, found.eigenvalues)


@METHODS
def test_scores_of_keys_are_vectors_times_roots(method: str) -> None:
    keys = points(20, 4)
    found = kpca(keys, 5, method=method, tolerance=1e-11)
    scores = found.project(keys)
    centred = scores - scores.mean(-2, keepdim=True)
    assert_exact(centred, unit(found) * found.eigenvalues.sqrt())


@pytest.mark.parametrize(("n", "d", "rank"), [(12, 4, 11), (60, 3, 5), (197, 64, 64), (300, 8, 3)], ids=str)
def test_both_methods_agree(n: int, d: int, rank: int) -> None:
    keys = points(n, d)
    exact, other = kpca(keys, rank), kpca(keys, rank, method="lanczos", tolerance=1e-11)
    assert_exact(other.eigenvalues, exact.eigenvalues)
    assert_same_span(unit(other), unit(exact))
    assert_solves(other, centred_gram(keys))
    assert torch.equal(other.log_norms, exact.log_norms)


def test_restarts_keep_what_was_found() -> None:
    # A flat spectrum, and more rounds than one basis holds.
    keys = points(500, 64)
    exact, other = kpca(keys, 4), kpca(keys, 4, method="lanczos")
    assert_exact(other.eigenvalues, exact.eigenvalues)
    assert_same_span(unit(other), unit(exact), bound=1e-6)


@METHODS
def test_equal_eigenvalues_are_all_found(method: str) -> None:
    keys = torch.cat([torch.eye(6), -torch.eye(6)]).double()
    found = kpca(keys, 11, method=method)
    assert_solves(found, centred_gram(keys))
    assert_exact(found.eigenvalues, torch.linalg.eigvalsh(centred_gram(keys)).flip(0)[:11])


@METHODS
@pytest.mark.parametrize("fill", [0.0, 7.0, math.nan, math.inf], ids=str)
def test_padding_has_no_influence(method: str, fill: float) -> None:
    lengths = [9, 5, 7]
    keys, mask = padded(points(3, 9, 4), lengths, fill)
    queries = points(3, 6, 4, seed=1)
    found = kpca(keys, 3, method=method, mask=mask)
    norms, gram, values = log_norms(keys, mask=mask), centred_gram(keys, mask=mask), found.attention_values()
    scores = found.project(queries)
    assert bool(torch.cat([norms.flatten(), gram.flatten(), values.flatten()]).isfinite().all())
    for case, length in enumerate(lengths):
        real = keys[case, :length]
        alone = kpca(real, 3, method=method)
        assert_exact(norms[case, :length], log_norms(real))
        assert_exact(gram[case, :length, :length], centred_gram(real))
        assert_exact(found.eigenvalues[case], alone.eigenvalues)
        assert_exact(values[case, :length], alone.attention_values())
        assert_exact(scores[case], alone.project(queries[case]))
        assert_exact(found.reconstruction(queries).error[case], alone.reconstruction(queries[case]).error)
        for rest in (
            norms[case, length:],
            gram[case, length:],
            gram[case, :, length:],
            values[case, length:],
        ):
            assert not rest.any()
    assert_exact(attention(queries, keys.nan_to_num(0, 0, 0), values, mask), scores, bound=1e-12)


def test_padded_queries_count_nowhere() -> None:
    found = kpca(points(8, 4), 3)
    queries, mask = padded(points(2, 5, 4, seed=1), [5, 2], math.nan)
    read = found.reconstruction(queries, mask=mask)
    assert_exact(read.error[1], found.reconstruction(queries[1, :2]).error)
    assert not read.feature_norms[1, 2:].any()
    assert not read.projection_norms[1, 2:].any()


def test_where_nothing_is_real_all_is_zero() -> None:
    keys, mask = padded(points(2, 5, 3), [5, 0])
    assert not log_norms(keys, mask=mask)[1].any()
    assert not centred_gram(keys, mask=mask)[1].any()


def test_a_mask_is_shared_by_batch_axes() -> None:
    keys, mask = points(2, 3, 7, 4), keep([7, 5], 7)
    found = kpca(keys, 2, mask=mask[:, None])
    assert_exact(found.eigenvalues[1, 2], kpca(keys[1, 2, :5], 2).eigenvalues)
    assert_exact(kpca(keys, 2, mask=mask[1]).eigenvalues[0, 1], kpca(keys[0, 1, :5], 2).eigenvalues)


@METHODS
@given(batch=st.lists(st.integers(1, 3), min_size=1, max_size=2))
def test_a_batch_is_its_slices(method: str, batch: list[int]) -> None:
    keys, queries = points(*batch, 8, 4), points(*batch, 5, 4, seed=1)
    last = tuple(size - 1 for size in batch)
    whole, alone = kpca(keys, 3, method=method), kpca(keys[last], 3, method=method)
    assert whole.eigenvalues.shape == (*batch, 3)
    assert whole.vectors.shape == whole.attention_values().shape == (*batch, 8, 3)
    assert_exact(whole.eigenvalues[last], alone.eigenvalues)
    assert_exact(whole.project(queries)[last], alone.project(queries[last]))
    assert whole.reconstruction(queries).error.shape == tuple(batch)
    assert_exact(centred_gram(keys)[last], centred_gram(keys[last]))
    # Queries without batch axes go to every case.
    assert_exact(whole.project(queries[last])[last], alone.project(queries[last]))


@given(seed=SEEDS)
def test_moving_keys_moves_values(seed: int) -> None:
    keys = points(8, 4, seed=seed)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    assert_exact(kpca_values(keys[order], 3).abs(), kpca_values(keys, 3)[order].abs(), bound=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1e1, 1e2, 1e5, 1e18, 1e150], ids=str)
def test_large_keys_do_not_overflow(size: float, dtype: torch.dtype) -> None:
    keys = size * points(9, 4)
    if dtype == torch.float32:
        # As large as float32 can hold, where its own inner products are infinite.
        keys = keys.clamp(-1e38, 1e38).float()
    norms, gram = log_norms(keys), centred_gram(keys)
    assert norms.dtype == gram.dtype == torch.float64
    assert bool(norms.isfinite().all())
    assert bool((norms >= keys.double().square().sum(-1) / 2 * (1 - 1e-12)).all())
    assert bool(gram.isfinite().all())
    assert float(gram.abs().max()) <= 1


@METHODS
def test_one_large_key_leaves_the_others_alone(method: str) -> None:
    keys = points(9, 4)
    keys[4] *= 1e3
    found = kpca(keys, 2, method=method)
    queries = points(5, 4, seed=1)
    assert_exact(
        attention(queries, keys, found.attention_values()) + 1, found.project(queries) + 1, bound=1e-12
    )
    assert bool(found.vectors.isfinite().all())
    assert not found.attention_values()[4].any()


def test_large_queries_do_not_overflow() -> None:
    keys = points(9, 4)
    found = kpca(keys, 3)
    far = 1e4 * points(5, 4, seed=1)
    assert_exact(found.project(far), attention(far, keys, found.attention_values()), bound=1e-12)
    # A query opposite to all keys has a feature of any length: infinite, never NaN.
    read = kpca(1 + keys.abs(), 3).reconstruction(torch.full((1, 4), -1e3))
    assert float(read.feature_norms) == float(read.error) == math.inf
    assert bool(read.projection_norms.isfinite())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_all_is_float64(dtype: torch.dtype) -> None:
    keys, queries = (2 * points(9, 4)).to(dtype), points(5, 4, seed=1).to(dtype)
    found, wide = kpca(keys, 3), kpca(keys.double(), 3)
    for field in fields(KernelPCA):
        if field.name != "mask":
            assert torch.equal(getattr(found, field.name), getattr(wide, field.name)), field.name
    assert torch.equal(found.project(queries), wide.project(queries.double()))


def test_lanczos_follows_its_seed_alone() -> None:
    keys, state = points(300, 8), torch.get_rng_state()
    one, same, other = (kpca(keys, 3, method="lanczos", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.vectors, same.vectors)
    assert not torch.equal(one.vectors, other.vectors)
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_flow_through_the_gram_only() -> None:
    keys = points(4, 3).requires_grad_()
    mask = torch.tensor([True, True, True, False])
    assert torch.autograd.gradcheck(lambda k: log_norms(k, mask=mask), keys)
    assert torch.autograd.gradcheck(lambda k: centred_gram(k, mask=mask), keys)
    assert not kpca(keys, 2).vectors.requires_grad


def test_lanczos_holds_a_block_of_rows_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "BLOCK", 64)
    keys, queries = 2 * points(1000, 4), points(1000, 4, seed=1)
    with Largest() as largest:
        found = kpca(keys, 3, method="lanczos")
        found.reconstruction(queries)
    # A basis has at most rank + 10 * 32 columns, and one block more.
    assert largest.numel <= 1000 * (3 + 11 * 32)
    assert_exact(found.eigenvalues, kpca(keys, 3).eigenvalues)


def test_a_result_is_frozen_and_knows_its_rank() -> None:
    found = kpca(points(6, 3), 2)
    assert found.rank == 2
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'vectors'"):
        found.vectors = points(6, 2)  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'error'"):
        found.reconstruction(points(1, 3)).error = points(1)  # type: ignore[misc]


@METHODS
def test_a_rank_above_the_points_is_named(method: str) -> None:
    words = "kpca: rank is 5, but 5 points have at most 4 axes once centred"
    with pytest.raises(BadInput, match=words):
        kpca(points(5, 8), 5, method=method)
    with pytest.raises(BadInput, match=words):
        kpca(points(2, 9, 8), 5, method=method, mask=keep([9, 5], 9))
    with pytest.raises(BadInput, match="kpca: rank is 1, but 0 points have at most 0 axes once centred"):
        kpca(points(2, 9, 8), 1, method=method, mask=keep([9, 0], 9))


@METHODS
@pytest.mark.parametrize(
    ("keys", "rank", "above"),
    [
        (torch.ones(20, 4), 1, 0),
        (points(4, 3).repeat(30, 1), 4, 3),
        (400 * points(9, 4), 2, 0),
        (points(60, 1), 50, None),
    ],
    ids=["equal keys", "repeated keys", "underflow", "one coordinate"],
)
def test_a_rank_above_rounding_is_named(keys: Tensor, rank: int, above: int | None, method: str) -> None:
    count = r"\d+" if above is None else above
    words = f"kpca: rank is {rank}, but the numerical rank of the centred Gram is {count}$"
    with pytest.raises(BadInput, match=words):
        kpca(keys, rank, method=method)
    if above:
        assert kpca(keys, above, method=method).rank == above


@METHODS
def test_padding_does_not_change_the_numerical_rank(method: str) -> None:
    keys, mask = padded(points(1, 400, 1), [60])
    with pytest.raises(
        BadInput, match=r"rank is 40, but the numerical rank of the centred Gram is \d+$"
    ) as said:
        kpca(keys[0, :60], 40, method=method)
    with pytest.raises(BadInput, match=re.escape(str(said.value))):
        kpca(keys, 40, method=method, mask=mask)


@pytest.mark.parametrize("rank", [0, -1, 1.5, True], ids=str)
def test_a_rank_that_is_no_size_is_named(rank: Any) -> None:
    with pytest.raises(BadInput, match=f"kpca: rank is {rank}, expected a whole number of at least 1"):
        kpca(points(5, 3), rank)


def test_an_unknown_method_is_named() -> None:
    words = "kpca: unknown method 'lanczo', did you mean 'lanczos'\\? Known: exact, lanczos"
    with pytest.raises(UnknownName, match=words):
        kpca(points(5, 3), 1, method="lanczo")


@pytest.mark.parametrize("tolerance", [0, -1.0, math.nan], ids=str)
def test_a_tolerance_that_is_not_positive_is_named(tolerance: float) -> None:
    with pytest.raises(BadInput, match=f"kpca: tolerance is {tolerance}, expected a number above 0"):
        kpca(points(5, 3), 1, tolerance=tolerance)


KEYED: dict[str, Callable[..., Any]] = {
    "log_norms": log_norms,
    "centred_gram": centred_gram,
    "kpca": lambda keys, **options: kpca(keys, 1, **options),
}
keyed = pytest.mark.parametrize("who", KEYED)


@keyed
def test_keys_that_do_not_fit_are_named(who: str) -> None:
    with pytest.raises(
        ShapeError, match=re.escape(f"{who}: `keys` has shape (5,), but its axes are (... n d)")
    ):
        KEYED[who](points(5))
    with pytest.raises(
        BadInput, match=re.escape(f"{who}: `keys` (0, 3) has no entries, expected one or more")
    ):
        KEYED[who](points(0, 3))
    with pytest.raises(BadInput, match=re.escape(f"{who}: `keys` (2, 2) is complex, expected real numbers")):
        KEYED[who](torch.eye(2, dtype=torch.complex128))
    with pytest.raises(BadInput, match=re.escape(f"{who}: `keys` (3, 2) has inner products beyond float64")):
        KEYED[who](torch.full((3, 2), 1e200, dtype=torch.float64))


@keyed
@pytest.mark.parametrize("hole", [math.nan, math.inf], ids=str)
def test_keys_that_are_not_finite_are_named(who: str, hole: float) -> None:
    keys = points(5, 3)
    keys[2, 1] = hole
    with pytest.raises(BadInput, match=re.escape(f"{who}: `keys` (5, 3) holds NaN or infinity")):
        KEYED[who](keys)


@keyed
def test_a_mask_that_does_not_fit_is_named(who: str) -> None:
    words = f"{who}: `mask` has shape (4,), expected (2, 5), one entry for each point of (2, 5, 3)"
    with pytest.raises(ShapeError, match=re.escape(words)):
        KEYED[who](points(2, 5, 3), mask=torch.ones(4, dtype=torch.bool))
    with pytest.raises(BadInput, match=f"{who}: `mask` is torch.float32, expected torch.bool"):
        KEYED[who](points(2, 5, 3), mask=torch.ones(2, 5))


@pytest.mark.parametrize("who", ["project", "reconstruction"])
def test_queries_that_do_not_fit_are_named(who: str) -> None:
    call = getattr(kpca(points(2, 6, 3), 2), who)
    words = f"KernelPCA.{who}: axis `d` is 3 in `keys` but 4 in `queries` (5, 4), whose axes are (... m d)"
    with pytest.raises(ShapeError, match=re.escape(words)):
        call(points(5, 4))
    words = f"KernelPCA.{who}: batch axes do not broadcast: (3,) in `queries`, (2,) in `keys`"
    with pytest.raises(ShapeError, match=re.escape(words)):
        call(points(3, 5, 3))
    words = f"KernelPCA.{who}: `queries` (5, 3) holds NaN or infinity"
    with pytest.raises(BadInput, match=re.escape(words)):
        call(torch.full((5, 3), math.nan))


def test_a_mask_of_queries_that_does_not_fit_is_named() -> None:
    found = kpca(points(6, 3), 2)
    with pytest.raises(
        ShapeError, match=re.escape("KernelPCA.reconstruction: `mask` has shape (4,), expected (5,)")
    ):
        found.reconstruction(points(5, 3), mask=torch.ones(4, dtype=torch.bool))


def test_too_few_rounds_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "ROUNDS", 2)
    keys = points(400, 64)
    words = r"kpca: a residual is \d\.\de-\d\d of the largest eigenvalue after 2 rounds, expected 1\.0e-08"
    with pytest.warns(NotConverged, match=words) as said:
        found = kpca(keys, 3, method="lanczos")
    assert said[0].filename == __file__
    # What was reached still comes back, from below.
    assert bool((found.eigenvalues <= kpca(keys, 3).eigenvalues).all())
