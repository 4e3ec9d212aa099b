"""The leading singular values of softmax patterns, of which no n-by-m matrix is made."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from kernelhead.decomposition.linalg import tall_qr
from kernelhead.errors import NotConverged
from kernelhead.nn.hosts import Sides
from kernelhead.nn.hosts.sides import lowest
from kernelhead.ops.eager.softmax import wide
from kernelhead.rng import generator
from kernelhead.shapes import check_size

ENTRIES = 2**23  # of patterns that are held at a time, over all heads


class Leading(NamedTuple):
    """The largest singular values of patterns, one a head, with their left vectors.

    Shapes: left (h, n, k), orthonormal; values (h, k), largest first.
    """

    left: Tensor
    values: Tensor


class SoftmaxProducts:
    """Products with the softmax patterns of one case's heads, a block of rows at a time.

    Args:
        sides: of one case, without mask; see `real_cases`.
        entries: of patterns to hold at a time, over all heads.

    Attributes:
        energy: squared Frobenius norm of each pattern, (h,), exact.

    Example:
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> products = SoftmaxProducts(Sides(x, x, x, None, False, 0.5))
        >>> products.energy.shape, products.apply(torch.ones(2, 3, 1)).flatten()
        (torch.Size([2]), tensor([1., 1., 1., 1., 1., 1.]))
    """

    def __init__(self, sides: Sides, *, entries: int = ENTRIES) -> None:
        self.query, self.key = wide(sides.query[0]), wide(sides.key[0])  # (h, n, d) and (h, m, d)
        self.scale, self.causal = sides.scale, sides.causal
        self.bias = None if sides.bias is None else wide(sides.bias[0])
        heads, m, _ = self.key.shape
        self.shape = heads, self.query.shape[1], m
        self.rows = max(1, entries // (heads * m))
        sums, energies = [], []
        for rows in self._blocks():
            logits = self._logits(rows)
            total = logits.logsumexp(-1)
            # A row that sees nothing is zero, and its logits are all -inf.
            sums.append(total.masked_fill(total == -torch.inf, 0))
            energies.append(_entries(logits, sums[-1]).square().sum((-2, -1)))
        self.sums, self.energy = torch.cat(sums, -1), torch.stack(energies).sum(0)  # (h, n) and (h,)

    def apply(self, values: Tensor) -> Tensor:
        """(h, m, w) to (h, n, w), by fused attention where torch has it."""
        width = values.shape[-1]
        # Fused kernels want one width on all sides; zero columns change no inner product.
        most = max(self.key.shape[-1], width)
        query, key, value = (pad(side, (0, most - side.shape[-1])) for side in (self.query, self.key, values))
        pieces = []
        for rows in self._blocks():
            added = self._added(rows)
            piece = scaled_dot_product_attention(
                query[None, :, rows],
                key[None],
                value[None],
                attn_mask=None if added is None else added[None],
                scale=self.scale,
            )[0, ..., :width]
            blind = None if added is None else (added == -torch.inf).all(-1, keepdim=True)
            pieces.append(piece if blind is None else piece.masked_fill(blind, 0))
        return torch.cat(pieces, -2)

    def apply_transposed(self, values: Tensor) -> Tensor:
        """(h, n, w) to (h, m, w); rows are made again from their sums."""
        total = values.new_zeros(self.shape[0], self.shape[2], values.shape[-1])
        for rows in self._blocks():
            total.baddbmm_(_entries(self._logits(rows), self.sums[:, rows]).mT, values[:, rows])
        return total

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, self.shape[1], self.rows):
            yield slice(start, min(start + self.rows, self.shape[1]))

    def _logits(self, rows: slice) -> Tensor:
        logits = (self.query[:, rows] * self.scale) @ self.key.mT
        added = self._added(rows)
        return logits if added is None else logits + added

    def _added(self, rows: slice) -> Tensor | None:
        """What is added to the logits of these rows, (1 or h, rows, m), -inf where nothing is seen."""
        added = None
        if self.bias is not None:
            added = self.bias[:, rows].to(self.query.dtype)
            added = added.masked_fill(added <= lowest(added), -torch.inf)
        if self.causal:
            _, n, m = self.shape
            device = self.query.device
            last = torch.arange(rows.start, rows.stop, device=device)[:, None] + m - n
            ahead = torch.arange(m, device=device) > last
            added = self.query.new_zeros(1, 1, 1) if added is None else added
            added = added.expand(-1, *ahead.shape).masked_fill(ahead, -torch.inf)
        return added


def leading(products: SoftmaxProducts, count: int, *, tolerance: float = 1e-3, most: int = 30) -> Leading:
    """The largest singular values of every head, by block Krylov iteration from a random start.

    A round multiplies a block of about half of `count` columns by the pattern and its transpose, adds it
    to an orthonormal basis, and takes the best values in its span. They never exceed the true ones, and
    the rounds end when none grows by more than `tolerance` of itself, or when the basis spans everything.
    Held are the basis, its image and a block of rows: memory is linear in n.

    Args:
        count: values wanted; as many as there are, if there are fewer.
        tolerance: largest relative change of a value in the last round.
        most: rounds.

    Raises:
        BadInput: `count` or `most` is below 1.

    Warns:
        NotConverged: `most` rounds were not enough.

    Example:
        >>> x = torch.zeros(1, 2, 30, 4)
        >>> leading(SoftmaxProducts(Sides(x, x, x, None, False, 0.5)), 2).values.round(decimals=4)
        tensor([[1., 0.],
                [1., 0.]])
    """
    check_size("leading", "count", count)
    check_size("leading", "most", most)
    heads, n, m = products.shape
    limit = min(n, m)
    count = min(count, limit)
    width = min(max(count // 2, 8), limit)
    draw = partial(torch.randn, heads, generator=generator(0), dtype=torch.float64)
    basis = tall_qr(products.apply_transposed(draw(n, width).to(products.key)))[0]  # (h, m, w)
    images = products.apply(basis)  # (h, n, w)
    values = images.new_zeros(heads, count)
    for _ in range(most):
        before, values = values, torch.linalg.svdvals(tall_qr(images)[1])[:, :count]
        change = _change(before, values, tolerance)
        if basis.shape[-1] == limit or change <= tolerance:
            break
        more = products.apply_transposed(images[..., -width:])[..., : limit - basis.shape[-1]]
        more, width = _beside(basis, more, products, draw), more.shape[-1]
        basis, images = torch.cat([basis, more], -1), torch.cat([images, products.apply(more)], -1)
    else:
        warnings.warn(
            f"leading: a value moved by {change:.1e} in round {most}, expected {tolerance:.1e} at most",
            NotConverged,
            stacklevel=2,
        )
    columns, triangle = tall_qr(images)
    vectors, values, _ = torch.linalg.svd(triangle, full_matrices=False)
    return Leading(columns @ vectors[..., :count], values[:, :count])


def _beside(basis: Tensor, more: Tensor, products: SoftmaxProducts, draw: Callable[..., Tensor]) -> Tensor:
    """Orthonormal columns that span what `more` adds to a basis; where it adds nothing, random ones.

    Values that are equal come from one start column once only: a new start finds the others. Where the
    basis spans all that the patterns see, any column will do.
    """
    _, n, m = products.shape
    for seen in (True, False):
        sizes = torch.linalg.vector_norm(more, dim=-2)
        more, triangle = tall_qr(more - basis @ (basis.mT @ more))
        added = triangle.diagonal(dim1=-2, dim2=-1).abs() > 100 * torch.finfo(more.dtype).eps * sizes
        if not bool(added.all()):
            start = draw(n if seen else m, more.shape[-1]).to(more)
            start = products.apply_transposed(start) if seen else start
            more = torch.where(added.unsqueeze(-2), more, start)
    # Twice more: what is left of a small remainder is rounding, and leans on the basis.
    for _ in range(2):
        more = tall_qr(more - basis @ (basis.mT @ more))[0]
    return more


def _change(before: Tensor, values: Tensor, tolerance: float) -> float:
    """The largest relative change; infinite while there are fewer values than wanted."""
    if before.shape != values.shape:
        return float("inf")
    # Values that are rounding of the largest never settle, and need not.
    floor = 100 * torch.finfo(values.dtype).eps / tolerance * values[:, :1]
    return float(((values - before).abs() / torch.maximum(values, floor).clamp_min(1e-30)).max())


def _entries(logits: Tensor, sums: Tensor) -> Tensor:
    return (logits - sums.unsqueeze(-1)).exp()
