"""Kernel PCA of the kernel inside attention, and the values with which attention projects on its axes."""

import warnings
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from kernelhead.decomposition.linalg import paired_signs, tall_qr
from kernelhead.errors import BadInput, NotConverged, ShapeError, unknown
from kernelhead.rng import generator
from kernelhead.shapes import check_axes, check_mask, check_size

METHODS = ("exact", "lanczos")
# Rows of entries that are made at a time where no n-by-n matrix may be, and most rounds of Lanczos.
BLOCK, ROUNDS = 1024, 300


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """How much of some queries lies outside the principal axes.

    An error below zero is impossible for a projection; compare both norms, since a small difference
    of two small numbers says nothing.

    Attributes:
        error: mean over queries of the squared feature norm less the squared projection norm, (...), signed.
        feature_norms: squared norms of the queries' features, (... m).
        projection_norms: squared norms of their projections, (... m).
    """

    error: Tensor
    feature_norms: Tensor
    projection_norms: Tensor


@dataclass(frozen=True, eq=False)
class KernelPCA:
    r"""Principal axes $u_s = \sum_j a_{js}\,\tilde\varphi(k_j)$ of keys, where $\varphi(x) = \phi(x) / g(x)$.

    Here $\phi(x)^\top \phi(y) = e^{x^\top y / \sqrt d}$ and $g(x) = \sum_j e^{x^\top k_j / \sqrt d}$. All
    is float64: in lower precisions exponentials of large keys are noise.

    Attributes:
        keys: (... n d), zero at padded points.
        eigenvalues: of the centred Gram matrix, largest first, (... s); n times those of the covariance.
        vectors: a, (... n s), with a' K a = 1 for the centred Gram matrix K; zero at padded points.
        log_norms: log g of the keys, (... n).
        mask: (... n), True where a key is real; all are where it is None.
    """

    keys: Tensor
    eigenvalues: Tensor
    vectors: Tensor
    log_norms: Tensor
    mask: Tensor | None = None

    @property
    def rank(self) -> int:
        """How many axes were kept."""
        return self.eigenvalues.shape[-1]

    def attention_values(self) -> Tensor:
        """Values a_j / g(k_j), (... n s), over which softmax attention of any query is its projection."""
        return self.vectors * (-self.log_norms).exp().unsqueeze(-1)

    def project(self, queries: Tensor) -> Tensor:
        r"""Scores $h_{is} = \varphi(q_i)^\top u_s$ of queries as they are, not centred; O(m n (d + s)).

        Shapes: queries (... m d); returns (... m s).

        Raises:
            ShapeError: queries are not as wide as keys, or their batch axes do not broadcast.
            BadInput: a query is not finite.
        """
        queries = self._checked("project", queries)
        pieces = []
        for rows in queries.split(BLOCK, dim=-2):
            logs = _log_sums(rows, self.keys, self.mask)
            entries = _entries(rows, logs, self.keys, self.log_norms, self.mask)  # (... m n)
            pieces.append(_centred(entries.mT, self.mask).mT @ self.vectors)
        return torch.cat(pieces, dim=-2)

    def reconstruction(self, queries: Tensor, *, mask: Tensor | None = None) -> Reconstruction:
        r"""The error $\frac1m \sum_i (|\varphi(q_i)|^2 - |h_i|^2)$ of rebuilding queries, with both norms.

        The norm $|\varphi(q)|^2 = e^{|q|^2/\sqrt d} / g(q)^2$ is one exponential of a difference; it is
        infinite where it is beyond float64, as for a query opposite to all keys.

        Shapes: queries (... m d), mask (... m), True where a query is real; padded ones count nowhere.

        Raises:
            ShapeError: queries are not as wide as keys, or the mask does not fit them.
            BadInput: a query is not finite, or the mask is not boolean.
        """
        mask = _expanded("KernelPCA.reconstruction", mask, queries)
        queries = self._checked("reconstruction", _zeroed(queries, mask))
        scores = self.project(queries)
        logs = torch.cat([_log_sums(q, self.keys, self.mask) for q in queries.split(BLOCK, dim=-2)], dim=-1)
        features = (queries.square().sum(-1) / sqrt(queries.shape[-1]) - 2 * logs).exp()
        projections = scores.square().sum(-1)
        if mask is None:
            return Reconstruction((features - projections).mean(-1), features, projections)
        features, projections = features.masked_fill(~mask, 0), projections.masked_fill(~mask, 0)
        error = (features - projections).sum(-1) / mask.sum(-1).clamp_min(1)
        return Reconstruction(error, features, projections)

    def _checked(self, who: str, queries: Tensor) -> Tensor:
        check_axes(f"KernelPCA.{who}", keys=(self.keys, "... n d"), queries=(queries, "... m d"))
        try:
            torch.broadcast_shapes(queries.shape[:-2], self.keys.shape[:-2])
        except RuntimeError:
            found = f"{tuple(queries.shape[:-2])} in `queries`, {tuple(self.keys.shape[:-2])} in `keys`"
            raise ShapeError(f"KernelPCA.{who}: batch axes do not broadcast: {found}") from None
        return _double(f"KernelPCA.{who}", "queries", queries)


def log_norms(keys: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r"""The log of $g(k_j) = \sum_{j'} e^{k_j^\top k_{j'} / \sqrt d}$; O(n^2 d) time, memory linear in n.

    Shapes: keys (... n d), mask (... n), True where real; returns (... n) in float64, zero at padded
    points, which count nowhere.

    Raises:
        ShapeError: the mask does not fit the keys.
        BadInput: the mask is not boolean, or a key is not finite or has an inner product that is not.

    Example:
        >>> log_norms(torch.zeros(4, 2)).exp().round()
        tensor([4., 4., 4., 4.], dtype=torch.float64)
    """
    return _log_norms(*_checked_keys("log_norms", keys, mask))


def centred_gram(keys: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r"""The Gram matrix of $\varphi(k_j) = \phi(k_j)/g(k_j)$ less their mean; O(n^2 d).

    An entry before centring is $e^{s_{ij} - \log g_i - \log g_j}$ with $s_{ij} = k_i^\top k_j / \sqrt d$, an
    exponent that is never positive: large keys give zeros, never infinity. Rows and columns sum to
    zero, and all eigenvalues together are at most n.

    Shapes: keys (... n d), mask (... n), True where real; returns (... n n) in float64, zero in rows and
    columns of padded points.

    Raises:
        ShapeError: the mask does not fit the keys.
        BadInput: the mask is not boolean, or a key is not finite or has an inner product that is not.

    Example:
        >>> gram = centred_gram(torch.tensor([[0.0], [1.0], [2.0]]))
        >>> bool((gram.sum(-1).abs() < 1e-15).all()), torch.equal(gram, gram.mT)
        (True, True)
    """
    keys, mask = _checked_keys("centred_gram", keys, mask)
    logs = _log_norms(keys, mask)
    return _centred_both(_entries(keys, logs, keys, logs, mask), mask)


def kpca(
    keys: Tensor,
    rank: int,
    *,
    method: str = "exact",
    mask: Tensor | None = None,
    seed: int = 0,
    tolerance: float = 1e-8,
) -> KernelPCA:
    r"""Kernel PCA of $\varphi(k_j) = \phi(k_j)/g(k_j)$, whose axes softmax attention can project on.

    A construction: it gives the values for which attention is this projection, and says nothing
    about values that a network has learned. Gradients do not flow through.

    Shapes: keys (... n d), mask (... n), True where real.

    Args:
        rank: axes to keep, at most one fewer than there are real points.
        method: `exact`, an eigendecomposition at O(n^3) that holds n-by-n matrices; or `lanczos`,
            block Lanczos with thick restarts, which makes rows of entries by blocks and holds
            O(n (d + rank)) numbers beside one block.
        seed: of the start of `lanczos`.
        tolerance: of `lanczos`: the largest residual of an eigenpair, relative to the largest eigenvalue.

    Raises:
        ShapeError: the mask does not fit the keys.
        BadInput: the rank is above the number of real points less one, or above the numerical rank;
            the mask is not boolean; or a key is not finite or has an inner product that is not.
        UnknownName: no method has that name.

    Warns:
        NotConverged: `lanczos` did not reach its tolerance.

    Example:
        >>> keys, queries = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0)).double()
        >>> found = kpca(keys, 3)
        >>> attended = (queries @ keys.mT / 2).softmax(-1) @ found.attention_values()
        >>> torch.allclose(attended, found.project(queries), rtol=1e-12)
        True
    """
    if method not in METHODS:
        raise unknown("kpca", "method", method, METHODS)
    if not tolerance > 0:
        raise BadInput(f"kpca: tolerance is {tolerance!r}, expected a number above 0")
    keys, mask = _checked_keys("kpca", keys.detach(), mask)
    rank = check_size("kpca", "rank", rank)
    points = keys.shape[-2] if mask is None else int(mask.sum(-1).min())
    if rank > points - 1:
        raise BadInput(
            f"kpca: rank is {rank}, but {points} points have at most {max(points - 1, 0)} axes once centred"
        )
    logs = _log_norms(keys, mask)
    if method == "exact":
        values, basis, rounding = _exact(keys, logs, mask, rank)
    else:
        values, basis, rounding = _lanczos(keys, logs, mask, rank, seed, tolerance)
    above = int((values > rounding.unsqueeze(-1)).sum(-1).min())
    if above < rank:
        raise BadInput(f"kpca: rank is {rank}, but the numerical rank of the centred Gram is {above}")
    vectors = _centred(basis / values.sqrt().unsqueeze(-2), mask)
    return KernelPCA(keys, values, paired_signs(vectors, vectors)[0], logs, mask)


def kpca_values(keys: Tensor, rank: int, *, mask: Tensor | None = None) -> Tensor:
    """Values over which softmax attention is the projection on the kernel-PCA axes of its keys.

    Shapes: keys (... n d), mask (... n), True where real; returns (... n s) in float64, zero at padded
    points.

    Raises:
        ShapeError: the mask does not fit the keys.
        BadInput: as for `kpca`.

    Example:
        >>> kpca_values(torch.eye(4), 2).shape
        torch.Size([4, 2])
    """
    return kpca(keys, rank, mask=mask).attention_values()


def _exact(keys: Tensor, logs: Tensor, mask: Tensor | None, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues (... s), orthonormal vectors (... n s) and what is rounding of the values (...)."""
    entries = _entries(keys, logs, keys, logs, mask)
    count = keys.shape[-2] if mask is None else mask.sum(-1)
    rounding = _rounding(_zeroed(entries, mask).sum(-1), logs, count)
    values, vectors = torch.linalg.eigh(_centred_both(entries, mask))
    return values[..., -rank:].flip(-1), vectors[..., -rank:].flip(-1), rounding


def _lanczos(
    keys: Tensor, logs: Tensor, mask: Tensor | None, rank: int, seed: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `_exact`, one Gram matrix after the other, each of its real points only."""
    batch, n = keys.shape[:-2], keys.shape[-2]
    vectors = keys.new_zeros(batch.numel(), n, rank)
    values, roundings = keys.new_zeros(batch.numel(), rank), keys.new_zeros(batch.numel())
    real = torch.ones_like(logs, dtype=torch.bool) if mask is None else mask
    for case, kept in enumerate(real.reshape(-1, n)):
        gram = _Gram(keys.reshape(-1, *keys.shape[-2:])[case, kept], logs.reshape(-1, n)[case, kept])
        roundings[case] = gram.rounding
        start = torch.randn(int(kept.sum()), 32, generator=generator(seed, case), dtype=torch.float64)
        values[case], vectors[case, kept] = _top(gram, start.to(keys), rank, tolerance)
    return values.view(*batch, rank), vectors.view(*batch, n, rank), roundings.view(batch)


def _top(gram: "_Gram", start: Tensor, rank: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """The largest eigenpairs by block Lanczos, orthogonalised in full and restarted from Ritz vectors."""
    room = start.shape[0] - 1  # centred vectors
    width = min(start.shape[1], room)
    longest = max(3 * rank, rank + 10 * width)
    basis = tall_qr(_centred(start[:, :width], None))[0]
    image = gram.apply(basis)
    for _ in range(ROUNDS):
        small = basis.mT @ image
        values, turn = torch.linalg.eigh((small + small.mT) / 2)
        values, turn = values.flip(0), turn.flip(1)
        top, vectors = values[:rank], basis @ turn[:, :rank]
        residual = torch.linalg.vector_norm(image @ turn[:, :rank] - vectors * top, dim=0).max()
        enough = basis.shape[1] == room or bool(residual <= (tolerance * top[0]).clamp_min(gram.rounding))
        if basis.shape[1] >= rank and enough:
            break
        fresh = image[:, -width:][:, : room - basis.shape[1]]
        # Twice is enough: what the first pass leaves is rounding of the block.
        for _ in range(2):
            fresh = tall_qr(_centred(fresh - basis @ (basis.mT @ fresh), None))[0]
        if basis.shape[1] + width > longest:
            kept = turn[:, : rank + width]
            basis, image = basis @ kept, image @ kept
        basis, image = torch.cat([basis, fresh], dim=1), torch.cat([image, gram.apply(fresh)], dim=1)
    else:
        warnings.warn(
            f"kpca: a residual is {float(residual / top[0]):.1e} of the largest eigenvalue after {ROUNDS} "
            f"rounds, expected {tolerance:.1e} at most",
            NotConverged,
            stacklevel=4,
        )
    return top, vectors


class _Gram:
    """Products with one centred Gram matrix (n n) that is never held, by blocks of rows."""

    def __init__(self, keys: Tensor, logs: Tensor) -> None:
        self.keys, self.logs = keys, logs
        self.rounding = _rounding(self._uncentred(torch.ones_like(keys[:, :1])).squeeze(-1), logs, len(keys))

    def apply(self, vectors: Tensor) -> Tensor:
        """(n, w) to (n, w)."""
        return _centred(self._uncentred(_centred(vectors, None)), None)

    def _uncentred(self, vectors: Tensor) -> Tensor:
        blocks = zip(self.keys.split(BLOCK), self.logs.split(BLOCK), strict=True)
        return torch.cat(
            [_entries(rows, logs, self.keys, self.logs, None) @ vectors for rows, logs in blocks]
        )


def _entries(rows: Tensor, row_logs: Tensor, keys: Tensor, logs: Tensor, mask: Tensor | None) -> Tensor:
    """The kernel of phi/g between rows and keys, (... m n), zero at padded keys."""
    # The first difference is at most zero, so that nothing overflows.
    exponents = _scores(rows, keys, mask) - row_logs.unsqueeze(-1) - logs.unsqueeze(-2)
    return exponents.exp()


def _log_norms(keys: Tensor, mask: Tensor | None) -> Tensor:
    logs = torch.cat([_log_sums(rows, keys, mask) for rows in keys.split(BLOCK, dim=-2)], dim=-1)
    return logs if mask is None else logs.masked_fill(~mask, 0)


def _log_sums(rows: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """log g of every row, (... m)."""
    return _scores(rows, keys, mask).logsumexp(-1)


def _scores(rows: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled inner products (... m n), -inf at padded keys."""
    scores = rows @ keys.mT / sqrt(keys.shape[-1])
    return scores if mask is None else scores.masked_fill(~mask.unsqueeze(-2), -torch.inf)


def _centred(columns: Tensor, mask: Tensor | None) -> Tensor:
    """Columns (... n w) less their mean over real points, zero at padded points."""
    if mask is None:
        return columns - columns.mean(-2, keepdim=True)
    real = mask.unsqueeze(-1)
    kept = columns.masked_fill(~real, 0)
    mean = kept.sum(-2, keepdim=True) / real.sum(-2, keepdim=True).clamp_min(1)
    return (kept - mean).masked_fill(~real, 0)


def _centred_both(entries: Tensor, mask: Tensor | None) -> Tensor:
    centred = _centred(_centred(entries, mask).mT, mask)
    return (centred + centred.mT) / 2


def _rounding(row_sums: Tensor, logs: Tensor, count: Tensor | int) -> Tensor:
    """What rounding can make of a zero eigenvalue, (...), from the row sums of the Gram before centring."""
    # Row sums bound the norm; an exponential errs by its exponent, a sum by its length.
    units = count + 2 * logs.amax(-1)
    limits = torch.finfo(row_sums.dtype)
    return (units * limits.eps * row_sums.amax(-1)).clamp_min(limits.tiny)


def _checked_keys(who: str, keys: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    check_axes(who, keys=(keys, "... n d"))
    if keys.numel() == 0:
        raise BadInput(f"{who}: `keys` {tuple(keys.shape)} has no entries, expected one or more")
    mask = _expanded(who, mask, keys)
    return _double(who, "keys", _zeroed(keys, mask)), mask


def _expanded(who: str, mask: Tensor | None, points: Tensor) -> Tensor | None:
    """A mask whose batch axes may broadcast, at the full shape of the points."""
    if mask is None:
        return None
    # Where it does not fit, the check says so.
    with suppress(RuntimeError):
        mask = mask.expand(points.shape[:-1])
    check_mask(who, mask, points)
    return mask


def _zeroed(points: Tensor, mask: Tensor | None) -> Tensor:
    return points if mask is None else points.masked_fill(~mask.unsqueeze(-1), 0)


def _double(who: str, name: str, points: Tensor) -> Tensor:
    if points.is_complex():
        raise BadInput(f"{who}: `{name}` {tuple(points.shape)} is complex, expected real numbers")
    if not bool(torch.isfinite(points).all()):
        raise BadInput(f"{who}: `{name}` {tuple(points.shape)} holds NaN or infinity")
    points = points.double()
    if bool(points.square().sum(-1).isinf().any()):
        raise BadInput(f"{who}: `{name}` {tuple(points.shape)} has inner products beyond float64")
    return points
