"""A classifier that learns to carry rows of a table to dummy classes, with scikit-learn's interface."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from kernelhead.errors import BadInput
from kernelhead.estimators.seeds import as_seed
from kernelhead.training import MapSettings, fit_map


class TransportClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Classify rows by where a small network carries them: to which dummy class it brings them nearest.

    Every class gets a dummy class, normal about a mean of its own; rows are paired with dummies inside
    classes at least squared length, and a network learns that pairing. Probabilities are the softmax of
    $-\|f(x) - \mu_c\|$. Pairing at random, or with the means, classified as well in what was measured; see
    the docs on transport. One `random_state` gives the same bits on the CPU.

    Args:
        dummies: where the means of dummy classes lie: "ring", a circle of the first two coordinates;
            "class_means", as the classes' own means to each other; or an array (classes, features).
        radius: of the ring, in deviations of a dummy class; None for three times the number of classes.
            Means of classes are scaled so that the nearest two are as far apart as neighbours on that ring.
        match: "ot", "random", or "mean": every row with the mean of its dummy class.
        hidden: widths of the network's layers.
        standardise: whether features are put on one scale first, that of training.
        matching_batch: most rows of a class that are paired at once, at a cost that grows as its square;
            0 for all.
        epochs: over all rows, at most.
        lr: learning rate.
        validation: share of the rows that chooses the epoch.
        device: to train on, such as "cuda".
        random_state: seed; None stands for 0.

    Attributes:
        classes_: in the order of the probabilities.
        fitted_: the map, its dummy means and the scale of features.

    Example:
        >>> x = np.array([[0.0, 0.0], [0.1, 0.2], [3.0, 3.0], [3.1, 2.9]] * 5)
        >>> model = TransportClassifier().fit(x, ["near", "near", "far", "far"] * 5)
        >>> [str(label) for label in model.predict([[0.0, 0.1], [3.0, 3.1]])]
        ['near', 'far']
        >>> model.transform(x[:2]).shape
        (2, 2)
    """

    def __init__(
        self,
        dummies: str | NDArray[np.float64] = "ring",
        *,
        radius: float | None = None,
        match: str = "ot",
        hidden: Sequence[int] = (32, 32),
        standardise: bool = True,
        matching_batch: int = 1000,
        epochs: int = 100,
        lr: float = 1e-2,
        validation: float = 0.1,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.dummies = dummies
        self.radius = radius
        self.match = match
        self.hidden = hidden
        self.standardise = standardise
        self.matching_batch = matching_batch
        self.epochs = epochs
        self.lr = lr
        self.validation = validation
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "TransportClassifier":  # noqa: N803  scikit-learn's name
        """Learn from rows (rows, features) of numbers and their classes."""
        X, y = validate_data(self, X, y, dtype=np.float64)  # noqa: N806
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise BadInput(f"TransportClassifier: y has one class, {self.classes_[0]}, expected two or more")
        if self.radius is not None and not self.radius > 0:
            raise BadInput(f"TransportClassifier: radius is {self.radius!r}, expected a number above 0")
        named = isinstance(self.dummies, str)
        settings = MapSettings(
            dummies=str(self.dummies) if named else "ring",
            radius=self.radius or 0.0,
            match=self.match,
            matching_batch=self.matching_batch,
            epochs=self.epochs,
            lr=self.lr,
            validation=self.validation,
        )
        self.fitted_ = fit_map(
            X,
            places,
            settings,
            hidden=self.hidden,
            anchors=None if named else check_array(self.dummies),
            standardise=self.standardise,
            seed=as_seed(self.random_state),
            device=self.device,
        )
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Where rows are carried to, (rows, coordinates), among the dummy classes."""
        check_is_fitted(self)
        return self.fitted_.carried(validate_data(self, X, dtype=np.float64, reset=False))

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The class whose dummy mean each row is carried nearest to."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self._scores(X).argmax(1)])

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Logarithms of the probabilities, (rows, classes)."""
        scores = self._scores(X)
        return np.asarray(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The probability of each class, (rows, classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict_instances(self, X: Any, instances: Any) -> NDArray[Any]:  # noqa: N803
        """The class of every instance that has several rows: the product of their probabilities decides.

        Args:
            X: rows of all instances.
            instances: which instance each row is of; answers are in the sorted order of these.

        Raises:
            BadInput: not one instance a row.
        """
        shares, owners = self.predict_log_proba(X), np.asarray(instances)
        if owners.shape != (len(shares),):
            raise BadInput(
                f"TransportClassifier: instances have shape {owners.shape}, expected ({len(shares)},)"
            )
        names, places = np.unique(owners, return_inverse=True)
        sums = np.zeros((len(names), shares.shape[1]))
        np.add.at(sums, places, shares)
        return np.asarray(self.classes_[sums.argmax(1)])

    def _scores(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        check_is_fitted(self)
        return self.fitted_.scores(validate_data(self, X, dtype=np.float64, reset=False))
