"""Values mixed by a pattern that is held as factors: check the axes once, then compute."""

import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError
from kernelhead.ops.eager import factored as eager
from kernelhead.pattern import Dense, Factored, Pattern
from kernelhead.shapes import check_axes, zeroed


def factored_attention(
    left: Tensor,
    values: Tensor,
    right: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    r"""Values mixed by factors, $o_i = \frac{1}{m_i} \sum_j (l_i^\top \Lambda\, r_j)\, v_j$.

    Sums run over the $m_i$ real keys that row i sees, in float32 or better. Costs O((n + m) s e).

    Shapes: left (... n s), values (... s), right (... m s), value (... m e), mask (... m), True where a
    key is real; returns (... n e), zero in rows that see no key.

    Args:
        causal: whether a row sees the keys up to its own only; rows are the last n of m points.

    Raises:
        ShapeError: axes that must agree do not, or there are more rows than keys and `causal` is set.
        BadInput: the mask is not boolean, or there is no key.

    Example:
        >>> one, v = torch.ones(3, 1), torch.tensor([[3.0], [5.0], [7.0]])
        >>> factored_attention(one, torch.ones(1), one, v, causal=True).flatten()
        tensor([3., 4., 5.])
    """
    _check("factored_attention", left, values, right, value, mask, causal)
    return eager.factored_attention(left, values, right, value, mask=mask, causal=causal)


def factored_pattern(
    left: Tensor, values: Tensor, right: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Pattern:
    """The pattern that `factored_attention` applies: factors, or dense if causal.

    Shapes: left (... n s), values (... s), right (... m s), mask (... m); the pattern is (... n m).

    Raises:
        ShapeError: as `factored_attention`.
        BadInput: as `factored_attention`.

    Example:
        >>> one = torch.ones(2, 1)
        >>> factored_pattern(one, torch.ones(1), one, causal=True).matrix()
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """
    _check("factored_pattern", left, values, right, right, mask, causal)
    right = zeroed(right, mask)
    left = left / eager.seen_keys(left, right, mask=mask, causal=causal).to(left.dtype)
    pattern = Factored(left, values.to(left.dtype), right)
    n, m = left.shape[-2], right.shape[-2]
    return Dense(pattern.matrix().tril(m - n)) if causal else pattern


def _check(
    who: str,
    left: Tensor,
    values: Tensor,
    right: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
) -> None:
    axes = {"left": (left, "... n s"), "values": (values, "... s"), "right": (right, "... m s")}
    axes |= {"value": (value, "... m e")} | ({} if mask is None else {"mask": (mask, "... m")})
    sizes = check_axes(who, **axes)
    if sizes["m"] == 0:
        raise BadInput(f"{who}: `right` {tuple(right.shape)} has no points, expected one or more")
    if mask is not None and mask.dtype != torch.bool:
        raise BadInput(f"{who}: `mask` is {mask.dtype}, expected torch.bool with True where a key is real")
    if causal and sizes["n"] > sizes["m"]:
        raise ShapeError(
            f"{who}: causal needs as many keys as rows, but axis `n` is {sizes['n']} in `left` "
            f"{tuple(left.shape)} and axis `m` is {sizes['m']} in `right` {tuple(right.shape)}"
        )
