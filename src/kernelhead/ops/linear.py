"""The linear rivals of softmax attention: elu features, positive random features, landmarks."""

from torch import Tensor

from kernelhead.errors import unknown
from kernelhead.ops.backends import features_backend, inverse_backend, scan_backend, short_backend
from kernelhead.ops.eager import linear as eager
from kernelhead.ops.eager import short
from kernelhead.ops.eager.linear import LinearState
from kernelhead.ops.softmax import check_sides
from kernelhead.pattern import Pattern
from kernelhead.shapes import check_axes, check_size

__all__ = [
    "LinearState",
    "linear_attention",
    "linear_pattern",
    "linear_step",
    "nystrom_attention",
    "nystrom_pattern",
    "performer_attention",
    "performer_pattern",
]


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    r"""Linear attention, $o_i = \sum_j \phi(q_i)^\top\phi(k_j) v_j / \sum_j \phi(q_i)^\top\phi(k_j)$.

    The feature map is $\phi(x) = \mathrm{elu}(x) + 1$. Costs O((n + m) d e); if causal, chunks of 64
    points are multiplied out and one (d, e) state a chunk is kept. Sums are taken in float32 or better; on
    a GPU features of bfloat16 points are rounded to bfloat16, if not causal, and in kernels that keep none
    of them where these serve the shape: see `ops.backends.features_backend`.

    Shapes: query (... n d), key (... m d), value (... m e), mask (... m), True where a key is real;
    batch axes broadcast; returns (... n e), zero in rows that see no key.

    Args:
        causal: whether point i sees the keys up to i only; needs n = m.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no key.

    Example:
        >>> import torch
        >>> linear_attention(torch.zeros(2, 4), torch.zeros(2, 4), torch.tensor([[0.0], [1.0]]), causal=True)
        tensor([[0.0000],
                [0.5000]])
    """
    check_sides("linear_attention", query, key, value, mask=mask, causal=causal)
    alike = causal and query.shape == key.shape and query.shape[:-1] == value.shape[:-1]
    if alike and scan_backend(query, mask, query.shape[-1], value.shape[-1]) == "triton":
        from kernelhead.ops.triton import prefix_library

        return prefix_library.linear_attention(query, key, value, mask)
    backend = "eager" if causal else features_backend(query, key, value, mask)
    if backend == "triton":
        from kernelhead.ops.triton import features_library

        return features_library.linear_attention(query, key, value, mask=mask)
    if backend == "short":
        return short.linear_attention(query, key, value, mask=mask)
    return eager.linear_attention(query, key, value, mask=mask, causal=causal)


def linear_pattern(
    query: Tensor, key: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Pattern:
    """The pattern that `linear_attention` applies: factors of d columns, or dense if causal.

    Shapes: query (... n d), key (... m d), mask (... m); the pattern is (... n m), its rows sum to one.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no key.

    Example:
        >>> import torch
        >>> linear_pattern(torch.zeros(2, 4), torch.zeros(2, 4)).matrix()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    check_sides("linear_pattern", query, key, mask=mask, causal=causal)
    return eager.linear_pattern(query, key, mask=mask, causal=causal)


def linear_step(
    state: LinearState | None, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, LinearState]:
    """One more row of causal `linear_attention`, from the state that the rows before it left.

    Shapes: query, key (... d), value (... e), one point each; returns (... e) and the next state.

    Args:
        state: None before the first point.

    Raises:
        ShapeError: axes that must agree do not.

    Example:
        >>> import torch
        >>> point = torch.zeros(4)
        >>> _, state = linear_step(None, point, point, torch.tensor([0.0]))
        >>> linear_step(state, point, point, torch.tensor([1.0]))[0]
        tensor([0.5000])
    """
    axes = {"query": (query, "... d"), "key": (key, "... d"), "value": (value, "... e")}
    if state is not None:
        axes |= {"products": (state.products, "... d e"), "total": (state.total, "... d")}
    check_axes("linear_step", **axes)
    return eager.linear_step(state, query, key, value)


def performer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    frequencies: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    r"""Softmax attention with its kernel replaced by positive random features (FAVOR+).

    As `linear_attention` with $\phi(x)_i = \exp(w_i^\top z - |z|^2/2)/\sqrt{m}$, $z = x\,d^{-1/4}$, whose
    inner products estimate $\exp(q^\top k/\sqrt d)$ without bias. Largest exponents are taken out before
    exponentials; they cancel, and no constant is added. Costs O((n + m) p e) for p frequencies.

    If causal, float32 loses a row only where a later key of its chunk of 64 points has features e^87
    times those of all keys before. On a GPU features of bfloat16 points are rounded to it, if not causal,
    in kernels that keep none of them where these serve the shape: see `ops.backends.features_backend`.

    Shapes: query (... n d), key (... m d), value (... m e), frequencies (p, d), mask (... m), True where
    a key is real; batch axes broadcast; returns (... n e), zero in rows that see no key.

    Args:
        frequencies: rows w_i, standard normal; `kernels.features.draw_frequencies` makes orthogonal ones.
        causal: whether point i sees the keys up to i only; needs n = m.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no key.

    Example:
        >>> import torch
        >>> q, v = torch.zeros(2, 4), torch.tensor([[0.0], [1.0]])
        >>> performer_attention(q, q, v, torch.randn(8, 4))
        tensor([[0.5000],
                [0.5000]])
    """
    check_sides("performer_attention", query, key, value, mask=mask, causal=causal)
    check_axes("performer_attention", query=(query, "... n d"), frequencies=(frequencies, "p d"))
    backend = "eager" if causal else features_backend(query, key, value, mask, frequencies)
    if backend == "triton":
        from kernelhead.ops.triton import features_library

        return features_library.performer_attention(query, key, value, frequencies, mask=mask)
    if backend == "short":
        return short.performer_attention(query, key, value, frequencies, mask=mask)
    return eager.performer_attention(query, key, value, frequencies, mask=mask, causal=causal)


def performer_pattern(
    query: Tensor, key: Tensor, frequencies: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Pattern:
    """The pattern that `performer_attention` applies: factors of p columns, or dense if causal.

    Shapes: query (... n d), key (... m d), frequencies (p, d), mask (... m); the pattern is (... n m),
    its rows sum to one.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no key.

    Example:
        >>> import torch
        >>> performer_pattern(torch.zeros(2, 4), torch.zeros(3, 4), torch.randn(8, 4)).shape
        torch.Size([2, 3])
    """
    check_sides("performer_pattern", query, key, mask=mask, causal=causal)
    check_axes("performer_pattern", query=(query, "... n d"), frequencies=(frequencies, "p d"))
    return eager.performer_pattern(query, key, frequencies, mask=mask, causal=causal)


def nystrom_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    landmarks: int,
    mask: Tensor | None = None,
    iterations: int = 6,
    pinv: str = "iterative",
) -> Tensor:
    r"""Softmax attention through landmarks: $S(Q \tilde K)\,S(\tilde Q \tilde K)^+ S(\tilde Q K)\,V$.

    S is the row softmax of scaled inner products. Landmarks are the means of contiguous segments that
    split the real points of a row evenly, so the order of points matters. A row of at most `landmarks`
    real points gets exact softmax attention. Costs O(n s (d + e) + s^3) for s landmarks; everything is
    taken in float32 or better, but for bfloat16 points on a GPU, of which the long sides are fused softmax
    attention with the iterative inverse, one kernel for up to 64 landmarks; that has one gradient and no
    second.

    The iteration starts from each matrix divided by its own largest column sum; published code divides
    by the largest of the batch, which makes a sample depend on its neighbours.

    Shapes: query, key (... n d), value (... n e), mask (... n), True where a point is real; batch axes
    broadcast; returns (... n e), zero at padded points.

    Args:
        landmarks: the most landmarks that a row may have.
        iterations: third-order steps to the pseudo-inverse.
        pinv: "iterative" as published, or "exact" by singular values.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, there is no key, or a size is not a whole number.
        UnknownName: `pinv` is something else.

    Example:
        >>> import torch
        >>> q = torch.zeros(4, 2)
        >>> nystrom_attention(q, q, torch.arange(4.0)[:, None], landmarks=1).mT
        tensor([[1.5000, 1.5000, 1.5000, 1.5000]])
    """
    check_sides("nystrom_attention", query, key, value, mask=mask)
    _check_landmarks("nystrom_attention", query, key, landmarks, iterations, pinv)
    if pinv == "iterative" and short_backend(query, key, value, mask) == "short":
        return short.nystrom_attention(
            query, key, value, landmarks=landmarks, iterations=iterations, mask=mask, invert=_iterated_inverse
        )
    return eager.nystrom_attention(
        query, key, value, landmarks=landmarks, mask=mask, iterations=iterations, pinv=pinv
    )


def nystrom_pattern(
    query: Tensor,
    key: Tensor,
    *,
    landmarks: int,
    mask: Tensor | None = None,
    iterations: int = 6,
    pinv: str = "iterative",
) -> Tensor:
    """The entries of the pattern that `nystrom_attention` applies, to look at.

    Entries may be negative and rows sum to one only as far as the inverse is exact.

    Shapes: query, key (... n d), mask (... n); returns (... n n), zero in padded rows and columns.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, there is no key, or a size is not a whole number.
        UnknownName: `pinv` is neither "iterative" nor "exact".

    Example:
        >>> import torch
        >>> nystrom_pattern(torch.zeros(4, 2), torch.zeros(4, 2), landmarks=1)[0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    check_sides("nystrom_pattern", query, key, mask=mask)
    _check_landmarks("nystrom_pattern", query, key, landmarks, iterations, pinv)
    return eager.nystrom_pattern(query, key, landmarks=landmarks, mask=mask, iterations=iterations, pinv=pinv)


def _check_landmarks(
    who: str, query: Tensor, key: Tensor, landmarks: int, iterations: int, pinv: str
) -> None:
    check_axes(who, query=(query, "... n d"), key=(key, "... n d"))
    check_size(who, "landmarks", landmarks)
    check_size(who, "iterations", iterations)
    if pinv not in ("iterative", "exact"):
        raise unknown(who, "pinv", pinv, ["iterative", "exact"])


def _iterated_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """`eager.iterated_inverse`, by a kernel where one fits."""
    if inverse_backend(matrix) == "triton":
        from kernelhead.ops.triton import inverse_library

        return inverse_library.iterated_inverse(matrix, iterations)
    return eager.iterated_inverse(matrix, iterations)
