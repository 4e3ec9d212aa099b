"""EventClassifier: labels of sequences, next types, three kinds of input, repeatable answers, and words."""

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from kernelhead.data import Events
from kernelhead.errors import BadInput, UnknownName
from kernelhead.estimators import EventClassifier
from tests.training.tiny_events import drawn, in_turn

SMALL: dict[str, Any] = {"width": 8, "time_width": 8, "heads": 2, "epochs": 3, "batch": 16}


def waits(seed: int = 0) -> tuple[list[tuple[list[float], list[str]]], np.ndarray]:
    """Sequences of unequal lengths; the label says whether the last wait was long."""
    draws = np.random.default_rng(seed)
    pairs, labels = [], []
    for _ in range(80):
        gaps = draws.choice([0.5, 4.0], draws.integers(2, 7))
        pairs.append((gaps.cumsum().tolist(), draws.choice(["x", "y"], len(gaps)).tolist()))
        labels.append("long" if gaps[-1] > 1 else "short")
    return pairs, np.array(labels)


def test_labels_of_sequences_of_unequal_lengths() -> None:
    (pairs, labels), (new, truth) = waits(), waits(1)
    model = EventClassifier(width=16, time_width=8, heads=2, epochs=40, batch=20, lr=1e-2).fit(pairs, labels)
    assert model.classes_.tolist() == ["long", "short"]
    assert model.score(new, truth) > 0.9
    shares = model.predict_proba(new)
    assert np.allclose(shares.sum(1), 1)
    assert np.array_equal(model.classes_[shares.argmax(1)], model.predict(new))
    # A time seen in another unit is the same time.
    hours = Events.of([(np.array(t) * 24, kinds) for t, kinds in new], "hours", unit="hours")
    assert np.allclose(model.predict_proba(hours), shares, atol=1e-6)


@pytest.mark.parametrize("at", ["last", "target"])
def test_the_next_type(at: str) -> None:
    model = EventClassifier(width=16, time_width=8, heads=2, epochs=12, batch=32, lr=1e-2, at=at).fit(
        in_turn()
    )
    assert model.classes_.tolist() == ["a", "b", "c"]
    events = in_turn(30, 1)
    last = np.array([times[-1] for times in events.times])
    if at == "last":
        assert set(model.predict(events)) <= {"a", "b", "c"}
        return
    for wait, kind in ((0.5, "b"), (4.0, "c")):
        assert (model.predict(events, asked=last + wait) == kind).mean() > 0.95
    with pytest.raises(BadInput, match="was trained to know when the next event comes; say when"):
        model.predict(events)


def test_labels_of_events_are_learned_and_their_questions_heeded() -> None:
    events = drawn()
    model = EventClassifier(**SMALL).fit(events)
    assert model.classes_.tolist() == ["0", "1", "2"]
    assert model.model_.options.target == "label"
    later = model.predict_proba(events, asked=events.asked + 1)
    assert not np.allclose(later, model.predict_proba(events))


def test_stages_of_a_process_as_an_array() -> None:
    x = np.random.default_rng(0).exponential(size=(60, 3))
    y = np.where(x[:, 1] > 0.7, 7, -3)
    model = EventClassifier(width=16, time_width=8, heads=2, epochs=40, batch=20, lr=1e-2).fit(x, y)
    assert model.n_features_in_ == 3
    assert model.score(x, y) > 0.9
    assert model.model_.kinds == ("start", "0", "1", "2")
    assert EventClassifier(**SMALL).fit(x).classes_.tolist() == ["start", "0", "1", "2"]


def test_lists_of_pairs_can_be_cross_validated() -> None:
    pairs, labels = waits()
    assert cross_val_score(EventClassifier(**SMALL), pairs, labels, cv=2).shape == (2,)


def test_a_held_out_part_chooses_the_epoch() -> None:
    model = EventClassifier(**SMALL, validation=0.25).fit(drawn())
    assert [sorted(row) for row in model.rows_] == [
        ["epoch", "seconds", "train_loss", "valid_accuracy", "valid_loss"]
    ] * 3
    assert "valid_loss" not in EventClassifier(**SMALL).fit(drawn()).rows_[0]


def test_the_same_state_gives_the_same_answers_and_a_pickle_too() -> None:
    events = drawn()
    one, two = (EventClassifier(**SMALL, random_state=3).fit(events) for _ in range(2))
    assert np.array_equal(one.predict_proba(events), two.predict_proba(events))
    twin = pickle.loads(pickle.dumps(one))
    assert np.array_equal(twin.predict_proba(events), one.predict_proba(events))
    other = EventClassifier(**SMALL, random_state=4).fit(events)
    assert not np.array_equal(one.predict_proba(events), other.predict_proba(events))
    assert not hasattr(clone(one), "model_")


def test_options_reach_the_model() -> None:
    model = EventClassifier(
        "mercer", **{**SMALL, "time_width": 12}, harmonics=1, periods=(0.5, 8.0), attention="primal"
    )
    layer = model.fit(drawn()).model_.model.blocks[0].attention
    assert layer.time.periods == (0.5, 8.0)
    assert type(layer.attention).__name__ == "PrimalAttention"


def test_words() -> None:
    events = drawn()
    with pytest.raises(UnknownName, match="unknown time encoding 'bochnr', did you mean 'bochner'"):
        EventClassifier("bochnr", **SMALL).fit(events)
    with pytest.raises(BadInput, match="EventClassifier: the answers are of 1 class, expected two or more"):
        EventClassifier(**SMALL).fit(events, ["x"] * len(events))
    with pytest.raises(UnknownName, match="unknown unit 'day'"):
        EventClassifier(**SMALL, unit="day").fit(events)
    with pytest.raises(BadInput, match=r"sequence 0 has time 1\.0 after 2\.0"):
        EventClassifier(**SMALL).fit([([2.0, 1.0], ["a", "b"])], ["x"])
    model = EventClassifier(**SMALL).fit(events)
    with pytest.raises(BadInput, match="sequence 0 has type 'z', expected one of 0, 1, 2"):
        model.predict([([0.0], ["z"])])
    with pytest.raises(BadInput, match="is asked about at -1"):
        model.predict(events.take([0]), asked=[-1.0])
