"""Sequences of events at irregular times: their type, their files, and a task that only times can answer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelhead.data.rows import csv_rows
from kernelhead.data.series import Indices, _by_number, _chosen
from kernelhead.data.sources import check_part, in_part, read_checked
from kernelhead.errors import BadInput
from kernelhead.shapes import check_size
from kernelhead.units import seconds_in

COLUMNS = ("sequence", "time", "type")
SETS = {"stackoverflow": ("stackoverflow/stackoverflow.npz", "67dc7c9beb648d3c")}


@dataclass(frozen=True, eq=False)
class Events:
    """Sequences of typed events, each with its times.

    Shapes: times, each (n,) in float64, and types, each (n,) places in `kinds`; n may differ.

    Args:
        times: of the events of each sequence: finite, 0 or more, and never falling.
        types: of the same events.
        kinds: names of the types.
        name: what the set is called.
        unit: of the times.
        labels: one class name a sequence, or None where nothing is known.
        ids: one name a sequence; their positions if left out.
        asked: when each sequence is asked about, (sequences,); at its last event if left out.

    Raises:
        BadInput: no sequence, an empty one, times that fall, are negative or not finite, a type without
            a name, a question before the last event, or a label too few or many.
        UnknownName: there is no such unit.

    Example:
        >>> made = Events.of([([0.0, 1.5], ["a", "b"]), ([2.0], ["b"])], "pair", unit="hours")
        >>> len(made), made.longest, made.kinds
        (2, 2, ('a', 'b'))
        >>> made.converted("minutes").times[0]
        array([ 0., 90.])
    """

    times: tuple[NDArray[np.float64], ...]
    types: tuple[NDArray[np.int64], ...]
    kinds: tuple[str, ...]
    name: str
    unit: str = "days"
    labels: tuple[str, ...] | None = None
    ids: tuple[str, ...] = ()
    asked: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        who = f"Events {self.name!r}"
        seconds_in(who, self.unit)
        if not self.times or len(self.types) != len(self.times):
            raise BadInput(
                f"{who}: {len(self.times)} sequences of times and {len(self.types)} of types, "
                "expected as many of both and at least one"
            )
        pairs = [
            _checked(f"{who}: sequence {number}", *pair, len(self.kinds))
            for number, pair in enumerate(zip(self.times, self.types, strict=True))
        ]
        for what, entries in (("labels", self.labels), ("ids", self.ids or None), ("questions", self.asked)):
            if entries is not None and len(entries) != len(pairs):
                raise BadInput(f"{who}: {len(entries)} {what} for {len(pairs)} sequences, expected one each")
        last = np.array([times[-1] for times, _ in pairs])
        if self.asked is not None and not (np.isfinite(self.asked) & (self.asked >= last)).all():
            number = int(np.argmin(np.isfinite(self.asked) & (self.asked >= last)))
            raise BadInput(
                f"{who}: sequence {number} is asked about at {self.asked[number]}, expected its last event's "
                f"{last[number]} or later"
            )
        object.__setattr__(self, "times", tuple(times for times, _ in pairs))
        object.__setattr__(self, "types", tuple(types for _, types in pairs))
        object.__setattr__(self, "labels", None if self.labels is None else tuple(map(str, self.labels)))
        object.__setattr__(self, "ids", tuple(map(str, self.ids or range(len(pairs)))))

    @classmethod
    def of(
        cls,
        sequences: Iterable[tuple[Any, Any]],
        name: str,
        *,
        unit: str = "days",
        kinds: tuple[str, ...] | None = None,
    ) -> "Events":
        """Sequences from pairs of times and names of types.

        Args:
            sequences: pairs; each side has an entry an event.
            name: what the set is called.
            unit: of the times.
            kinds: names that are known; those of the sequences if left out, numbers by size.

        Raises:
            BadInput: a type that is not known; or as the class.
        """
        held = [(np.asarray(times), [str(each) for each in types]) for times, types in sequences]
        found = tuple(sorted({each for _, types in held for each in types}, key=_by_number))
        places = {kind: place for place, kind in enumerate(found if kinds is None else kinds)}
        for number, (_, types) in enumerate(held):
            for each in types:
                if each not in places:
                    raise BadInput(
                        f"Events {name!r}: sequence {number} has type {each!r}, expected one of "
                        f"{', '.join(places)}"
                    )
        made = tuple(np.array([places[each] for each in types], dtype=np.int64) for _, types in held)
        return cls(tuple(times for times, _ in held), made, tuple(places), name, unit)

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self.times)

    def __iter__(self) -> Iterator[tuple[NDArray[np.float64], list[str]]]:
        """Times and names of types, a pair a sequence."""
        return (
            (times, [self.kinds[each] for each in types])
            for times, types in zip(self.times, self.types, strict=True)
        )

    @property
    def longest(self) -> int:
        """Events of the longest sequence."""
        return max(map(len, self.times))

    @property
    def classes(self) -> tuple[str, ...]:
        """The distinct labels, numbers by size and before words; empty without labels."""
        return tuple(sorted(set(self.labels or ()), key=_by_number))

    def take(self, indices: Indices) -> "Events":
        """The sequences at these positions, in this order.

        Raises:
            BadInput: a position is no whole number of this set, or there is none.
        """
        chosen = _chosen("Events.take", indices, len(self))
        return replace(
            self,
            times=tuple(self.times[i] for i in chosen),
            types=tuple(self.types[i] for i in chosen),
            labels=None if self.labels is None else tuple(self.labels[i] for i in chosen),
            ids=tuple(self.ids[i] for i in chosen),
            asked=None if self.asked is None else self.asked[chosen],
        )

    def converted(self, unit: str) -> "Events":
        """The same events with times in another unit.

        Raises:
            UnknownName: there is no such unit.
        """
        factor = seconds_in("Events", self.unit) / seconds_in("Events", unit)
        times = tuple(times * factor for times in self.times)
        return replace(
            self, times=times, unit=unit, asked=None if self.asked is None else self.asked * factor
        )

    def known_as(self, kinds: tuple[str, ...]) -> "Events":
        """The same events with types as places in other names.

        Raises:
            BadInput: a type is not among them.
        """
        if kinds == self.kinds:
            return self
        made = Events.of(self, self.name, unit=self.unit, kinds=kinds)
        return replace(made, labels=self.labels, ids=self.ids, asked=self.asked)


def read_events(
    source: str | Path,
    *,
    split: str = "train",
    unit: str = "days",
    root: str | Path | None = None,
    validation: float = 0.1,
    seed: int = 0,
) -> Events:
    """Read sequences of events from a CSV file, or a known set by its name.

    - ``.csv``: one row an event under a header. `sequence` names the sequence, `time` is a number, `type` a
      name, and an optional `label` the class of the sequence. Rows of a sequence stand in the order of
      time. The file is read whole, whatever the split.
    - ``stackoverflow``: ROOT/stackoverflow/stackoverflow.npz, badges of users, in seconds. Users of the three
      parts are disjoint; the validation part is a share of the training users.

    Args:
        source: a CSV file, or the name of a known set.
        split: train, validation or test.
        unit: of the times in a file.
        root: folder of data sets; the environment variable KERNELHEAD_DATA if left out.
        validation: share of the training users of a known set that is held out.
        seed: names the draw of these.

    Raises:
        BadInput: the file is missing or is not such a file; the sentence has the line.
        UnknownName: there is no such split or unit.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "two.csv"
        ...     _ = path.write_text("sequence,time,type\\nann,0,login\\nann,2.5,buy\\nbob,1,login\\n")
        ...     made = read_events(path, unit="hours")
        >>> made.ids, made.kinds, made.times[0]
        (('ann', 'bob'), ('buy', 'login'), array([0. , 2.5]))
    """
    part = check_part("read_events", split)
    if str(source).lower() in SETS:
        return _known(str(source).lower(), split, part, root, validation, seed)
    path = Path(source).expanduser()
    try:
        return _read_csv(path, unit)
    except OSError as error:
        raise BadInput(f"read_events: {path} cannot be read: {error.strerror or error}") from error


def is_event_file(source: str | Path) -> bool:
    """Whether a source is a known set of events, or a CSV file with columns `sequence`, `time` and `type`.

    Example:
        >>> is_event_file("stackoverflow"), is_event_file("JapaneseVowels")
        (True, False)
    """
    path = Path(source).expanduser()
    if str(source).lower() in SETS:
        return True
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return {*COLUMNS} <= {name.strip() for name in file.readline().split(",")}


def lag_lookup(sequences: int, *, events: int = 24, types: int = 8, lag: float = 7.0, seed: int) -> Events:
    """Sequences whose label is the type of the event closest to a lag before the question.

    Waiting times are exponential with mean one day, that of the question after the last event too, and types
    are drawn evenly: nothing but the times tells which event is meant.

    Args:
        sequences: how many.
        events: of a sequence.
        types: how many.
        lag: in days.
        seed: names the draw.

    Raises:
        BadInput: a size is not positive, or the lag is not above zero.

    Example:
        >>> drawn = lag_lookup(5, seed=0)
        >>> len(drawn), drawn.longest, len(drawn.kinds), drawn.unit
        (5, 24, 8, 'days')
    """
    for name, size in (("sequences", sequences), ("events", events), ("types", types)):
        check_size("lag_lookup", name, size)
    if not 0 < lag < float("inf"):
        raise BadInput(f"lag_lookup: lag is {lag!r}, expected above 0")
    draws = np.random.Generator(np.random.Philox(check_size("lag_lookup", "seed", seed, least=0)))
    times = draws.gamma(1.0, 1.0, (sequences, events + 1)).cumsum(1)
    times, asked = times[:, :-1], times[:, -1]
    kinds = draws.integers(types, size=(sequences, events))
    closest = np.abs(asked[:, None] - lag - times).argmin(1)
    labels = kinds[np.arange(sequences), closest]
    names = tuple(map(str, range(types)))
    return Events(
        tuple(times), tuple(kinds), names, "lag lookup", labels=tuple(map(str, labels)), asked=asked
    )


@dataclass
class _Sequence:
    label: str | None
    times: list[float] = field(default_factory=list)
    types: list[str] = field(default_factory=list)


def _read_csv(path: Path, unit: str) -> Events:
    found: dict[str, _Sequence] = {}
    for where, row in csv_rows("read_events", path, _check_header):
        name, kind, label = row["sequence"], row["type"], row.get("label")
        empty = [column for column in ("sequence", "type", "label") if row.get(column) == ""]
        if empty:
            raise BadInput(f"{where}: the {empty[0]} is empty")
        held = found.setdefault(name, _Sequence(label))
        if label != held.label:
            raise BadInput(
                f"{where}: the label is {label!r}, but sequence {name!r} began with {held.label!r}"
            )
        time = _number(where, row["time"])
        if held.times and time < held.times[-1]:
            raise BadInput(
                f"{where}: time {time:g} of sequence {name!r} comes after {held.times[-1]:g}, expected rows "
                "in the order of time"
            )
        held.times.append(time)
        held.types.append(kind)
    if not found:
        raise BadInput(f"read_events: {path}, line 2: no row follows the header")
    made = Events.of([(each.times, each.types) for each in found.values()], path.stem, unit=unit)
    labels = tuple(each.label for each in found.values() if each.label is not None)
    return replace(made, labels=labels or None, ids=tuple(found))


def _check_header(where: str, header: list[str]) -> None:
    missing = [name for name in COLUMNS if header.count(name) != 1]
    if missing:
        raise BadInput(f"{where}: expected one column `{missing[0]}`, got {','.join(header)!r}")


def _number(where: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not (isfinite(number) and number >= 0):
        raise BadInput(f"{where}: the time is {text!r}, expected a finite number of 0 or more")
    return number


def _known(name: str, split: str, part: str, root: str | Path | None, validation: float, seed: int) -> Events:
    place, digest = SETS[name]
    with np.load(BytesIO(read_checked("read_events", place, digest, root))) as file:
        cuts = np.cumsum(file[f"length_{part}"].astype(np.int64))[:-1]
        times = np.split(file[f"time_{part}"].astype(np.float64), cuts)
        types = np.split(file[f"event_{part}"].astype(np.int64) - 1, cuts)
        kinds = tuple(map(str, file["badge"]))
    # One class: users are drawn, not their events.
    chosen = in_part("read_events", np.zeros(len(times), np.int64), split, validation=validation, seed=seed)
    return Events(tuple(times), tuple(types), kinds, name, "seconds").take(np.flatnonzero(chosen))


def _checked(who: str, times: Any, types: Any, kinds: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    times, types = np.asarray(times), np.asarray(types)
    if times.ndim != 1 or not len(times) or times.shape != types.shape:
        raise BadInput(
            f"{who} has times {times.shape} and types {types.shape}, expected (n,) of both, n of 1 or more"
        )
    if times.dtype.kind not in "fiu" or types.dtype.kind not in "iu":
        raise BadInput(
            f"{who} has times of {times.dtype} and types of {types.dtype}, expected numbers and whole numbers"
        )
    times = times.astype(np.float64)
    if not np.isfinite(times).all() or times[0] < 0:
        wrong = times[~np.isfinite(times)][0] if not np.isfinite(times).all() else times[0]
        raise BadInput(f"{who} has time {wrong}, expected finite numbers of 0 or more")
    if (np.diff(times) < 0).any():
        place = int(np.argmax(np.diff(times) < 0))
        raise BadInput(
            f"{who} has time {times[place + 1]} after {times[place]} at event {place + 1}, expected times "
            "that do not fall; events count from 0"
        )
    if types.min() < 0 or types.max() >= kinds:
        raise BadInput(f"{who} has types from {types.min()} to {types.max()}, expected 0 to {kinds - 1}")
    return times, types.astype(np.int64)
