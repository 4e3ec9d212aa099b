"""Series and what is done to them before a model sees them: split, standardise, order, pad."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Series, Standardiser, batches, epoch_order, padded, split
from kernelhead.errors import BadInput, ShapeError

LABELS = st.lists(st.sampled_from(["1", "2", "10", "left"]), min_size=2, max_size=40)
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def series(
    lengths: list[int], labels: list[str] | None = None, *, channels: int = 2, seed: int = 0
) -> Series:
    draw = np.random.default_rng(seed)
    cases = tuple(draw.standard_normal((length, channels)) for length in lengths)
    return Series(cases, None if labels is None else tuple(labels), "drawn")


def test_a_series_says_what_it_holds() -> None:
    drawn = series([3, 5, 4], ["10", "2", "10"])
    assert (len(drawn), drawn.channels, drawn.longest, drawn.classes) == (3, 2, 5, ("2", "10"))
    assert drawn.ids == ("0", "1", "2")
    assert all(case.dtype == np.float32 for case in drawn.cases)
    assert series([3]).classes == ()


def test_classes_sort_numbers_by_size_and_before_words() -> None:
    labels = ["nan", "b", "10", "2.0", "-1", "inf", "a", "2"]
    assert series([1] * 8, labels).classes == ("-1", "2", "2.0", "10", "a", "b", "inf", "nan")


def test_take_keeps_labels_and_ids() -> None:
    taken = series([3, 5, 4], ["a", "b", "c"]).take([2, 0])
    assert (taken.labels, taken.ids, [len(case) for case in taken.cases]) == (("c", "a"), ("2", "0"), [4, 3])
    assert series([3, 5]).take(np.array([1])).labels is None


@pytest.mark.parametrize(
    ("cases", "labels", "words"),
    [
        ((), None, "Series 'bad': has no case, expected at least one"),
        ((np.zeros((2, 3)), np.zeros((2, 4))), None, "case 1 has 4 channels, but case 0 has 3"),
        (
            (np.zeros((2, 3)), np.zeros((0, 3))),
            None,
            r"case 1 is float64 of shape \(0, 3\), expected numbers",
        ),
        ((np.zeros(3),), None, r"case 0 is float64 of shape \(3,\), expected numbers \(t, a\)"),
        ((np.array([["a"]]),), None, "case 0 is <U1 of shape"),
        ((np.zeros((2, 3)), np.array([[0, 0], [0, np.nan]])), None, "case 1 holds nan at time 1, channel 1"),
        ((np.array([[0.0, 1e300]]),), None, "case 0 holds inf at time 0, channel 1"),
        ((np.zeros((2, 3)),), ("a", "b"), "has 2 labels for 1 cases, expected one a case"),
    ],
)
def test_a_broken_series_is_named(cases: tuple, labels: tuple | None, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Series(cases, labels, "bad")


def test_ids_are_counted() -> None:
    with pytest.raises(BadInput, match="has 2 ids for 1 cases"):
        Series((np.zeros((2, 3)),), None, "bad", ids=("a", "b"))


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([], r"Series.take: indices have shape \(0,\)"),
        ([[0]], r"indices have shape \(1, 1\), expected one axis"),
        (np.array([True, False]), "indices are bool, expected whole numbers"),
        ([0, 2], "indices run from 0 to 2, expected 0 to 1"),
        ([-1], "indices run from -1 to -1, expected 0 to 1"),
    ],
)
def test_take_names_a_wrong_position(indices: list, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        series([1, 2]).take(indices)


@given(labels=LABELS, fraction=st.floats(0.01, 0.99), seed=st.integers(0, 999))
def test_split_is_a_stratified_partition(labels: list[str], fraction: float, seed: int) -> None:
    counts = Counter(labels)
    if len(counts) == 1 or max(counts.values()) == 1:
        return
    whole = series([1] * len(labels), labels)
    rest, held_out = split(whole, fraction=fraction, seed=seed)
    assert sorted(map(int, rest.ids + held_out.ids)) == list(range(len(labels)))
    kept, gone = Counter(rest.labels), Counter(held_out.labels)
    for name, count in counts.items():
        assert kept[name] >= 1
        assert gone[name] >= (count > 1)
        assert abs(gone[name] - fraction * count) <= 1
    for part in (rest, held_out):
        assert list(part.ids) == sorted(part.ids, key=int)
        assert [whole.labels[int(i)] for i in part.ids] == list(part.labels)
        assert all(
            np.array_equal(whole.cases[int(i)], case) for i, case in zip(part.ids, part.cases, strict=True)
        )


def test_split_is_decided_by_its_seed() -> None:
    whole = series([1] * 40, ["a", "b"] * 20)
    first, again, other = (split(whole, fraction=0.25, seed=seed)[1].ids for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_split_names_a_wrong_fraction(fraction: float) -> None:
    with pytest.raises(BadInput, match=f"split: fraction is {fraction}, expected a number between 0 and 1"):
        split(series([1, 1], ["a", "b"]), fraction=fraction, seed=0)


@pytest.mark.parametrize(
    ("labels", "seed", "words"),
    [
        (None, 0, "split: 'drawn' has no labels to split by"),
        (["a", "a"], 0, "split: 'drawn' has the single class 'a', expected two or more"),
        (["a", "b"], 0, "split: no class of 'drawn' has two cases, so none can be held out"),
        (["a", "b"], -1, "split: seed is -1, expected a whole number of at least 0"),
    ],
)
def test_split_names_what_cannot_be_split(labels: list[str] | None, seed: int, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        split(series([1, 1], labels), fraction=0.5, seed=seed)


@given(lengths=LENGTHS, seed=st.integers(0, 999))
def test_standardised_training_has_mean_zero_and_deviation_one(lengths: list[int], seed: int) -> None:
    drawn = series([*lengths, 2], seed=seed)
    steps = np.concatenate(Standardiser.fit(drawn).apply(drawn).cases).astype(np.float64)
    rounding = 16 * np.finfo(np.float32).eps
    assert np.abs(steps.mean(axis=0)).max() <= rounding * np.abs(steps).max()
    assert np.abs(steps.std(axis=0) - 1).max() <= rounding * np.abs(steps).max()


def test_a_constant_channel_is_divided_by_one() -> None:
    steps = np.stack([np.full(7, 0.1), np.arange(7)], axis=1)
    fitted = Standardiser.fit(Series((steps,), None, "flat"))
    assert fitted.deviation.tolist() == [1.0, 2.0]
    other = fitted.apply(Series((steps + 1,), ("a",), "moved"))
    assert (other.labels, other.name) == (("a",), "moved")
    np.testing.assert_allclose(other.cases[0][:, 0], 1.0, rtol=2 * np.finfo(np.float32).eps)


def test_a_standardiser_names_what_does_not_fit() -> None:
    fitted = Standardiser.fit(series([4]))
    with pytest.raises(ShapeError, match="'drawn' has 3 channels, but 2 were there at the fit"):
        fitted.apply(series([4], channels=3))
    with pytest.raises(ShapeError, match=r"`mean` has shape \(2,\) and `deviation` \(3,\), expected \(a,\)"):
        Standardiser(np.zeros(2), np.ones(3))
    with pytest.raises(BadInput, match=r"the smallest deviation is 0.0, expected more than 0"):
        Standardiser(np.zeros(2), np.array([1.0, 0.0]))


@given(count=st.integers(1, 50), size=st.integers(1, 60), seed=st.integers(0, 999), epoch=st.integers(0, 99))
def test_an_epoch_visits_every_case_once(count: int, size: int, seed: int, epoch: int) -> None:
    order = epoch_order(count, seed=seed, epoch=epoch)
    pieces = list(batches(order, size))
    assert np.array_equal(np.concatenate(pieces), order)
    assert sorted(order.tolist()) == list(range(count))
    assert all(len(piece) == size for piece in pieces[:-1])
    assert np.array_equal(order, epoch_order(count, seed=seed, epoch=epoch))


def test_epochs_and_seeds_differ_and_the_global_generator_stays() -> None:
    before = str(np.random.get_state())
    orders = {tuple(epoch_order(30, seed=seed, epoch=epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    assert str(np.random.get_state()) == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epoch_order(0, seed=0, epoch=0), "epoch_order: count is 0"),
        (lambda: epoch_order(3, seed=-1, epoch=0), "epoch_order: seed is -1"),
        (lambda: epoch_order(3, seed=0, epoch=-1), "epoch_order: epoch is -1"),
        (lambda: batches(np.arange(3), 0), "batches: size is 0"),
    ],
)
def test_an_order_names_a_wrong_size(call: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()


@given(lengths=LENGTHS, more=st.integers(0, 3), seed=st.integers(0, 999))
def test_padding_keeps_the_values_and_marks_the_rest(lengths: list[int], more: int, seed: int) -> None:
    drawn = series(lengths, seed=seed)
    order = epoch_order(len(drawn), seed=seed, epoch=0)
    values, mask = padded(drawn, order, length=drawn.longest + more if more else None)
    assert values.shape == (len(drawn), drawn.longest + more, 2)
    assert (values.dtype, mask.dtype) == (np.float32, np.bool_)
    assert mask.sum(axis=1).tolist() == [lengths[i] for i in order]
    assert not values[~mask].any()
    for row, real, index in zip(values, mask, order, strict=True):
        assert np.array_equal(row[real], drawn.cases[index])
        assert np.array_equal(real, np.sort(real)[::-1])


def test_a_batch_is_as_long_as_its_longest_case() -> None:
    assert padded(series([3, 9, 4]), [0, 2])[0].shape == (2, 4, 2)


def test_padding_names_a_length_too_short() -> None:
    with pytest.raises(BadInput, match="padded: a case has 9 time stamps, but length is 5"):
        padded(series([3, 9]), [0, 1], length=5)
    with pytest.raises(BadInput, match="padded: length is 0, expected a whole number of at least 1"):
        padded(series([3, 9]), [0, 1], length=0)
    with pytest.raises(BadInput, match="padded: indices run from 2 to 2"):
        padded(series([3, 9]), [2])


def test_channels_are_arranged_by_name() -> None:
    case = np.array([[1.0, 2.0], [3.0, 4.0]])
    named = Series((case,), None, "named", columns=("left", "right"))
    assert named.arranged(("right", "left")).cases[0].tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert named.arranged(()) is named
    assert named.take([0]).columns == ("left", "right")
    with pytest.raises(BadInput, match="named: has the channels left, right, expected left, up"):
        named.arranged(("left", "up"))
    with pytest.raises(BadInput, match="has 1 columns for 2 channels"):
        Series((case,), None, "short", columns=("left",))
