"""Claims that attention between rows learns to look answers up in other rows (arXiv 2106.02584).

Rows of random numbers stand in a table twice, with and without their random target: nothing in a row tells
its target, so that a model that sees one row at a time cannot do better than the mean, an error of 1.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import lookup_tables
from kernelhead.inspection import corruption_reliance, delete_until_change, neighbours
from kernelhead.models import TableModel
from kernelhead.rng import seeded
from kernelhead.training import Course, fit_resident

VERDICTS = {
    "attention between rows learns to look up": "holds",
    "without it the same network learns nothing": "holds",
    "where copying the nearest row fails it learns what to do": "holds",
    "predictions follow what is written in the other row": "holds",
    "the pattern shows the row that was looked up": "holds",
}
ROWS = 16
pytestmark = pytest.mark.slow


@dataclass(frozen=True, eq=False)
class Tables:
    values: Tensor
    missing: Tensor
    answers: Tensor


def drawn(tables: int, seed: int, *, shift: float = 0.0, random: int = 0) -> Tables:
    found = lookup_tables(tables, rows=ROWS, features=4, shift=shift, random=random, seed=seed)
    return Tables(*map(torch.from_numpy, (found.values, found.missing, found.answers)))


def loss(model: nn.Module, x: tuple[Tensor, Tensor], answers: Tensor) -> Tensor:
    return F.mse_loss(model(*x)[-1][:, :ROWS, 0], answers)


def trained(attention: str, steps: int, *, shift: float = 0.0, random: int = 0) -> TableModel:
    with seeded(0):
        model = TableModel([1] * 5, categorical=[False] * 5, width=16, depth=4, heads=4, attention=attention)
    tables = drawn(8 * steps, seed=0, shift=shift, random=random)
    course = Course(steps, 8, lr=1e-3, weight_decay=0.0)
    fit_resident(model, (tables.values, tables.missing), tables.answers, course, loss=loss)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> TableModel:
    return trained("softmax", 1000)


@pytest.fixture(scope="module")
def fresh() -> Tables:
    return drawn(64, seed=1)


@torch.no_grad()
def error(model: TableModel, tables: Tables) -> float:
    return float(loss(model, (tables.values, tables.missing), tables.answers).sqrt())


@torch.no_grad()
def response(model: TableModel, tables: Tables, change: float) -> float:
    """How far predictions move in the mean where all shown targets do by `change`."""
    moved = tables.values.clone()
    moved[:, ROWS:, -1] += change
    before, after = (model(values, tables.missing)[-1][:, :ROWS] for values in (tables.values, moved))
    return float((after - before).mean())


def test_attention_between_rows_looks_up(model: TableModel, fresh: Tables) -> None:
    assert error(model, fresh) < 0.15


@pytest.mark.parametrize(
    ("shift", "random"), [(1.0, 0), (0.0, 2)], ids=["one too high", "two features random"]
)
def test_where_copying_the_nearest_row_fails_it_learns_what_to_do(shift: float, random: int) -> None:
    found = lookup_tables(64, rows=ROWS, features=4, shift=shift, random=random, seed=1)
    nearest = float(np.sqrt(np.mean((found.nearest() - found.answers) ** 2)))
    model = trained("softmax", 500, shift=shift, random=random)
    assert nearest > 0.9
    assert error(model, drawn(64, seed=1, shift=shift, random=random)) < 0.5 * nearest


def test_the_twin_that_sees_itself_learns_nothing(fresh: Tables) -> None:
    twin = trained("self", 200)
    assert 0.9 < error(twin, fresh) < 1.1
    assert response(twin, fresh, 2.0) == pytest.approx(0, abs=1e-6)


def test_predictions_follow_the_other_row(model: TableModel, fresh: Tables) -> None:
    assert response(model, fresh, 1.0) == pytest.approx(1, abs=0.15)


def test_the_pattern_shows_the_row_that_was_looked_up(model: TableModel, fresh: Tables) -> None:
    found = [
        neighbours(model, fresh.values[table], fresh.missing[table], range(ROWS), count=1).rows[:, 0]
        for table in range(8)
    ]
    right = torch.stack(found) == torch.arange(ROWS, 2 * ROWS)
    assert float(right.float().mean()) > 0.8


def test_corruption_and_deletion_find_that_it_is_relied_on(model: TableModel, fresh: Tables) -> None:
    values, missing, answers = fresh.values[0], fresh.missing[0], fresh.answers[0]
    reliance = corruption_reliance(model, values, missing, range(ROWS), target=4)
    plain, corrupted = (
        float((part[:, 0] - answers).square().mean().sqrt()) for part in (reliance.plain, reliance.corrupted)
    )
    assert corrupted > 4 * plain
    kept = [
        row + ROWS in delete_until_change(model, values, missing, row, target=4, least=0.2).kept.tolist()
        for row in range(4)
    ]
    assert sum(kept) >= 3
