"""Attention rolled out over layers: from which points of the input each point has read."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelhead.errors import BadInput, ShapeError, unknown
from kernelhead.pattern import Pattern

ROWS = ("stochastic", "absolute")
ROUNDED = 4e-3  # by which the sum of a softmax may be off in half precision, or cast from there


def attention_rollout(
    attentions: Sequence[Tensor | Pattern],
    *,
    residual: float = 0.5,
    rows: str = "stochastic",
    mask: Tensor | None = None,
) -> Tensor:
    r"""From which points of the input each point has read after several layers of attention.

    $R = \hat A_L \cdots \hat A_1$ with $\hat A = (1 - \rho) \bar A + \rho I$: the mean over heads, and the
    residual connection as a share $\rho$ that a point keeps. Cost grows as L n^3.

    Shapes: attentions (b, h, n, n) or (n, n) each, first layer first, rows that read; mask (b, n), True where
    real; returns (b, n, n) in float64, rows that sum to 1.

    Args:
        residual: the share $\rho$; without it, 0, a rollout tells of another network than the one that ran.
        rows: what a row must be. "stochastic": not negative and of sum 1, as softmax makes it, up to the
            rounding of bfloat16; it is then divided by its sum. "absolute" takes magnitudes over their sum,
            head by head, for patterns such as those of primal layers, whose entries have any sign; these are
            then shares of influence and no probabilities.
        mask: padded points read from themselves alone.

    Raises:
        BadInput: there is no attention, one is not finite or its rows are not what they must be, or
            `residual` is not from 0 to below 1.
        ShapeError: attentions are of different or other shapes.
        UnknownName: no such rows.

    Example:
        >>> attention_rollout([torch.full((2, 2), 0.5)] * 2)[0]
        tensor([[0.6250, 0.3750],
                [0.3750, 0.6250]], dtype=torch.float64)
    """
    who = "attention_rollout"
    entries = entries_of(who, attentions, numbered(attentions))
    real = real_points(who, mask, entries[0])
    layers = mixed_heads(who, entries, numbered(attentions), rows, real)
    return rolled_out(layers, check_residual(who, residual))[-1]


def entries_of(who: str, attentions: Sequence[Tensor | Pattern], paths: Sequence[str]) -> list[Tensor]:
    """Entries of patterns, (b, h, n, n) each, finite and all of the same cases and points."""
    if not len(attentions):
        raise BadInput(f"{who}: no attention is given, expected that of one layer or more")
    found = [(each if isinstance(each, Tensor) else each.matrix()).detach() for each in attentions]
    found = [each[None, None] if each.dim() == 2 else each for each in found]
    for path, each in zip(paths, found, strict=True):
        if each.dim() != 4 or each.shape[-1] != each.shape[-2]:
            raise ShapeError(
                f"{who}: attention {path!r} has shape {tuple(each.shape)}, expected (b, h, n, n) or (n, n), "
                "points that read from the same points"
            )
        if not torch.isfinite(each).all():
            raise BadInput(f"{who}: attention {path!r} holds NaN or infinity")
    shapes = {(each.shape[0], each.shape[-1]): path for path, each in zip(paths, found, strict=True)}
    if len(shapes) > 1:
        said = ", ".join(f"{b} cases of {n} points at {path!r}" for (b, n), path in shapes.items())
        raise ShapeError(f"{who}: layers are not of the same points: {said}; `under` chooses some of a model")
    return found


def real_points(who: str, mask: Tensor | None, entries: Tensor) -> Tensor:
    """A mask (b, n), all True without one."""
    cases, n = entries.shape[0], entries.shape[-1]
    if mask is None:
        return torch.ones(cases, n, dtype=torch.bool, device=entries.device)
    if mask.dtype != torch.bool or mask.shape != (cases, n):
        raise BadInput(
            f"{who}: `mask` is {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool ({cases}, {n})"
        )
    return mask.to(entries.device)


def mixed_heads(
    who: str, entries: Sequence[Tensor], paths: Sequence[str], rows: str, real: Tensor
) -> list[Tensor]:
    """Mean over heads of every layer, (b, n, n) in float64, rows of sum 1; padded points keep themselves."""
    if rows not in ROWS:
        raise unknown(who, "rows", rows, ROWS)
    return [_stochastic(who, each, path, rows, real) for path, each in zip(paths, entries, strict=True)]


def _stochastic(who: str, entries: Tensor, path: str, rows: str, real: Tensor) -> Tensor:
    wide = entries.double().abs() if rows == "absolute" else entries.double()
    sums = wide.sum(-1)
    wrong = (sums <= 0) if rows == "absolute" else ((sums - 1).abs() > ROUNDED) | (wide < 0).any(-1)
    wrong = wrong & real[:, None]
    if wrong.any():
        case, head, row = wrong.nonzero()[0].tolist()
        given = f"row {row} of head {head}, case {case}, of attention {path!r}"
        if rows == "absolute":
            raise BadInput(f"{who}: {given} is zero, expected a point to read from")
        low = float(wide[case, head, row].min())
        raise BadInput(
            f"{who}: {given} sums to {float(sums[case, head, row]):.4g} with a least entry of {low:.4g}, "
            "expected a sum of 1 and none below 0; rows='absolute' takes magnitudes over their sum"
        )
    mean = (wide / sums.clamp_min(1e-300)[..., None]).mean(1)
    return torch.where(real[..., None], mean, torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device))


def check_residual(who: str, residual: float) -> float:
    """A share that points keep, from 0 to below 1."""
    if not 0 <= residual < 1:
        raise BadInput(f"{who}: residual is {residual}, expected from 0 to below 1")
    return residual


def with_residual(layer: Tensor, share: float) -> Tensor:
    """A layer with the share that points keep."""
    return (1 - share) * layer + share * torch.eye(layer.shape[-1], dtype=layer.dtype, device=layer.device)


def rolled_out(layers: Sequence[Tensor], share: float) -> list[Tensor]:
    """The product of the layers up to each, (b, n, n), later ones on the left."""
    rolled = [with_residual(layers[0], share)]
    for layer in layers[1:]:
        rolled.append(with_residual(layer, share) @ rolled[-1])
    return rolled


def numbered(attentions: Sequence[Any]) -> list[str]:
    """Names of layers that have none."""
    return [str(number) for number in range(len(attentions))]
