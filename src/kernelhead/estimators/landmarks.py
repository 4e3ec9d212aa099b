"""A classifier of series by attention to landmark patches, with aeon's interface."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.errors import missing_extra
from kernelhead.estimators.seeds import as_seed
from kernelhead.estimators.series import as_series
from kernelhead.training import LandmarkRidge

try:
    from aeon.classification.base import BaseClassifier
except ImportError:
    raise missing_extra("LandmarkClassifier", "aeon", "ts") from None


class LandmarkClassifier(BaseClassifier):  # type: ignore[misc]
    """Classify series by what their points attend to; for few cases, where a network would learn by heart.

    Patches of training series are landmarks; histograms of the attention of all points to them, and the
    best match of each, go to a ridge classifier. Nothing is trained by gradients: hundreds of series
    take seconds. Time grows as the length of series and as their number times that of landmarks.

    Args:
        marks: patches that points choose among, in a group.
        groups: of every kind, size and dilation.
        random_state: seed of the draw of patches; None stands for 0.

    Attributes:
        model_: the fitted `LandmarkRidge`.

    Example:
        >>> from kernelhead.data import echo_series
        >>> made = echo_series(24, length=20, channels=2, classes=2, seed=0)
        >>> x = [case.T for case in made.cases]  # aeon puts channels before time
        >>> LandmarkClassifier(groups=1).fit(x, np.array(made.labels)).predict(x[:3]).shape
        (3,)
    """

    _tags = {  # noqa: RUF012  aeon reads a plain dict
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "algorithm_type": "feature",
        "X_inner_type": ["np-list", "numpy3D"],
        "non_deterministic": False,
    }

    def __init__(
        self,
        *,
        marks: int = 16,
        groups: int = 16,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.marks = marks
        self.groups = groups
        self.random_state = random_state
        super().__init__()

    def _fit(self, X: Any, y: NDArray[Any]) -> "LandmarkClassifier":  # noqa: N803  aeon's name
        # Class names are kept as aeon gave them; the model sees their places.
        places = {label: str(place) for place, label in enumerate(self.classes_)}
        series = as_series(X, tuple(places[label] for label in y))
        self.model_ = LandmarkRidge.fit(
            series, seed=as_seed(self.random_state), marks=self.marks, groups=self.groups
        )
        return self

    def _predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        return self.classes_[self._scores(X).argmax(axis=1)]

    def _predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        scores = self._scores(X)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def _scores(self, collection: Any) -> NDArray[np.float64]:
        """In the order of `classes_`."""
        return self.model_.scores(as_series(collection, None))

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"marks": 4, "groups": 1}
