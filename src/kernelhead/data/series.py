"""Series of unequal lengths with their labels: split, standardised, shuffled and padded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelhead.errors import BadInput, ShapeError
from kernelhead.shapes import check_size

Indices: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Series:
    """Labelled series of unequal lengths.

    Shapes: each case (t, a), time stamps by channels, kept in float32; t may differ, a may not.

    Args:
        cases: the series themselves.
        labels: one class name a case, or None where nothing is known.
        name: what the set is called.
        ids: one name a case for whoever reads the predictions; their positions if left out.
        columns: one name a channel, where the source names them.

    Raises:
        BadInput: no case, an empty one, unequal channels, NaN or infinity, or a label too few or many.

    Example:
        >>> short, long = np.zeros((2, 3)), np.ones((5, 3))
        >>> pair = Series((short, long), ("10", "2"), "pair")
        >>> len(pair), pair.channels, pair.longest, pair.classes
        (2, 3, 5, ('2', '10'))
    """

    cases: tuple[NDArray[np.float32], ...]
    labels: tuple[str, ...] | None
    name: str
    ids: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        who = f"Series {self.name!r}"
        cases = tuple(_checked(f"{who}: case {number}", case) for number, case in enumerate(self.cases))
        if not cases:
            raise BadInput(f"{who}: has no case, expected at least one")
        for number, case in enumerate(cases):
            if case.shape[1] != cases[0].shape[1]:
                raise BadInput(
                    f"{who}: case {number} has {case.shape[1]} channels, but case 0 has {cases[0].shape[1]}"
                )
        for what, entries in (("labels", self.labels), ("ids", self.ids or None)):
            if entries is not None and len(entries) != len(cases):
                raise BadInput(
                    f"{who}: has {len(entries)} {what} for {len(cases)} cases, expected one a case"
                )
        if self.columns and len(self.columns) != cases[0].shape[1]:
            raise BadInput(
                f"{who}: has {len(self.columns)} columns for {cases[0].shape[1]} channels, expected one each"
            )
        object.__setattr__(self, "cases", cases)
        object.__setattr__(self, "labels", None if self.labels is None else tuple(map(str, self.labels)))
        object.__setattr__(self, "ids", tuple(map(str, self.ids or range(len(cases)))))

    def __len__(self) -> int:
        """How many cases there are."""
        return len(self.cases)

    @property
    def channels(self) -> int:
        """Channels of every case, a."""
        return int(self.cases[0].shape[1])

    @property
    def longest(self) -> int:
        """Time stamps of the longest case."""
        return max(map(len, self.cases))

    @property
    def classes(self) -> tuple[str, ...]:
        """The distinct labels, numbers by size and before words; empty without labels."""
        return tuple(sorted(set(self.labels or ()), key=_by_number))

    def arranged(self, columns: tuple[str, ...]) -> "Series":
        """The channels in the order of these names; as they are where either side names none.

        Raises:
            BadInput: the names are not the same.
        """
        if not columns or not self.columns or columns == self.columns:
            return self
        if sorted(columns) != sorted(self.columns):
            raise BadInput(
                f"{self.name}: has the channels {', '.join(self.columns)}, expected {', '.join(columns)}"
            )
        order = [self.columns.index(name) for name in columns]
        return replace(self, cases=tuple(case[:, order] for case in self.cases), columns=columns)

    def take(self, indices: Indices) -> "Series":
        """The cases at these positions, in this order, with their labels and ids.

        Raises:
            BadInput: a position is no whole number of this set, or there is none.
        """
        chosen = _chosen("Series.take", indices, len(self))
        cases = tuple(self.cases[i] for i in chosen)
        labels = None if self.labels is None else tuple(self.labels[i] for i in chosen)
        return replace(self, cases=cases, labels=labels, ids=tuple(self.ids[i] for i in chosen))


@dataclass(frozen=True, eq=False)
class Standardiser:
    """Mean and deviation of every channel, from the training part and for all parts.

    Shapes: mean (a,), deviation (a,).

    Raises:
        ShapeError: the two do not have one entry a channel.
        BadInput: a deviation is not above zero.

    Example:
        >>> train = Series((np.array([[1.0, 7.0], [3.0, 7.0]]),), None, "tiny")
        >>> Standardiser.fit(train).apply(train).cases[0].tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.deviation.shape:
            raise ShapeError(
                f"Standardiser: `mean` has shape {self.mean.shape} and `deviation` {self.deviation.shape}, "
                "expected (a,) for both, one entry a channel"
            )
        if not (self.deviation > 0).all():
            raise BadInput(
                f"Standardiser: the smallest deviation is {self.deviation.min()}, expected more than 0"
            )

    @classmethod
    def fit(cls, series: Series) -> "Standardiser":
        """Mean and deviation over all time stamps of all cases; a constant channel is divided by 1."""
        steps = np.concatenate(series.cases).astype(np.float64)  # (all t, a)
        # Rounding leaves a constant channel a deviation just above zero, so equality is asked of the values.
        constant = steps.min(axis=0) == steps.max(axis=0)
        return cls(steps.mean(axis=0), np.where(constant, 1.0, steps.std(axis=0)))

    def apply(self, series: Series) -> Series:
        """The same cases, each channel less its mean and over its deviation.

        Raises:
            ShapeError: the series have other channels than those of the fit.
        """
        if series.channels != len(self.mean):
            raise ShapeError(
                f"Standardiser: {series.name!r} has {series.channels} channels, "
                f"but {len(self.mean)} were there at the fit"
            )
        # _checked turns float64 into float32 and names what does not fit.
        cases: tuple[Any, ...] = tuple((case - self.mean) / self.deviation for case in series.cases)
        return replace(series, cases=cases)


def split(series: Series, *, fraction: float, seed: int) -> tuple[Series, Series]:
    """Hold out a fraction of every class, drawn by a seed.

    Every class keeps a case, and a class of two cases or more gives one up at least. Both parts
    keep the order of the whole.

    Returns:
        The rest and the held out part.

    Raises:
        BadInput: the fraction is not between 0 and 1, or there are not two classes to keep apart.

    Example:
        >>> whole = Series((np.zeros((4, 1)),) * 10, tuple("aaaaaabbbb"), "letters")
        >>> rest, held_out = split(whole, fraction=0.5, seed=0)
        >>> rest.labels, held_out.labels
        (('a', 'a', 'a', 'b', 'b'), ('a', 'a', 'a', 'b', 'b'))
    """
    if not 0 < fraction < 1:
        raise BadInput(f"split: fraction is {fraction!r}, expected a number between 0 and 1")
    if series.labels is None:
        raise BadInput(f"split: {series.name!r} has no labels to split by")
    if len(series.classes) == 1:
        raise BadInput(
            f"split: {series.name!r} has the single class {series.classes[0]!r}, expected two or more"
        )
    generator = _generator(check_size("split", "seed", seed, least=0))
    labels = np.array(series.labels)
    held_out = np.zeros(len(series), dtype=bool)
    for name in series.classes:
        members = np.flatnonzero(labels == name)
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held_out[generator.permutation(members)[:count]] = True
    if not held_out.any():
        raise BadInput(f"split: no class of {series.name!r} has two cases, so none can be held out")
    return series.take(np.flatnonzero(~held_out)), series.take(np.flatnonzero(held_out))


def epoch_order(count: int, *, seed: int, epoch: int) -> NDArray[np.intp]:
    """The order in which an epoch visits the cases: a permutation that needs no stored state.

    Args:
        count: how many cases there are.

    Example:
        >>> order = epoch_order(5, seed=0, epoch=3)
        >>> sorted(order.tolist()), bool((order == epoch_order(5, seed=0, epoch=3)).all())
        ([0, 1, 2, 3, 4], True)
    """
    check_size("epoch_order", "count", count)
    for name, number in (("seed", seed), ("epoch", epoch)):
        check_size("epoch_order", name, number, least=0)
    return _generator(seed, epoch).permutation(count)


def batches(order: NDArray[np.intp], size: int) -> Iterator[NDArray[np.intp]]:
    """An order cut into pieces of `size`; the last one may be shorter.

    Example:
        >>> [batch.tolist() for batch in batches(np.arange(5), 2)]
        [[0, 1], [2, 3], [4]]
    """
    check_size("batches", "size", size)
    return (order[start : start + size] for start in range(0, len(order), size))


def padded(
    series: Series, indices: Indices, *, length: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Some cases as one array, the shorter ones ended with zeros.

    Shapes: returns values (b, t, a) and mask (b, t), True where a time stamp is real.

    Args:
        indices: positions of the cases, in the order wanted.
        length: time stamps t; those of the longest case taken if left out.

    Raises:
        BadInput: a case is longer than `length`, or a position is not in the set.

    Example:
        >>> pair = Series((np.ones((1, 2)), np.ones((3, 2))), None, "pair")
        >>> values, mask = padded(pair, [1, 0])
        >>> values.shape, mask.tolist()
        ((2, 3, 2), [[True, True, True], [True, False, False]])
    """
    cases = [series.cases[i] for i in _chosen("padded", indices, len(series))]
    lengths = np.array([len(case) for case in cases])
    length = int(lengths.max()) if length is None else check_size("padded", "length", length)
    if lengths.max() > length:
        raise BadInput(f"padded: a case has {lengths.max()} time stamps, but length is {length}")
    mask = np.arange(length) < lengths[:, None]  # (b, t)
    values = np.zeros((len(cases), length, series.channels), dtype=np.float32)
    values[mask] = np.concatenate(cases)
    return values, mask


def _checked(who: str, case: NDArray[Any]) -> NDArray[np.float32]:
    array = np.asarray(case)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiub":
        raise BadInput(
            f"{who} is {array.dtype} of shape {array.shape}, expected numbers (t, a), at least (1, 1)"
        )
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(array).all():
        time, channel = np.argwhere(~np.isfinite(array))[0]
        raise BadInput(
            f"{who} holds {array[time, channel]} at time {time}, channel {channel}; all count from 0"
        )
    return array


def _chosen(who: str, indices: Indices, count: int) -> list[int]:
    chosen = np.asarray(indices)
    if chosen.ndim != 1 or not len(chosen):
        raise BadInput(f"{who}: indices have shape {chosen.shape}, expected one axis and at least one entry")
    # A boolean mask would read as positions 0 and 1.
    if chosen.dtype.kind not in "iu":
        raise BadInput(f"{who}: indices are {chosen.dtype}, expected whole numbers")
    if chosen.min() < 0 or chosen.max() >= count:
        raise BadInput(f"{who}: indices run from {chosen.min()} to {chosen.max()}, expected 0 to {count - 1}")
    return [int(index) for index in chosen]


def _by_number(name: str) -> tuple[bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        return (True, 0.0, name)
    return (False, number, name) if isfinite(number) else (True, 0.0, name)


def _generator(*numbers: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(numbers)))
