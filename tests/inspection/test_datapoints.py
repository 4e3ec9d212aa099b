"""Readings of row attention: neighbours, corruption, deletion, on models whose answer is known."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput
from kernelhead.inspection import corruption_reliance, delete_until_change, neighbours
from kernelhead.inspection.datapoints import _row
from kernelhead.models import TableModel
from kernelhead.nn import record
from kernelhead.nn.datapoints import ROW_ATTENTIONS
from kernelhead.rng import seeded
from tests.inputs import points
from tests.tolerance import assert_exact

rows = pytest.mark.parametrize("attention", ROW_ATTENTIONS)


def made(attention: str = "softmax") -> TableModel:
    with seeded(0):
        return TableModel(
            [1, 3],
            categorical=[False, True],
            width=4,
            depth=4,
            heads=2,
            attention=attention,
            rank=3,
            inducing=4,
        ).double()


def table(count: int = 9, seed: int = 0) -> tuple[Tensor, Tensor]:
    return points(count, 4, seed=seed), points(count, 2, seed=seed + 1) > 1


class Copies(nn.Module):
    """Predicts for every row the first column of the row below it, and for the last of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.categorical, self.owner = (False, False), torch.arange(2)

    def forward(self, values: Tensor, missing: Tensor, *, context: int | None = None) -> list[Tensor]:
        return [values[..., :1].roll(-1, dims=1), values[..., 1:]]


@rows
def test_neighbours_are_those_of_the_mean_pattern(attention: str) -> None:
    model, (values, missing) = made(attention), table()
    found = neighbours(model, values, missing, [2, 7], count=4)
    with record(model, patterns=True) as tape:
        model(values[None], missing[None])
    paths = [path for path in tape.calls if path.startswith(("blocks.0", "blocks.2"))]
    whole = torch.stack([tape.last(path).pattern.matrix()[0] for path in paths]).mean((0, 1))  # (r, r)
    for place, row in enumerate([2, 7]):
        assert_exact(found.own[place], whole[row, row])
        others = whole[row].clone()
        others[row] = 0
        assert row not in found.rows[place].tolist()
        assert_exact(found.weights[place], others[found.rows[place]])
        assert_exact(found.weights[place].abs(), others.abs().sort(descending=True).values[:4])


@rows
def test_neighbours_beyond_a_context_are_rows_of_it(attention: str) -> None:
    model, (values, missing) = made(attention), table()
    found = neighbours(model, values, missing, [7, 8], count=9, context=6)
    assert found.rows.shape == (2, 6)
    assert int(found.rows.max()) < 6
    if attention in ("softmax", "inducing", "self"):
        total = found.weights.sum(1) + found.own
        assert_exact(total, torch.ones(2, dtype=torch.float64))
    front = neighbours(model, values, missing, [3], count=5, context=6)
    alone = neighbours(model, values[:6], missing[:6], [3], count=5)
    assert torch.equal(front.rows, alone.rows)
    assert_exact(front.weights, alone.weights)


def test_one_layer_can_be_read_alone() -> None:
    model, (values, missing) = made(), table()
    both, first, second = (
        neighbours(model, values, missing, [1], count=8, layer=layer) for layer in (None, 0, 1)
    )
    assert_exact(both.own, (first.own + second.own) / 2)
    with pytest.raises(BadInput, match="neighbours: TableModel has 2 row attentions, asked for 2"):
        neighbours(model, values, missing, [1], layer=2)


@rows
def test_corruption_moves_all_but_the_twin(attention: str) -> None:
    model, (values, missing) = made(attention), table()
    for context, asked in ((None, [0, 4, 8]), (6, [6, 8])):
        found = corruption_reliance(model, values, missing, asked, target=1, context=context, batch=2)
        assert found.plain.shape == found.corrupted.shape == (len(asked), 3)
        plain = model(values[None], missing[None], context=context)[1][0, asked]
        assert_exact(found.plain, plain)
        assert (found.moved < 1e-12) == (attention == "self")


def test_corruption_keeps_the_row_and_the_numbers_of_all_others() -> None:
    seen: list[Tensor] = []

    class Watch(Copies):
        def forward(self, values: Tensor, missing: Tensor, *, context: int | None = None) -> list[Tensor]:
            seen.extend(values)
            return super().forward(values, missing)

    values = torch.arange(20.0).view(10, 2)
    missing = torch.zeros(10, 2, dtype=torch.bool)
    found = corruption_reliance(Watch(), values, missing, [3, 9], target=0)
    assert torch.equal(found.plain[:, 0], values[[4, 0], 0])
    for row, spoilt in zip([3, 9], seen[1:], strict=True):
        assert torch.equal(spoilt[row], values[row])
        assert torch.equal(spoilt.sort(0).values, values)
        together = {tuple(each) for each in spoilt.tolist()} & {tuple(each) for each in values.tolist()}
        assert len(together) < 8


def test_missing_bits_move_along() -> None:
    class Bits(Copies):
        def forward(self, values: Tensor, missing: Tensor, *, context: int | None = None) -> list[Tensor]:
            assert torch.equal(missing, values < 0)
            return super().forward(values, missing)

    values = points(8, 2)
    corruption_reliance(Bits(), values, values < 0, [1], target=1)


def test_a_seed_is_a_draw() -> None:
    model, (values, missing) = made(), table()
    first, again, other = (
        corruption_reliance(model, values, missing, [1], target=1, seed=seed).corrupted for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_deletion_keeps_the_row_that_is_copied() -> None:
    values, missing = points(41, 2), torch.zeros(41, 2, dtype=torch.bool)

    class Nearest(Copies):
        """Answers the second column of the row, not itself, whose first one is nearest."""

        def forward(self, values: Tensor, missing: Tensor, *, context: int | None = None) -> list[Tensor]:
            far = (values[..., :1] - values[..., 0].unsqueeze(-2)).abs()
            far = far + 1e9 * torch.eye(values.shape[1], dtype=values.dtype)
            return [values[..., :1], values[..., 1:].gather(1, far.argmin(-1, keepdim=True))]

    distance = (values[:, 0] - values[5, 0]).abs()
    distance[5] = 1e9
    found = delete_until_change(Nearest(), values, missing, 5, target=1, least=0.05)
    assert len(found.kept) == 2
    assert int(distance.argmin()) in found.kept.tolist()
    assert torch.equal(found.before, found.after)
    assert found.asked > 38


def test_allowances_grow_until_enough_rows_are_gone() -> None:
    model, (values, missing) = made(), table(30)
    found = delete_until_change(model, values, missing, 3, target=1, least=0.1, refusals=5, growth=0.5)
    assert len(found.kept) == 3
    assert 3 not in found.kept.tolist()
    assert float(found.before.sum()) == pytest.approx(1)
    assert found.asked >= 27


def test_rows_of_a_context_are_deleted_for_a_row_beyond_it() -> None:
    model, (values, missing) = made(), table(30)
    found = delete_until_change(model, values, missing, 27, target=1, context=20, least=0.0)
    assert len(found.kept) == 0
    whole = model(values[None], missing[None], context=20)[1][0, 27].softmax(-1)
    assert_exact(found.before, whole)
    assert_exact(found.after, model(values[None, 27:28], missing[None, 27:28])[1][0, 0].softmax(-1))


def test_what_is_wrong_is_named() -> None:
    model, (values, missing) = made(), table()
    with pytest.raises(BadInput, match=r"neighbours: rows are \[9\], expected one or more from 0 to 8"):
        neighbours(model, values, missing, [9])
    with pytest.raises(BadInput, match="neighbours: count is 0"):
        neighbours(model, values, missing, [1], count=0)
    with pytest.raises(BadInput, match=r"corruption_reliance: rows are \[\]"):
        corruption_reliance(model, values, missing, [], target=1)
    with pytest.raises(BadInput, match="corruption_reliance: target is 2, expected a column from 0 to 1"):
        corruption_reliance(model, values, missing, [1], target=2)
    with pytest.raises(BadInput, match="corruption_reliance: row 2 is not beyond a context of 6 rows"):
        corruption_reliance(model, values, missing, [2], target=1, context=6)
    with pytest.raises(BadInput, match="delete_until_change: each is 0, expected a number above 0"):
        delete_until_change(model, values, missing, 1, target=1, each=0)
    for least in (-1, float("nan")):
        with pytest.raises(BadInput, match=f"delete_until_change: least is {least}, expected a share from 0"):
            delete_until_change(model, values, missing, 1, target=1, least=least)
    spoilt = values.clone()
    spoilt[3, 0] = float("nan")
    with pytest.raises(BadInput, match="the prediction of row 1 from 8 others is not finite"):
        delete_until_change(model, spoilt, missing, 1, target=1)
    with pytest.raises(BadInput, match="delete_until_change: row 1 is not beyond a context of 3 rows"):
        delete_until_change(model, values, missing, 1, target=1, context=3)
    with pytest.raises(BadInput, match="neighbours: a row attention left no pattern on the tape"):
        _row(None, 0)
    with pytest.raises(BadInput, match="delete_until_change: Linear does not tell its columns"):
        delete_until_change(nn.Linear(1, 1), values, missing, 1, target=1)
    with pytest.raises(BadInput, match="neighbours: Rows has 0 row attentions, asked for any"):
        neighbours(Rows(), values, missing, [1])


def test_rows_in_an_array_and_a_table_of_one_row() -> None:
    model, (values, missing) = made(), table()
    one, same = (neighbours(model, values, missing, rows) for rows in ([0, 5], np.array([0, 5])))
    assert torch.equal(one.rows, same.rows)
    assert corruption_reliance(model, values[:1], missing[:1], [0], target=1).moved == 0


class Rows(nn.Module):
    """Attention, but not between rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = made().blocks[1].attention

    def forward(self, values: Tensor, missing: Tensor, *, context: int | None = None) -> Tensor:
        return values
