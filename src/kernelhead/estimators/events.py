"""A classifier of event sequences with scikit-learn's interface: labels of sequences, or the next type."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from kernelhead.data import Events
from kernelhead.data.sources import in_part
from kernelhead.errors import BadInput
from kernelhead.estimators.seeds import as_seed
from kernelhead.training import EventOptions, EventRecipe, Recipe, fit_events


class EventClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify sequences of events at irregular times, or tell the type that comes next.

    Sequences are `Events`; or a list of pairs (times, types), each a tuple, of any lengths; or an array of
    waiting times (sequences, events), whose columns are the types: stages that follow a start and each
    other. Without labels the next type is learned, from every prefix of every sequence. The same
    `random_state` gives the same predictions.

    Args:
        time: encoding of time; see `ENCODINGS`.
        attention: of all layers ("softmax"), of the last ("primal+"), or one a layer, joined by commas.
        mix: of the kernels of events and of times, "concatenate", "add" or "multiply".
        unit: of the times; `Events` are converted to it.
        width: of the model.
        time_width: features of a time; 0 for the least from 32 on that fits.
        depth: number of layers.
        heads: of each attention.
        rank: of primal layers.
        periods: the shortest and the longest at the start; None to take them from the data.
        harmonics: of a period of "mercer".
        length: events that are seen at most, the last ones.
        at: when the next type is asked about: at the "last" event, or at the "target"'s own time.
        dropout: of blocks and the head.
        epochs: passes over the training data.
        batch: questions a step.
        lr: learning rate.
        validation: share of the sequences that chooses the epoch; 0 keeps the last.
        random_state: seed; None stands for 0.

    Attributes:
        classes_: labels, or types.
        model_: the trained model.
        rows_: figures of each epoch.

    Example:
        >>> from kernelhead.data import lag_lookup
        >>> events = lag_lookup(40, events=5, types=2, seed=0)
        >>> model = EventClassifier(width=8, time_width=8, heads=2, epochs=2).fit(events)
        >>> model.predict(events).shape, model.classes_.tolist()
        ((40,), ['0', '1'])
    """

    def __init__(
        self,
        time: str = "bochner",
        *,
        attention: str = "softmax",
        mix: str = "concatenate",
        unit: str = "days",
        width: int = 32,
        time_width: int = 0,
        depth: int = 1,
        heads: int = 4,
        rank: int = 16,
        periods: tuple[float, float] | None = None,
        harmonics: int = 5,
        length: int = 100,
        at: str = "last",
        dropout: float = 0.0,
        epochs: int = 50,
        batch: int = 64,
        lr: float = 3e-3,
        validation: float = 0.0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.time = time
        self.attention = attention
        self.mix = mix
        self.unit = unit
        self.width = width
        self.time_width = time_width
        self.depth = depth
        self.heads = heads
        self.rank = rank
        self.periods = periods
        self.harmonics = harmonics
        self.length = length
        self.at = at
        self.dropout = dropout
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.validation = validation
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """Waiting times are not negative; labels are not needed to learn what comes next."""
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.target_tags.required = False
        return tags

    def fit(self, X: Any, y: Any = None, *, asked: Any = None) -> "EventClassifier":  # noqa: N803
        """Learn labels of sequences, or, without any, the next type.

        Args:
            X: sequences; see the class.
            y: one label a sequence; those of `Events`, if they have any, where this is None.
            asked: when each label was asked for; at the last event of a sequence by default.

        Raises:
            BadInput: sequences cannot be used, or an option does not go with another.
            UnknownName: no such encoding, attention, mix or unit.
        """
        events = self._events(X, asked, reset=True)
        y = events.labels if y is None else y
        if y is not None:
            y = column_or_1d(y, warn=True)
            check_consistent_length(events.times, y)
            check_classification_targets(y)
            self.classes_, places = np.unique(y, return_inverse=True)
            events = replace(events, labels=tuple(map(str, places)))
        else:
            self.classes_ = np.array(events.kinds)
        if len(self.classes_) < 2:
            raise BadInput("EventClassifier: the answers are of 1 class, expected two or more")
        seed, names = as_seed(self.random_state), tuple(map(str, range(len(self.classes_))))
        train, valid = self._split(events, seed)
        made = EventRecipe(self._recipe(seed), self._options(labelled=y is not None))
        trained, self.rows_ = fit_events(train, valid, made, classes=names)
        # In float64 a sequence has the same answer in any company.
        self.model_ = replace(trained, model=trained.model.cpu().to(torch.float64))
        return self

    def predict(self, X: Any, *, asked: Any = None) -> NDArray[Any]:  # noqa: N803
        """The most likely label or next type of each sequence."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X, asked=asked).argmax(axis=1)]

    def predict_proba(self, X: Any, *, asked: Any = None) -> NDArray[np.float64]:  # noqa: N803
        """Probabilities (sequences, classes), in the order of `classes_`.

        Args:
            X: sequences.
            asked: when; at the last event of each by default, and needed where the next type was learned
                at the target's own time.
        """
        check_is_fitted(self)
        events = replace(self._events(X, asked, reset=False), labels=None)
        return np.asarray(self.model_.scores(events).double().softmax(-1).numpy())

    def _events(self, X: Any, asked: Any, *, reset: bool) -> Events:  # noqa: N803
        """Sequences in the unit of the model."""
        if isinstance(X, Events):
            made = X.converted(self.unit)
        elif isinstance(X, list) and X and isinstance(X[0], tuple):
            made = Events.of(X, "the given data", unit=self.unit)
        else:
            named = [str(name) for name in getattr(X, "columns", ())]
            waits = validate_data(self, X, dtype=np.float64, reset=reset)
            check_non_negative(waits, "EventClassifier (waiting times)")
            kinds = ("start", *(named or map(str, range(waits.shape[1]))))
            times = np.pad(waits.cumsum(axis=1), ((0, 0), (1, 0)))
            types = (np.arange(len(kinds)),) * len(waits)
            made = Events(tuple(times), types, kinds, "the given data", self.unit)
        return made if asked is None else replace(made, asked=np.asarray(asked, dtype=np.float64))

    def _split(self, events: Events, seed: int) -> tuple[Events, Events | None]:
        if not self.validation:
            return events, None
        labels = (
            np.zeros(len(events), np.int64) if events.labels is None else np.array([*map(int, events.labels)])
        )
        held = in_part("EventClassifier", labels, "validation", validation=self.validation, seed=seed)
        return events.take(np.flatnonzero(~held)), events.take(np.flatnonzero(held))

    def _options(self, *, labelled: bool) -> EventOptions:
        shortest, longest = self.periods or (0.0, 0.0)
        return EventOptions(
            unit=self.unit,
            time=self.time,
            mix=self.mix,
            time_width=self.time_width,
            shortest=shortest,
            longest=longest,
            harmonics=self.harmonics,
            length=self.length,
            target="label" if labelled else "next",
            at=self.at,
        )

    def _recipe(self, seed: int) -> Recipe:
        return Recipe(
            data="memory",
            attention=self.attention,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            rank=self.rank,
            penalty=0.0,
            dropout=self.dropout,
            epochs=self.epochs,
            batch=self.batch,
            lr=self.lr,
            clip=1.0,
            seed=seed,
            accelerator="cpu",
        )
