"""Softmax attention, the yardstick: output and pattern, with padding and causality."""

import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops.backends import softmax_backend
from kernelhead.ops.eager import packed
from kernelhead.ops.eager import softmax as eager
from kernelhead.shapes import check_axes


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    r"""Softmax attention, $o_i = \sum_j e^{s q_i^\top k_j} v_j / \sum_j e^{s q_i^\top k_j}$.

    Time grows as n m; memory too, unless PyTorch has a fused kernel for the input. On a GPU in half
    precision many padded keys cost little. What stands at padded keys, even NaN, has no influence.

    Shapes: query (... n d), key (... m d), value (... m e), mask (... m), True where a key is real;
    batch axes broadcast; returns (... n e), zero in rows that see no key.

    Args:
        causal: whether point i sees the keys up to i only; needs n = m.
        dropout: probability with which an entry of the pattern is dropped, drawn from the global generator.
        scale: s, 1 / sqrt(d) if None.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, there is no key, or `dropout` is not in [0, 1).

    Example:
        >>> q, k, v = torch.zeros(2, 4), torch.zeros(3, 4), torch.tensor([[0.0], [1.0], [8.0]])
        >>> softmax_attention(q, k, v, mask=torch.tensor([True, True, False]))
        tensor([[0.5000],
                [0.5000]])
    """
    check_sides("softmax_attention", query, key, value, mask=mask, causal=causal)
    check_dropout("softmax_attention", dropout)
    plain = not causal and dropout == 0 and scale is None
    if mask is not None and softmax_backend(query, key, value, mask, plain=plain) == "packed":
        return packed.softmax_attention(query, key, value, mask)
    return eager.softmax_attention(query, key, value, mask=mask, causal=causal, dropout=dropout, scale=scale)


def softmax_pattern(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The entries of the pattern that `softmax_attention` applies, to look at.

    Shapes: query (... n d), key (... m d), mask (... m); returns (... n m), rows that sum to one,
    zero at padded keys and in rows that see no key.

    Args:
        causal: whether point i sees the keys up to i only; needs n = m.
        scale: of inner products, 1 / sqrt(d) if None.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no key.

    Example:
        >>> softmax_pattern(torch.zeros(2, 4), torch.zeros(2, 4), causal=True)
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """
    check_sides("softmax_pattern", query, key, mask=mask, causal=causal)
    return eager.softmax_pattern(query, key, mask=mask, causal=causal, scale=scale)


def check_sides(
    who: str,
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> None:
    """Check both sides of an attention: axes, batch axes, the mask of the keys, causality.

    Shapes: query (... n d), key (... m d), value (... m e), mask (... m).

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no key.

    Example:
        >>> check_sides("f", torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(3, 1))
    """
    axes = {"query": (query, "... n d"), "key": (key, "... m d")}
    batch = {"query": query.shape[:-2], "key": key.shape[:-2]}
    if value is not None:
        axes["value"], batch["value"] = (value, "... m e"), value.shape[:-2]
    if mask is not None:
        axes["mask"], batch["mask"] = (mask, "... m"), mask.shape[:-1]
    sizes = check_axes(who, **axes)
    if sizes["m"] == 0:
        raise BadInput(f"{who}: `key` {tuple(key.shape)} has no points, expected one or more")
    if mask is not None and mask.dtype != torch.bool:
        raise BadInput(f"{who}: `mask` is {mask.dtype}, expected torch.bool with True where a key is real")
    if causal and sizes["n"] != sizes["m"]:
        raise ShapeError(
            f"{who}: causal needs as many queries as keys, but axis `n` is {sizes['n']} in `query` "
            f"{tuple(query.shape)} and axis `m` is {sizes['m']} in `key` {tuple(key.shape)}"
        )
    try:
        torch.broadcast_shapes(*batch.values())
    except RuntimeError:
        found = ", ".join(f"{tuple(shape)} in `{name}`" for name, shape in batch.items())
        raise ShapeError(f"{who}: batch axes do not broadcast: {found}") from None


def check_dropout(who: str, dropout: float) -> None:
    """Check that a probability of dropping is in [0, 1).

    Raises:
        BadInput: it is not.

    Example:
        >>> check_dropout("f", 0.1)
    """
    if not 0 <= dropout < 1:
        raise BadInput(f"{who}: dropout is {dropout!r}, expected a number in [0, 1)")
