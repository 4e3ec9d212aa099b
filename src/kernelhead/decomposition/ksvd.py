"""Asymmetric kernel SVD: exact from features or entries, and without a matrix for softmax kernels."""

import warnings
from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernelhead.decomposition.linalg import inverse_or_zero, paired_signs, tall_qr
from kernelhead.decomposition.results import KSVD
from kernelhead.errors import BadInput, NotConverged
from kernelhead.shapes import check_axes, check_size

Product = Callable[[Tensor], Tensor]


def objective(left_moments: Tensor, right_moments: Tensor, values: Tensor, trace: Tensor) -> Tensor:
    r"""The primal objective $J = \tfrac12 \sum_s \lambda_s (m^e_s + m^r_s) - \mathrm{Tr}(W_e^\top W_r)$.

    Moments are sums over points of squared scores, or means where `values` were scaled by the
    number of points; J is zero at the kernel SVD either way. It is written here and nowhere else.

    Shapes: left_moments, right_moments (... s), values broadcastable to them, trace (...); returns (...).

    Example:
        >>> sigma = torch.tensor([3.0, 2.0])
        >>> objective(sigma**2, sigma**2, 1 / sigma, sigma.sum())
        tensor(0.)
    """
    return (values * (left_moments + right_moments)).sum(-1) / 2 - trace


def ksvd(left_features: Tensor, right_features: Tensor, *, rank: int | None = None) -> KSVD:
    """Kernel SVD of the kernel ``left_features @ right_features.mT``; no n-by-m matrix is made.

    Orthogonal factors of both sides, then the SVD of the p-by-p core: O((n + m) p^2) time and
    memory linear in n + m.

    Shapes: left_features (... n p), right_features (... m p).

    Args:
        rank: components to keep; all min(n, m, p) of them by default.

    Raises:
        BadInput: the rank is not between 1 and min(n, m, p), a feature is not finite, or the sides
            differ in batch shape or precision.

    Example:
        >>> points = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> result = ksvd(points, points.flip(-1), rank=2)
        >>> result.left.shape, bool(result.objective.abs() < 1e-3)
        (torch.Size([50, 2]), True)
    """
    axes = {"left_features": (left_features, "... n p"), "right_features": (right_features, "... m p")}
    sizes = check_axes("ksvd", **axes)
    rank = _checked_rank("ksvd", rank, min(sizes["n"], sizes["m"], sizes["p"]))
    left_features, right_features = _floating("ksvd", left_features), _floating("ksvd", right_features)
    _check_pair(left_features, right_features)
    left_basis, left_triangle = tall_qr(left_features)
    right_basis, right_triangle = tall_qr(right_features)
    inner_left, values, inner_right = _svd("ksvd", left_triangle @ right_triangle.mT)
    left, right = left_basis @ inner_left[..., :rank], right_basis @ inner_right.mT[..., :rank]
    left, right = paired_signs(left, right)
    left_weight, right_weight = primal_weights(left_features, right_features, left, right)
    return _checked(
        left, values[..., :rank], right, left_features @ left_weight, right_features @ right_weight
    )


def ksvd_dense(entries: Tensor, *, rank: int | None = None) -> KSVD:
    """Kernel SVD of a kernel given by its entries; O(n m min(n, m)).

    Shapes: entries (... n m).

    Raises:
        BadInput: the rank is not between 1 and min(n, m), or an entry is not finite.

    Example:
        >>> ksvd_dense(torch.tensor([[0.0, 2.0], [1.0, 0.0]])).values
        tensor([2., 1.])
    """
    sizes = check_axes("ksvd_dense", entries=(entries, "... n m"))
    rank = _checked_rank("ksvd_dense", rank, min(sizes["n"], sizes["m"]))
    entries = _floating("ksvd_dense", entries)
    left, values, right = _svd("ksvd_dense", entries)
    left, right = paired_signs(left[..., :rank], right.mT[..., :rank])
    return _checked(left, values[..., :rank], right, entries @ right, entries.mT @ left)


def ksvd_products(
    apply: Product,
    apply_transposed: Product,
    start: Tensor,
    *,
    rank: int,
    tolerance: float = 1e-3,
    most: int = 30,
) -> KSVD:
    """Kernel SVD of a kernel that is known by its products only, by randomised subspace iteration.

    Two products a round. It stops when no kept value moves by more than `tolerance` of itself in
    a round; the residuals of the result say how good the vectors are.

    Shapes: `apply` maps (m, w) to (n, w), `apply_transposed` maps (n, w) to (m, w); start (m, w) with
    w of at least `rank`, random; a few more columns than `rank` speed up convergence.

    Raises:
        BadInput: `start` has fewer than `rank` columns or more columns than rows, or `apply` gives fewer
            than `rank` rows.

    Warns:
        NotConverged: `most` rounds were not enough.
    """
    check_size("ksvd_products", "rank", rank)
    if not rank <= start.shape[-1] <= start.shape[-2]:
        raise BadInput(
            f"ksvd_products: start {tuple(start.shape)} needs between {rank} and {start.shape[-2]} columns"
        )
    check_size("ksvd_products", "most", most)
    right_basis = tall_qr(start)[0]
    values = start.new_zeros(rank)
    for _ in range(most):
        left_basis = tall_qr(apply(right_basis))[0]
        if left_basis.shape[-1] < rank:
            raise BadInput(f"ksvd_products: rank is {rank}, but there are {left_basis.shape[-2]} left points")
        right_basis, triangle = tall_qr(apply_transposed(left_basis))
        before, values = values, _svd("ksvd_products", triangle)[1][:rank]
        # Values that are rounding of the largest never settle, and need not.
        settled = (tolerance * values).clamp_min(100 * torch.finfo(values.dtype).eps * float(values[0]))
        if bool(((values - before).abs() <= settled).all()):
            break
    else:
        change = float((tolerance * (values - before).abs() / settled).max())
        warnings.warn(
            f"ksvd_products: a value moved by {change:.1e} in round {most}, expected {tolerance:.1e} at most",
            NotConverged,
            stacklevel=2,
        )
    # K ~ left_basis left_basis' K = left_basis triangle' right_basis'
    inner_left, values, inner_right = _svd("ksvd_products", triangle.mT)
    left, right = left_basis @ inner_left[:, :rank], right_basis @ inner_right.mT[:, :rank]
    left, right = paired_signs(left, right)
    return _checked(left, values[:rank], right, apply(right), apply_transposed(left))


def ksvd_softmax(
    left_points: Tensor,
    right_points: Tensor,
    *,
    rank: int,
    generator: torch.Generator,
    causal: bool = False,
    scale: float | None = None,
    tolerance: float = 1e-3,
    block: int = 1024,
) -> KSVD:
    r"""Top of the kernel SVD of $\mathrm{softmax}(Q K^\top/\sqrt d)$; nothing of size n times m is held.

    Products with the kernel are fused calls of scaled dot-product attention; products with its
    transpose rebuild `block` rows at a time from their log-sum-exp. Gradients do not flow through.

    Shapes: left_points (n, d), right_points (m, d).

    Args:
        rank: components to keep.
        generator: of the random start.
        causal: row i sees columns up to i.
        scale: of the inner products, one over the root of d by default.
        tolerance: largest relative change of a value in the last round.
        block: rows rebuilt at a time; memory is `block` times m.

    Raises:
        BadInput: the rank is not between 1 and min(n, m), or a point is not finite.

    Example:
        >>> points = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
        >>> top = ksvd_softmax(points, points, rank=3, generator=torch.Generator().manual_seed(1))
        >>> bool(top.values[0] >= 1)
        True
    """
    sizes = check_axes("ksvd_softmax", left_points=(left_points, "n d"), right_points=(right_points, "m d"))
    n, m = sizes["n"], sizes["m"]
    rank = _checked_rank("ksvd_softmax", rank, min(n, m))
    check_size("ksvd_softmax", "block", block)
    left_points, right_points = (
        _floating("ksvd_softmax", side).detach() for side in (left_points, right_points)
    )
    products = _SoftmaxProducts(left_points, right_points, causal, scale, block)
    width = min(rank + max(10, rank // 2), n, m)
    start = torch.randn(m, width, generator=generator, dtype=torch.float64).to(left_points)
    return ksvd_products(products.apply, products.apply_transposed, start, rank=rank, tolerance=tolerance)


def primal_weights(
    left_features: Tensor, right_features: Tensor, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """The weights of the primal problem at a solution: scores are features times weights.

    The left weight carries the right vectors and the other way round, as stationarity demands.

    Shapes: left_features (... n p), right_features (... m p), left (... n s), right (... m s);
    returns two (... p s).
    """
    return right_features.mT @ right, left_features.mT @ left


class _SoftmaxProducts:
    """Products with a row-normalised exponential kernel and its transpose, by blocks of rows."""

    def __init__(self, left: Tensor, right: Tensor, causal: bool, scale: float | None, block: int) -> None:
        self.left, self.right, self.causal, self.block = left, right, causal, block
        self.scale = 1 / sqrt(left.shape[-1]) if scale is None else scale
        starts = range(0, left.shape[0], block)
        self.normalisers = torch.cat([self._logits(start).logsumexp(-1) for start in starts])  # (n,)

    def apply(self, values: Tensor) -> Tensor:
        """(m, w) to (n, w)."""
        # Fused kernels want one width on all sides; zero columns change no inner product.
        width = max(self.left.shape[-1], values.shape[-1])
        left, right, padded = (_widened(side, width) for side in (self.left, self.right, values))
        pieces = []
        for start in range(0, left.shape[0], self.block):
            rows = left[start : start + self.block]
            seen = self._seen(start, rows.shape[0])
            mask = None if seen is None else seen[None, None]
            pieces.append(
                scaled_dot_product_attention(
                    rows[None, None], right[None, None], padded[None, None], attn_mask=mask, scale=self.scale
                )[0, 0, :, : values.shape[-1]]
            )
        return torch.cat(pieces)

    def apply_transposed(self, values: Tensor) -> Tensor:
        """(n, w) to (m, w)."""
        total = values.new_zeros(self.right.shape[0], values.shape[-1])
        for start in range(0, self.left.shape[0], self.block):
            rows = slice(start, start + self.block)
            entries = self._logits(start).sub_(self.normalisers[rows, None]).exp_()
            total.addmm_(entries.mT, values[rows])
        return total

    def _logits(self, start: int) -> Tensor:
        rows = self.left[start : start + self.block]
        logits = (rows * self.scale) @ self.right.mT
        seen = self._seen(start, rows.shape[0])
        return logits if seen is None else logits.masked_fill_(~seen, float("-inf"))

    def _seen(self, start: int, count: int) -> Tensor | None:
        if not self.causal:
            return None
        rows = torch.arange(start, start + count, device=self.left.device)
        return torch.arange(self.right.shape[0], device=self.left.device) <= rows[:, None]


def _checked(
    left: Tensor, values: Tensor, right: Tensor, left_product: Tensor, right_product: Tensor
) -> KSVD:
    """A result with its checks, from K V and K'U as they were really computed."""
    inverse = inverse_or_zero(values)
    trace = (left * left_product).sum((-2, -1))
    zero = objective(left_product.square().sum(-2), right_product.square().sum(-2), inverse, trace)
    if not bool(torch.isfinite(zero).all()):
        raise BadInput(
            f"ksvd: values up to {float(values.max()):.1e} are too large to be checked in {values.dtype}; "
            "scale the kernel"
        )
    size = torch.linalg.vector_norm(values, dim=-1).clamp_min(torch.finfo(values.dtype).tiny)
    return KSVD(
        left,
        values,
        right,
        zero,
        trace,
        torch.linalg.matrix_norm(left_product - left * values.unsqueeze(-2)) / size,
        torch.linalg.matrix_norm(right_product - right * values.unsqueeze(-2)) / size,
    )


def _svd(who: str, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    try:
        return torch.linalg.svd(matrix, full_matrices=False)
    except RuntimeError as error:  # of LAPACK
        most = float(matrix.abs().max())
        raise BadInput(
            f"{who}: no SVD of numbers up to {most:.1e} in {matrix.dtype}; scale the kernel"
        ) from error


def _checked_rank(who: str, rank: int | None, most: int) -> int:
    if most < 1:
        raise BadInput(f"{who}: the kernel has no points or no features")
    if rank is None:
        return most
    check_size(who, "rank", rank)
    if rank > most:
        raise BadInput(f"{who}: rank is {rank}, but the kernel has at most {most} components")
    return rank


def _check_pair(left: Tensor, right: Tensor) -> None:
    try:
        torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        fits = left.dtype == right.dtype
    except RuntimeError:
        fits = False
    if not fits:
        sides = [f"{side.dtype} {tuple(side.shape)}" for side in (left, right)]
        raise BadInput(
            f"ksvd: both sides need one batch shape and one precision, got {sides[0]} and {sides[1]}"
        )


def _floating(who: str, tensor: Tensor) -> Tensor:
    """LAPACK needs float32 or float64, and says nothing useful about NaN."""
    if tensor.is_complex():
        raise BadInput(f"{who}: the input {tuple(tensor.shape)} is complex, expected real numbers")
    if not bool(torch.isfinite(tensor).all()):
        raise BadInput(f"{who}: the input {tuple(tensor.shape)} holds NaN or infinity")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _widened(points: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(points, (0, width - points.shape[-1]))
