"""Parts of the field of transport: simulated clouds, and tables whose rows are clouds of one point."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelhead.data import TableEncoder, gaussian_clouds, read_table
from kernelhead.data.sources import in_part
from kernelhead.errors import unknown

FIELD = "transport"
SIMULATIONS = {
    f"{classes} classes, {separation}": (classes, separation)
    for classes in (2, 3)
    for separation in (1, 2, 3, 4)
}
LOADERS = ("iris", "wine", "breast_cancer", "digits")  # of scikit-learn
TABLES = (*LOADERS, "adult")
HELD_OUT = 0.3  # tested, of tables without a test part of their own


@dataclass(frozen=True, eq=False)
class Parts:
    """Instances to train and to test with, on the scale of the training part.

    Shapes: x and new (instances, points, features), y and truth (instances,); ordinal and new_ordinal as
    boosted trees take tables, (instances, features), with NaN for missing cells.
    """

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    new: NDArray[np.float64]
    truth: NDArray[np.int64]
    ordinal: NDArray[np.float64] | None = None
    new_ordinal: NDArray[np.float64] | None = None
    categorical: tuple[bool, ...] = ()

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.y.max()) + 1

    def scored(self, shares: NDArray[np.float64], *, rule: str = "product") -> dict[str, float]:
        """Accuracy of log-probabilities (test instances x points, classes), of points and of instances.

        The "product" over the points of an instance decides its class, or the "mean".
        """
        found = shares.reshape(*self.new.shape[:2], -1)
        right = found.argmax(-1) == self.truth[:, None]
        joined = np.exp(found).mean(1) if rule == "mean" else found.sum(1)
        instances = joined.argmax(-1) == self.truth
        return {"test_accuracy": float(right.mean()), "instance_accuracy": float(instances.mean())}


def parts_of(data: str, seed: int, root: Path | None = None) -> Parts:
    """Both parts of a simulation or of a table; an instance of a table has one point, its row.

    Numbers are standardised by the training part and categories one-hot; missing cells are zero.

    Raises:
        BadInput: the data are not here.
        UnknownName: there is no such set.

    Example:
        >>> parts = parts_of("3 classes, 2", 0)
        >>> parts.x.shape, parts.new.shape, parts.classes
        ((45, 20, 2), (45, 20, 2), 3)
        >>> parts_of("iris", 0).new.shape
        (45, 1, 4)
    """
    if data in SIMULATIONS:
        drawn = gaussian_clouds(*SIMULATIONS[data], seed=seed)
        train, test = drawn.part("train"), drawn.part("test")
        mean, deviation = train.x.mean((0, 1)), train.x.std((0, 1))
        return Parts((train.x - mean) / deviation, train.y, (test.x - mean) / deviation, test.y)
    if data not in TABLES:
        raise unknown(FIELD, "set", data, [*SIMULATIONS, *TABLES])
    if data == "adult":
        pair = [read_table(data, part=part, split=seed, root=root) for part in ("train", "test")]
        cells = [(each.x, each.y) for each in pair]
    else:
        from sklearn import datasets

        loaded = getattr(datasets, f"load_{data}")()
        kept = in_part(FIELD, loaded.target, "train", validation=HELD_OUT, seed=seed)
        cells = [(loaded.data[rows], loaded.target[rows]) for rows in (kept, ~kept)]
    encoder = TableEncoder.fit(*cells[0], classification=True)
    tables = [encoder.transform(*each) for each in cells]
    target = tables[0].schema.target
    first = tables[0].schema.starts[target]
    (x, y), (new, truth) = (
        (table.values[:, None, :first].astype(np.float64), table.entries(target).argmax(1))
        for table in tables
    )
    ordinal, other = (encoder.ordinal(each[0]) for each in cells)
    return Parts(x, y, new, truth, ordinal, other, tables[0].schema.categorical[:target])
