"""Tables whose answers stand in another row: to look them up is all there is to learn."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelhead.errors import BadInput
from kernelhead.shapes import check_size


@dataclass(frozen=True, eq=False)
class Lookup:
    """Tables of rows to answer and, below them, the same rows with their answers.

    Shapes: values (tables, 2 rows, features + 1), the target last and zero where it is hidden; missing of
    the same shape, True where hidden; answers (tables, rows), of the first rows.
    """

    values: NDArray[np.float32]
    missing: NDArray[np.bool_]
    answers: NDArray[np.float32]

    def nearest(self) -> NDArray[np.float32]:
        """What one nearest neighbour answers, (tables, rows)."""
        rows = self.answers.shape[1]
        asked, shown = self.values[:, :rows, :-1], self.values[:, rows:]
        distance = np.square(asked[:, :, None] - shown[:, None, :, :-1]).sum(-1)
        return np.take_along_axis(shown[..., -1], distance.argmin(-1), axis=1)


def lookup_tables(
    tables: int, *, rows: int = 16, features: int = 4, shift: float = 0.0, random: int = 0, seed: int
) -> Lookup:
    """Rows of independent normal numbers, twice: first with the target hidden, then with it.

    The target hangs on no feature, so that a row alone says nothing about it.

    Args:
        tables: how many.
        rows: to answer in each.
        features: beside the target.
        shift: added to the targets that are shown: to copy is then not enough.
        random: features, the last ones, that are drawn anew where targets are shown: they tell nothing.
        seed: names the draw.

    Raises:
        BadInput: a size is not positive, or more features are random than there are.

    Example:
        >>> drawn = lookup_tables(2, rows=3, features=4, seed=0)
        >>> drawn.values.shape, float(abs(drawn.nearest() - drawn.answers).max())
        ((2, 6, 5), 0.0)
    """
    who = "lookup_tables"
    for name, size in (("tables", tables), ("rows", rows), ("features", features)):
        check_size(who, name, size)
    if not 0 <= check_size(who, "random", random, least=0) <= features:
        raise BadInput(f"{who}: random is {random}, expected at most the {features} features")
    generator = np.random.Generator(np.random.Philox(check_size(who, "seed", seed, least=0)))
    drawn = generator.standard_normal((tables, rows, features + 1), dtype=np.float32)
    shown = drawn.copy()
    shown[..., -1] += np.float32(shift)
    if random:
        place = slice(features - random, features)
        shown[..., place] = generator.standard_normal((tables, rows, random), dtype=np.float32)
    asked, answers = drawn.copy(), drawn[..., -1].copy()
    asked[..., -1] = 0
    values = np.concatenate([asked, shown], axis=1)
    missing = np.zeros(values.shape, dtype=np.bool_)
    missing[:, :rows, -1] = True
    return Lookup(values, missing, answers)
