"""Predict a column of a table with attention between rows, and ask whether other rows were of any use.

python examples/table_rows.py                  # the wines of scikit-learn, a tenth of the cells emptied
python examples/table_rows.py --table mine.csv # yours: a header, the last column is what to predict

The second part is a table whose answers stand in other rows, where nothing else can help.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn
from torch.nn import functional as F

from kernelhead.data import Cells, lookup_tables, read_table
from kernelhead.estimators import TableClassifier, TableRegressor
from kernelhead.inspection import neighbours
from kernelhead.models import TableModel
from kernelhead.rng import seeded
from kernelhead.training import Course, fit_resident

SEEN = {"softmax": "sees other rows", "self": "sees its own row only"}


def main() -> None:
    """Both parts, one after the other."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    given.add_argument("--table", type=Path, help="CSV; written to --out by default")
    given.add_argument("--out", type=Path, default=Path("."), help="folder of what is written")
    given.add_argument("--steps", type=int, default=100, help="of training on the table")
    given.add_argument("--lookups", type=int, default=400, help="steps on drawn tables; 0 leaves them out")
    given.add_argument("--between", nargs="+", default=[*SEEN], help="softmax, self, primal or inducing")
    given.add_argument("--preset", default="norm_all", help="norm_all or published")
    chosen = given.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    own_table(read_table(chosen.table or wines(chosen.out / "wines.csv")), chosen.steps)
    if chosen.lookups:
        looking_up(chosen.lookups, between=chosen.between, preset=chosen.preset)


def own_table(cells: Cells, steps: int) -> None:
    """Fit with and without other rows, and with the other rows spoilt."""
    order = np.random.default_rng(0).permutation(len(cells))
    train, test = (cells.take(part) for part in np.split(order, [int(0.7 * len(cells))]))
    kind = TableClassifier if cells.classification else TableRegressor
    metric = "accuracy" if cells.classification else "R2"
    print(f"{len(train)} rows to learn from, {len(test)} to test on, {cells.x.shape[1]} columns")
    for attention, words in SEEN.items():
        model = kind(attention, width=8, depth=2, heads=2, lr=3e-3, steps=steps, random_state=0)
        model.fit(train.x, train.y)
        print(f"{words:24} test {metric} {model.score(test.x, test.y):.3f}")
        if attention == "softmax":
            rows, fitted = model.table(test.x), model.fitted_
            moved = np.abs(fitted.corrupted(0).scores(rows) - fitted.scores(rows)).mean()
            values, missing = fitted.beside(rows)
            first = len(fitted.context)
            near = neighbours(fitted.model, values, missing, [first], count=3, context=first)
            print(f"{'':24} other rows shuffled column by column: scores move by {moved:.4f} in the mean")
            print(f"{'':24} the first test row looked most at training rows {near.rows[0].tolist()}")


def looking_up(steps: int, *, between: Sequence[str], preset: str, rows: int = 16) -> None:
    """Rows of random numbers stand in a table twice, with and without their random target."""

    def loss(model: nn.Module, x: tuple[Tensor, Tensor], answers: Tensor) -> Tensor:
        return F.mse_loss(model(*x)[-1][:, :rows, 0], answers)

    def drawn(tables: int, seed: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        made = lookup_tables(tables, rows=rows, features=4, seed=seed)
        values, missing, answers = map(torch.from_numpy, (made.values, made.missing, made.answers))
        return (values, missing), answers

    print("answers that stand in another row; error, where 1 is knowing nothing:")
    for attention in between:
        with seeded(0):
            model = TableModel([1] * 5, categorical=[False] * 5, width=16, attention=attention, preset=preset)
        course = Course(steps // 4 if attention == "self" else steps, 8, lr=1e-3, weight_decay=0.0)
        fit_resident(model, *drawn(8 * course.steps, seed=0), course, loss=loss)
        with torch.no_grad():
            error = loss(model.eval(), *drawn(256, seed=1)).sqrt()
        print(f"{SEEN.get(attention, attention):24} {error:.2f} after {course.steps} steps")


def wines(path: Path) -> Path:
    """The wines of scikit-learn as a CSV file with empty cells."""
    wine, draws = load_wine(), np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([*wine.feature_names, "grower"])
        for features, target in zip(wine.data, wine.target, strict=True):
            cells = ["" if draws.random() < 0.1 else f"{each:g}" for each in features]
            rows.writerow([*cells, wine.target_names[target]])
    return path


if __name__ == "__main__":
    main()
