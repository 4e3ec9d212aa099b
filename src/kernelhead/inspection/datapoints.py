"""Which other rows of a table a prediction relied on: read off the pattern, by corruption, by deletion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.nn import Attended, DatapointAttention, evaluating, record
from kernelhead.pattern import Factored, Pattern
from kernelhead.rng import generator
from kernelhead.shapes import check_axes, check_size

SHORTEST = 1e-3  # a prediction is never taken for shorter, or no change of one near zero would be small


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Rows that some rows attend to most, in the mean over heads and row attentions.

    Shapes: rows and weights (q, k), the heaviest first, the row itself left out; own (q,), its own weight.
    """

    rows: Tensor
    weights: Tensor
    own: Tensor


@dataclass(frozen=True, eq=False)
class Reliance:
    """What a model predicts for some rows before and after all other rows were corrupted.

    Shapes: plain and corrupted (q, w), means or logits of the column in question.
    """

    plain: Tensor
    corrupted: Tensor

    @property
    def moved(self) -> float:
        """Mean absolute change of a prediction; zero where no other row has any influence."""
        return float((self.corrupted - self.plain).abs().mean())


@dataclass(frozen=True, eq=False)
class Deletion:
    """Rows without which a prediction changes.

    Attributes:
        kept: the other rows that are left, in their order.
        before: the prediction, (w,), from all rows; for a categorical column probabilities.
        after: from the rows that are left.
        asked: how often the model was called.
    """

    kept: Tensor
    before: Tensor
    after: Tensor
    asked: int


@torch.no_grad()
def neighbours(
    model: nn.Module,
    values: Tensor,
    missing: Tensor,
    rows: Sequence[int],
    *,
    count: int = 5,
    layer: int | None = None,
    context: int | None = None,
) -> Neighbours:
    """The rows of a table that some of its rows attend to most.

    Under softmax and inducing attention weights are shares of one; those of primal attention are entries of
    its learned kernel, and may be negative: the largest in size come first.

    Shapes: values (r, sum of widths), missing (r, a), of one table.

    Args:
        model: with row attentions, such as a `TableModel`.
        values: encoded columns side by side.
        missing: where an entry is not known.
        rows: whose neighbours are wanted.
        count: how many neighbours, at most the other rows.
        layer: number of the row attention to read; all if None.
        context: as the model takes it; neighbours are then rows of the context.

    Raises:
        BadInput: the model has no row attention or not that one, or a row is not in the table.

    Example:
        >>> from kernelhead.models import TableModel
        >>> model = TableModel([1, 1], categorical=[False, False], width=4, depth=2, heads=2)
        >>> table, shown = torch.randn(6, 2), torch.zeros(6, 2, dtype=torch.bool)
        >>> neighbours(model, table, shown, [0, 5], count=3).rows.shape
        torch.Size([2, 3])
    """
    who = "neighbours"
    check_size(who, "count", count)
    _check_table(who, values, missing, rows)
    with evaluating(model), record(model, patterns=True) as tape:
        model(values[None], missing[None], context=context)
    paths = [
        f"{path}.attention" for path, each in model.named_modules() if isinstance(each, DatapointAttention)
    ]
    found = [tape.calls[path] for path in paths if tape.calls.get(path)]
    if not found or (layer is not None and not 0 <= layer < len(found)):
        wanted = "any" if layer is None else layer
        raise BadInput(f"{who}: {type(model).__name__} has {len(found)} row attentions, asked for {wanted}")
    chosen = found if layer is None else [found[layer]]
    weights = torch.stack([_weights(calls, rows, len(values), context) for calls in chosen]).mean(0)  # (q, r)
    place = torch.tensor(list(rows), device=weights.device).unsqueeze(-1)
    own, others = weights.gather(1, place), weights.scatter(1, place, 0)
    size = others.abs().scatter(1, place, -1)
    if context is not None:
        size[:, context:] = -1
    reachable = (context or len(values)) - max(int(context is None or row < context) for row in rows)
    order = size.argsort(dim=1, descending=True, stable=True)[:, : min(count, reachable)]
    return Neighbours(order, others.gather(1, order), own.squeeze(-1))


@torch.no_grad()
def corruption_reliance(
    model: nn.Module,
    values: Tensor,
    missing: Tensor,
    rows: Sequence[int],
    *,
    target: int,
    context: int | None = None,
    seed: int = 0,
    batch: int = 16,
) -> Reliance:
    """Predictions of some rows before and after every column was shuffled over all other rows.

    For each row in question the columns of all other rows are permuted, each on its own, with what says
    that they are missing: the other rows keep their numbers and tell nothing. A model whose predictions
    hang on the row alone is unmoved. With a context its columns are permuted, once for all rows.

    Shapes: values (r, sum of widths), missing (r, a), of one table.

    Args:
        model: as `TableModel`.
        values: encoded columns side by side.
        missing: where an entry is not known; the rows' own targets should be.
        rows: to predict; with a context rows beyond it.
        target: number of the column to predict.
        context: as the model takes it.
        seed: names the draw.
        batch: tables in one call of the model.

    Raises:
        BadInput: a row is not in the table, or with a context not beyond it, or there is no such column.

    Example:
        >>> from kernelhead.models import TableModel
        >>> twin = TableModel([1, 1], categorical=[False, False], width=4, depth=2, heads=2, attention="self")
        >>> table, shown = torch.randn(6, 2), torch.zeros(6, 2, dtype=torch.bool)
        >>> corruption_reliance(twin, table, shown, [0, 5], target=1).moved < 1e-6
        True
    """
    who = "corruption_reliance"
    _check_table(who, values, missing, rows)
    owner, _ = _columns(who, model, target)
    check_size(who, "batch", batch)
    _check_beyond(who, rows, context)
    source, places = generator(seed), torch.tensor(list(rows), device=values.device)
    with evaluating(model):
        plain = model(values[None], missing[None], context=context)[target][0, places]
        if context is not None:
            spoilt = _shuffled(owner, values, missing, source, len(values), context)
            return Reliance(
                plain, model(spoilt[0][None], spoilt[1][None], context=context)[target][0, places]
            )
        found = []
        for part in places.split(batch):
            tables = [_shuffled(owner, values, missing, source, int(row), len(values)) for row in part]
            made = model(*(torch.stack(each) for each in zip(*tables, strict=True)))[target]
            found.append(made[torch.arange(len(part), device=part.device), part])
    return Reliance(plain, torch.cat(found))


@torch.no_grad()
def delete_until_change(
    model: nn.Module,
    values: Tensor,
    missing: Tensor,
    row: int,
    *,
    target: int,
    context: int | None = None,
    each: float = 0.01,
    total: float = 0.1,
    refusals: int = 50,
    growth: float = 0.1,
    least: float = 0.02,
    seed: int = 0,
) -> Deletion:
    """Delete other rows at random for as long as a prediction stays where it is.

    A row goes if the prediction then moves by at most `each` from the last and by at most `total` from the
    first, both as a share of the first one's length. After so many refusals on end both grow. What is left at
    the end are rows that the prediction relied on.

    Shapes: values (r, sum of widths), missing (r, a), of one table.

    Args:
        model: as `TableModel`.
        values: encoded columns side by side.
        missing: where an entry is not known; the row's own target should be.
        row: to predict.
        target: number of the column to predict.
        context: as the model takes it; rows of the context are then deleted, for a row beyond it.
        each: allowance of one deletion.
        total: allowance of all deletions.
        refusals: on end, after which allowances grow.
        growth: share by which they grow.
        least: share of the other rows at which to stop.
        seed: names the draw.

    Raises:
        BadInput: the row is not in the table, or with a context not beyond it, there is no such column, an
            allowance is not above 0, `least` is no share, or the prediction is not finite.

    Example:
        >>> from kernelhead.models import TableModel
        >>> twin = TableModel([1, 1], categorical=[False, False], width=4, depth=2, heads=2, attention="self")
        >>> table, shown = torch.randn(11, 2), torch.zeros(11, 2, dtype=torch.bool)
        >>> len(delete_until_change(twin, table, shown, 3, target=1, least=0.2).kept)
        2
    """
    who = "delete_until_change"
    _check_table(who, values, missing, [row])
    _, categorical = _columns(who, model, target)
    check_size(who, "refusals", refusals)
    for name, share in (("each", each), ("total", total), ("growth", growth)):
        if not share > 0:
            raise BadInput(f"{who}: {name} is {share!r}, expected a number above 0")
    if not 0 <= least <= 1:
        raise BadInput(f"{who}: least is {least!r}, expected a share from 0 to 1")
    source = generator(seed)
    _check_beyond(who, [row], context)
    kept = [other for other in range(context or len(values)) if other != row]
    floor, asked, refused = round(least * len(kept)), 1, 0

    def predicted(others: list[int]) -> Tensor:
        index = torch.tensor([*others, row], device=values.device)
        seen = len(others) if context is not None and others else None
        made: Tensor = model(values[None, index], missing[None, index], context=seen)[target][0, -1]
        if not bool(made.isfinite().all()):
            raise BadInput(f"{who}: the prediction of row {row} from {len(others)} others is not finite")
        return made.softmax(-1) if categorical[target] else made

    with evaluating(model):
        before = last = predicted(kept)
        length = before.norm().clamp_min(SHORTEST)
        while len(kept) > floor:
            drop = int(torch.randint(len(kept), (), generator=source))
            others = [*kept[:drop], *kept[drop + 1 :]]
            now, asked = predicted(others), asked + 1
            if (now - last).norm() <= each * length and (now - before).norm() <= total * length:
                kept, last, refused = others, now, 0
                continue
            refused += 1
            if refused == refusals:
                each, total, refused = each * (1 + growth), total * (1 + growth), 0
    return Deletion(torch.tensor(kept, dtype=torch.int64), before, last, asked)


def _weights(calls: list[Attended], rows: Sequence[int], count: int, context: int | None) -> Tensor:
    """What some rows attend with, (q, r), in the mean over heads."""
    found = []
    for row in rows:
        # Rows of the context attend in one call and those beyond it in the next.
        beyond = context is not None and context <= row
        entries = _row(calls[int(beyond)].pattern, row - (context or 0) if beyond else row)
        seen = min(len(entries), context or count)
        whole = torch.cat([entries[:seen], entries.new_zeros(count - seen)])
        if beyond and len(entries) > seen:
            whole[row] = entries[-1]
        found.append(whole)
    return torch.stack(found)


def _row(pattern: Pattern | None, place: int) -> Tensor:
    """One row of a pattern (1, h, n, m) in the mean over heads, (m,)."""
    if isinstance(pattern, Factored):
        pattern = Factored(pattern.left[..., place : place + 1, :], pattern.values, pattern.right)
        place = 0
    if pattern is None:
        raise BadInput("neighbours: a row attention left no pattern on the tape")
    return pattern.matrix()[0, :, place].mean(0)


def _shuffled(
    owner: Tensor, values: Tensor, missing: Tensor, source: torch.Generator, row: int, count: int
) -> tuple[Tensor, Tensor]:
    """A table with every column permuted over the first `count` rows, but for one row."""
    others = torch.tensor([other for other in range(count) if other != row], dtype=torch.int64)
    order = torch.arange(len(values)).repeat(missing.shape[-1], 1)  # (a, r)
    for column in order:
        column[others] = others[torch.randperm(len(others), generator=source)]
    order = order.T.to(values.device)
    return values.gather(0, order.index_select(1, owner)), missing.gather(0, order)


def _check_table(who: str, values: Tensor, missing: Tensor, rows: Sequence[int]) -> None:
    check_axes(who, values=(values, "r v"), missing=(missing, "r a"))
    if not len(rows) or not all(0 <= row < len(values) for row in rows):
        raise BadInput(f"{who}: rows are {list(rows)}, expected one or more from 0 to {len(values) - 1}")


def _check_beyond(who: str, rows: Sequence[int], context: int | None) -> None:
    if context is not None and not 0 < context <= min(rows):
        raise BadInput(f"{who}: row {min(rows)} is not beyond a context of {context} rows")


def _columns(who: str, model: Any, target: int) -> tuple[Tensor, tuple[bool, ...]]:
    """The column of every encoded feature, and whether each column is categorical."""
    if not hasattr(model, "owner") or not hasattr(model, "categorical"):
        raise BadInput(f"{who}: {type(model).__name__} does not tell its columns, expected a TableModel")
    if not 0 <= target < len(model.categorical):
        raise BadInput(f"{who}: target is {target}, expected a column from 0 to {len(model.categorical) - 1}")
    return model.owner, model.categorical
