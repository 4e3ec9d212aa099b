"""A classifier and a regressor of tables by attention between rows, with scikit-learn's interface."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, assert_all_finite, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from kernelhead.data import Table, TableEncoder
from kernelhead.errors import BadInput
from kernelhead.estimators.seeds import as_seed
from kernelhead.shapes import check_size
from kernelhead.training import TableSettings, fit_table

AUTO: Literal["auto"] = "auto"
PATIENCE = 15  # of fifty looks


class _TableEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """What both have: options, cells to tables, a fit, and scores of rows."""

    def __init__(
        self,
        attention: str = "softmax",
        *,
        preset: str = "norm_all",
        width: int = 16,
        depth: int = 4,
        heads: int = 4,
        rank: int = 16,
        inducing: int = 32,
        dropout: float = 0.0,
        steps: int | Literal["auto"] = AUTO,
        batch: int = 1024,
        lr: float = 1e-3,
        features: float = 0.0,
        targets: float = 0.5,
        validation: float = 0.1,
        context: int = 4096,
        categorical: Sequence[int | str] = (),
        evaluation: str = "inductive",
        head: str = "learned",
        radius: float = 0.0,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.attention = attention
        self.preset = preset
        self.width = width
        self.depth = depth
        self.heads = heads
        self.rank = rank
        self.inducing = inducing
        self.dropout = dropout
        self.steps = steps
        self.batch = batch
        self.lr = lr
        self.features = features
        self.targets = targets
        self.validation = validation
        self.context = context
        self.categorical = categorical
        self.evaluation = evaluation
        self.head = head
        self.radius = radius
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """Cells may be missing, and may be texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    @abstractmethod
    def _targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Checked targets as the encoder takes them: numbers, or places of classes."""

    def fit(self, X: Any, y: Any, unlabelled: Any = None) -> Any:  # noqa: N803  scikit-learn's name
        """Learn from a table and keep it.

        Args:
            X: cells (rows, features): a data frame, or an array of numbers or of objects.
            y: the target of each row.
            unlabelled: rows to predict later, which become part of the table in training; for
                ``evaluation="transductive"`` alone.
        """
        cells, classification = self._cells(X, reset=True), isinstance(self, ClassifierMixin)
        if y is None:
            raise BadInput(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y is None"
            )
        y = column_or_1d(y, warn=True)
        check_consistent_length(cells, y)
        assert_all_finite(y, input_name="y")
        goal = self._targets(y)
        settings, seed = self._settings(), as_seed(self.random_state)
        self.encoder_ = TableEncoder.fit(
            cells, goal, classification=classification, categorical=self.categorical
        )
        later = None if unlabelled is None else self.encoder_.transform(self._cells(unlabelled, reset=False))
        table = self.encoder_.transform(cells, goal)
        self.fitted_ = fit_table(table, settings, seed=seed, device=self.device, unlabelled=later)
        return self

    def table(self, X: Any) -> Table:  # noqa: N803
        """Rows as the model sees them, their targets unknown."""
        check_is_fitted(self)
        return self.encoder_.transform(self._cells(X, reset=False))

    def _scores(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        return self.fitted_.scores(self.table(X), device=self.device)

    def _cells(self, X: Any, *, reset: bool) -> Any:  # noqa: N803
        """A data frame as it is, anything else as an array; both with their features counted."""
        if hasattr(X, "columns") and hasattr(X, "dtypes"):
            return validate_data(self, X, skip_check_array=True, reset=reset)
        cells = np.asarray(X, dtype=object) if isinstance(X, list) else X
        return validate_data(self, cells, dtype=None, ensure_all_finite="allow-nan", reset=reset)

    def _settings(self) -> TableSettings:
        steps = 0 if self.steps == AUTO else check_size(type(self).__name__, "steps", self.steps)
        return TableSettings(
            attention=self.attention,
            preset=self.preset,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            rank=self.rank,
            inducing=self.inducing,
            dropout=self.dropout,
            steps=steps,
            batch=self.batch,
            lr=self.lr,
            features=self.features,
            targets=self.targets,
            validation=self.validation,
            patience=PATIENCE if self.steps == AUTO and not self.features else 0,
            context=self.context,
            evaluation=self.evaluation,
            head=self.head,
            radius=self.radius,
        )


class TableClassifier(ClassifierMixin, _TableEstimator):  # type: ignore[misc]
    """Classify rows of a table by attention to its training rows, which are kept.

    Numbers, categories and missing cells go in as they are; see `TableEncoder`. A row is predicted with
    its target hidden beside the training rows with theirs visible. By default it sees these and itself, so
    that its answer does not depend on who else is asked about. Probabilities have a temperature that was
    fitted on rows held out. One `random_state` gives the same bits on the CPU.

    Args:
        attention: between rows, "softmax", or at linear cost "inducing" or "primal"; "self" sees no other.
        preset: "norm_all", or "published" for the released form of a layer.
        width: features of an entry.
        depth: layers, even: between rows and between columns in turn.
        heads: of each attention; must divide `width`.
        rank: of "primal".
        inducing: learned rows of "inducing" and "primal".
        dropout: in training.
        steps: of training; "auto" for four for each row, from 100 to 2,000, or fewer where rows held out
            are predicted no better for long.
        batch: rows of a step; a smaller table is one step's table as a whole.
        lr: largest learning rate.
        features: chance of a feature to be hidden in a step; where it is above 0, such as 0.15, training
            goes from hidden features to hidden targets, and takes more steps.
        targets: chance of a target to be hidden in a step; the others are visible.
        validation: share of the rows that choose the step to keep and the temperature.
        context: most training rows that a prediction sees, drawn by the seed; 0 for all.
        categorical: names or places of columns of numbers that are categories.
        evaluation: "inductive", or "transductive": rows predicted in one call see each other, and `fit`
            takes them as `unlabelled`.
        head: "learned", or "dummies": taught to tell dummy classes on a ring apart and then frozen, so that
            attention must carry rows to them; see the docs on transport.
        radius: of that ring, in deviations of a dummy class; 0 for three times the number of classes.
        device: to train and predict on, such as "cuda".
        random_state: seed; None stands for 0.

    Attributes:
        classes_: in the order of the probabilities.
        encoder_: from cells to numbers.
        fitted_: the model, the rows that predictions see, and the temperature.

    Example:
        >>> x = np.array([[0.0, "red"], [1.0, "blue"], [None, "red"], [1.5, "blue"]] * 5, dtype=object)
        >>> y = np.array(["no", "yes", "no", "yes"] * 5)
        >>> model = TableClassifier(width=8, depth=2, heads=2, steps=60).fit(x, y)
        >>> [str(label) for label in model.predict(x[:2])]
        ['no', 'yes']
    """

    def _targets(self, y: NDArray[Any]) -> NDArray[Any]:
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise BadInput(f"TableClassifier: y has one class, {self.classes_[0]}, expected two or more")
        return places

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self._scores(X).argmax(1)])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The probability of each class, (rows, classes), calibrated on rows held out of training."""
        check_is_fitted(self)
        scores = self._scores(X)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))


class TableRegressor(RegressorMixin, _TableEstimator):  # type: ignore[misc]
    """Predict a number for rows of a table by attention to its training rows, which are kept.

    As `TableClassifier`, which has the arguments, for targets that are numbers.

    Attributes:
        encoder_: from cells to numbers.
        fitted_: the model and the rows that predictions see.

    Example:
        >>> x = np.linspace(-1, 1, 40)[:, None]
        >>> model = TableRegressor(width=8, depth=2, heads=2, steps=100, lr=1e-2).fit(x, 3 * x[:, 0])
        >>> model.score(x, 3 * x[:, 0]) > 0.9
        True
    """

    def _targets(self, y: NDArray[Any]) -> NDArray[Any]:
        return y.astype(np.float64)

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The number predicted for each row."""
        check_is_fitted(self)
        return self.encoder_.restored(self._scores(X)[:, 0])
