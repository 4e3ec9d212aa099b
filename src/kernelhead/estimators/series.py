"""A classifier of series with aeon's interface: fit, predict, predict_proba, save by pickle."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data import Series, Standardiser, split
from kernelhead.errors import missing_extra
from kernelhead.estimators.seeds import as_seed
from kernelhead.training import Recipe, Trained, build, fit, make_fabric

try:
    from aeon.classification.base import BaseClassifier
except ImportError:
    raise missing_extra("SeriesClassifier", "aeon", "ts") from None


class SeriesClassifier(BaseClassifier):  # type: ignore[misc]
    """Classify series of one or more channels, of equal or unequal lengths, with attention.

    The best epoch is chosen on a part of the training data that is held out; where a class has a
    single case, that case stays in training. The same `random_state` gives the same predictions.

    Args:
        attention: of all layers ("primal"), of the last ("primal+"), or one a layer, joined by commas.
        width: of the model.
        depth: number of layers.
        heads: of each attention.
        rank: singular components of primal layers.
        landmarks: of primal layers; 0 for ten times the rank, at most the longest series.
        penalty: weight of the KSVD penalty.
        dropout: of positions, blocks and the head.
        epochs: passes over the training data.
        batch: cases a step.
        lr: learning rate.
        validation: share of the training data that chooses the best epoch.
        random_state: seed; None stands for 0.

    Attributes:
        model_: the trained classifier.
        rows_: figures of each epoch.

    Example:
        >>> from kernelhead.data import echo_series
        >>> made = echo_series(24, length=20, channels=2, classes=2, seed=0)
        >>> x = [case.T for case in made.cases]  # aeon puts channels before time
        >>> model = SeriesClassifier(width=8, heads=2, rank=2, epochs=2).fit(x, np.array(made.labels))
        >>> model.predict(x[:3]).shape
        (3,)
    """

    _tags = {  # noqa: RUF012  aeon reads a plain dict
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "algorithm_type": "deeplearning",
        "X_inner_type": ["np-list", "numpy3D"],
        "python_dependencies": ["lightning_fabric"],
        "non_deterministic": False,
    }

    def __init__(
        self,
        attention: str = "primal",
        *,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        rank: int = 16,
        landmarks: int = 0,
        penalty: float = 0.1,
        dropout: float = 0.1,
        epochs: int = 50,
        batch: int = 16,
        lr: float = 1e-3,
        validation: float = 0.2,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.attention = attention
        self.width = width
        self.depth = depth
        self.heads = heads
        self.rank = rank
        self.landmarks = landmarks
        self.penalty = penalty
        self.dropout = dropout
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.validation = validation
        self.random_state = random_state
        super().__init__()

    def _fit(self, X: Any, y: NDArray[Any]) -> "SeriesClassifier":  # noqa: N803  aeon's name
        recipe = Recipe(
            data="memory",
            attention=self.attention,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            rank=self.rank,
            landmarks=self.landmarks,
            penalty=self.penalty,
            dropout=self.dropout,
            epochs=self.epochs,
            batch=self.batch,
            lr=self.lr,
            validation=self.validation,
            seed=as_seed(self.random_state),
            accelerator="cpu",
        )
        # Class names are kept as aeon gave them; the model sees their places.
        places = {label: str(place) for place, label in enumerate(self.classes_)}
        series = as_series(X, tuple(places[label] for label in y))
        part, held_out = split(series, fraction=self.validation, seed=recipe.seed)
        standardiser, names = Standardiser.fit(part), tuple(places.values())
        model = build(recipe, classes=len(names), channels=series.channels, longest=series.longest)
        ready = standardiser.apply(part), standardiser.apply(held_out)
        self.rows_ = fit(model, *ready, names, recipe, fabric=make_fabric(recipe))
        self.model_ = Trained(model.cpu().eval(), recipe, names, standardiser)
        return self

    def _predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        return self.classes_[self._predict_proba(X).argmax(axis=1)]

    def _predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        made = self.model_.scores(as_series(X, None)).double().softmax(-1)
        return np.asarray(made.numpy())

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"width": 8, "depth": 1, "heads": 2, "rank": 2, "epochs": 2}


def as_series(collection: Any, labels: tuple[str, ...] | None) -> Series:
    """aeon's cases are channels by time; ours are time by channels."""
    return Series(tuple(np.asarray(case).T for case in collection), labels, "the given data")
