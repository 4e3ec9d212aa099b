"""Series told apart by what their points attend to: landmark patches, then a ridge classifier."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernelhead.data import Series, Standardiser, padded
from kernelhead.errors import BadInput
from kernelhead.models import PatchAttention

STRENGTHS = tuple(10 ** (place / 2) for place in range(13))  # 1 to 10^6


@dataclass(frozen=True, eq=False)
class LandmarkRidge:
    """A classifier of series that was fitted; see `PatchAttention` for its features.

    Attributes:
        standardiser: of the channels.
        deviation: of the features, beside their `mean`.
        ridge: the linear model over them.
        classes: names of the classes, in the order of scores.
        longest: points of a series that are read.
    """

    classes: tuple[str, ...]
    longest: int
    standardiser: Standardiser
    patches: PatchAttention
    mean: Tensor
    deviation: Tensor
    ridge: Any

    @classmethod
    def fit(cls, series: Series, *, seed: int, marks: int = 16, groups: int = 16) -> "LandmarkRidge":
        """Draw landmarks of labelled series and fit a ridge, its strength chosen by leaving one out.

        Args:
            series: to learn from.
            seed: of the draw of landmarks; there is no other.
            marks: patches of a group.
            groups: of every kind, size and dilation.

        Raises:
            BadInput: series have no labels, or all have the same one.

        Example:
            >>> from kernelhead.data import echo_series
            >>> made = echo_series(24, length=20, channels=2, classes=2, seed=0)
            >>> LandmarkRidge.fit(made, seed=0, groups=1).scores(made).shape
            (24, 2)
        """
        from sklearn.linear_model import RidgeClassifierCV

        if series.labels is None or len(series.classes) < 2:
            raise BadInput(f"LandmarkRidge: {series.name!r} has labels of fewer than two classes")
        standardiser = Standardiser.fit(series)
        x, lengths = _cube(standardiser.apply(series), series.longest)
        patches = PatchAttention.drawn(x, lengths, seed=seed, marks=marks, groups=groups)
        found = patches.features(x, lengths)
        mean, deviation = found.mean(0), found.std(0, correction=0)
        # What hardly varies says nothing, and would be blown up.
        deviation = torch.where(deviation > 1e-6, deviation, torch.inf)
        ridge = RidgeClassifierCV(alphas=STRENGTHS)
        places = [series.classes.index(label) for label in series.labels]
        ridge.fit(((found - mean) / deviation).numpy(), places)
        return cls(series.classes, series.longest, standardiser, patches, mean, deviation, ridge)

    def scores(self, series: Series) -> NDArray[np.float64]:
        """A score for every class, the higher the likelier, (n, classes).

        Raises:
            ShapeError: the channels are others than those that were learned from.
        """
        found = self.patches.features(*_cube(self.standardiser.apply(series), self.longest))
        made = self.ridge.decision_function(((found - self.mean) / self.deviation).numpy())
        # Of two classes sklearn gives one score.
        return np.asarray(made if made.ndim == 2 else np.stack([-made, made], axis=1), dtype=np.float64)


def _cube(series: Series, length: int) -> tuple[Tensor, Tensor]:
    """(b, a, n) and (b,): zero after the end, cut at a length."""
    cut = replace(series, cases=tuple(case[:length] for case in series.cases))
    values, mask = padded(cut, range(len(cut)), length=length)
    return torch.from_numpy(values).mT.contiguous(), torch.from_numpy(mask).sum(1)
