"""Co-occurrence of words as a kernel: counted from a stream, made an association, restricted to a text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernelhead.errors import BadInput, unknown
from kernelhead.pattern import Dense
from kernelhead.shapes import check_size

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WEIGHTINGS = ("harmonic", "flat")
TRANSFORMS = ("count", "log", "pmi", "ppmi")
# Those of `data.corpus`, whose import would bring all readers along.
BREAK, BLOCK = -1, 1 << 20
EXACT = 2**32  # whole units of a pair up to which sums of weights are whole numbers

Tokens = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class CooccurrenceKernel:
    r"""A kernel between words, $S_{ij}$: how strongly word i goes with word j; sparse, in float64.

    Directed, row i is the later word and column j the earlier one. A text of words $w_1, w_2, \dots$ with
    selector $Q$ has the pattern $Q S Q^\top$, entries $S_{w_r w_s}$; a word that is repeated meets itself
    on the diagonal of $S$.

    Shapes: matrix (v, v).

    Args:
        matrix: sparse or dense, of scipy or numpy; kept as a sparse matrix by rows.

    Raises:
        BadInput: the matrix is empty or not square, or an entry is not finite.

    Example:
        >>> kernel = CooccurrenceKernel.count([np.array([0, 1, 2, 0, 1])], 3, window=1, transform="count")
        >>> kernel.restrict(torch.tensor([1, 0]))
        tensor([[0., 2.],
                [0., 0.]], dtype=torch.float64)
    """

    matrix: "csr_array"

    def __post_init__(self) -> None:
        from scipy.sparse import csr_array

        shape = tuple(getattr(self.matrix, "shape", ()))
        if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
            raise BadInput(f"CooccurrenceKernel: `matrix` has shape {shape}, expected (v, v), v of 1 or more")
        matrix = csr_array(self.matrix, dtype=np.float64)
        matrix.sum_duplicates()
        if not np.isfinite(matrix.data).all():
            raise BadInput(f"CooccurrenceKernel: `matrix` {shape} holds NaN or infinity")
        object.__setattr__(self, "matrix", matrix)

    @classmethod
    def count(
        cls,
        blocks: Iterable[Tokens],
        vocabulary: int,
        *,
        window: int = 5,
        weighting: str = "harmonic",
        directed: bool = True,
        transform: str = "ppmi",
        shift: float = 0.0,
        smoothing: float = 0.75,
    ) -> Self:
        """The kernel of a stream of tokens; see `count_pairs` and `association`."""
        counts = count_pairs(blocks, vocabulary, window=window, weighting=weighting, directed=directed)
        return cls(association(counts, transform=transform, shift=shift, smoothing=smoothing))

    @property
    def vocabulary(self) -> int:
        """How many words there are, v."""
        return int(self.matrix.shape[0])

    def entries(self, left: Tensor, right: Tensor) -> Tensor:
        """Entries between two lists of words, (... n) and (... m) to (... n m)."""
        rows, columns = torch.broadcast_tensors(left.unsqueeze(-1), right.unsqueeze(-2))
        self._check(rows)
        self._check(columns)
        found = self.matrix[_numbers(rows), _numbers(columns)]
        # Depending on its version scipy gives a sparse vector or an array.
        dense = found.toarray() if hasattr(found, "toarray") else np.asarray(found)
        return torch.from_numpy(dense).reshape(rows.shape).to(left.device)

    def restrict(self, words: Tensor) -> Tensor:
        """The pattern of a text, Q S Q', (... n) to (... n n)."""
        return self.entries(words, words)

    def profiles(self, words: Tensor) -> Tensor:
        """The rows of words, Q S, (... n) to (... n v)."""
        self._check(words)
        rows = self.matrix[_numbers(words)].toarray()
        return torch.from_numpy(rows).reshape(*words.shape, -1).to(words.device)

    def pattern(self, dtype: torch.dtype = torch.float32) -> Dense:
        """All entries, dense: v times v numbers."""
        return Dense(torch.from_numpy(self.matrix.toarray()).to(dtype))

    def transposed(self) -> Self:
        """The same pairs, looked at from the other side."""
        return type(self)(self.matrix.T)

    def symmetric(self) -> Self:
        """The sum of both directions, S + S'; of counts this is what counting both ways gives."""
        return type(self)(self.matrix + self.matrix.T)

    def _check(self, words: Tensor) -> None:
        if words.is_floating_point() or not words.numel():
            raise BadInput(
                f"CooccurrenceKernel: words are {words.dtype} of shape {tuple(words.shape)}, expected whole "
                "numbers, one or more"
            )
        low, high = int(words.min()), int(words.max())
        if low < 0 or high >= self.vocabulary:
            raise BadInput(
                f"CooccurrenceKernel: words run from {low} to {high}, expected 0 to {self.vocabulary - 1}"
            )


def count_pairs(
    blocks: Iterable[Tokens],
    vocabulary: int,
    *,
    window: int = 5,
    weighting: str = "harmonic",
    directed: bool = True,
    block: int = BLOCK,
) -> "csr_array":
    """How often words stand near each other, from a stream of tokens of any length.

    Held are `window` times `block` keys and the distinct pairs so far, never the stream. Weights are summed
    in whole units, so that no order or size of the blocks changes a bit (harmonic windows up to 22).

    Shapes: each of `blocks` (n,); returns (v, v), row the later word and column the earlier one.

    Args:
        blocks: places in the vocabulary, `BREAK` between sentences; a block goes on where the last ended.
        vocabulary: how many words there are, v.
        window: largest distance of a pair.
        weighting: of a pair at distance d, "harmonic" 1/d or "flat" 1.
        directed: whether the order of a pair counts; if not, both orders are added.
        block: most tokens to work on at a time.

    Raises:
        BadInput: there is no token, fewer tokens than words, a token is not in the vocabulary, or a number is
            out of range.
        UnknownName: no such weighting.

    Example:
        >>> count_pairs([np.array([0, 1, BREAK, 1, 0, 0])], 2, window=2).toarray()
        array([[1. , 1.5],
               [1. , 0. ]])
    """
    who = "count_pairs"
    check_size(who, "vocabulary", vocabulary)
    check_size(who, "window", window)
    check_size(who, "block", block)
    if weighting not in WEIGHTINGS:
        raise unknown(who, "weighting", weighting, WEIGHTINGS)
    unit, weights = _units(window, weighting)
    parts: list[Any] = []
    carried, seen = np.full(0, BREAK, np.int64), 0
    for piece in _pieces(who, blocks, vocabulary, block):
        seen += int((piece >= 0).sum())
        tokens = np.concatenate([carried, piece])
        parts.append(_counted(tokens, len(carried), vocabulary, weights))
        # Parts of like size are merged: each pair is then added as often as the stream doubles.
        while len(parts) > 1 and parts[-2].nnz <= 2 * parts[-1].nnz:
            last = parts.pop()
            parts[-1] = parts[-1] + last
        carried = tokens[-window:]
    if not seen:
        raise BadInput(f"{who}: the corpus is empty, expected a token or more")
    if vocabulary > seen:
        raise BadInput(
            f"{who}: a vocabulary of {vocabulary} words is larger than the corpus of {seen} tokens"
        )
    counts = parts.pop()
    while parts:
        counts = parts.pop() + counts
    if not directed:
        counts = (counts + counts.T).tocsr()
    counts = counts.astype(np.float64)
    counts.data /= unit
    return counts


def association(
    counts: Any, *, transform: str = "ppmi", shift: float = 0.0, smoothing: float = 0.75
) -> "csr_array":
    r"""Counts as they are, their logarithm, or pointwise mutual information; zero for a pair never seen.

    $\mathrm{pmi}_{ij} = \ln \frac{p_{ij}}{p_i\, q_j} - \text{shift}$ with $q_j \propto
    c_j^{\text{smoothing}}$ of the column sums; ppmi keeps what is positive. "log" is $\ln(1 + c_{ij})$.

    Shapes: counts (v, w), not negative; returns (v, w), sparse by rows.

    Args:
        counts: sparse or dense.
        transform: "count", "log", "pmi" or "ppmi".
        shift: taken from pmi, such as the logarithm of a number of negative samples.
        smoothing: power of column sums; below 1 it makes rare contexts count less. 1 for none.

    Raises:
        BadInput: counts are not finite numbers from 0 on, are all zero, or a number is out of range.
        UnknownName: no such transform.

    Example:
        >>> even = np.outer([1.0, 2.0], [3.0, 4.0])
        >>> bool(abs(association(even, transform="pmi", smoothing=1.0)).max() < 1e-12)
        True
    """
    from scipy.sparse import csr_array

    who = "association"
    if transform not in TRANSFORMS:
        raise unknown(who, "transform", transform, TRANSFORMS)
    if not (np.isfinite(shift) and 0 < smoothing <= 1):
        raise BadInput(
            f"{who}: shift is {shift!r}, smoothing {smoothing!r}; expected a finite number, and one above 0 "
            "up to 1"
        )
    made = csr_array(counts, dtype=np.float64, copy=True)
    made.sum_duplicates()
    if not np.isfinite(made.data).all() or (made.data < 0).any():
        raise BadInput(f"{who}: `counts` {made.shape} are not all finite numbers from 0 on")
    made.eliminate_zeros()
    if transform == "count":
        return made
    if transform == "log":
        np.log1p(made.data, out=made.data)
        return made
    if not made.nnz:
        raise BadInput(f"{who}: `counts` {made.shape} are all zero, so that no pair was seen")
    row_of = np.repeat(np.arange(made.shape[0], dtype=np.int32), np.diff(made.indptr))
    # One way of summing and a sum that commutes: what is symmetric stays so to the last bit.
    rows, columns = (
        np.bincount(places, weights=made.data, minlength=size)
        for places, size in zip((row_of, made.indices), made.shape, strict=True)
    )
    smoothed = columns**smoothing
    # p_ij / (p_i q_j) = c_ij / (c_i q_j): the sum of all counts cancels. A part at a time, in place.
    offset = np.log(smoothed.sum()) - shift
    for first in range(0, made.nnz, BLOCK):
        part = slice(first, first + BLOCK)
        sides = np.log(rows[row_of[part]]) + np.log(smoothed[made.indices[part]])
        made.data[part] = np.log(made.data[part]) - sides + offset
    if transform == "ppmi":
        np.maximum(made.data, 0, out=made.data)
        made.eliminate_zeros()
    return made


def _numbers(words: Tensor) -> NDArray[Any]:
    # A copy: scipy changes flags of what it is given.
    return words.reshape(-1).cpu().numpy().copy()


def _pieces(who: str, blocks: Iterable[Tokens], vocabulary: int, size: int) -> Iterator[NDArray[np.int64]]:
    """The stream in checked pieces of at most `size` tokens."""
    for block in blocks:
        tokens = np.asarray(block)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise BadInput(
                f"{who}: a block is {tokens.dtype} of shape {tokens.shape}, expected whole numbers (n,)"
            )
        for first in range(0, len(tokens), size):
            piece = tokens[first : first + size].astype(np.int64)
            low, high = int(piece.min()), int(piece.max())
            if low < BREAK or high >= vocabulary:
                raise BadInput(
                    f"{who}: tokens run from {low} to {high}, expected 0 to {vocabulary - 1}, or {BREAK} "
                    "between sentences"
                )
            yield piece


def _units(window: int, weighting: str) -> tuple[int, NDArray[Any]]:
    """What a weight of 1 is, and the weights of all distances in that unit: whole numbers where they fit."""
    if weighting == "flat":
        return 1, np.ones(window, np.int64)
    distances = np.arange(1, window + 1)
    unit = lcm(*distances.tolist())
    return (unit, unit // distances) if unit <= EXACT else (1, 1 / distances)


def _counted(tokens: NDArray[np.int64], first: int, vocabulary: int, weights: NDArray[Any]) -> Any:
    """Sums of weights over the pairs whose later token is at `first` or behind, (v, v)."""
    from scipy.sparse import csr_array

    place, window = np.arange(len(tokens)), len(weights)
    # Words of the same sentence that stand before each token; -1 at a border.
    before = place - np.maximum.accumulate(np.where(tokens == BREAK, place, -1)) - 1
    bits = (window - 1).bit_length()
    keys = np.full((window, max(len(tokens) - first, 0)), -1, np.int64)
    for distance in range(1, min(window, len(tokens) - 1) + 1):
        start = max(first, distance)
        later, earlier = tokens[start:], tokens[start - distance : len(tokens) - distance]
        key = ((later * vocabulary + earlier) << bits) | (distance - 1)
        keys[distance - 1, start - first :] = np.where(before[start:] >= distance, key, -1)
    flat = keys.reshape(-1)
    flat.sort()
    flat = flat[np.searchsorted(flat, 0) :]
    pair = flat >> bits
    starts = np.flatnonzero(np.diff(pair, prepend=-1))
    weight = weights[flat & ((1 << bits) - 1)]
    sums = np.add.reduceat(weight, starts) if len(starts) else weight
    rows, columns = np.divmod(pair[starts], vocabulary)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=vocabulary))])
    # Sums of such matrices widen their places where they must.
    narrow = np.int32 if len(pair) < 2**31 else np.int64
    return csr_array((sums, columns.astype(narrow), bounds.astype(narrow)), shape=(vocabulary, vocabulary))
