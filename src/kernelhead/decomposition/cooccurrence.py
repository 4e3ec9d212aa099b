"""A kernel between two sides as sums of products: left and right factors, in groups that add up to it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelhead.decomposition.ksvd import ksvd_dense, ksvd_products
from kernelhead.decomposition.linalg import inverse_or_zero, paired_signs, tall_qr
from kernelhead.decomposition.results import KSVD
from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.kernels.cooccurrence import CooccurrenceKernel
from kernelhead.pattern import Factored
from kernelhead.rng import generator
from kernelhead.shapes import check_axes, check_size

SPLITS = ("block", "interleave")
DENSE = 1500  # points up to which all components are computed and some are kept

Kernel = CooccurrenceKernel | Tensor


@dataclass(frozen=True, eq=False)
class PairFactors:
    r"""Factors of a kernel in groups, $S \approx \sum_g L_g R_g^\top$.

    Left is $U |\Sigma|^{1/2}$ and right $V |\Sigma|^{1/2}$ of its largest components.

    Shapes: left (g, n, d), right (g, m, d), values (g, d), negative for a direction in which a symmetric
    kernel is; the sign is in `right`.
    """

    left: Tensor
    right: Tensor
    values: Tensor

    def pattern(self) -> Factored:
        """The sum over groups, as factors of n by m."""
        left, right = (side.transpose(0, 1).flatten(1) for side in (self.left, self.right))
        return Factored(left, left.new_ones(left.shape[-1]), right)

    def vectors(self, *, power: float = 0.5, both: bool = False) -> Tensor:
        r"""A vector a point, $U |\Sigma|^p$, with `both` also $V |\Sigma|^p$; (n, g d), or twice as wide."""
        sides = (self.left, self.right) if both else (self.left,)
        # Each component carries the root of its value already; one of no size stays so.
        sizes = self.values.abs()
        stretch = torch.where(sizes > 0, sizes.clamp_min(torch.finfo(sizes.dtype).tiny) ** (power - 0.5), 0)
        return torch.cat([(side * stretch[:, None]).transpose(0, 1).flatten(1) for side in sides], dim=1)

    def groups(self) -> Factored:
        """Each group by itself, (g, n, m)."""
        return Factored(self.left, self.left.new_ones(self.values.shape), self.right)


def ksvd_sparse(kernel: CooccurrenceKernel, *, rank: int | None = None, seed: int = 0) -> KSVD:
    """Kernel SVD of a sparse kernel: its largest components by Lanczos steps, or all where it is small.

    Shapes: kernel (v, v).

    Args:
        rank: components to keep; all if None.
        seed: of the first vector, which the result does not depend on beyond rounding.

    Raises:
        BadInput: the rank is not between 1 and v, or a large kernel is zero everywhere.

    Example:
        >>> kernel = CooccurrenceKernel(np.diag([3.0, 1.0, 2.0]))
        >>> ksvd_sparse(kernel, rank=2).values
        tensor([3., 2.], dtype=torch.float64)
    """
    size = kernel.vocabulary
    rank = _rank("ksvd_sparse", rank, size)
    if size <= DENSE or 2 * rank > size:
        return ksvd_dense(kernel.pattern(torch.float64).entries, rank=rank)
    from scipy.sparse.linalg import svds

    matrix = _with_entries("ksvd_sparse", kernel)
    _, values, right = svds(matrix, k=rank, v0=_start(size, seed), return_singular_vectors="vh")
    start = np.ascontiguousarray(right[np.argsort(-values)].T)
    # From there one round of subspace iteration gives both sides and the checks of the result.
    return ksvd_products(
        lambda side: torch.from_numpy(matrix @ side.numpy()),
        lambda side: torch.from_numpy(matrix.T @ side.numpy()),
        torch.from_numpy(start),
        rank=rank,
    )


def factor_pairs(
    kernel: Kernel,
    *,
    rank: int | None = None,
    groups: int = 1,
    split: str = "block",
    symmetric: bool = False,
    seed: int = 0,
) -> PairFactors:
    """Left and right factors of a kernel: exact at full rank, and of their rank the nearest there are.

    Nearest in the Frobenius and the spectral norm, by the theorem of Eckart and Young. Groups of components
    add up to the whole.

    Shapes: kernel (n, m); returns left (g, n, d), right (g, m, d), d = rank / groups.

    Args:
        rank: components to keep; all if None.
        groups: how many groups components are dealt to; must divide the rank.
        split: "block", the largest components in the first group, or "interleave", in turns.
        symmetric: for a symmetric kernel, take its eigenvectors; both sides then differ in signs only, which
            are those of the eigenvalues.
        seed: as in `ksvd_sparse`.

    Raises:
        BadInput: the rank or the groups are out of range, an entry is not finite, or `symmetric` is asked
            of a kernel that is not.
        UnknownName: no such split.

    Example:
        >>> kernel = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
        >>> factors = factor_pairs(kernel, groups=2)
        >>> torch.allclose(factors.pattern().matrix(), kernel), factors.groups().matrix()[0].round().tolist()
        (True, [[0.0, 2.0], [0.0, 0.0]])
    """
    who = "factor_pairs"
    if split not in SPLITS:
        raise unknown(who, "split", split, SPLITS)
    if isinstance(kernel, Tensor):
        check_axes(who, kernel=(kernel, "n m"))
        if not kernel.numel():
            raise BadInput(f"{who}: the kernel {tuple(kernel.shape)} has no entries")
        kernel = kernel.to(torch.promote_types(kernel.dtype, torch.float32))
    if symmetric:
        left, values = _eigen(who, kernel, rank, seed)
        right = left * torch.where(values < 0, -1.0, 1.0).to(values)
    else:
        found = (
            ksvd_dense(kernel, rank=rank)
            if isinstance(kernel, Tensor)
            else ksvd_sparse(kernel, rank=rank, seed=seed)
        )
        left, values, right = found.left, found.values, found.right
    return _grouped(who, left, values, right, groups, split)


def factor_within(
    points: Tensor, kernel: Kernel, *, rank: int, groups: int = 1, split: str = "block"
) -> PairFactors:
    r"""Weights A, B of a rank for which $(X A)(X B)^\top$ is as near to a kernel as it can be.

    With $X = Q R$ the error is that of the rank-d form of $Q^\top S Q$ and a part that no weights change, so
    that the kernel SVD of this small matrix is the answer.

    Shapes: points X (n, c), kernel (n, n); returns left and right (g, c, d), weights on features.

    Args:
        points: one a row; of full column rank, or directions without any length get no weight.
        rank: components to keep, at most c.
        groups: as in `factor_pairs`.
        split: as in `factor_pairs`.

    Raises:
        ShapeError: points and kernel are of different sizes.
        BadInput: as `factor_pairs`.
        UnknownName: no such split.

    Example:
        >>> points, kernel = torch.eye(3, 2), torch.diag(torch.tensor([1.0, 2.0, 9.0]))
        >>> weights = factor_within(points, kernel, rank=1)
        >>> (points @ weights.left[0] @ (points @ weights.right[0]).mT).diag()
        tensor([0.0000, 2.0000, 0.0000])
    """
    if split not in SPLITS:
        raise unknown("factor_within", "split", split, SPLITS)
    shape = tuple(kernel.shape if isinstance(kernel, Tensor) else kernel.matrix.shape)
    if points.dim() != 2 or shape != (len(points),) * 2:
        raise ShapeError(
            f"factor_within: `points` has shape {tuple(points.shape)} and the kernel {shape}, "
            "expected (n, c) and (n, n)"
        )
    _rank("factor_within", rank, points.shape[1])
    wide = torch.promote_types(points.dtype, torch.float32)
    if isinstance(kernel, Tensor):
        wide = torch.promote_types(wide, kernel.dtype)
    points = points.to(wide)
    basis, triangle = tall_qr(points)
    outer, stretch, inner = torch.linalg.svd(triangle, full_matrices=False)
    scale = inverse_or_zero(stretch)
    # Directions without any length are no part of the span, and would take components from it.
    some = scale > 0
    some[:1] = True
    basis, inverse = basis @ outer[:, some], inner.mT[:, some] * scale[some]
    if isinstance(kernel, Tensor):
        image = kernel.to(basis) @ basis
    else:
        image = torch.from_numpy(kernel.matrix @ basis.double().cpu().numpy()).to(points)
    found = ksvd_dense(basis.mT @ image, rank=min(rank, basis.shape[1]))
    # Fewer directions than components: the others are zero.
    left, values, right = (
        torch.nn.functional.pad(each, (0, rank - found.rank))
        for each in (inverse @ found.left, found.values, inverse @ found.right)
    )
    return _grouped("factor_within", left, values, right, groups, split)


def _grouped(who: str, left: Tensor, values: Tensor, right: Tensor, groups: int, split: str) -> PairFactors:
    """Both sides times the roots of the values, dealt to groups."""
    if len(values) % check_size(who, "groups", groups):
        raise BadInput(f"{who}: {len(values)} components do not split into {groups} groups of one size")
    root = values.abs().sqrt()
    left, right, signed = (_dealt(each, groups, split) for each in (left * root, right * root, values[None]))
    return PairFactors(left, right, signed[:, 0])


def _eigen(who: str, kernel: Kernel, rank: int | None, seed: int) -> tuple[Tensor, Tensor]:
    """Eigenvectors (n, s) and eigenvalues (s,) of a symmetric kernel, the largest in size first."""
    if isinstance(kernel, Tensor):
        check_axes(who, kernel=(kernel, "n n"))
        if not bool(kernel.isfinite().all()):
            raise BadInput(f"{who}: the kernel {tuple(kernel.shape)} holds NaN or infinity")
        gap, size, count = (kernel - kernel.mT).abs().max(), kernel.abs().max(), len(kernel)
    else:
        gap, size = abs(kernel.matrix - kernel.matrix.T).max(), abs(kernel.matrix).max()
        count = kernel.vocabulary
    if not gap <= 1e-6 * size:
        raise BadInput(
            f"{who}: symmetric is True, but an entry differs from its mirror by {float(gap):.3g} where the "
            f"largest is {float(size):.3g}"
        )
    rank = _rank(who, rank, count)
    if not isinstance(kernel, Tensor) and count > DENSE and 2 * rank <= count:
        from scipy.sparse.linalg import eigsh

        matrix = _with_entries(who, kernel)
        values, vectors = map(torch.from_numpy, eigsh(matrix, k=rank, v0=_start(count, seed)))
    else:
        values, vectors = torch.linalg.eigh(
            kernel if isinstance(kernel, Tensor) else kernel.pattern(torch.float64).entries
        )
    order = values.abs().argsort(descending=True, stable=True)[:rank]
    vectors, _ = paired_signs(vectors[:, order], vectors[:, order])
    return vectors, values[order]


def _dealt(side: Tensor, groups: int, split: str) -> Tensor:
    """(n, g d) to (g, n, d)."""
    parts = (groups, -1) if split == "block" else (-1, groups)
    dealt = side.unflatten(-1, parts)
    return dealt.transpose(0, 1) if split == "block" else dealt.permute(2, 0, 1)


def _with_entries(who: str, kernel: CooccurrenceKernel) -> Any:
    """The sparse matrix of a kernel, for iterations that would not begin without an entry."""
    if not kernel.matrix.count_nonzero():
        raise BadInput(f"{who}: the kernel of {kernel.vocabulary} words is zero everywhere")
    return kernel.matrix


def _rank(who: str, rank: int | None, most: int) -> int:
    if rank is None:
        return most
    if check_size(who, "rank", rank) > most:
        raise BadInput(f"{who}: rank is {rank}, but the kernel has at most {most} components")
    return rank


def _start(size: int, seed: int) -> Any:
    return torch.randn(size, generator=generator(seed), dtype=torch.float64).numpy()
