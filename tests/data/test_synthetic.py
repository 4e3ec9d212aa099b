"""echo_series: its sizes, its draw, its known answer, its words."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Series, echo_motifs, echo_series
from kernelhead.errors import BadInput


def matched(drawn: Series, motifs: np.ndarray) -> list[str]:
    """The class whose motif fits best at any place: the likeliest one in white noise."""
    energy = (motifs**2).sum(axis=(1, 2))
    found = []
    for case in drawn.cases:
        windows = np.lib.stride_tricks.sliding_window_view(case, motifs.shape[1], axis=0)  # (places, a, t)
        fit = 2 * np.einsum("pat,kta->kp", windows, motifs) - energy[:, None]
        found.append(str(fit.max(axis=1).argmax()))
    return found


@given(
    cases=st.integers(1, 12), channels=st.integers(1, 3), classes=st.integers(1, 4), seed=st.integers(0, 999)
)
def test_sizes_are_as_asked(cases: int, channels: int, classes: int, seed: int) -> None:
    drawn = echo_series(cases, length=25, channels=channels, classes=classes, seed=seed)
    assert (len(drawn), drawn.channels) == (cases, channels)
    assert all(12 <= len(case) <= 25 for case in drawn.cases)
    counts = Counter(drawn.labels)
    assert len(counts) == min(cases, classes)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_matched_filter_reads_the_classes() -> None:
    sizes = {"length": 64, "channels": 2, "classes": 5}
    drawn = echo_series(200, seed=3, **sizes)
    assert len({len(case) for case in drawn.cases}) > 10
    hits = sum(map(str.__eq__, matched(drawn, echo_motifs(**sizes)), drawn.labels))
    assert hits >= 198


def test_a_seed_names_a_draw() -> None:
    first, again, other = (echo_series(6, length=24, channels=1, classes=2, seed=seed) for seed in (0, 0, 1))
    assert all(map(np.array_equal, first.cases, again.cases))
    assert first.labels == again.labels
    assert not all(map(np.array_equal, first.cases, other.cases))


@pytest.mark.parametrize(
    ("cases", "changed", "words"),
    [
        (0, {}, "echo_series: cases is 0"),
        (3, {"seed": -1}, "echo_series: seed is -1"),
        (3, {"channels": 0}, "echo_motifs: channels is 0"),
        (3, {"classes": 0}, "echo_motifs: classes is 0"),
        (3, {"length": 11}, "echo_motifs: length is 11, expected at least 12 for 2 classes"),
    ],
)
def test_a_wrong_size_is_named(cases: int, changed: dict[str, int], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        echo_series(cases, **({"length": 24, "channels": 1, "classes": 2, "seed": 0} | changed))
