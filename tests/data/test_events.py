"""Events: their type, CSV files, the badges of StackOverflow, the lag lookup, and words for what is wrong."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Events, is_event_file, lag_lookup, read_events
from kernelhead.errors import BadInput, UnknownName

SHARED = os.environ.get("KERNELHEAD_DATA")
needs_shared = pytest.mark.skipif(not SHARED, reason="KERNELHEAD_DATA does not name the folder of data sets")
PAIR = [([0.0, 1.5, 1.5], ["b", "a", "b"]), ([2.0], ["c"])]


def events(**changes: Any) -> Events:
    given: dict[str, Any] = {
        "times": (np.array([0.0, 1.0]), np.array([3.0])),
        "types": (np.array([0, 1]), np.array([1])),
        "kinds": ("a", "b"),
        "name": "mine",
    }
    return Events(**(given | changes))


def test_pairs_of_times_and_types() -> None:
    made = Events.of(PAIR, "pair", unit="hours")
    assert (len(made), made.longest, made.kinds, made.ids) == (2, 3, ("a", "b", "c"), ("0", "1"))
    assert [types.tolist() for types in made.types] == [[1, 0, 1], [2]]
    assert [(times.tolist(), types) for times, types in made] == PAIR
    assert Events.of([([0], [10]), ([0], [9])], "numbers").kinds == ("9", "10")


def test_parts_units_and_names() -> None:
    made = events(labels=("x", "y"), ids=("one", "two"), asked=np.array([2.0, 3.0]))
    part = made.take([1])
    assert (part.labels, part.ids, part.asked.tolist()) == (("y",), ("two",), [3.0])  # type: ignore[union-attr]
    hours = made.converted("hours")
    assert hours.times[0].tolist() == [0.0, 24.0]
    assert hours.asked is not None
    assert hours.asked.tolist() == [48.0, 72.0]
    assert made.classes == ("x", "y")
    wider = made.known_as(("b", "c", "a"))
    assert [types.tolist() for types in wider.types] == [[2, 0], [0]]
    assert (wider.labels, wider.ids) == (made.labels, made.ids)
    assert made.known_as(("a", "b")) is made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"times": ()}, "0 sequences of times and 2 of types, expected as many of both and at least one"),
        ({"times": (np.array([0.0]), np.array([3.0]))}, r"sequence 0 has times \(1,\) and types \(2,\)"),
        (
            {"times": (np.array([1.0, 0.5]), np.array([3.0]))},
            r"time 0\.5 after 1\.0 at event 1, expected times that",
        ),
        (
            {"times": (np.array([-1.0, 0.5]), np.array([3.0]))},
            r"has time -1\.0, expected finite numbers of 0 or more",
        ),
        ({"times": (np.array([0.0, np.nan]), np.array([3.0]))}, "has time nan, expected finite"),
        (
            {"times": (np.array(["x", "y"]), np.array([3.0]))},
            "times of <U1 and types of int64, expected numbers",
        ),
        ({"types": (np.array([0, 2]), np.array([1]))}, "types from 0 to 2, expected 0 to 1"),
        ({"labels": ("x",)}, "1 labels for 2 sequences, expected one each"),
        (
            {"asked": np.array([0.5, 3.0])},
            r"sequence 0 is asked about at 0\.5, expected its last event's 1\.0",
        ),
        ({"ids": ("x",)}, "1 ids for 2 sequences"),
    ],
    ids=str,
)
def test_words_of_events(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        events(**changes)


def test_more_words() -> None:
    with pytest.raises(UnknownName, match="Events 'mine': unknown unit 'day', did you mean 'days'"):
        events(unit="day")
    with pytest.raises(UnknownName, match="unknown unit 'moons'"):
        events().converted("moons")
    with pytest.raises(BadInput, match=r"sequence 1 has type 'c', expected one of a, b"):
        Events.of(PAIR, "pair", kinds=("a", "b"))
    with pytest.raises(BadInput, match="indices run from 2 to 2, expected 0 to 1"):
        events().take([2])


def written(folder: Path, text: str) -> Path:
    path = folder / "log.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_events(tmp_path: Path) -> None:
    path = written(
        tmp_path, "time, type,sequence,label\n0,login,ann,stays\n1,login,bob,goes\n2.5,buy,ann,stays\n\n"
    )
    made = read_events(path, unit="hours")
    assert (made.name, made.unit, made.ids, made.labels) == (
        "log",
        "hours",
        ("ann", "bob"),
        ("stays", "goes"),
    )
    assert made.times[0].tolist() == [0.0, 2.5]
    assert [kinds for _, kinds in made] == [["login", "buy"], ["login"]]
    assert is_event_file(path)
    assert read_events(written(tmp_path, "\ufeffsequence,time,type\na,0,x\n")).labels is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: expected one column `sequence`, got ''"),
        ("sequence,time\na,0\n", "line 1: expected one column `type`, got 'sequence,time'"),
        ("sequence,time,type,time\n", "expected one column `time`"),
        ("sequence,time,type\n", "line 2: no row follows the header"),
        ("sequence,time,type\na,0\n", "line 2: 2 fields, expected 3 as in the header"),
        (
            "sequence,time,type\na,soon,x\n",
            "line 2: the time is 'soon', expected a finite number of 0 or more",
        ),
        ("sequence,time,type\na,-1,x\n", "line 2: the time is '-1', expected a finite number of 0 or more"),
        ("sequence,time,type\na,inf,x\n", "line 2: the time is 'inf'"),
        (
            "sequence,time,type\na,2,x\na,1,x\n",
            "line 3: time 1 of sequence 'a' comes after 2, expected rows in",
        ),
        ("sequence,time,type\na,2,\n", "line 2: the type is empty"),
        ("sequence,time,type\n,2,x\n", "line 2: the sequence is empty"),
        ("sequence,time,type,label\na,2,x,\n", "line 2: the label is empty"),
        ("sequence,time,type,label\na,2,x,u\na,3,x,v\n", "the label is 'v', but sequence 'a' began with 'u'"),
        ('sequence,time,type\na,2,"x\n', "line 2: unexpected end of data"),
    ],
)
def test_words_of_a_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_events(written(tmp_path, text))


def test_words_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELHEAD_DATA", raising=False)
    with pytest.raises(BadInput, match=r"read_events: .*none\.csv cannot be read: No such file"):
        read_events(tmp_path / "none.csv")
    (tmp_path / "log.csv").write_bytes(b"sequence,time,type\na,0,\xff\n")
    with pytest.raises(BadInput, match=r"log\.csv, line 2: invalid start byte in UTF-8"):
        read_events(tmp_path / "log.csv")
    with pytest.raises(UnknownName, match="read_events: unknown split 'tset'"):
        read_events("stackoverflow", split="tset")
    with pytest.raises(
        BadInput, match=r"read_events: stackoverflow/stackoverflow\.npz is in no known folder"
    ):
        read_events("stackoverflow")
    assert not is_event_file(tmp_path)
    (tmp_path / "series.csv").write_text("case,time,a\n")
    assert not is_event_file(tmp_path / "series.csv")


@needs_shared
def test_the_users_of_stackoverflow_are_disjoint() -> None:
    train, valid, test = (
        read_events("StackOverflow", split=part) for part in ("train", "validation", "test")
    )
    assert (len(train) + len(valid), len(test)) == (3142, 1326)
    assert sum(map(len, test.times)) == 97_233
    assert (train.unit, len(train.kinds)) == ("seconds", 22)
    users = [{times.tobytes() for times in part.times} for part in (train, valid, test)]
    assert len(users[0] | users[1] | users[2]) == 3142 + 1326
    assert min(len(times) for part in (train, valid, test) for times in part.times) == 41
    again = read_events("stackoverflow", split="validation")
    assert [times.tobytes() for times in again.times] == [times.tobytes() for times in valid.times]


@given(seed=st.integers(0, 999), lag=st.sampled_from([1.0, 7.0]))
def test_the_label_is_the_type_a_lag_ago(seed: int, lag: float) -> None:
    made = lag_lookup(4, events=9, types=3, lag=lag, seed=seed)
    assert made.asked is not None
    assert made.labels is not None
    for times, types, when, label in zip(made.times, made.types, made.asked, made.labels, strict=True):
        gaps = [abs(when - lag - time) for time in times]
        assert made.kinds[types[gaps.index(min(gaps))]] == label
        assert when > times[-1]


def test_waiting_times_are_a_day_on_average() -> None:
    made = lag_lookup(400, seed=1)
    waits = np.diff(np.stack(made.times), axis=1)
    assert abs(waits.mean() - 1) < 5 / np.sqrt(waits.size)
    assert abs(waits.var() - 1) < 5 * np.sqrt(8 / waits.size)
    assert np.array_equal(made.times[3], lag_lookup(400, seed=1).times[3])


def test_words_of_the_lag_lookup() -> None:
    with pytest.raises(BadInput, match="lag_lookup: types is 0"):
        lag_lookup(3, types=0, seed=0)
    with pytest.raises(BadInput, match=r"lag_lookup: lag is -1\.0, expected above 0"):
        lag_lookup(3, lag=-1.0, seed=0)
