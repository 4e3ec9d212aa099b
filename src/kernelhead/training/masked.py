"""Training of table models on entries that were hidden from them: features, targets, and their trade-off."""

from dataclasses import dataclass
from math import cos, pi
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.errors import BadInput
from kernelhead.models.tabular import TableModel
from kernelhead.shapes import check_axes, check_mask, check_size


@dataclass(frozen=True)
class Masking:
    """With which probability entries are hidden in a training step, each on its own.

    Args:
        features: of an entry that is no target to be chosen.
        targets: of a training row's target to be hidden; the others are visible inputs.
        replace: of a chosen feature to be replaced by a random value, a level or a standard normal number,
            that passes for known, and not to be hidden.

    Raises:
        BadInput: a number is not from 0 to 1.
    """

    features: float = 0.15
    targets: float = 0.5
    replace: float = 0.1

    def __post_init__(self) -> None:
        for name in ("features", "targets", "replace"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"Masking: {name} is {getattr(self, name)!r}, expected from 0 to 1")


@dataclass(frozen=True, eq=False)
class Masked:
    """A table with entries hidden, and where the loss is taken.

    Shapes: values (b, r, sum of widths), missing (b, r, a), as a `TableModel` takes them; chosen (b, r, a).
    """

    values: Tensor
    missing: Tensor
    chosen: Tensor


@overload
def annealed(step: float, steps: int) -> float: ...


@overload
def annealed(step: Tensor, steps: int) -> Tensor: ...


def annealed(step: float | Tensor, steps: int) -> float | Tensor:
    """The weight of the features' loss, from 1 at the first step to 0 after the last along a cosine.

    Args:
        step: steps made; a tensor on the device where a step is captured as a graph.
        steps: of the whole training.

    Raises:
        BadInput: `steps` is not a positive whole number.

    Example:
        >>> annealed(0, 10), round(annealed(5, 10), 6), annealed(10, 10)
        (1.0, 0.5, 0.0)
    """
    share = step / check_size("annealed", "steps", steps)
    if isinstance(share, Tensor):
        return (1 + torch.cos(pi * share.clamp(0, 1))) / 2
    return (1 + cos(pi * min(max(share, 0.0), 1.0))) / 2


def mask_entries(
    model: TableModel,
    values: Tensor,
    missing: Tensor,
    target: int,
    *,
    masking: Masking,
    train_rows: Tensor | None = None,
    row_mask: Tensor | None = None,
) -> Masked:
    """Hide entries at random; what is missing stays so and is never chosen.

    Targets of rows that are not for training are always hidden and never chosen. All is drawn from the
    global generator of the device and no shape hangs on what was drawn.

    Shapes: values (b, r, sum of widths), missing (b, r, a); train_rows and row_mask (b, r).

    Args:
        model: says which columns there are.
        values: encoded columns side by side.
        missing: where an entry is not known.
        target: number of the column that is to be predicted.
        masking: how much to hide.
        train_rows: rows whose target may be seen and learned from; all if None.
        row_mask: rows that exist; all if None.

    Raises:
        BadInput: there is no such column, or a mask does not fit.

    Example:
        >>> model = TableModel([1, 1], categorical=[False, False], width=4, depth=2, heads=1)
        >>> shown = torch.zeros(1, 3, 2, dtype=torch.bool)
        >>> masked = mask_entries(model, torch.ones(1, 3, 2), shown, 1, masking=Masking(0.0, 1.0))
        >>> masked.chosen[0, 0], masked.values[0, 0]
        (tensor([False,  True]), tensor([1., 0.]))
    """
    who = "mask_entries"
    check_axes(who, values=(values, "b r v"), missing=(missing, "b r a"))
    if not 0 <= target < len(model.widths):
        raise BadInput(f"{who}: target is {target}, expected a column from 0 to {len(model.widths) - 1}")
    check_mask(who, train_rows, values, "train_rows")
    check_mask(who, row_mask, values, "row_mask")
    is_target = torch.arange(missing.shape[-1], device=missing.device) == target
    rate = values.new_full(is_target.shape, masking.features).masked_fill(is_target, masking.targets)
    known = ~missing if row_mask is None else ~missing & row_mask.unsqueeze(-1)
    learned = known if train_rows is None else known & (train_rows.unsqueeze(-1) | ~is_target)
    draw = torch.rand(2, *missing.shape, dtype=values.dtype, device=values.device)
    chosen = (draw[0] < rate) & learned
    replaced = chosen & (draw[1] < masking.replace) & ~is_target
    hidden = ~known | (chosen & ~replaced) | (is_target & ~learned)
    noise = torch.cat(
        [_noise(values, *kind) for kind in zip(model.widths, model.categorical, strict=True)], -1
    )
    shown = torch.where(replaced.index_select(-1, model.owner), noise, values)
    return Masked(shown.masked_fill(hidden.index_select(-1, model.owner), 0), hidden, chosen)


def masked_loss(
    model: TableModel,
    values: Tensor,
    missing: Tensor,
    target: int,
    *,
    masking: Masking,
    tradeoff: float | Tensor,
    train_rows: Tensor | None = None,
    row_mask: Tensor | None = None,
) -> Tensor:
    r"""$(1 - \lambda)$ times the loss at chosen targets plus $\lambda$ times that at chosen features.

    Each is a mean over its entries, cross-entropy or squared error, and zero where none was chosen.

    Shapes: values (b, r, sum of widths), missing (b, r, a); train_rows and row_mask (b, r); returns a scalar.

    Args:
        model: in training mode.
        values: encoded columns side by side.
        missing: where an entry is not known; never a loss there.
        target: number of the column that is to be predicted.
        masking: how much to hide.
        tradeoff: lambda, see `annealed`.
        train_rows: rows whose target may be seen and learned from; all if None.
        row_mask: rows that exist; all if None.

    Raises:
        BadInput: there is no such column, or tensors do not fit the model or each other.

    Example:
        >>> model = TableModel([1, 3], categorical=[False, True], width=4, depth=2, heads=1)
        >>> missing = torch.zeros(1, 6, 2, dtype=torch.bool)
        >>> masked_loss(model, torch.zeros(1, 6, 4), missing, 0, masking=Masking(), tradeoff=0.5).shape
        torch.Size([])
    """
    masked = mask_entries(
        model, values, missing, target, masking=masking, train_rows=train_rows, row_mask=row_mask
    )
    predictions = model(masked.values, masked.missing, row_mask=row_mask)
    truths = values.masked_fill(missing.index_select(-1, model.owner), 0).split(list(model.widths), dim=-1)
    losses = {
        column: entry_losses(predictions[column], truths[column], model.categorical[column])
        for column in range(len(truths))
        if column == target or masking.features > 0
    }
    weights = {column: masked.chosen[..., column].to(loss.dtype) for column, loss in losses.items()}
    total = (1 - tradeoff) * (losses[target] * weights[target]).sum() / weights[target].sum().clamp_min(1)
    features = [column for column in losses if column != target]
    if not features:
        return total
    summed = torch.stack([(losses[column] * weights[column]).sum() for column in features]).sum()
    count = torch.stack([weights[column].sum() for column in features]).sum()
    return total + tradeoff * summed / count.clamp_min(1)


def entry_losses(prediction: Tensor, truth: Tensor, categorical: bool) -> Tensor:
    """Cross-entropy or squared error of every entry of a column.

    Shapes: prediction and truth (..., w), logits and ones at levels, or means and numbers; returns (...).

    Example:
        >>> entry_losses(torch.tensor([[3.0]]), torch.tensor([[1.0]]), categorical=False)
        tensor([4.])
    """
    if categorical:
        return -(F.log_softmax(prediction, dim=-1) * truth).sum(-1)
    return (prediction - truth).square().sum(-1)


class MaskedEntries:
    """`masked_loss` as `fit_resident` takes it, with the trade-off annealed from call to call.

    Cases are whole tables, or rows of one, of which a batch is then one table. The count of calls lives on
    the device; with accumulation a step is several calls.

    Args:
        target: number of the column that is to be predicted.
        steps: calls over which the trade-off goes from 1 to 0; None for a trade-off that stays.
        masking: how much to hide.
        tradeoff: where it stays, lambda.

    Raises:
        BadInput: `steps` is not a positive whole number.

    Example:
        >>> from kernelhead.training import Course, fit_resident
        >>> model = TableModel([1, 1], categorical=[False, False], width=4, depth=2, heads=1)
        >>> rows, shown = torch.ones(20, 2), torch.zeros(20, 2, dtype=torch.bool)
        >>> loss = MaskedEntries(1, steps=5)
        >>> fit_resident(model, (rows, shown), ~shown[:, 0], Course(5, 10), loss=loss).steps
        5
    """

    def __init__(
        self,
        target: int,
        *,
        steps: int | None,
        masking: Masking | None = None,
        tradeoff: float = 0.0,
    ) -> None:
        self.target, self.masking, self.tradeoff = target, masking or Masking(), tradeoff
        self.steps = None if steps is None else check_size("MaskedEntries", "steps", steps)
        self.made = torch.zeros(())

    def __call__(self, model: nn.Module, inputs: tuple[Tensor, Tensor], train_rows: Tensor) -> Tensor:
        """The loss of a batch: values and missing of its tables or rows, and which rows are for training."""
        if not isinstance(model, TableModel):
            raise BadInput(f"MaskedEntries: the model is a {type(model).__name__}, expected a TableModel")
        values, missing = inputs
        if values.dim() == 2:
            values, missing, train_rows = values[None], missing[None], train_rows[None]
        tradeoff: float | Tensor = self.tradeoff
        if self.steps is not None:
            self.made = self.made.to(values.device)
            tradeoff = annealed(self.made, self.steps)
            # In place: a graph that is replayed counts on.
            self.made.add_(1)
        return masked_loss(
            model,
            values,
            missing,
            self.target,
            masking=self.masking,
            tradeoff=tradeoff,
            train_rows=train_rows,
        )


def _noise(values: Tensor, width: int, categorical: bool) -> Tensor:
    """A random level as a one among zeros, or a standard normal number, for every row: (b, r, w)."""
    shape = *values.shape[:-1], width
    if not categorical:
        return torch.randn(shape, dtype=values.dtype, device=values.device)
    draw = torch.rand(shape, dtype=values.dtype, device=values.device)
    return (draw == draw.amax(-1, keepdim=True)).to(values.dtype)
