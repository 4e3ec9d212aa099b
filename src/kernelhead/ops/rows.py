"""Softmax attention to a context and to oneself, for rows that see a table but not each other."""

from torch import Tensor

from kernelhead.ops.eager import rows as eager
from kernelhead.ops.softmax import check_dropout, check_sides
from kernelhead.shapes import check_axes


def own_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    *,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    r"""Softmax attention of every point to the keys of a context and to its own key.

    $o_i = (\sum_j p_{ij} v_j + p'_i v'_i) / (\sum_j p_{ij} + p'_i)$ with $p_{ij} = e^{s q_i^\top k_j}$ and
    $p'_i = e^{s q_i^\top k'_i}$. The own key costs one more key and one more feature of plain attention,
    whichever kernel of torch computes it.

    Shapes: query and own_key (... n d), own_value (... n e), key (... m d), value (... m e), mask (... m),
    True where a key of the context is real; returns (... n e).

    Args:
        own_key: k', the key of each point itself.
        own_value: v', its value.
        dropout: probability with which an entry of the pattern is dropped, drawn from the global generator.
        scale: s, 1 / sqrt(d) if None.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, there is no key, or `dropout` is not in [0, 1).

    Example:
        >>> import torch
        >>> q, k, v = torch.zeros(2, 4), torch.zeros(3, 4), torch.ones(3, 1)
        >>> own_attention(q, k, v, q, torch.tensor([[1.0], [5.0]]))
        tensor([[1.],
                [2.]])
    """
    who = "own_attention"
    check_sides(who, query, key, value, mask=mask)
    check_dropout(who, dropout)
    check_axes(who, query=(query, "... n d"), own_key=(own_key, "... n d"))
    check_axes(who, query=(query, "... n d"), value=(value, "... m e"), own_value=(own_value, "... n e"))
    return eager.own_attention(query, key, value, own_key, own_value, mask=mask, dropout=dropout, scale=scale)


def own_pattern(
    query: Tensor, key: Tensor, own_key: Tensor, *, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """The entries of the pattern that `own_attention` applies; the last column is each point itself.

    Shapes: query and own_key (... n d), key (... m d), mask (... m); returns (... n m+1).

    Args:
        own_key: the key of each point itself.
        scale: of inner products, 1 / sqrt(d) if None.

    Raises:
        ShapeError: axes that must agree do not.
        BadInput: the mask is not boolean, or there is no key.

    Example:
        >>> import torch
        >>> own_pattern(torch.zeros(1, 4), torch.zeros(3, 4), torch.zeros(1, 4))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    check_sides("own_pattern", query, key, mask=mask)
    check_axes("own_pattern", query=(query, "... n d"), own_key=(own_key, "... n d"))
    return eager.own_pattern(query, key, own_key, mask=mask, scale=scale)
