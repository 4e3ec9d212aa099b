"""Transport between two sets of points as functions: costs, entropic couplings, scaled scores."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.ops.eager import transport as eager
from kernelhead.shapes import check_axes, check_size

MODES = ("row", "sinkhorn")


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    r"""The cost $\|x_i - y_j\|^2$ of all pairs, from differences, so that equal points cost exactly nothing.

    Shapes: x (... n d), y (... m d); returns (... n m).

    Raises:
        ShapeError: the points have different widths.

    Example:
        >>> squared_distances(torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0]])).flatten()
        tensor([1., 4.])
    """
    check_axes("squared_distances", x=(x, "... n d"), y=(y, "... m d"))
    return eager.squared_distances(x, y)


@dataclass(frozen=True, eq=False)
class Sinkhorn:
    """A coupling of equal shares and bounds of the least mean cost that one can have.

    Shapes: coupling (... n m), lower and upper (...).

    Attributes:
        coupling: sums to 1 / n in rows and 1 / m in columns, up to rounding; zero where a point is not real.
        lower: worth of feasible potentials, never above the least cost.
        upper: cost of the coupling, never below it.
    """

    coupling: Tensor
    lower: Tensor
    upper: Tensor


def sinkhorn(
    cost: Tensor,
    *,
    epsilon: float = 1e-2,
    steps: int = 200,
    left_mask: Tensor | None = None,
    right_mask: Tensor | None = None,
) -> Sinkhorn:
    r"""A coupling whose cost is nearly the least, by Sinkhorn's steps in logarithms, with its bounds.

    It comes near $\arg\min_P \langle P, C \rangle - \varepsilon H(P)$ and is then rounded to its shares. The
    least cost lies between both bounds whether or not steps have converged, up to rounding; once they have,
    `upper` is above it by at most $\varepsilon \log \min(n, m)$. The entropy starts large and is halved a
    step. Costs O(n m) a step and memory of the same; gradients flow through all steps.

    Shapes: cost (... n m), left_mask (... n) and right_mask (... m), True where a point is real.

    Args:
        epsilon: of the entropy, as a share of the mean cost of real pairs.
        steps: of both sides.
        left_mask: points of rows that are real, of each batch; all if None.
        right_mask: points of columns that are real.

    Raises:
        BadInput: `epsilon` is not above 0, `steps` is no such number, a side has no points, or a mask is
            not boolean.
        ShapeError: a mask does not fit.

    Example:
        >>> cost = squared_distances(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.5], [0.5]]))
        >>> made = sinkhorn(cost)
        >>> made.coupling.round(decimals=3)
        tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]])
        >>> [round(float(bound), 3) for bound in (made.lower, made.upper)]
        [0.25, 0.25]
    """
    if not epsilon > 0:
        raise BadInput(f"sinkhorn: epsilon is {epsilon!r}, expected a number above 0")
    check_size("sinkhorn", "steps", steps)
    cost, left, right = _masked("sinkhorn", cost, left_mask, right_mask)
    mean = (cost * (left.exp().unsqueeze(-1) * right.exp().unsqueeze(-2))).sum((-2, -1)).detach()
    entropy = (epsilon * mean).clamp_min(torch.finfo(cost.dtype).tiny ** 0.5)
    above, below = eager.potentials(
        cost, left, right, epsilon=entropy, steps=steps, start=cost.detach().amax((-2, -1))
    )
    made = eager.rounded(eager.coupling(cost, above, below, left, right, entropy), left, right)
    lower = eager.dual_value(cost, below, left, right)
    return Sinkhorn(_only_real(made, left_mask, right_mask), lower, (made * cost).sum((-2, -1)))


def normalised_scores(
    scores: Tensor,
    *,
    mode: str = "row",
    steps: int = 20,
    left_mask: Tensor | None = None,
    right_mask: Tensor | None = None,
) -> Tensor:
    r"""The Gibbs kernel $e^{s_{ij}}$ with its rows scaled to sum to 1, or its rows and columns in turn.

    "row" is the pattern of softmax attention: entropic transport that keeps the shares of its rows only.
    "sinkhorn" keeps both: after the last step rows sum to 1 exactly and, as steps go on, columns to n / m.
    With no step it is "row".

    Shapes: scores (... n m), left_mask (... n), right_mask (... m), True where a point is real; returns
    (... n m), zero at the others.

    Args:
        mode: "row" or "sinkhorn".
        steps: of "sinkhorn".
        left_mask: points of rows that are real, of each batch; all if None.
        right_mask: points of columns that are real.

    Raises:
        BadInput: `steps` is no such number, a side has no points, or a mask is not boolean.
        ShapeError: a mask does not fit.
        UnknownName: no such mode.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [2.0, 1.0]])
        >>> normalised_scores(scores, mode="sinkhorn").sum(0).round(decimals=3)
        tensor([1., 1.])
    """
    who = "normalised_scores"
    if mode not in MODES:
        raise unknown(who, "mode", mode, MODES)
    check_size(who, "steps", steps, least=0)
    cost, left, right = _masked(who, -scores, left_mask, right_mask)
    one = cost.new_ones(cost.shape[:-2])
    made = eager.potentials(cost, left, right, epsilon=one, steps=steps if mode == "sinkhorn" else 0)
    entries = eager.coupling(cost, *made, left, right, one)
    return _only_real(entries * left.isfinite().sum(-1)[..., None, None], left_mask, right_mask)


def _masked(
    who: str, cost: Tensor, left_mask: Tensor | None, right_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Costs that are zero where a pair is not real, and logarithms of shares."""
    sizes = check_axes(who, cost=(cost, "... n m"))
    if 0 in sizes.values():
        raise BadInput(f"{who}: {sizes['n']} points and {sizes['m']}, expected one or more on each side")
    batch = tuple(cost.shape[:-2])
    for name, mask, count in (("left_mask", left_mask, sizes["n"]), ("right_mask", right_mask, sizes["m"])):
        if mask is not None and mask.dtype != torch.bool:
            raise BadInput(f"{who}: `{name}` is {mask.dtype}, expected torch.bool with True where real")
        if mask is not None and mask.shape != (*batch, count):
            raise ShapeError(f"{who}: `{name}` has shape {tuple(mask.shape)}, expected {(*batch, count)}")
    # What stands at pairs that are not real, be it NaN, must not reach a sum or its gradient.
    cost = _only_real(cost, left_mask, right_mask)
    left = eager.log_shares((*batch, sizes["n"]), left_mask, cost)
    return cost, left, eager.log_shares((*batch, sizes["m"]), right_mask, cost)


def _only_real(entries: Tensor, left_mask: Tensor | None, right_mask: Tensor | None) -> Tensor:
    if left_mask is not None:
        entries = entries.masked_fill(~left_mask.unsqueeze(-1), 0)
    return entries if right_mask is None else entries.masked_fill(~right_mask.unsqueeze(-2), 0)
